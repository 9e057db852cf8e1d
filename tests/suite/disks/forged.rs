//! A copy of a pool's disk that a pod wrote into its block volume, mounted in place of the disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{FILESYSTEMS, KeptVolume, NODE, ServedDisks, eventually, mount_all, unmount_all};
use support::disk::Disk;
use support::loops::{LoopMount, PodDevice, run};
use support::{Node, require, rootcellar};

const SAYS: &str = "a loop device of this driver, whose content a pod decides";

/// The pod's device, and the one that the kubelet puts over it, which has any low number.
#[derive(Debug, Clone, Copy)]
enum Through {
    Device,
    Lock,
}

/// Mounts the filesystem on a pod's device at a directory. The type is given, because a probe may find
/// an earlier one in the cache of a number that others use.
fn mount(device: &PodDevice, filesystem: &str, through: Through, at: &Path) {
    let mut mount = Command::new("mount");
    mount.args(["-t", filesystem]);
    if matches!(through, Through::Lock) {
        mount.args(["-o", "loop"]);
    }
    mount.arg(device.path()).arg(at);
    // XFS mounts no second filesystem with its UUID, and the server may still inspect the first one.
    let mut said = Vec::new();
    eventually("the forged disk is mounted", || {
        let output = mount.output().unwrap();
        if output.stderr != said {
            said = output.stderr;
            eprintln!("{through:?}: {}", String::from_utf8_lossy(&said));
        }
        output.status.success()
    });
}

fn unmount(at: &Path) {
    eventually("the forged disk is unmounted", || {
        let unmounted = Command::new("umount").arg(at).output();
        unmounted.unwrap().status.success()
    });
}

/// The exit code and the output of a command.
fn tell(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(rootcellar()).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Asserts that a command refuses the disk.
#[track_caller]
fn refuses(arguments: &[&str]) {
    let (code, said) = tell(arguments);
    assert!(
        code == Some(1) && said.contains(SAYS),
        "{arguments:?}: {said}"
    );
}

/// A copy of the disk, once nothing has the disk open.
fn forge(node: &Node, disk: &LoopMount) -> PathBuf {
    eventually("nothing holds the disk", || disk.device().is_empty());
    let forged = node.path("forged");
    run(Command::new("cp")
        .arg("--sparse=always")
        .args([disk.image(), &forged]));
    forged
}

async fn assert_refused(
    rig: &mut ServedDisks,
    disk: &LoopMount,
    kept: &KeptVolume,
    device: &PodDevice,
) {
    let pool = disk.path().file_name().unwrap().to_str().unwrap();
    let at = disk.path().to_str().unwrap();
    for through in [Through::Device, Through::Lock] {
        mount(device, pool, through, disk.path());
        rig.wait(&[(pool, SAYS)]).await;
        rig.assert_unavailable(pool, kept).await;
        let state = rig.node.path("state");
        let state = format!("--state-dir={}", state.display());
        let option = format!("--pool={pool}={at}");
        refuses(&["check", &option, &state, "--kubelet-dir=/nowhere"]);
        refuses(&["pool", "list", &option, &state]);
        refuses(&["pool", "adopt", "--node", NODE, &state, at]);
        unmount(disk.path());
    }
}

/// A pool is not served from a pod's device, nor from a device above it, and its own disk is served again.
///
/// Proves: P13.
#[tokio::test]
async fn a_disk_that_a_pod_forged_is_refused() {
    require!(loop_devices);
    let (disks, mut rig, _) = ServedDisks::serve_disks(&[]).await;
    let kept = rig.keep_in(&FILESYSTEMS).await;
    for volume in &kept {
        volume.unpublish(&mut rig.clients).await;
    }
    unmount_all(&disks);
    for (disk, kept) in disks.iter().zip(&kept) {
        let forged = forge(&rig.node, disk);
        let device = PodDevice::new(&forged);
        assert_refused(&mut rig, disk, kept, &device).await;
    }
    mount_all(&disks);
    rig.wait_all(&FILESYSTEMS, "healthy").await;
    for volume in kept {
        volume.assert_kept(&mut rig.clients).await;
    }
    rig.assert_beneath();
}

/// No pool is made on a pod's device, nor on a btrfs of which it is one of two devices.
///
/// Proves: P13.
#[test]
fn no_pool_is_made_on_a_pods_device() {
    require!(loop_devices);
    let node = Node::new();
    let at = node.path("at");
    std::fs::create_dir(&at).unwrap();
    for filesystem in FILESYSTEMS {
        let image = node.path(filesystem);
        Disk::new(filesystem).format(&image, &at);
        let device = PodDevice::new(&image);
        mount(&device, filesystem, Through::Device, &at);
        refuses(&["pool", "init", "--node", NODE, at.to_str().unwrap()]);
        assert!(!at.join(".rootcellar").is_dir(), "{filesystem}");
        unmount(&at);
    }
    let own = Disk::new("btrfs").make(&node.path("own"), &at);
    let added = node.path("added");
    std::fs::File::create(&added)
        .unwrap()
        .set_len(256 << 20)
        .unwrap();
    let device = PodDevice::new(&added);
    run(Command::new("btrfs")
        .args(["device", "add", "-f"])
        .arg(device.path())
        .arg(&at));
    refuses(&["pool", "init", "--node", NODE, at.to_str().unwrap()]);
    own.unmount();
}

/// A pool that is served becomes unavailable as soon as its filesystem has a pod's device too.
///
/// Proves: P13.
#[tokio::test]
async fn a_served_disk_that_gains_a_pods_device_is_refused() {
    require!(loop_devices);
    let (disks, mut rig, _) = ServedDisks::serve_disks(&[]).await;
    let at = FILESYSTEMS
        .iter()
        .position(|name| *name == "btrfs")
        .unwrap();
    let kept = rig.keep_in(&["btrfs"]).await.remove(0);
    let added = rig.node.path("added");
    std::fs::File::create(&added)
        .unwrap()
        .set_len(256 << 20)
        .unwrap();
    let device = PodDevice::new(&added);
    let change = |action: &[&str]| {
        run(Command::new("btrfs")
            .arg("device")
            .args(action)
            .arg(device.path())
            .arg(disks[at].path()));
    };
    change(&["add", "-f"]);
    rig.wait(&[("btrfs", SAYS)]).await;
    rig.assert_unavailable("btrfs", &kept).await;
    change(&["remove"]);
    rig.wait_all(&["btrfs"], "healthy").await;
    kept.assert_kept(&mut rig.clients).await;
}
