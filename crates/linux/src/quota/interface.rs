//! The interface between a pool and the quota of its filesystem.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use objects::Bytes;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::filesystem::Filesystem;
use crate::os::{At, Os};
use crate::sys;

/// The result of a call of the kernel.
pub type Result<T> = std::result::Result<T, Errno>;

/// How a size is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// By the project quota of XFS and ext4.
    Project,
    /// By the simple quota of btrfs.
    Squota,
    /// Not at all.
    #[default]
    None,
}

impl Enforcement {
    /// The limit of a volume of this size; zero: none.
    pub fn limit(self, size: Bytes) -> Bytes {
        match self {
            Self::Project | Self::Squota => size,
            Self::None => Bytes::ZERO,
        }
    }

    /// The name in records and in the volume context.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Squota => "squota",
            Self::None => "none",
        }
    }
}

/// The charges and limits of a quota id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// The charged bytes.
    pub bytes: u64,
    /// The charged inodes; 0 where inodes are not counted.
    pub inodes: u64,
    /// The limit in bytes; 0: none.
    pub byte_limit: u64,
    /// The limit in inodes; 0: none.
    pub inode_limit: u64,
}

impl Charge {
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }

    pub fn exceeds(&self) -> bool {
        let above = |charged: u64, limit: u64| limit > 0 && charged > limit;
        above(self.bytes, self.byte_limit) || above(self.inodes, self.inode_limit)
    }

    pub fn is_limited(&self) -> bool {
        self.byte_limit != 0 || self.inode_limit != 0
    }
}

/// The subvolumes directly in another one, which a copy of that lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nested {
    /// Their number; [`Nested::MOST`]: as many or more.
    pub subvolumes: usize,
    /// The path of one, if it could be read.
    pub first: Option<String>,
}

impl Nested {
    pub const MOST: usize = sys::MOST_NESTED;
}

impl fmt::Display for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subvolumes {
            1 => write!(f, "1 subvolume")?,
            Self::MOST => write!(f, "{} subvolumes or more", Self::MOST)?,
            several => write!(f, "{several} subvolumes")?,
        }
        match &self.first {
            Some(first) if self.subvolumes > 1 => write!(f, ", one of them at {first:?}"),
            Some(first) => write!(f, ", at {first:?}"),
            None => Ok(()),
        }
    }
}

pub trait Quotas: Send + Sync + fmt::Debug {
    /// The quota of the filesystem of `root`, which is of this type.
    fn find(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>>;

    /// Switches quota on for the new pool in `root`, if the filesystem has no other data and needs
    /// no mount option.
    fn enable_for_new_pool(&self, _filesystem: Filesystem, _root: BorrowedFd<'_>) -> AtInit {
        AtInit::Unchanged
    }
}

/// The effect of `pool init` on quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtInit {
    /// None: quota is on already, or needs a mount option.
    Unchanged,
    Enabled,
    /// Still off, because the filesystem has other data, which would stay uncounted.
    OtherData,
    /// Still off, because the kernel refused with this error.
    Refused(Errno),
}

/// Why the kernel enforces no sizes on a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingQuota {
    /// The driver supports no quota of this filesystem.
    Unknown,
    /// It was mounted without the option that enforces project quota.
    MountOption,
    /// The ext4 does not have the features that project quota needs.
    Features,
    /// Quota is off on the btrfs.
    Off,
    Full,
    /// The kernel does not let this process use the quota.
    Permission,
}

impl MissingQuota {
    /// The reason, as part of a sentence about the filesystem of this type.
    pub fn on(self, filesystem: Filesystem) -> String {
        match self {
            Self::Unknown => format!("the driver knows no quota of {filesystem}"),
            Self::MountOption => {
                format!("the kernel says that {filesystem} was not mounted with prjquota")
            }
            Self::Features => "the ext4 lacks the features project and quota".to_owned(),
            Self::Off => "quota is off on the btrfs".to_owned(),
            Self::Full => {
                "the btrfs has full qgroups, which leave out subvolumes of pods".to_owned()
            }
            Self::Permission => {
                format!("the kernel lets this process set no limits on {filesystem}")
            }
        }
    }
}

