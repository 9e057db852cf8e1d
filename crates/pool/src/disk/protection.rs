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

use crate::disk::layout;

/// The bits of a mode that let anybody but the owner in.
const OTHERS: u32 = 0o077;
/// The bits of a mode that let others change the entries of a directory, unless it is sticky.
const WRITERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// The pool's directory itself. Others may enter the root of a disk, but who can write to it can replace what is in it.
const TOP: &str = ".";
const INSPECT: &str = "inspect the owners of the pool's own files";

/// An entry of the pool's own that others than the driver's user may read or change.
#[derive(Debug)]
pub struct Exposed {
    /// Its path, below the pool's.
    pub path: PathBuf,
    pub mode: u32,
    pub uid: u32,
    file: OwnedFd,
    right: u32,
}

impl Exposed {
    /// Finds out whether an entry is exposed. One that is absent, or of another type, is not the pool's own.
    pub fn find(root: impl AsFd, path: &Path) -> Result<Option<Self>, Fault> {
        let file = match os::open_entry(root, path) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
            Err(errno) => return Err(Fault::new(INSPECT, errno)),
        };
        let status = os::statx(&file).context(INSPECT)?;
        let mode = u32::from(status.stx_mode) & 0o7777;
        let is_top = path == Path::new(TOP);
        let (right, is_open) = match FileType::from_raw_mode(status.stx_mode.into()) {
            FileType::Directory if is_top => {
                (mode & !WRITERS, mode & WRITERS != 0 && mode & STICKY == 0)
            }
            FileType::Directory => (0o700, mode & OTHERS != 0),
            FileType::RegularFile => (0o600, mode & OTHERS != 0),
            _ => return Ok(None),
        };
        let own = rustix::process::geteuid().as_raw();
        if status.stx_uid == own && !is_open {
            return Ok(None);
        }
        Ok(Some(Self {
            path: path.to_owned(),
            mode,
            uid: status.stx_uid,
            file,
            right,
        }))
    }

    /// Sets the owner and the mode right.
    pub fn protect(&self, os: &Os) -> Result<(), Fault> {
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
    let homes = [TOP, layout::META, layout::VOLUMES, layout::SNAPSHOTS].into_iter();
    let below = below
        .into_iter()
        .map(|name| Path::new(layout::META).join(name));
    homes.map(PathBuf::from).chain(below)
}
