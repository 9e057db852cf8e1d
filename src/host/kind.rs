//! The kinds of directories that are imported by copy.

use linux::{filesystem, os};

use crate::error::Result;
use crate::pool::incoming::IncomingEntry;
use crate::pool::layout;

use super::HostPath;

/// More bytes than the name of a kind has.
const MAX_KIND: usize = 64;

/// A directory that is imported by copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is moved beside its path.
    Directory,
    /// It is a mount, which is made read-only.
    Mount,
    /// It is a mount that was read-only before.
    ReadOnlyMount,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Directory, Self::Mount, Self::ReadOnlyMount];

    pub(super) fn of(at: &HostPath) -> Result<Self> {
        if !at.is_mount {
            return Ok(Self::Directory);
        }
        let read_only = os::open_node(&at.path).and_then(filesystem::is_read_only);
        Ok(if read_only.map_err(at.fault("inspect"))? {
            Self::ReadOnlyMount
        } else {
            Self::Mount
        })
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Mount => "mount",
            Self::ReadOnlyMount => "read-only mount",
        }
    }

    /// The kind of the directory that an entry awaits. An interrupted write leaves none.
    pub(super) fn noted_in(entry: &IncomingEntry) -> Option<Self> {
        let file = os::open_file(&entry.dir, layout::TO_COPY).ok()?;
        let text = os::read_all(&file, MAX_KIND).ok()?;
        let text = std::str::from_utf8(&text).ok()?;
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}
