//! Private clones of mounts.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use crate::os;
use crate::sys;

/// Clones one mount, without the mounts below it, as a private mount: a later mount in the clone
/// does not appear elsewhere, and the reverse.
pub(super) fn private_clone(place: impl AsFd, set: u64, clear: u64) -> Result<OwnedFd, Errno> {
    let at = (OsStr::new(""), OpenTreeFlags::AT_EMPTY_PATH);
    private_clone_at(place, at, set, clear)
}

fn private_clone_at(
    directory: impl AsFd,
    (name, flags): (&OsStr, OpenTreeFlags),
    set: u64,
    clear: u64,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let clone = rustix::mount::open_tree(directory, name, flags)?;
    sys::mount_setattr(clone.as_fd(), set, clear, libc::MS_PRIVATE)?;
    Ok(clone)
}

/// A directory that was opened through a private clone of its mount, for the driver's work in trees
/// of pods. The clone opens no device, runs no program and follows no link.
#[derive(Debug)]
pub struct GuardedDir {
    dir: OwnedFd,
    /// The clone exists until this is closed.
    _clone: OwnedFd,
}

impl AsFd for GuardedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Opens a directory through a private clone of its mount.
pub fn open_guarded(place: impl AsFd) -> Result<GuardedDir, Errno> {
    open_clone(place, 0)
}

/// Opens a directory through such a clone that is writable, even if its mount is read-only.
pub(super) fn open_writable(place: impl AsFd) -> Result<GuardedDir, Errno> {
    open_clone(place, libc::MOUNT_ATTR_RDONLY)
}

/// Opens a directory by its name through such a clone. Nothing of the mount itself is open then, so that it can be unmounted.
pub(super) fn open_guarded_at(directory: impl AsFd, name: &OsStr) -> Result<GuardedDir, Errno> {
    let at = (name, OpenTreeFlags::AT_SYMLINK_NOFOLLOW);
    of_clone(private_clone_at(directory, at, GUARDS, 0)?)
}

const GUARDS: u64 = libc::MOUNT_ATTR_NODEV
    | libc::MOUNT_ATTR_NOSUID
    | libc::MOUNT_ATTR_NOEXEC
    | libc::MOUNT_ATTR_NOSYMFOLLOW;

fn open_clone(place: impl AsFd, clear: u64) -> Result<GuardedDir, Errno> {
    of_clone(private_clone(place, GUARDS, clear)?)
}

fn of_clone(clone: OwnedFd) -> Result<GuardedDir, Errno> {
    Ok(GuardedDir {
        dir: os::open_dir(&clone, ".")?,
        _clone: clone,
    })
}
