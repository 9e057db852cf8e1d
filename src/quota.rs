//! How the size of a volume is held: the seam between a pool and its filesystem's quota.

mod btrfs;
mod fake;
mod ids;
mod none;
mod project;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::filesystem::Filesystem;
use crate::os::Os;
use crate::types::Bytes;

pub use btrfs::{Mode, enable, mode};
pub use fake::FakeQuota;
pub use ids::OURS;
pub use none::NoQuota;

/// How a size is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// By the project quota of XFS and ext4.
    Project,
    /// By the simple quota of btrfs.
    Squota,
    /// Not at all.
    None,
}

impl Enforcement {
    /// What a volume of this size is limited to; zero: nothing.
    pub fn limit(self, size: Bytes) -> Bytes {
        match self {
            Self::Project | Self::Squota => size,
            Self::None => Bytes::ZERO,
        }
    }

    /// The word records and the volume context use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Squota => "squota",
            Self::None => "none",
        }
    }
}

/// What is charged to a number, and what it is limited to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// What is charged, in bytes.
    pub bytes: u64,
    /// What is charged, in inodes; 0 where inodes are not counted.
    pub inodes: u64,
    /// The limit in bytes; 0: none.
    pub byte_limit: u64,
    /// The limit in inodes; 0: none.
    pub inode_limit: u64,
}

impl Charge {
    /// Whether nothing is charged.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }

    /// Whether more is charged than it is limited to.
    pub fn exceeds(&self) -> bool {
        let above = |charged: u64, limit: u64| limit > 0 && charged > limit;
        above(self.bytes, self.byte_limit) || above(self.inodes, self.inode_limit)
    }

    /// Whether it is limited.
    pub fn is_limited(&self) -> bool {
        self.byte_limit != 0 || self.inode_limit != 0
    }
}

/// Finds out what holds sizes on a filesystem.
pub trait Quotas: Send + Sync + fmt::Debug {
    /// The quota of the filesystem of this type that `root` is on.
    fn find(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>, Errno>;

    /// Switches quota on for the new pool in `root`, on a filesystem of this type that holds nothing
    /// else and needs no mount option for it.
    fn enable_for_new_pool(&self, _filesystem: Filesystem, _root: BorrowedFd<'_>) -> AtInit {
        AtInit::Unchanged
    }
}

/// The state of quota after a pool was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtInit {
    /// As it was: on already, or a matter of mount options.
    Unchanged,
    /// Switched on.
    Enabled,
    /// Still off, because the filesystem holds other data, which would stay uncounted.
    OtherData,
    /// Still off, because the kernel refused with this error.
    Refused(Errno),
}

/// The quotas of the kernel.
#[derive(Debug, Default)]
pub struct KernelQuotas;

