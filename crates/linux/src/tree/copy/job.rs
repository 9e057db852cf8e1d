//! How a tree is copied, and the result.

use std::fmt;
use std::time::Duration;

use crate::os::Os;

/// How the content of a file is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The copy shares the blocks (`FICLONE`).
    Share,
    /// The bytes are copied, without the holes.
    Copy,
}

pub trait CopyWatch: Sync {
    /// Called before the content of an entry is copied, with the bytes that the entry occupies at
    /// the source.
    fn begins(&self, _bytes: u64) {}
    /// Called for every entry, with the bytes that it occupies at the source. A file with several
    /// names has bytes only the first time.
    fn copied(&self, bytes: u64);
    /// Called within a file that is copied byte by byte, with the bytes since the last call.
    fn wrote(&self, _bytes: u64) {}
    /// Whether to stop; called before every entry, and repeatedly within a large file.
    fn stopped(&self) -> bool;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// The entries at any depth.
    pub entries: u64,
    /// The bytes that the copy occupies, its top included; a file with several names counts once.
    pub bytes: u64,
    /// The entries that were removed, or had another type, before they were copied.
    pub vanished: u64,
}

/// How trees are copied.
pub struct Copying<'a> {
    pub os: &'a Os,
    pub transfer: Transfer,
    /// The threads that copy one tree.
    pub threads: usize,
    /// The longest time for which the writers of a file may wait while its blocks are shared.
    pub max_stall: Option<Duration>,
    pub watch: &'a dyn CopyWatch,
}

impl fmt::Debug for Copying<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Copying");
        text.field("transfer", &self.transfer)
            .finish_non_exhaustive()
    }
}
