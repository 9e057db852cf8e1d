//! The disk builder: the ways to make and mount a filesystem, with quota or without.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use pool::enable_quota;
use rustix::io::Errno;

use crate::loops::{LoopMount, run};

/// A disk to make. By default it has a filesystem made with the defaults of mkfs and without quota,
/// on 256 MiB, or on 320 MiB for XFS.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    pub name: &'static str,
    pub filesystem: &'static str,
    /// Options of mkfs.
    pub make: &'static [&'static str],
    /// Options of mount.
    pub mount: &'static [&'static str],
    /// An option to remount it with.
    remount: Option<&'static str>,
    size: u64,
    then: Then,
    /// The state of project quota that the kernel reports.
    pub state: Result<u16, Errno>,
}

/// The last step of making a disk, after the mount.
#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    /// Enables simple quota.
    SimpleQuota,
    /// Writes a file that does not belong to a pool.
    OtherData,
}

/// Project quota counts and limits.
const LIMITS: Result<u16, Errno> = Ok(0x30);

impl Disk {
    /// A disk with the defaults of its filesystem.
    pub const fn new(filesystem: &'static str) -> Self {
        Self {
            name: filesystem,
            filesystem,
            make: &[],
            mount: &[],
            remount: None,
            size: match filesystem.as_bytes() {
                b"xfs" => 320 << 20,
                _ => 256 << 20,
            },
            then: Then::Nothing,
            state: Err(Errno::NOSYS),
        }
    }

    /// Sets the name in the messages of tests.
    const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets the size in bytes.
    #[must_use]
    pub const fn sized(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    /// Makes it larger by this many bytes.
    #[must_use]
    pub const fn larger_by(mut self, bytes: u64) -> Self {
        self.size += bytes;
        self
    }

    /// Sets options of mkfs.
    #[must_use]
    pub const fn made_with(mut self, options: &'static [&'static str]) -> Self {
        self.make = options;
        self
    }

    /// Sets options of mount.
    #[must_use]
    pub const fn mounted_with(mut self, options: &'static [&'static str]) -> Self {
        self.mount = options;
        self
    }

    const fn remounted_with(mut self, option: &'static str) -> Self {
        self.remount = Some(option);
        self
    }

    /// Sets the state of project quota that the kernel reports.
    const fn has_state(mut self, state: Result<u16, Errno>) -> Self {
        self.state = state;
        self
    }

    /// Enables simple quota, on a btrfs.
    #[must_use]
    pub const fn with_simple_quota(mut self) -> Self {
        self.then = Then::SimpleQuota;
        self
    }

    /// Adds other data, so that making a pool on a btrfs does not enable quota.
    #[must_use]
    pub const fn with_other_data(mut self) -> Self {
        self.then = Then::OtherData;
        self
    }

    /// Whether project quota enforces sizes.
    pub fn enforces(&self) -> bool {
        self.state == LIMITS
    }

    /// Makes the image and the filesystem; mounts nothing.
    pub fn format(&self, image: &Path, at: &Path) -> LoopMount {
        File::create(image).unwrap().set_len(self.size).unwrap();
        let mkfs = || {
            let mut mkfs = Command::new(format!("mkfs.{}", self.filesystem));
            mkfs.arg("-q").args(self.make).arg(image).output().unwrap()
        };
        let mut made = mkfs();
        // mkfs examines all loop devices, and fails if one disappears meanwhile.
        for _ in 0..10 {
            if !String::from_utf8_lossy(&made.stderr).contains("cannot check mount status") {
                break;
            }
            made = mkfs();
        }
        let stderr = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "mkfs.{}: {stderr}", self.filesystem);
        LoopMount::new(self.filesystem, image, at)
    }

    /// Makes the image and the filesystem, and mounts it at a directory, which is made if missing.
    pub fn make(&self, image: &Path, at: &Path) -> LoopMount {
        let disk = self.format(image, at);
        std::fs::create_dir_all(at).unwrap();
        self.mount(&disk);
        match self.then {
            Then::Nothing => {}
            Then::SimpleQuota => assert!(enable_quota(at).unwrap(), "it was off"),
            Then::OtherData => {
                std::fs::create_dir_all(at.join("lost+found")).unwrap();
                std::fs::write(at.join("lost+found/other"), "other").unwrap();
            }
        }
        disk
    }

    /// Whether this kernel can mount an image of it.
    pub fn can_be_mounted(&self, disk: &LoopMount) -> bool {
        std::fs::create_dir_all(disk.path()).unwrap();
        let options = [&["loop"], self.mount].concat().join(",");
        let mut mount = Command::new("mount");
        mount
            .args(["-o", &options])
            .args([disk.image(), disk.path()]);
        mount.output().unwrap().status.success()
    }

    /// Mounts a disk of the machine that has such a filesystem.
    pub fn mount_device(&self, device: &Path, at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        run(Command::new("mount")
            .args(["-o", &self.mount.join(",")])
            .args([device, at]));
    }

    /// Mounts an image that has such a filesystem.
    pub fn mount(&self, disk: &LoopMount) {
        disk.mount(self.mount);
        if let Some(option) = self.remount {
            run(Command::new("mount")
                .args(["-o", &format!("remount,{option}")])
                .arg(disk.path()));
        }
    }
}

/// The filesystems that a pool can be on.
pub const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// An ext4 that can account project quota.
const EXT4_PROJECT: Disk =
    Disk::new("ext4").made_with(&["-O", "quota,project", "-E", "quotatype=prjquota"]);

pub const XFS: Disk = Disk::new("xfs")
    .named("xfs prjquota")
    .mounted_with(&["prjquota"])
    .has_state(LIMITS);

pub const EXT4: Disk = EXT4_PROJECT
    .named("ext4 prjquota")
    .mounted_with(&["prjquota"])
    .has_state(LIMITS);

/// The disks on which project quota enforces sizes.
pub const ENFORCING: [Disk; 2] = [XFS, EXT4];

pub const XFS_PLAIN: Disk = Disk::new("xfs").named("xfs plain");

/// As [`EXT4`], mounted without the option.
pub const EXT4_COUNTING: Disk = EXT4_PROJECT
    .named("ext4 features without the option")
    .has_state(Ok(0x10));

/// The disks on which nothing enforces sizes.
pub const OTHERS: [Disk; 7] = [
    XFS_PLAIN,
    Disk::new("xfs")
        .named("xfs pqnoenforce")
        .mounted_with(&["pqnoenforce"])
        .has_state(Ok(0x10)),
    Disk::new("xfs")
        .named("xfs usrquota")
        .mounted_with(&["usrquota"])
        .has_state(Ok(0x3)),
    Disk::new("xfs")
        .named("xfs remounted with prjquota")
        .remounted_with("prjquota"),
    EXT4_COUNTING,
    EXT4_PROJECT
        .named("ext4 remounted with prjquota")
        .remounted_with("prjquota")
        .has_state(Ok(0x10)),
    Disk::new("ext4").named("ext4 plain"),
];
