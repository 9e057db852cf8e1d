//! How the size of a volume is held: the seam between a pool and its filesystem's quota.

mod fake;
mod none;

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::os::Os;
use crate::types::Bytes;

pub use fake::FakeQuota;
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
    /// The word records and the volume context use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Squota => "squota",
            Self::None => "none",
        }
    }
}

/// Holds the sizes of one pool's volumes.
pub trait Quota: Send + Sync + fmt::Debug {
    /// How.
    fn enforcement(&self) -> Enforcement;

    /// Makes the directory `name` in `dir`, limited to `size` (zero: not limited) from its first
    /// byte, and returns the number that stands for it in the kernel.
    fn create_dir(
        &self,
        os: &Os,
        dir: BorrowedFd<'_>,
        name: &str,
        size: Bytes,
    ) -> Result<Option<u32>, Errno>;

    /// Frees a number whose directory has been reclaimed.
    fn release(&self, id: u32) -> Result<(), Errno>;
}
