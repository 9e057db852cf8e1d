//! The kernel's mounts, by `open_tree`, `mount_setattr` and `move_mount`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::os;
use crate::sys::{self, MountAttributes};

use super::{Atime, Error, MountOptions, MountTable, Mounter, Prepared, Result, Target};

/// Clones one mount, without what is mounted below it, and keeps it private: nothing that is
/// mounted in the clone appears elsewhere, nor the other way round.
fn private_clone(place: impl AsFd, set: u64, clear: u64) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = rustix::mount::open_tree(place, "", flags)?;
    let change = MountAttributes {
        set,
        clear,
        propagation: libc::MS_PRIVATE,
    };
    sys::mount_setattr(clone.as_fd(), change)?;
    Ok(clone)
}

/// A directory opened by way of a private clone of its mount, for the driver's own work in trees
/// that pods own: no device is opened through it, no program run, no link followed.
#[derive(Debug)]
pub struct GuardedDir {
    dir: OwnedFd,
    /// Closing it would dissolve the clone.
    _clone: OwnedFd,
}

impl AsFd for GuardedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Opens a directory guarded.
pub fn open_guarded(place: impl AsFd) -> Result<GuardedDir, Errno> {
    let set = libc::MOUNT_ATTR_NODEV
        | libc::MOUNT_ATTR_NOSUID
        | libc::MOUNT_ATTR_NOEXEC
        | libc::MOUNT_ATTR_NOSYMFOLLOW;
    let clone = private_clone(place, set, 0)?;
    Ok(GuardedDir {
        dir: os::open_dir(&clone, ".")?,
        _clone: clone,
    })
}

/// The mounts of this process's namespace.
#[derive(Debug, Default)]
pub struct KernelMounter;

impl Mounter for KernelMounter {
    fn prepare(
        &self,
        source: BorrowedFd<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared> {
        let base = flags_of(source).map_err(|errno| target.error("cannot prepare", errno))?;
        let (set, clear) = attributes(options);
        let mount = private_clone(source, set, clear)
            .map_err(|errno| target.error("cannot clone the volume's mount for", errno))?;
        // Read back while nobody can see the mount yet.
        let flags =
            flags_of(mount.as_fd()).map_err(|errno| target.error("cannot verify", errno))?;
        let expected = options.expected(base);
        if flags != expected {
            return Err(Error::Internal(format!(
                "the mount for {} shows flags {flags:?} instead of {expected:?}",
                target.path().display()
            )));
        }
        Ok(Prepared { mount, flags })
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&prepared.mount, "", target.parent(), target.leaf(), flags)
            .map_err(|errno| target.error("cannot mount at", errno))
    }

    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags> {
        target
            .statvfs()
            .map(|vfs| vfs.f_flag & MountOptions::visible())
            .map_err(|errno| target.error("cannot read the mount at", errno))
    }

    fn unmount(&self, target: &Target) -> Result<()> {
        loop {
            match unmount_once(&target.proc_path()) {
                Ok(()) => {}
                // Not a mount, or not there: nothing is left to unmount.
                Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) => {
                    if !unmount_below(target.path()) {
                        return Err(target.error("in use, cannot unmount", Errno::BUSY));
                    }
                }
                Err(errno) => return Err(target.error("cannot unmount", errno)),
            }
        }
    }

    fn table(&self) -> std::io::Result<MountTable> {
        MountTable::read()
    }
}

fn unmount_once(path: &Path) -> Result<(), Errno> {
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)
}

/// Unmounts what a pod or a person mounted below a target, deepest first; whether anything was.
/// Only a busy target leads here, so reading the table is no part of an ordinary request.
fn unmount_below(path: &Path) -> bool {
    let Ok(table) = MountTable::read() else {
        return false;
    };
    let mut below: Vec<_> = table
        .entries
        .iter()
        .map(|entry| &entry.mount_point)
        .filter(|mount_point| mount_point.starts_with(path) && *mount_point != path)
        .collect();
    below.sort_by_key(|mount_point| std::cmp::Reverse(mount_point.components().count()));
    let mut any = false;
    for mount_point in below {
        match unmount_once(mount_point) {
            Ok(()) => any = true,
            Err(errno) => {
                tracing::warn!(mount_point = %mount_point.display(), %errno, "cannot unmount");
            }
        }
    }
    any
}

pub(super) fn flags_of(mount: BorrowedFd<'_>) -> Result<StatVfsMountFlags, Errno> {
    Ok(rustix::fs::fstatvfs(mount)?.f_flag & MountOptions::visible())
}

/// The `MOUNT_ATTR_*` to set and to clear.
fn attributes(options: MountOptions) -> (u64, u64) {
    let mut set = 0;
    for (asked, attribute) in [
        (options.read_only, libc::MOUNT_ATTR_RDONLY),
        (options.nosuid, libc::MOUNT_ATTR_NOSUID),
        (options.nodev, libc::MOUNT_ATTR_NODEV),
        (options.noexec, libc::MOUNT_ATTR_NOEXEC),
        (options.nosymfollow, libc::MOUNT_ATTR_NOSYMFOLLOW),
        (options.nodiratime, libc::MOUNT_ATTR_NODIRATIME),
    ] {
        if asked {
            set |= attribute;
        }
    }
    let Some(atime) = options.atime else {
        return (set, 0);
    };
    set |= match atime {
        Atime::Noatime => libc::MOUNT_ATTR_NOATIME,
        Atime::Relatime => libc::MOUNT_ATTR_RELATIME,
        Atime::Strictatime => libc::MOUNT_ATTR_STRICTATIME,
    };
    (set, libc::MOUNT_ATTR__ATIME)
}
