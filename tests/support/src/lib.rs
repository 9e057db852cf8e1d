//! Support for tests and benches: nodes, disks, drivers with or without fakes, and the real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by a panic"
)]
#![allow(missing_debug_implementations, reason = "only tests use it")]
#![allow(
    clippy::new_without_default,
    reason = "a new one is a directory on the disk"
)]

pub mod cgroup;
pub mod disk;
pub mod disk_node;
pub mod driver_node;
pub mod faults;
pub mod fuse;
pub mod help;
pub mod imports;
pub mod kernel;
pub mod loops;
pub mod machine;
pub mod manual;
pub mod memory;
pub mod messages;
pub mod mounter;
pub mod nobody;
pub mod page;
pub mod picture;
pub mod pod;
pub mod poweroff;
pub mod quota;
pub mod random;
pub mod server;
pub mod tree;
pub mod unavailable;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::image::loops as loop_devices;
use linux::io::CgroupPlace;
use linux::mount::{MountEntry, MountOptions, MountTable, Mounter};
use linux::os::{self, FileId, Os};
use linux::quota::{KernelQuotas, Quotas};
use objects::{AccessMode, Bytes, VolumeName};
use pool::{Pool, PoolOptions, Unavailable};
use rootcellar::volume::{
    Caller, Capability, Class, CopyPolicy, CreateRequest, MEMBER_WAIT, PublishRequest, Seams,
    Settings, SnapshotClass, SnapshotRequest, TIMEOUT, Volumes,
};

use crate::disk::Disk;
use crate::loops::LoopMount;
use crate::mounter::FakeMounter;

/// The name of the node in every test.
pub const NODE: &str = "test-node";

/// The path of the binary under test; Cargo puts it next to the directory of the test programs.
pub fn rootcellar() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("rootcellar")
}

/// Ends the test and prints the reason for the skip. Where every test must run, this is a failure.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let reason = format!($($reason)*);
        assert!(
            std::env::var("ROOTCELLAR_REQUIRE_ALL").as_deref() != Ok("1"),
            "{name} was skipped, and everything must run: {reason}"
        );
        eprintln!("SKIP {name}: {reason}");
        return;
    }};
}

/// Skips the test if the machine does not meet a need: `require!(loop_devices)`. An expression may
/// follow, which is evaluated only if the test runs:
/// `let node = require!(loop_devices, Node::new())`.
#[macro_export]
macro_rules! require {
    ($what:ident) => {
        if let Some(reason) = $crate::machine::$what() {
            $crate::skip!("{reason}");
        }
    };
    ($what:ident, $then:expr) => {{
        $crate::require!($what);
        $then
    }};
}

/// Asserts that an error is this one of a pool: `assert_pool_error!(refused, NoSpace)`.
#[macro_export]
macro_rules! assert_pool_error {
    ($error:expr, $kind:ident) => {
        match $error {
            rootcellar::error::Error::Pool {
                error: pool::Error::$kind { .. },
                ..
            } => {}
            other => panic!("{other}"),
        }
    };
}

/// Lets a fixture dereference to another one in a field.
#[macro_export]
macro_rules! extends {
    ($fixture:ident, $field:ident: $base:ty) => {
        impl std::ops::Deref for $fixture {
            type Target = $base;

            fn deref(&self) -> &$base {
                &self.$field
            }
        }

        impl std::ops::DerefMut for $fixture {
            fn deref_mut(&mut self) -> &mut $base {
                &mut self.$field
            }
        }
    };
}

