//! The directories of a pool for its records, those of deleted objects included.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use linux::fault::{Fault, InContext};
use linux::os;
use rustix::io::Errno;

use crate::disk::layout;
use crate::disk::record::Record;

/// The directories of a pool for its volumes, its snapshots and those that were deleted.
#[derive(Debug)]
pub struct RecordDirs {
    pub volumes: OwnedFd,
    pub snapshots: OwnedFd,
    pub trash: OwnedFd,
    /// None has been kept if there is none.
    pub kept: Option<OwnedFd>,
}

impl RecordDirs {
    pub fn open(root: impl AsFd) -> Result<Self, Fault> {
        Ok(Self {
            volumes: open_own(&root, layout::VOLUMES)?,
            snapshots: open_own(&root, layout::SNAPSHOTS)?,
            trash: os::open_dir(&root, Path::new(layout::META).join(layout::TRASH))
                .context("open the trash")?,
            kept: match os::open_dir(&root, Path::new(layout::META).join(layout::KEPT)) {
                Ok(kept) => Some(kept),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(Fault::new("open the kept objects", errno)),
            },
        })
    }

    pub fn of<R: Record>(&self) -> &OwnedFd {
        if R::HOME == layout::SNAPSHOTS {
            &self.snapshots
        } else {
            &self.volumes
        }
    }
}

pub fn open_own(dir: impl AsFd, path: impl AsRef<OsStr>) -> Result<OwnedFd, Fault> {
    os::open_dir(dir, path).context("open the pool's own directories")
}