/// The quota of one pool's filesystem. Each volume has a quota id. The methods with a body are those
/// of a filesystem without quota.
pub trait Quota: Send + Sync + fmt::Debug {
    fn enforcement(&self) -> Enforcement;

    /// Creates a directory, limited to `size` (zero: not limited) from its first byte, and returns
    /// its quota id. A failure leaves neither.
    fn create_dir(&self, os: &Os, at: At<'_>, size: Bytes) -> Result<Option<u32>>;

    /// Whether [`Quota::copy_dir`] can copy a directory.
    fn copies(&self, _source: BorrowedFd<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Creates a directory as [`Quota::create_dir`] does, as an atomic copy of `source` that shares
    /// its blocks; `read_only`: nobody can write into it.
    fn copy_dir(
        &self,
        _os: &Os,
        _source: BorrowedFd<'_>,
        _target: At<'_>,
        _size: Bytes,
        _read_only: bool,
    ) -> Result<Option<u32>> {
        Err(Errno::OPNOTSUPP)
    }

    /// The subvolumes in a directory that [`Quota::copy_dir`] copies, which the copy lacks.
    fn nested(&self, _dir: BorrowedFd<'_>) -> Result<Option<Nested>> {
        Ok(None)
    }

    /// Sets the limit of a quota id to that of `size` (zero: none). Durable with the next syncfs.
    fn limit(&self, _os: &Os, _id: u32, _size: Bytes) -> Result<()> {
        Ok(())
    }

    /// The charges and limits of a quota id.
    fn charge(&self, _id: u32) -> Result<Charge> {
        Ok(Charge::default())
    }

    fn usage(&self, id: u32) -> Result<u64> {
        Ok(self.charge(id)?.bytes)
    }

    /// The maximum number of files and directories in a volume of a size; `None`: not limited.
    fn inode_limit(&self, _size: Bytes) -> Option<u64> {
        None
    }

    /// Whether the limits are those of `size` (zero: none).
    fn has_limit(&self, _charge: &Charge, _size: Bytes) -> bool {
        true
    }

    /// The quota ids of [`OURS`](super::OURS) that the kernel knows.
    fn charges(&self) -> Result<Vec<(u32, Charge)>> {
        Ok(Vec::new())
    }

    /// As [`Quota::charges`], limited to the recorded ids and to those near the start of [`OURS`](super::OURS).
    /// The driver takes the lowest free id, so its leftovers are there.
    fn charges_nearby(
        &self,
        _recorded: &mut dyn Iterator<Item = u32>,
    ) -> Result<Vec<(u32, Charge)>> {
        self.charges()
    }

    /// The quota id of [`OURS`](super::OURS) to which the content of a directory of [`Quota::create_dir`] is
    /// charged.
    fn charged_to(&self, _dir: BorrowedFd<'_>) -> Result<Option<u32>> {
        Ok(None)
    }

    /// The quota id of a file or directory in such a tree. `None`: it is charged as its parent is;
    /// 0: it is not charged.
    fn tag(&self, _file: BorrowedFd<'_>) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Takes a free quota id for a tree that exists already.
    fn take(&self) -> Result<u32> {
        Err(Errno::OPNOTSUPP)
    }

    /// Sets the quota id of a file or directory of an existing tree, or removes it.
    fn set_tag(
        &self,
        _os: &Os,
        _file: BorrowedFd<'_>,
        _id: Option<u32>,
        _is_dir: bool,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Marks a quota id as used, because a record has it.
    fn note(&self, _id: u32) {}

    /// Removes a directory of [`Quota::create_dir`] with its content, if the filesystem can; false if
    /// its entries must be removed one by one.
    fn destroy_dir(&self, _os: &Os, _at: At<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Frees the quota id of a reclaimed directory. EBUSY: it still has charges.
    fn release(&self, _os: &Os, _id: u32) -> Result<()> {
        Ok(())
    }
}
