//! Private clones of mounts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use crate::os;
use crate::sys;

/// Clones one mount, without the mounts below it, as a private mount: a later mount in the clone
/// does not appear elsewhere, and the reverse.
pub(super) fn private_clone(place: impl AsFd, set: u64, clear: u64) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = rustix::mount::open_tree(place, "", flags)?;
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

fn open_clone(place: impl AsFd, clear: u64) -> Result<GuardedDir, Errno> {
    let set = libc::MOUNT_ATTR_NODEV
        | libc::MOUNT_ATTR_NOSUID
        | libc::MOUNT_ATTR_NOEXEC
        | libc::MOUNT_ATTR_NOSYMFOLLOW;
    let clone = private_clone(place, set, clear)?;
    Ok(GuardedDir {
        dir: os::open_dir(&clone, ".")?,
        _clone: clone,
    })
}
