//! The ways a filesystem can be made and mounted, and what project quota then does.

use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use crate::loops::{LoopMount, run};

const PROJECT: &[&str] = &["-O", "quota,project", "-E", "quotatype=prjquota"];

/// One way.
#[derive(Debug)]
pub struct Variant {
    pub name: &'static str,
    pub filesystem: &'static str,
    /// Options of mkfs.
    pub make: &'static [&'static str],
    /// Options of mount.
    pub mount: &'static [&'static str],
    /// An option it is mounted again with while it is mounted.
    remount: Option<&'static str>,
    /// What the kernel says of quota.
    pub state: Result<u16, Errno>,
}

impl Variant {
    const fn new(name: &'static str, filesystem: &'static str, state: Result<u16, Errno>) -> Self {
        Self {
            name,
            filesystem,
            make: &[],
            mount: &[],
            remount: None,
            state,
        }
    }

    /// Whether sizes are held.
    pub fn enforces(&self) -> bool {
        self.state == Ok(0x30)
    }

    /// Makes an image of it, mounted nowhere.
    pub fn format(&self, image: &Path, at: &Path) -> LoopMount {
        std::fs::create_dir_all(at).unwrap();
        LoopMount::format(self.filesystem, self.make, image, at)
    }

    /// Whether this kernel mounts an image of it.
    pub fn can_be_mounted(&self, disk: &LoopMount) -> bool {
        let options = [&["loop"], self.mount].concat().join(",");
        let mut mount = Command::new("mount");
        mount
            .args(["-o", &options])
            .args([disk.image(), disk.path()]);
        mount.output().unwrap().status.success()
    }

    /// Mounts a disk of the machine that was made so.
    pub fn mount_device(&self, device: &Path, at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        run(Command::new("mount")
            .args(["-o", &self.mount.join(",")])
            .args([device, at]));
    }

    /// Mounts an image, of this variant or one like it.
    pub fn mount(&self, disk: &LoopMount) {
        disk.mount(self.mount);
        if let Some(option) = self.remount {
            run(Command::new("mount")
                .args(["-o", &format!("remount,{option}")])
                .arg(disk.path()));
        }
    }
}

pub const XFS: Variant = Variant {
    mount: &["prjquota"],
    ..Variant::new("xfs prjquota", "xfs", Ok(0x30))
};

pub const EXT4: Variant = Variant {
    make: PROJECT,
    mount: &["prjquota"],
    ..Variant::new("ext4 prjquota", "ext4", Ok(0x30))
};

/// Those that hold sizes.
pub const ENFORCING: [&Variant; 2] = [&XFS, &EXT4];

pub const XFS_PLAIN: Variant = Variant::new("xfs plain", "xfs", Err(Errno::NOSYS));

/// As [`EXT4`], mounted without the option.
pub const EXT4_COUNTING: Variant = Variant {
    make: PROJECT,
    ..Variant::new("ext4 features without the option", "ext4", Ok(0x10))
};

/// Those that hold none.
pub const OTHERS: [&Variant; 7] = [
    &XFS_PLAIN,
    &Variant {
        mount: &["pqnoenforce"],
        ..Variant::new("xfs pqnoenforce", "xfs", Ok(0x10))
    },
    &Variant {
        mount: &["usrquota"],
        ..Variant::new("xfs usrquota", "xfs", Ok(0x3))
    },
    &Variant {
        remount: Some("prjquota"),
        ..Variant::new("xfs remounted with prjquota", "xfs", Err(Errno::NOSYS))
    },
    &EXT4_COUNTING,
    &Variant {
        make: PROJECT,
        remount: Some("prjquota"),
        ..Variant::new("ext4 remounted with prjquota", "ext4", Ok(0x10))
    },
    &Variant::new("ext4 plain", "ext4", Err(Errno::NOSYS)),
];
