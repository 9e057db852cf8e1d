//! A target path: where the kubelet wants a volume mounted.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, StatVfs};
use rustix::io::Errno;

use crate::os::{self, Status};
use crate::types::Invalid;

use super::{Error, Result};

/// `PATH_MAX`, less the final NUL.
const MAX_PATH: usize = 4095;
/// `NAME_MAX`.
const MAX_COMPONENT: usize = 255;

/// A target path, checked: strictly below the kubelet's directory and outside every pool.
///
/// The parent is held open, so what the path's leading links point to cannot change between the
/// check and the mount; the last component is never followed.
#[derive(Debug)]
pub struct Target {
    parent: OwnedFd,
    leaf: OsString,
    path: PathBuf,
}

/// What is at a target.
#[derive(Debug, Clone, Copy)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A directory that is no mount.
    Directory(Status),
    /// The root of a mount.
    Mount(Status),
    /// A file, link or anything else.
    Other(FileType),
}

impl Target {
    /// Checks a path and opens its parent; `None` if the parent does not exist.
    pub fn open(path: &Path, kubelet_dir: &Path, pools: &[&Path]) -> Result<Option<Self>> {
        let invalid = |problem: String| Error::from(Invalid::new("target_path", problem));
        check_form(path).map_err(invalid)?;
        let Some(leaf) = path.file_name() else {
            return Err(invalid(format!("{} names no directory", path.display())));
        };
        let Some(parent) = open_parent(path)? else {
            return Ok(None);
        };
        let resolved = resolve(&parent, path)?;
        // A path without links that begins with the directory's name shows that none is in that.
        if !resolved.starts_with(kubelet_dir) {
            let kubelet_dir = real(kubelet_dir)?;
            if !resolved.starts_with(&kubelet_dir) {
                return Err(invalid(format!(
                    "{} is not below the kubelet's directory {}; set --kubelet-dir if it should be",
                    path.display(),
                    kubelet_dir.display()
                )));
            }
        }
        for pool in pools {
            if resolved.starts_with(pool) || real(pool).is_ok_and(|p| resolved.starts_with(p)) {
                return Err(invalid(format!(
                    "{} is inside the pool at {}",
                    path.display(),
                    pool.display()
                )));
            }
        }
        let path = resolved.join(leaf);
        Ok(Some(Self {
            parent,
            leaf: leaf.to_owned(),
            path,
        }))
    }

    /// Opens the parent of a path the mount table gave, which need not be the kubelet's; `None` if
    /// it does not exist.
    pub fn open_known(path: &Path) -> Result<Option<Self>> {
        let (Some(parent), Some(leaf)) = (open_parent(path)?, path.file_name()) else {
            return Ok(None);
        };
        let (leaf, path) = (leaf.to_owned(), path.to_owned());
        Ok(Some(Self { parent, leaf, path }))
    }

    /// The path with every link resolved, as the mount table shows it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory the target is in.
    pub fn parent(&self) -> &OwnedFd {
        &self.parent
    }

    /// The last component.
    pub fn leaf(&self) -> &OsStr {
        &self.leaf
    }

    /// The target by way of the open parent, for the calls that only take a path.
    pub fn proc_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.leaf)
    }

    /// What is there now.
    pub fn look(&self) -> Result<Found> {
        match os::status_at(&self.parent, &self.leaf) {
            Ok(status) if status.is_mount_root => Ok(Found::Mount(status)),
            Ok(status) if status.file_type == FileType::Directory => Ok(Found::Directory(status)),
            Ok(status) => Ok(Found::Other(status.file_type)),
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(errno) => Err(self.error("cannot look at", errno)),
        }
    }

    /// What statvfs(3) says of what is mounted there.
    pub fn statvfs(&self) -> Result<StatVfs, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, &self.leaf, flags, Mode::empty())
            .and_then(rustix::fs::fstatvfs)
    }

    /// Whether it is a file of no bytes, as a target for a block device would be.
    pub fn is_empty_file(&self) -> Result<bool, Errno> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(&self.parent, &self.leaf, flags)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(kind == FileType::RegularFile && stat.st_size == 0)
    }

    /// An error about this target.
    pub fn error(&self, what: &'static str, errno: Errno) -> Error {
        Error::Target {
            what,
            path: self.path.clone(),
            source: errno.into(),
        }
    }
}

/// Opens the directory above a path; `None` if there is none.
fn open_parent(path: &Path) -> Result<Option<OwnedFd>> {
    match os::open_path(path.parent().unwrap_or(path)) {
        Ok(parent) => Ok(Some(parent)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::Target {
            what: "cannot open the directory above",
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

/// An absolute path in its one plain spelling, so that it means what it shows.
fn check_form(path: &Path) -> Result<(), String> {
    let text = path.as_os_str().as_encoded_bytes();
    if !path.is_absolute() {
        return Err(format!("{} is not an absolute path", path.display()));
    }
    if text.contains(&0) {
        return Err("a path cannot hold a NUL byte".into());
    }
    if text.len() > MAX_PATH {
        return Err(format!(
            "a path has at most {MAX_PATH} bytes, not {}",
            text.len()
        ));
    }
    let raw_parts = text.split(|byte| *byte == b'/');
    if raw_parts.clone().any(|part| part.len() > MAX_COMPONENT) {
        return Err(format!(
            "a component of a path has at most {MAX_COMPONENT} bytes"
        ));
    }
    if path
        .components()
        .any(|part| matches!(part, Component::ParentDir))
        || raw_parts.into_iter().any(|part| part == b".")
    {
        return Err(format!("{} holds a '.' or '..' component", path.display()));
    }
    Ok(())
}

fn resolve(directory: impl AsFd, shown: &Path) -> Result<PathBuf> {
    os::path_of(directory).map_err(|errno| Error::Target {
        what: "cannot resolve",
        path: shown.to_owned(),
        source: errno.into(),
    })
}

fn real(directory: &Path) -> Result<PathBuf> {
    let open = os::open_path(directory).map_err(|errno| Error::Target {
        what: "cannot open",
        path: directory.to_owned(),
        source: errno.into(),
    })?;
    resolve(open, directory)
}