/// A temporary directory with the directories of a node: `pool`, `kubelet`, `state`, `run`.
pub struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    /// Makes the directories, all empty.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("rootcellar-test-")
            .tempdir()
            .unwrap();
        for name in ["pool", "kubelet", "state", "run"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    /// A path below the directory.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The pool's path.
    pub fn pool(&self) -> PathBuf {
        self.path("pool")
    }

    /// `--pool` for the directory `pool`, on the filesystem of the temporary directory.
    pub fn pool_option(&self) -> String {
        format!(
            "default={},init,any-filesystem,reserve=0",
            self.pool().display()
        )
    }

    /// `--pool` for the directory `pool`, which is the root of a filesystem of its own.
    pub fn own_pool_option(&self) -> String {
        format!("default={},init,reserve=0", self.pool().display())
    }

    /// Makes a disk and mounts it at `disk`.
    pub fn make_disk(&self, disk: Disk) -> LoopMount {
        disk.make(&self.path("image"), &self.path("disk"))
    }

    /// Makes a disk and mounts it at `pool`.
    pub fn make_pool_disk(&self, disk: Disk) -> LoopMount {
        disk.make(&self.path("image"), &self.pool())
    }

    /// Settings with the pools of these `--pool` texts.
    pub fn settings(&self, pools: &[String]) -> Settings {
        let parse = |text: &String| text.parse::<PoolOptions>().unwrap();
        Settings {
            node: NODE.parse().unwrap(),
            topology: format!("topology.rootcellar.dev/node={NODE}"),
            kubelet_dir: self.path("kubelet"),
            processes: "/proc".into(),
            cgroup: CgroupPlace::Tree(self.path("cgroup")),
            state_dir: self.path("state"),
            pools: pools.iter().map(parse).collect(),
            sets: Vec::new(),
            member_wait: MEMBER_WAIT,
            // A child just forked by another test still has the lock file open that this test has
            // closed.
            lock_wait: Duration::from_secs(10),
            timeout: TIMEOUT,
        }
    }

    /// A driver with the one pool, loaded, and these fakes.
    pub fn volumes(&self, fakes: &Fakes) -> Running {
        self.volumes_of(&[self.pool_option()], fakes)
    }

    /// A driver with these pools, loaded, and these fakes.
    pub fn volumes_of(&self, pools: &[String], fakes: &Fakes) -> Running {
        self.volumes_with(self.settings(pools), fakes)
    }

    /// A driver with these settings, loaded, and these fakes.
    pub fn volumes_with(&self, settings: Settings, fakes: &Fakes) -> Running {
        let settings = Settings {
            timeout: fakes.timeout,
            ..settings
        };
        let volumes = Volumes::with_seams(settings, fakes.seams());
        let volumes = Arc::new(volumes.unwrap());
        volumes.load().unwrap();
        Running(volumes)
    }

    /// A driver with these pools, open, without background work.
    pub fn opened(&self, pools: &[String], fakes: &Fakes) -> Running {
        let volumes = Volumes::with_seams(self.settings(pools), fakes.seams());
        let running = Running(Arc::new(volumes.unwrap()));
        running.check_pools();
        running
    }

    /// A target path as the kubelet chooses it; its parent is made.
    pub fn target(&self, pod: &str) -> PathBuf {
        let parent = self.path("kubelet/pods").join(pod);
        std::fs::create_dir_all(&parent).unwrap();
        parent.join("mount")
    }

    /// Waits until the trash of the pool is empty.
    pub fn wait_for_trash(&self) {
        wait_for_trash(&self.pool());
    }

    /// The names below a directory of the pool, sorted.
    pub fn names(&self, below: &str) -> Vec<String> {
        names(&self.pool().join(below))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if machine::mount_namespace().is_some() {
            return;
        }
        let table = MountTable::read().unwrap_or_default().entries.into_iter();
        let mut mounts: Vec<MountEntry> = table
            .filter(|mount| mount.mount_point.starts_with(self.dir.path()))
            .collect();
        let images = images_on(&mounts);
        // A mount that a test leaves behind prevents the removal of its directory.
        while let Some(mount) = mounts.pop() {
            let flags = rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(&mount.mount_point, flags);
        }
        if !images.is_empty() && !std::thread::panicking() {
            // Another test may have a device or its mount open for a moment.
            eventually("no loop device shows an image of the test", || {
                let devices = loop_devices::all().unwrap();
                devices.iter().all(|(_, file)| !images.contains(file))
            });
        }
    }
}

/// The identities of the images of volumes, in the pools that are on mounted disks.
fn images_on(mounts: &[MountEntry]) -> BTreeSet<FileId> {
    let of_disks = mounts.iter().filter(|mount| {
        // Other mounts may hang.
        mount.source.starts_with("/dev") || mount.source == Path::new(memory::SOURCE)
    });
    let pools = of_disks.flat_map(|mount| {
        let at = &mount.mount_point;
        [at.join("volumes"), at.join("pool/volumes")]
    });
    let volumes = pools.filter_map(|volumes| std::fs::read_dir(volumes).ok());
    let identity = |volume: std::io::Result<std::fs::DirEntry>| {
        let image = volume.ok()?.path().join("data/disk.img");
        let status = os::status_at(rustix::fs::CWD, image).ok()?;
        (status.file_type == rustix::fs::FileType::RegularFile).then_some(status.id)
    };
    volumes.flatten().filter_map(identity).collect()
}

/// How the names of placeholders in the trash begin.
pub const PLACEHOLDER: &str = "placeholder-";

/// The names in a directory, sorted, without the placeholders in a trash.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(PLACEHOLDER))
        .collect();
    names.sort();
    names
}

/// The directory of a volume or snapshot with this name, in `volumes/` or `snapshots/` of a pool.
pub fn directory_of(home: &Path, name: &str) -> PathBuf {
    let start = format!("{name}-");
    let all = names(home);
    let directory = all.iter().find(|directory| directory.starts_with(&start));
    home.join(directory.unwrap_or_else(|| panic!("no {name} in {all:?}")))
}

