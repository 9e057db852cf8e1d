//! The host's side of imports and exports: the directory, its users, and its way into the pool and back.
//!
//! It runs in the mount namespace of the host, because a rename works only within one mount. One exchange
//! moves the directory into the pool and leaves a file at its path, so that a pod of its old
//! `PersistentVolume` cannot start on an empty directory. A directory that cannot be renamed into the pool
//! is refused. [`volume::imports`](crate::volume) has the server's side.

mod apart;
mod export;
mod import;
mod place;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use linux::fault::PathFault;
use linux::mount::{MountTable, OpenFiles, Used, Users, find_user};
use linux::os::{self, At, Os, Status, Times};
use linux::tree::{self, LinkCount, LinkedFiles};
use objects::{Bytes, VolumeId};
use rustix::fs::{FileType, Statx, StatxAttributes};
use rustix::io::Errno;

use crate::error::{Error, HostRefusal, Result};
use pool::Marker;
use pool::layout;
use pool::{Advance, Unit};

pub use export::{ExportTo, Exported};
pub use import::{Import, ImportServer, Imported};

/// Shows how far long work has come. The text names the work.
pub type Show = fn(&str, Advance);

/// The processes of the host.
const PROCESSES: &str = "/proc";

/// More than a notice has.
const MAX_NOTICE: usize = 4096;

/// A path of the host at which a directory is imported, or to which a volume is exported.
#[derive(Debug)]
pub struct HostPath {
    /// Without links.
    pub path: PathBuf,
    parent: OwnedFd,
    name: OsString,
    pub found: Found,
    /// Whether it is the root of a mount, which cannot be renamed.
    is_mount: bool,
}

/// The entry at a path of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Directory,
    /// The file that an import left there, with its text.
    Notice(String),
}

/// The space that a directory takes, and its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeFacts {
    pub bytes: Bytes,
    /// The files and directories.
    pub inodes: u64,
    /// The permission bits of the directory.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Whether btrfs rewrites the blocks of its new files in place.
    pub nodatacow: bool,
}

/// Moves the directory at a place by `act`, and keeps its times, which XFS changes by that.
fn keep_times(os: &Os, at: At<'_>, act: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let top = os::open_source_dir(at.dir, at.name)?;
    let before = os::statx(&top)?;
    act()?;
    os.set_times(&top, &Times::of(&before))
}

/// The text of the file at the path of an imported directory.
pub(crate) fn notice(id: VolumeId, pool: &Path) -> String {
    format!(
        "{}\n\nIt is in the pool at {}, and `rootcellar volume export {id}` brings it back here.\n",
        first_line(id),
        pool.display()
    )
}

fn first_line(id: VolumeId) -> String {
    format!("rootcellar: this directory became volume {id}")
}

impl HostPath {
    /// Opens an absolute path, of which all but the last part must exist.
    pub fn open(path: &Path) -> Result<Self> {
        let (Some(parent), Some(name), true) =
            (path.parent(), path.file_name(), path.is_absolute())
        else {
            return Err(Error::invalid(
                "directory",
                format!("{} is not the absolute path of a directory", path.display()),
            ));
        };
        let parent = parent
            .canonicalize()
            .map_err(PathFault::at("find", parent))?;
        let path = parent.join(name);
        if path.to_str().is_none() {
            let problem = format!("{} is not UTF-8", path.display());
            return Err(Error::invalid("directory", problem));
        }
        let fault = |what, errno: Errno| PathFault::at(what, &path)(errno);
        let opened = os::open_path(&parent).map_err(|errno| fault("open the parent of", errno))?;
        // For fsync(2), which O_PATH does not allow.
        let opened = os::open_source_dir(&opened, ".");
        let opened = opened.map_err(|errno| fault("open the parent of", errno))?;
        let (found, is_mount) = match os::status_at(&opened, name) {
            Ok(status) => (find(&path, &opened, &status)?, status.is_mount_root),
            Err(Errno::NOENT) => (Found::Nothing, false),
            Err(errno) => return Err(fault("inspect", errno).into()),
        };
        Ok(Self {
            name: name.to_owned(),
            parent: opened,
            found,
            path,
            is_mount,
        })
    }

    /// Whether it is the file that the import of a volume left.
    pub fn is_notice_of(&self, id: VolumeId) -> bool {
        match &self.found {
            Found::Notice(text) => text.lines().next() == Some(&*first_line(id)),
            Found::Nothing | Found::Directory => false,
        }
    }

