//! How the size of a volume is enforced: the interface between a pool and its filesystem's quota.
//!
//! Another filesystem is a variant of `Filesystem`, and a file here that implements `Quota`, unless it has project
//! quota. It needs a `MissingQuota` for each reason why it may not enforce, with a command in the driver's
//! `crates/pool/src/disk/enforcement.rs`, and a new `Enforcement`, which needs a new format of the records.

mod btrfs;
mod ids;
mod interface;
mod none;
mod project;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::filesystem::Filesystem;

pub use crate::sys::enable_simple_quota as enable;
pub use btrfs::{Mode, mode};
pub use ids::OURS;
pub use interface::{AtInit, Charge, Enforcement, MissingQuota, Nested, Quota, Quotas, Result};
pub use none::NoQuota;

#[derive(Debug, Default)]
pub struct KernelQuotas;

impl Quotas for KernelQuotas {
    fn find(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>> {
        match filesystem {
            Filesystem::Btrfs => Ok(Arc::new(btrfs::BtrfsQuota::find(root)?)),
            Filesystem::Xfs | Filesystem::Ext4 => project::find(filesystem, root),
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

/// Why the kernel enforces no sizes on the filesystem of `root`; `None` if it does.
pub fn missing(filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Option<MissingQuota>> {
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
