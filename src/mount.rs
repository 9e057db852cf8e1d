//! Bind mounts of a volume's `data/` onto a target, and what is mounted there.

mod fake;
mod kernel;
mod options;
mod table;
mod target;

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::fs::StatVfsMountFlags;

use crate::error::Result;

pub use fake::FakeMounter;
pub use kernel::{GuardedDir, KernelMounter, open_guarded};
pub use options::{Atime, MountOptions};
pub use table::{MountEntry, MountTable, Place};
pub use target::{Found, Target};

/// The seam to the mounts: the kernel's, or a fake.
pub trait Mounter: Send + Sync + fmt::Debug {
    /// Mounts a directory at an existing, empty target; it appears there with all its options or
    /// not at all.
    fn mount(&self, source: BorrowedFd<'_>, target: &Target, options: MountOptions) -> Result<()>;

    /// What is at a target.
    fn look(&self, target: &Target) -> Result<Found> {
        target.look()
    }

    /// The flags of the mount at a target, of those [`MountOptions::visible`] names.
    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags>;

    /// Unmounts until the target is no mount any more, without looking at what is mounted.
    fn unmount(&self, target: &Target) -> Result<()>;

    /// Every mount there is; slow.
    fn table(&self) -> std::io::Result<MountTable>;
}
