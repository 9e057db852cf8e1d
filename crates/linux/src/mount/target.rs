//! A target path: the place at which the kubelet wants a volume.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use objects::Invalid;
use rustix::fs::{FileType, Mode, OFlags, StatVfs};
use rustix::io::Errno;

use crate::fault::PathFault;
use crate::os::{self, Status};

use super::error::{Error, Result};

/// `PATH_MAX`, less the final NUL.
const MAX_PATH: usize = 4095;
/// `NAME_MAX`.
const MAX_COMPONENT: usize = 255;

/// A checked target path: below the kubelet's directory and outside every pool.
///
/// The parent stays open, so that the links in the path cannot change between the check and the
/// mount. A link as the last component is not followed.
#[derive(Debug)]
pub struct Target {
    pub parent: OwnedFd,
    /// The last component.
    pub leaf: OsString,
    path: PathBuf,
}

/// The kind of entry at a target.
#[derive(Debug, Clone, Copy)]
pub enum Found {
    Nothing,
    /// A directory that is not a mount.
    Directory(Status),
    Mount(Status),
    /// A file, a link or another type.
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
        // The directory itself needs no resolution if the resolved path begins with its name.
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

    /// Opens the parent of a path from the mount table, which may be outside the kubelet's directory;
    /// `None` if it does not exist.
    pub fn open_known(path: &Path) -> Result<Option<Self>> {
        let (Some(parent), Some(leaf)) = (open_parent(path)?, path.file_name()) else {
            return Ok(None);
        };
        let (leaf, path) = (leaf.to_owned(), path.to_owned());
        Ok(Some(Self { parent, leaf, path }))
    }

    /// The path with every link resolved, as in the mount table.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path through the open parent, for system calls that take only a path.
    pub fn proc_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.leaf)
    }

    /// Asks the kernel for the entry at the target.
    pub fn inspect(&self) -> Result<Found> {
        match os::status_at(&self.parent, &self.leaf) {
            Ok(status) if status.is_mount_root => Ok(Found::Mount(status)),
            Ok(status) if status.file_type == FileType::Directory => Ok(Found::Directory(status)),
            Ok(status) => Ok(Found::Other(status.file_type)),
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(errno) => Err(self.error("inspect", errno)),
        }
    }

    pub fn statvfs(&self) -> Result<StatVfs, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, &self.leaf, flags, Mode::empty())
            .and_then(rustix::fs::fstatvfs)
    }

    pub fn open_root(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, &self.leaf, flags, Mode::empty())
    }

    /// Whether it is an empty file, as a target for a block device would be.
    pub fn is_empty_file(&self) -> Result<bool, Errno> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(&self.parent, &self.leaf, flags)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(kind == FileType::RegularFile && stat.st_size == 0)
    }

    pub fn error(&self, what: &'static str, errno: Errno) -> Error {
        PathFault::at(what, &self.path)(errno).into()
    }
}

/// Opens the directory above a path; `None` if it does not exist.
fn open_parent(path: &Path) -> Result<Option<OwnedFd>> {
    match os::open_path(path.parent().unwrap_or(path)) {
        Ok(parent) => Ok(Some(parent)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(PathFault::at("open the directory above", path)(errno).into()),
    }
}

/// Accepts only an absolute path without `.` and `..`.
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
    Ok(os::path_of(directory).map_err(PathFault::at("resolve", shown))?)
}

fn real(directory: &Path) -> Result<PathBuf> {
    let open = os::open_path(directory).map_err(PathFault::at("open", directory))?;
    resolve(open, directory)
}
