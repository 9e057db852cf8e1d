//! Bind mounts of a volume's `data/` onto a target, and what is mounted there.

mod error;
mod fake;
mod kernel;
mod options;
mod table;
mod target;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::StatVfsMountFlags;

pub use error::{Error, Result};
pub use fake::FakeMounter;
pub use kernel::{GuardedDir, KernelMounter, open_guarded};
pub use options::{Atime, MountOptions};
pub use table::{MountEntry, MountTable, Place};
pub use target::{Found, Target};

/// A mount that nobody can see yet.
#[derive(Debug)]
pub struct Prepared {
    /// Its root.
    mount: OwnedFd,
    /// Its flags, of those [`MountOptions::visible`] names.
    flags: StatVfsMountFlags,
}

/// The seam to the mounts: the kernel's, or a fake.
pub trait Mounter: Send + Sync + fmt::Debug {
    /// Makes a mount of a directory with all its options, which nobody can see yet. This asks the
    /// disk; the target is only named.
    fn prepare(
        &self,
        source: BorrowedFd<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared>;

    /// Shows a prepared mount at an existing, empty target; this asks no disk.
    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()>;

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
