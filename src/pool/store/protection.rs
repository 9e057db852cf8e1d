//! Owner and mode of the pool's own directories and files, which keep everybody but root out.
//!
//! An administrator who meets "permission denied" may change them for everything below the pool's path. That reaches the
//! `data/` of volumes too, which is their owners' matter, and the records, which is not.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use linux::fault::{Fault, InContext};
use linux::os::{self, Os};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::pool::store::layout;

/// The bits of a mode that let anybody but the owner in.
const OTHERS: u16 = 0o077;
const INSPECT: &str = "inspect the owners of the pool's own files";

/// An entry of the pool's own that others than the driver's user may read or change.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// Its path, below the pool's.
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    file: OwnedFd,
    right: u32,
}

impl Exposed {
    /// Finds out whether an entry is exposed. One that is absent, or of another type, is not the pool's own.
    pub(crate) fn find(root: impl AsFd, path: &Path) -> Result<Option<Self>, Fault> {
        let file = match os::open_entry(root, path) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
            Err(errno) => return Err(Fault::new(INSPECT, errno)),
        };
        let status = os::statx(&file).context(INSPECT)?;
        let right = match FileType::from_raw_mode(status.stx_mode.into()) {
            FileType::Directory => 0o700,
            FileType::RegularFile => 0o600,
            _ => return Ok(None),
        };
        let own = rustix::process::geteuid().as_raw();
        if status.stx_uid == own && status.stx_mode & OTHERS == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            path: path.to_owned(),
            mode: u32::from(status.stx_mode) & 0o7777,
            uid: status.stx_uid,
            file,
            right,
        }))
    }

    /// Sets the owner and the mode right.
    pub(crate) fn protect(&self, os: &Os) -> Result<(), Fault> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        os.chown(&self.file, uid.as_raw(), gid.as_raw())
            .and_then(|()| os.chmod(&self.file, self.right))
            .context("set owner and mode of the pool's own files")
    }
}

/// The paths of the pool's own directories, and of the files in them that are no records of objects.
pub(crate) fn own_paths() -> impl Iterator<Item = PathBuf> {
    let below = [
        layout::MARKER,
        layout::LOCK,
        layout::SPARE,
        layout::STAGING,
        layout::TRASH,
        layout::KEPT,
        layout::INCOMING,
        layout::EXPORTED,
    ];
    let homes = [layout::META, layout::VOLUMES, layout::SNAPSHOTS].into_iter();
    let below = below
        .into_iter()
        .map(|name| Path::new(layout::META).join(name));
    homes.map(PathBuf::from).chain(below)
}
