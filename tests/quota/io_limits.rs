//! Limits of I/O in a real tree of cgroup v2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::io::{CgroupPlace, IoLimits, PodsCgroup};
use linux::mount::KernelMounter;
use rootcellar::volume::{ExpandRequest, Kind, LimitChanges, Settings};
use rustix::mount::{MountFlags, UnmountFlags};

use objects::Bytes;
use support::disk::XFS;
use support::loops::run;
use support::{Fakes, Node, Running, create, publish, skip, snapshot};

const MIB: u64 = 1 << 20;

/// A mount of cgroup v2 with a cgroup of pods and one of a pod.
struct Tree(PathBuf);

impl Tree {
    /// `None`: the kernel has no controller `io` there.
    fn new(at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        rustix::mount::mount("none", &at, "cgroup2", MountFlags::empty(), None).unwrap();
        let tree = Self(at);
        let pods = tree.0.join("kubepods");
        // Without the controller memory, the kernel writes back what pods have written for nobody, and without limits.
        fs::write(tree.0.join("cgroup.subtree_control"), "+io +memory").ok()?;
        fs::create_dir_all(pods.join("pod")).unwrap();
        fs::write(pods.join("cgroup.subtree_control"), "+io +memory").unwrap();
        Some(tree)
    }

    fn limits(&self) -> Vec<IoLimits> {
        let place = CgroupPlace::Tree(self.0.clone());
        let limits = PodsCgroup::find(&place).unwrap().limits().unwrap();
        limits.into_values().collect()
    }

    /// How long a program of the pod takes to write this number of mebibytes into a file.
    fn write(&self, to: &Path, mebibytes: u64, how: &str) -> Duration {
        let start = Instant::now();
        let (pod, to) = (self.0.join("kubepods/pod/cgroup.procs"), to.display());
        let dd = format!("dd if=/dev/zero of={to} bs=1M count={mebibytes} {how} 2>/dev/null");
        run(Command::new("sh").args(["-c", &format!("echo $$ >{} && {dd}", pod.display())]));
        start.elapsed()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for dir in ["kubepods/pod", "kubepods"] {
            let _ = fs::remove_dir(self.0.join(dir));
        }
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn start(node: &Node, tree: &Tree) -> Running {
    let settings = Settings {
        cgroup: CgroupPlace::Tree(tree.0.clone()),
        ..node.settings(&[node.own_pool_option()])
    };
    let fakes = Fakes {
        mounter: Arc::new(KernelMounter),
        ..Fakes::default()
    };
    node.volumes_with(settings, &fakes)
}

/// The kernel limits what a pod writes, of a filesystem and of a block volume, and no limit is left after the unpublish. A
/// snapshot and a growth lift it meanwhile.
///
/// Proves: IO1, IO2, IO4, IO5.
#[test]
fn the_kernel_limits_what_a_pod_writes() {
    let node = Node::new();
    let Some(tree) = Tree::new(node.path("cgroups")) else {
        skip!("this kernel has no controller io in cgroup v2; run by hack/test/uml.sh");
    };
    let _disk = node.make_pool_disk(XFS.sized(512 << 20));
    let mut driver = start(&node, &tree);
    for block in [false, true] {
        let limits = IoLimits {
            write_bytes: Some(4 * MIB),
            ..IoLimits::NONE
        };
        let mut request = create(if block { "device" } else { "image" }, 64 * MIB);
        request.class.kind = Kind::Image;
        request.class.io_limits = limits;
        request.capabilities[0].block = block;
        let id = driver.create(&request).unwrap().id.to_string();
        let target = node.target(if block { "block" } else { "pod" });
        let mut published = publish(&id, &target);
        published.capability.block = block;
        driver.publish(&published).unwrap();
        assert_eq!(tree.limits(), [limits]);

        let file = if block {
            target.clone()
        } else {
            target.join("file")
        };
        // At least, because a busy machine is slower.
        let elapsed = tree.write(&file, 12, "oflag=direct");
        assert!(
            elapsed >= Duration::from_secs(2),
            "block: {block}: {elapsed:?}"
        );
        // Half a minute of writing back, for which a call would wait with the limit.
        let changes = LimitChanges {
            write_bytes: Some(MIB),
            ..LimitChanges::default()
        };
        driver.limit(&id, changes).unwrap();
        tree.write(&file, 30, "conv=notrunc");
        driver
            .create_snapshot(&snapshot(&id[id.len() - 8..], &id))
            .unwrap();
        let grown = driver.expand(&ExpandRequest {
            id: id.clone(),
            path: target.clone(),
            required: Bytes(96 * MIB),
            limit: None,
        });
        assert_eq!(grown.unwrap(), Bytes(96 * MIB));
        let slow = IoLimits {
            write_bytes: Some(MIB),
            ..IoLimits::NONE
        };
        assert_eq!(tree.limits(), [slow]);
        drop(driver);
        driver = start(&node, &tree);
        assert_eq!(tree.limits(), [slow]);
        driver.unpublish(&id, &target).unwrap();
        assert_eq!(tree.limits(), []);
    }
}

/// The unpublish of the writer of a block volume waits for no limit, although a reader stays.
///
/// Proves: IO2.
#[test]
fn the_unpublish_of_a_writer_waits_for_no_limit() {
    let node = Node::new();
    let Some(tree) = Tree::new(node.path("cgroups")) else {
        skip!("this kernel has no controller io in cgroup v2; run by hack/test/uml.sh");
    };
    let _disk = node.make_pool_disk(XFS.sized(512 << 20));
    let driver = start(&node, &tree);
    let limits = IoLimits {
        write_bytes: Some(MIB),
        ..IoLimits::NONE
    };
    let mut request = create("device", 64 * MIB);
    request.class.kind = Kind::Image;
    request.class.io_limits = limits;
    request.capabilities[0].block = true;
    let id = driver.create(&request).unwrap().id.to_string();
    let (writer, reader) = (node.target("writer"), node.target("reader"));
    for (target, read_only) in [(&writer, false), (&reader, true)] {
        let mut published = publish(&id, target);
        (published.capability.block, published.read_only) = (true, read_only);
        driver.publish(&published).unwrap();
    }
    // A minute of writing back with the limit.
    tree.write(&writer, 60, "conv=notrunc");
    let start = Instant::now();
    driver.unpublish(&id, &writer).unwrap();
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(tree.limits(), [limits]);
    driver.unpublish(&id, &reader).unwrap();
    assert_eq!(tree.limits(), []);
}
