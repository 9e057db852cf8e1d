//! Why a copy was given up.

use std::ffi::CStr;
use std::fmt;

use rustix::io::Errno;

use crate::fault::Fault;

use super::{Dir, MAX_LEVELS, content};

/// The most characters of a path that are told.
const MAX_PATH: usize = 200;

/// Why a copy was given up, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) struct CopyFault {
    /// The path below the tree, or its beginning; empty for the tree itself.
    pub(crate) path: String,
    pub(crate) reason: Reason,
}

/// Why a copy was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A step failed; CANCELED when the copy was to stop.
    Step(Fault),
    /// A directory has too many others above it.
    TooDeep,
    /// Sharing the blocks of a file would hold up its writers for too long.
    WouldStall {
        /// How many extents the file has.
        extents: u32,
    },
    /// The filesystem does not share the blocks of a file.
    NotShareable(Errno),
}

impl From<Fault> for Reason {
    fn from(fault: Fault) -> Self {
        Self::Step(fault)
    }
}

impl From<Fault> for CopyFault {
    fn from(fault: Fault) -> Self {
        Self {
            path: String::new(),
            reason: fault.into(),
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
                "{path:?} is more than {MAX_LEVELS} directories deep, and no more are copied: move it up"
            ),
            Reason::WouldStall { extents } => write!(
                f,
                "the file {path:?} has {extents} extents, and sharing its blocks may hold up whoever \
                 writes to it for {:?}, longer than is allowed: rewrite it in one piece, or allow more",
                content::STALL_PER_EXTENT.saturating_mul(*extents)
            ),
            Reason::NotShareable(errno) => write!(
                f,
                "the blocks of the file {path:?} cannot be shared ({errno}): is it in use for swap, or \
                 set to be kept apart? move it out of the volume"
            ),
        }
    }
}

/// That the copy was to stop.
pub(super) fn stopped() -> Reason {
    Fault::new("go on: stopped", Errno::CANCELED).into()
}

/// The path of an entry below the top, or its beginning.
pub(super) fn path(dir: &Dir, entry: &CStr) -> String {
    let mut names = vec![entry];
    let mut at = dir;
    while let Some(above) = at.parent() {
        names.push(&at.name);
        at = above;
    }
    let mut path = String::new();
    for name in names.iter().rev() {
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&name.to_string_lossy());
    }
    match path.char_indices().nth(MAX_PATH) {
        Some((end, _)) => format!("{}…", path.get(..end).unwrap_or_default()),
        None => path,
    }
}
