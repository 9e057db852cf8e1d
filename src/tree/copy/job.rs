//! How a tree is copied, and the result.

use std::time::Duration;

use crate::os::Os;

/// How the content of a file is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// The copy shares the blocks (`FICLONE`).
    Share,
    /// The bytes are copied, without the holes.
    Copy,
}

pub(crate) trait CopyWatch: Sync {
    /// Called for every entry, with the bytes that it occupies at the source. A file with several
    /// names has bytes only the first time.
    fn copied(&self, bytes: u64);
    /// Whether to stop; called before every entry, and repeatedly within a large file.
    fn stopped(&self) -> bool;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// The entries at any depth.
    pub(crate) entries: u64,
    /// The bytes that the copy occupies, its top included; a file with several names counts once.
    pub(crate) bytes: u64,
    /// The entries that were removed, or had another type, before they were copied.
    pub(crate) vanished: u64,
}

/// How trees are copied.
pub(crate) struct Copying<'a> {
    pub(crate) os: &'a Os,
    pub(crate) transfer: Transfer,
    /// The threads that copy one tree.
    pub(crate) threads: usize,
    /// The longest time for which the writers of a file may wait while its blocks are shared.
    pub(crate) max_stall: Option<Duration>,
    pub(crate) watch: &'a dyn CopyWatch,
}