    /// Measures the directory, and refuses one that cannot be moved as it is.
    pub fn inspect(&self, show: Option<Show>) -> Result<TreeFacts> {
        let fault = |errno: Errno| PathFault::at("read", &self.path)(errno);
        let top = os::open_source_dir(&self.parent, &self.name).map_err(fault)?;
        let status = os::statx(&top).map_err(fault)?;
        self.check_top(&status)?;
        let nodatacow = os::is_kept_in_place(&top).map_err(fault)?;
        let path = || self.path.clone();
        let (mut linked, mut pool, mut done) = (LinkedFiles::default(), None, 0);
        let weighed = tree::weigh(top, LinkCount::InParts, &mut |seen| {
            done += 1;
            if let Some(show) = show {
                let (total, unit) = (None, Unit::Objects);
                show(
                    "files and directories examined",
                    Advance { done, total, unit },
                );
            }
            linked.note(seen);
            // A marker that cannot be read is one.
            if seen.name == layout::META && !matches!(Marker::read(seen.dir), Ok(None)) {
                pool.get_or_insert(seen.path());
            }
            Ok(())
        });
        let weight = weighed.map_err(fault)?;
        if let Some(errno) = weight.unseen {
            let at = path();
            return Err(HostRefusal::Unreadable { at, errno }.into());
        }
        if let Some(marker) = pool {
            let at = path();
            return Err(HostRefusal::HasPool { at, marker }.into());
        }
        if let Some((at, all, out)) = linked.outside() {
            let of = path();
            return Err(HostRefusal::NamesOutside { at, of, all, out }.into());
        }
        Ok(TreeFacts {
            bytes: Bytes(weight.bytes),
            inodes: weight.inodes,
            mode: u32::from(status.stx_mode) & 0o3777,
            uid: status.stx_uid,
            gid: status.stx_gid,
            nodatacow,
        })
    }

    /// Refuses a directory that cannot be moved.
    fn check_top(&self, status: &Statx) -> Result<()> {
        let at = self.path.clone();
        for (attribute, flag) in [
            (StatxAttributes::IMMUTABLE, 'i'),
            (StatxAttributes::APPEND, 'a'),
        ] {
            if status.stx_attributes.contains(attribute) {
                return Err(HostRefusal::Protected { at, flag }.into());
            }
        }
        if status.stx_mode & 0o4000 != 0 {
            return Err(HostRefusal::SetUserId { at }.into());
        }
        Ok(())
    }

    fn fault(&self, what: &'static str) -> impl Fn(Errno) -> Error {
        move |errno| PathFault::at(what, &self.path)(errno).into()
    }
}

/// Makes a file with this content, durably but for its name.
fn make_file(os: &Os, at: At<'_>, mode: u32, content: &[u8]) -> Result<(), Errno> {
    let file = os.create_as(at.dir, at.name, mode)?;
    os.write_all(&file, content)?;
    os.fsync(&file)
}

/// The mounts of the host. Refuses a directory in which something is mounted.
fn check_no_mounts(path: &Path) -> Result<MountTable> {
    let table = MountTable::read().map_err(PathFault::at("read the mounts of", path))?;
    let is_inside = |at: &Path| at.starts_with(path) && at != path;
    let mut mounts = table.entries.iter();
    match mounts.find(|entry| is_inside(&entry.mount_point)) {
        None => Ok(table),
        Some(inside) => {
            let (at, mount) = (path.to_owned(), inside.mount_point.clone());
            Err(HostRefusal::HasMount { at, mount }.into())
        }
    }
}

/// Refuses a directory that a process uses, or in which something is mounted. It examines every process, and
/// every entry of the tree.
fn check_unused(path: &Path, users: Users) -> Result<()> {
    let table = check_no_mounts(path)?;
    if users == Users::Ignore {
        return Ok(());
    }
    let place = table.place_at(path);
    let place = place.map_err(PathFault::at("read the mounts of", path))?;
    let mut files = OpenFiles::default();
    let found = find_user(
        Path::new(PROCESSES),
        Used {
            place: &place,
            path: Some(path),
        },
        &mut files,
        &|| (),
    );
    let used = match found {
        Ok(Some(user)) => Some(user.to_string()),
        Ok(None) => find_open(path, &files)?,
        Err(fault) => {
            let at = path.to_owned();
            return Err(HostRefusal::UsersUnknown { at, fault }.into());
        }
    };
    used.map_or(Ok(()), |user| {
        let at = path.to_owned();
        Err(HostRefusal::InUse { at, user }.into())
    })
}

fn find_open(path: &Path, files: &OpenFiles) -> Result<Option<String>> {
    let top = os::open_node(path);
    let found = top.and_then(|top| tree::find_open(top, path, files, &|| ()));
    Ok(found.map_err(PathFault::at("look for open files in", path))?)
}

/// Finds out what is at a path, and refuses what is neither a directory nor the file of an import.
fn find(path: &Path, parent: &OwnedFd, status: &Status) -> Result<Found> {
    let name = path.file_name().unwrap_or_default();
    let at = path.to_owned();
    match status.file_type {
        FileType::Directory => Ok(Found::Directory),
        FileType::Symlink => {
            let to = path.canonicalize().map_err(PathFault::at("find", path))?;
            Err(HostRefusal::Link { at, to }.into())
        }
        FileType::RegularFile => {
            let text = os::open_file(parent, name).and_then(|file| os::read_all(&file, MAX_NOTICE));
            let text = text.unwrap_or_default();
            match String::from_utf8(text) {
                Ok(text) if text.starts_with("rootcellar: ") => Ok(Found::Notice(text)),
                _ => Err(HostRefusal::File { at }.into()),
            }
        }
        _ => Err(HostRefusal::NoDirectory { at }.into()),
    }
}