impl Quotas for KernelQuotas {
    fn find(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>, Errno> {
        match filesystem {
            Filesystem::Btrfs => Ok(Arc::new(btrfs::BtrfsQuota::find(root)?)),
            Filesystem::Xfs | Filesystem::Ext4 => {
                match project::ProjectQuota::find(filesystem, root)? {
                    Some(quota) => Ok(Arc::new(quota)),
                    None => Ok(Arc::new(NoQuota)),
                }
            }
            _ => Ok(Arc::new(NoQuota)),
        }
    }

    fn enable_for_new_pool(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> AtInit {
        match filesystem {
            Filesystem::Btrfs => btrfs::enable_for_new_pool(root).unwrap_or_else(AtInit::Refused),
            _ => AtInit::Unchanged,
        }
    }
}

/// Why the kernel holds no sizes on a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingQuota {
    /// It is one of which the driver knows no quota.
    Unknown,
    /// It was mounted without the option that makes project quota limit.
    MountOption,
    /// It is an ext4 without the features that project quota needs.
    Features,
    /// It is a btrfs that counts nothing.
    Off,
    /// It is a btrfs with full qgroups.
    Full,
    /// The kernel does not let this process use the quota that is there.
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
            Self::Features => "the ext4 has not the features project and quota".to_owned(),
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

/// Why nothing holds sizes on the filesystem of this type that `root` is on; nothing if they are
/// held.
pub fn missing(
    filesystem: Filesystem,
    root: BorrowedFd<'_>,
) -> Result<Option<MissingQuota>, Errno> {
    match filesystem {
        Filesystem::Btrfs => Ok(match mode(root)? {
            Mode::Off => Some(MissingQuota::Off),
            Mode::Full => Some(MissingQuota::Full),
            Mode::Simple => None,
        }),
        Filesystem::Xfs | Filesystem::Ext4 => project::missing(filesystem, root),
        _ => Ok(Some(MissingQuota::Unknown)),
    }
}

/// A name in a directory.
pub type NameIn<'a> = (BorrowedFd<'a>, &'a str);

/// Holds the sizes of one pool's volumes, each under a number of the kernel's.
pub trait Quota: Send + Sync + fmt::Debug {
    /// How.
    fn enforcement(&self) -> Enforcement;

    /// Makes a directory, limited to `size` (zero: not limited) from its first byte, and returns its
    /// quota id. A failure leaves neither.
    fn create_dir(&self, os: &Os, at: NameIn<'_>, size: Bytes) -> Result<Option<u32>, Errno>;

    /// Whether [`Quota::copy_dir`] can copy a directory.
    fn copies(&self, _source: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(false)
    }

    /// Makes `name` in `dir` a copy of `source`, all of one instant, sharing its blocks, and
    /// otherwise as [`Quota::create_dir`] does; `read_only`: nobody can write into it.
    fn copy_dir(
        &self,
        _os: &Os,
        _source: BorrowedFd<'_>,
        _target: NameIn<'_>,
        _size: Bytes,
        _read_only: bool,
    ) -> Result<Option<u32>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Limits a number to `size` (zero: not limited). Durable with the next syncfs.
    fn limit(&self, os: &Os, id: u32, size: Bytes) -> Result<(), Errno>;

    /// What is charged to a number and what it is limited to.
    fn charge(&self, id: u32) -> Result<Charge, Errno>;

    /// The bytes charged to a number.
    fn usage(&self, id: u32) -> Result<u64, Errno> {
        Ok(self.charge(id)?.bytes)
    }

    /// The number of files and directories that a volume of a size may hold; nothing: not limited.
    fn inode_limit(&self, _size: Bytes) -> Option<u64> {
        None
    }

    /// Whether a number has the limit it is to have for `size` (zero: none).
    fn has_limit(&self, charge: &Charge, size: Bytes) -> bool;

    /// The numbers of [`OURS`] that the kernel knows.
    fn charges(&self) -> Result<Vec<(u32, Charge)>, Errno>;

    /// Of those the recorded ones, and the others that the driver may have left: it takes the lowest
    /// free number, so they are not far from [`OURS`]' start.
    fn charges_nearby(
        &self,
        _recorded: &mut dyn Iterator<Item = u32>,
    ) -> Result<Vec<(u32, Charge)>, Errno> {
        self.charges()
    }

    /// The number of ours that what is in a directory made by [`Quota::create_dir`] is charged to.
    fn charged_to(&self, dir: BorrowedFd<'_>) -> Result<Option<u32>, Errno>;

    /// The number that a file or directory of such a tree carries; nothing where it is charged as
    /// what is above it, 0 where it is charged to nothing.
    fn tag(&self, file: BorrowedFd<'_>) -> Result<Option<u32>, Errno>;

    /// Takes a free number for a tree that exists already.
    fn take(&self) -> Result<u32, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Has a file or directory of an existing tree charged to a number, or to none.
    fn set_tag(
        &self,
        _os: &Os,
        _file: BorrowedFd<'_>,
        _id: Option<u32>,
        _is_dir: bool,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Takes a number for in use, as records that were read say.
    fn note(&self, id: u32);

    /// Removes a directory made by [`Quota::create_dir`] at once, if the filesystem can; false
    /// if it must be emptied entry by entry.
    fn destroy_dir(&self, _os: &Os, _at: NameIn<'_>) -> Result<bool, Errno> {
        Ok(false)
    }

    /// Has the filesystem finish the destruction of directories, so that their space and their
    /// numbers become free soon after.
    fn settle(&self, _os: &Os) -> Result<(), Errno> {
        Ok(())
    }

    /// Frees a number whose directory has been reclaimed. EBUSY: something is still charged to it.
    fn release(&self, os: &Os, id: u32) -> Result<(), Errno>;
}
