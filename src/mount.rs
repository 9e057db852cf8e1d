//! Bind mounts of a volume's `data/` onto targets.

mod error;
mod kernel;
mod options;
mod table;
mod target;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::StatVfsMountFlags;

pub use error::{Error, Result};
pub use kernel::{GuardedDir, KernelMounter, open_guarded};
pub use options::{Atime, MountOptions};
pub use table::{MountEntry, MountTable, MountWatch, Place};
pub use target::{Found, Target};

/// A mount that is not attached yet.
#[derive(Debug)]
pub struct Prepared {
    pub mount: OwnedFd,
    /// The flags among [`MountOptions::visible`].
    pub flags: StatVfsMountFlags,
}

pub trait Mounter: Send + Sync + fmt::Debug {
    /// Makes a mount of a directory with all its options, and does not attach it. This waits for
    /// the disk; the target is only for messages.
    fn prepare(
        &self,
        source: BorrowedFd<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared>;

    /// Attaches a prepared mount to an existing, empty target. This does not wait for a disk.
    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()>;

    fn inspect(&self, target: &Target) -> Result<Found> {
        target.inspect()
    }

    /// The flags of the mount at a target among [`MountOptions::visible`].
    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags>;

    /// Unmounts until the target is not a mount. It does not check which volume is mounted.
    fn unmount(&self, target: &Target) -> Result<()>;

    /// Every mount of this process; slow.
    fn table(&self) -> std::io::Result<MountTable> {
        MountTable::read()
    }
}
