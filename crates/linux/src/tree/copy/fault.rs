//! The reasons why a copy fails.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

use crate::fault::Fault;

use super::dir::{Dir, MAX_LEVELS};

/// The longest time for which XFS locks a file for each extent that it shares. It is the longest
/// that was measured; a tenth of it is usual.
pub(super) const STALL_PER_EXTENT: Duration = Duration::from_micros(110);
/// The most characters of a path in a message.
const MAX_PATH: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct CopyFault {
    /// The path below the top, or its beginning; empty for the top itself.
    pub path: String,
    pub reason: Reason,
}

/// Why a copy failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A step failed; `CANCELED` if the copy was to stop.
    Step(Fault),
    /// A directory has too many directories above it.
    TooDeep,
    /// The writers of a file would wait for too long while its blocks are shared.
    WouldStall { extents: u32 },
    /// The filesystem does not share the blocks of a file.
    NotShareable(Errno),
}

impl From<Fault> for Reason {
    fn from(fault: Fault) -> Self {
        Self::Step(fault)
    }
}

impl<T: Into<Reason>> From<T> for CopyFault {
    fn from(reason: T) -> Self {
        Self {
            path: String::new(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for CopyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, reason } = self;
        match reason {
            Reason::Step(fault) if path.is_empty() => write!(f, "{fault}"),
            Reason::Step(fault) => write!(f, "{fault}, at {path:?}"),
            Reason::TooDeep => write!(
                f,
                "{path:?} is more than {MAX_LEVELS} directories deep, which is the most that a copy can \
                 have: move it to a higher directory"
            ),
            Reason::WouldStall { extents } => write!(
                f,
                "the file {path:?} has {extents} extents, so sharing its blocks may make writers wait for \
                 {} ms, longer than maxStall allows: rewrite it in one piece, or set a larger maxStall in \
                 the class",
                STALL_PER_EXTENT.saturating_mul(*extents).as_millis()
            ),
            Reason::NotShareable(errno) => write!(
                f,
                "the blocks of the file {path:?} cannot be shared ({errno}): is it in use for swap, or \
                 marked as not to be shared? move it out of the volume"
            ),
        }
    }
}

/// The reason of a copy that was to stop.
pub(super) fn stopped() -> Reason {
    Fault::new("go on: stopped", Errno::CANCELED).into()
}

/// The path of an entry below the top, or its beginning.
pub(super) fn path(dir: &Dir<'_>, entry: &OsStr) -> String {
    let mut names = vec![entry.to_string_lossy()];
    let mut dir = dir;
    while let Some(parent) = dir.parent {
        names.push(dir.name.to_string_lossy());
        dir = parent;
    }
    names.reverse();
    let mut path = names.join("/");
    if let Some((end, _)) = path.char_indices().nth(MAX_PATH) {
        path.truncate(end);
        path.push('…');
    }
    path
}