/// The seams of a driver under test. They outlive the driver, as the kernel does.
#[derive(Debug, Clone)]
pub struct Fakes {
    pub os: Os,
    pub mounter: Arc<dyn Mounter>,
    pub quotas: Arc<dyn Quotas>,
    /// How long an operation waits for a disk to answer.
    pub timeout: Duration,
}

impl Default for Fakes {
    fn default() -> Self {
        Self {
            os: Os::default(),
            mounter: Arc::new(FakeMounter::default()),
            quotas: Arc::new(KernelQuotas),
            timeout: TIMEOUT,
        }
    }
}

impl Fakes {
    fn seams(&self) -> Seams {
        Seams {
            os: self.os.clone(),
            mounter: Arc::clone(&self.mounter),
            quotas: Arc::clone(&self.quotas),
        }
    }
}

/// Loaded volumes that are stopped when dropped.
#[derive(Debug)]
pub struct Running(pub Arc<Volumes>);

impl Running {
    /// Checks every pool, as the server does every few seconds.
    pub fn check_pools(&self) {
        for pool in self.pools().iter() {
            self.check_pool(pool);
        }
    }

    /// Finds members that were mounted or unmounted, as the server does. A process that another test has
    /// just begun has the lock of an unmounted disk open until its exec.
    pub fn find_members(&self) {
        eventually("no pool is locked", || {
            self.discover().unwrap();
            self.check_pools();
            let is_locked = |pool: &Arc<Pool>| pool.why_unavailable() == Some(Unavailable::Locked);
            !self.pools().iter().any(is_locked)
        });
    }

    /// Waits until all pools have reclaimed their trash. They count an entry for a moment after its
    /// directory was removed.
    pub fn wait_for_trash(&self) {
        let is_empty = || {
            self.pools()
                .iter()
                .all(|pool| pool.measured_view().trash == 0)
        };
        eventually("nothing in the trash is counted", is_empty);
    }
}

impl std::ops::Deref for Running {
    type Target = Volumes;

    fn deref(&self) -> &Volumes {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// How long a test waits. It is generous and is not a measurement: a busy machine may take half a minute to unmount a
/// disk.
pub const DEADLINE: Duration = Duration::from_mins(2);

/// Waits until a condition holds that background work brings about.
pub fn eventually(what: impl Display, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs every case in a thread of its own, because most of the time they wait for the kernel or for background work.
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    let run = &run;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || run(case));
        }
    });
}

/// Unmounts a directory or a file. A process that another test has just begun may have it open until its
/// exec.
pub fn unmount(at: impl AsRef<Path>) {
    let at = at.as_ref();
    let unmount = || rustix::mount::unmount(at, rustix::mount::UnmountFlags::empty());
    eventually("nothing has the mount open", || match unmount() {
        Err(rustix::io::Errno::BUSY) => false,
        outcome => outcome.map(|()| true).unwrap(),
    });
}

/// Waits until the trash of a pool is empty.
pub fn wait_for_trash(pool: &Path) {
    let trash = pool.join(".rootcellar/trash");
    eventually("the trash is empty", || names(&trash).is_empty());
}

pub fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

/// Mount access in this mode.
pub fn capability(access_mode: AccessMode) -> Capability {
    Capability {
        block: false,
        access_mode,
        fs_type: None,
        options: MountOptions::default(),
    }
}

/// A request for a volume of this size, for many pods.
pub fn create(volume: &str, size: u64) -> CreateRequest {
    CreateRequest {
        name: name(volume),
        required: Bytes(size),
        limit: None,
        capabilities: vec![capability(AccessMode::SingleNodeMultiWriter)],
        class: Class::default(),
        source: None,
        excludes_node: false,
        caller: Caller::default(),
    }
}

/// A request for a snapshot, by a class that allows copies where they are needed.
pub fn snapshot(name: &str, of: impl Display) -> SnapshotRequest {
    SnapshotRequest {
        name: name.parse().unwrap(),
        source: of.to_string(),
        class: SnapshotClass {
            copies: CopyPolicy {
                copy: true,
                max_stall: None,
            },
            ..SnapshotClass::default()
        },
        excludes_node: false,
        caller: Caller::default(),
    }
}

/// A request to publish a volume for many pods.
pub fn publish(id: &str, target: &Path) -> PublishRequest {
    PublishRequest {
        id: id.to_owned(),
        target: target.to_owned(),
        capability: capability(AccessMode::SingleNodeMultiWriter),
        read_only: false,
    }
}
