//! The originals of copies, and the policy of their classes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use linux::quota::Enforcement;
use objects::Bytes;

use crate::disk::entry::{Entry, SnapshotEntry};
use crate::disk::layout;
use crate::disk::record::{Image, Method, Source};

#[derive(Debug, Clone)]
pub enum Origin {
    Volume(Arc<Entry>),
    Snapshot(Arc<SnapshotEntry>),
}

impl Origin {
    pub fn source(&self) -> Source {
        match self {
            Self::Volume(entry) => Source::Volume(entry.record.id),
            Self::Snapshot(entry) => Source::Snapshot(entry.record.id),
        }
    }

    pub fn is_exclusive(&self) -> bool {
        matches!(self, Self::Volume(entry) if entry.record.exclusive)
    }

    pub fn image(&self) -> Option<Image> {
        match self {
            Self::Volume(entry) => entry.record.image,
            Self::Snapshot(entry) => entry.record.image,
        }
    }

    /// Whether the files are rewritten in place on btrfs.
    pub fn nodatacow(&self) -> bool {
        match self {
            Self::Volume(entry) => entry.record.nodatacow,
            Self::Snapshot(entry) => entry.record.nodatacow,
        }
    }

    pub fn least_size(&self) -> Bytes {
        match self {
            Self::Volume(entry) => entry.record.size_bytes,
            Self::Snapshot(entry) => entry.record.least_size(),
        }
    }

    /// The size of the volume, or of the snapshot's source; zero if it has none.
    pub fn size(&self) -> Bytes {
        match self {
            Self::Volume(entry) => entry.record.size_bytes,
            Self::Snapshot(entry) => entry.record.size_bytes,
        }
    }

    fn enforcement(&self) -> Enforcement {
        match self {
            Self::Volume(entry) => entry.record.enforcement,
            Self::Snapshot(entry) => entry.record.enforcement,
        }
    }

    /// Whether blocks that its files share count once in it and several times in its copy.
    pub(crate) fn is_unshared(&self, method: Method) -> bool {
        method == Method::Copy && self.enforcement() == Enforcement::Squota
    }

    /// Whether content of this length fits into a copy of a size. With simple quota a copy is not
    /// charged for shared blocks, so any content fits that fits its source.
    pub(crate) fn fits(&self, method: Method, bytes: u64, size: Bytes) -> bool {
        let shares = method != Method::Copy
            && self.enforcement() == Enforcement::Squota
            && self.size() > Bytes::ZERO;
        shares || bytes <= size.0
    }

    /// The most bytes that a copy can find in it, with metadata and files that are removed meanwhile.
    pub(crate) fn most(&self) -> u64 {
        const LEEWAY: u64 = 64 << 20;
        match self {
            Self::Volume(entry) if entry.record.enforcement != Enforcement::None => {
                let size = entry.record.size_bytes.0;
                size.saturating_add(size / 8).saturating_add(LEEWAY)
            }
            Self::Volume(_) | Self::Snapshot(_) => u64::MAX,
        }
    }

    /// The path of its data, below the pool.
    pub(crate) fn data(&self) -> PathBuf {
        let entry = match self {
            Self::Volume(entry) => entry.path(),
            Self::Snapshot(entry) => entry.path(),
        };
        entry.join(layout::DATA)
    }
}

/// The parameters of a class about copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyPolicy {
    /// Whether files may be copied byte by byte, which takes time and the space of the original again.
    pub copy: bool,
    /// The longest time that a file may be locked by its copy, if there is a bound.
    pub max_stall: Option<Duration>,
}
