//! The system calls that change a disk, and their observers.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::sys;

use super::open::or_by_link;
use super::status::{Outcome, status};

/// A system call that changes a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Mkdir,
    /// openat(2) that creates a file.
    Create,
    Write,
    Fsync,
    /// syncfs(2) or `BTRFS_IOC_SYNC`.
    Syncfs,
    Rename,
    Unlink,
    /// unlinkat(2) of a directory.
    Rmdir,
    Chmod,
    Chown,
    /// `FS_IOC_SETFLAGS` or `BTRFS_IOC_SUBVOL_SETFLAGS`.
    SetFlags,
    /// `Q_XSETQLIM` or `BTRFS_IOC_QGROUP_LIMIT`.
    Limit,
    /// `BTRFS_IOC_QGROUP_CREATE`, which also removes.
    Qgroup,
    /// `FS_IOC_FSSETXATTR`: sets a project id.
    SetProject,
    /// `BTRFS_IOC_SUBVOL_CREATE_V2`.
    CreateSubvolume,
    /// `BTRFS_IOC_SNAP_CREATE_V2`.
    SnapshotSubvolume,
    /// `BTRFS_IOC_SNAP_DESTROY_V2`.
    DestroySubvolume,
    /// `FICLONE`.
    Share,
    /// sendfile(2).
    CopyRange,
    Truncate,
    Link,
    Symlink,
    Mknod,
    /// fsetxattr(2).
    SetAttribute,
    /// utimensat(2).
    SetTimes,
    /// fallocate(2).
    Allocate,
    /// A program that makes a filesystem in a file.
    Format,
}

/// An entry of a directory, which need not exist.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a OsStr,
}

impl<'a> At<'a> {
    pub fn new(dir: &'a (impl AsFd + ?Sized), name: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        let (dir, name) = (dir.as_fd(), name.as_ref());
        Self { dir, name }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Object<'a> {
    Open(BorrowedFd<'a>),
    Entry(At<'a>),
    Moved { from: At<'a>, to: At<'a> },
}

impl<'a> Object<'a> {
    fn name(&self) -> &'a OsStr {
        match self {
            Self::Open(_) => OsStr::new(""),
            Self::Entry(at) | Self::Moved { to: at, .. } => at.name,
        }
    }
}

/// Observes every step.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Called before a step with the name of the entry, or an empty name for an open file. An error
    /// replaces the step.
    fn before(&self, _step: Step, _name: &OsStr) -> Result<(), Errno> {
        Ok(())
    }
    fn after(&self, _step: Step, _name: &OsStr) {}
    /// Called after `after` with the object of the step.
    fn changed(&self, _step: Step, _object: Object<'_>) {}
    /// Whether a sync is skipped. It then reports success, and no other method is called.
    fn skips(&self, _sync: Step, _file: BorrowedFd<'_>) -> bool {
        false
    }
}

/// The mutating system calls.
#[derive(Debug, Clone, Default)]
pub struct Os {
    observer: Option<Arc<dyn Observer>>,
}

impl Os {
    pub fn observed(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer: Some(observer),
        }
    }

    fn step<T>(
        &self,
        step: Step,
        object: Object<'_>,
        call: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        let Some(observer) = &self.observer else {
            return call();
        };
        observer.before(step, object.name())?;
        let value = call()?;
        observer.after(step, object.name());
        observer.changed(step, object);
        Ok(value)
    }

    pub(super) fn on_file<T>(
        &self,
        step: Step,
        file: impl AsFd,
        call: impl FnOnce(BorrowedFd<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        let file = file.as_fd();
        self.step(step, Object::Open(file), || call(file))
    }

    pub(super) fn on_entry<T>(
        &self,
        step: Step,
        at: At<'_>,
        call: impl FnOnce(At<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        self.step(step, Object::Entry(at), || call(at))
    }

    fn sync(&self, step: Step, file: impl AsFd, call: fn(BorrowedFd<'_>) -> Outcome) -> Outcome {
        let file = file.as_fd();
        match &self.observer {
            Some(observer) if observer.skips(step, file) => Ok(()),
            _ => self.on_file(step, file, call),
        }
    }

    /// Creates a directory with a mode, less the umask.
    pub fn mkdir(&self, dir: impl AsFd, name: impl AsRef<OsStr>, mode: u32) -> Outcome {
        self.on_entry(Step::Mkdir, At::new(&dir, &name), |at| {
            rustix::fs::mkdirat(at.dir, at.name, Mode::from_raw_mode(mode))
        })
    }

    /// Creates a file that must not exist yet, for writing, readable by root alone.
    pub fn create(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
        self.create_as(dir, name, 0o600)
    }

    /// As [`Os::create`], with a mode, less the umask.
    pub fn create_as(
        &self,
        dir: impl AsFd,
        name: impl AsRef<OsStr>,
        mode: u32,
    ) -> Outcome<OwnedFd> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.on_entry(Step::Create, At::new(&dir, &name), |at| {
            rustix::fs::openat(at.dir, at.name, flags, Mode::from_raw_mode(mode))
        })
    }

    pub fn write_all(&self, file: impl AsFd, bytes: &[u8]) -> Outcome {
        self.on_file(Step::Write, file, |file| {
            let mut rest = bytes;
            while !rest.is_empty() {
                match rustix::io::write(file, rest) {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Ok(())
        })
    }

    /// Makes a file or directory durable.
    pub fn fsync(&self, file: impl AsFd) -> Outcome {
        self.sync(Step::Fsync, file, |file| rustix::fs::fsync(file))
    }

    /// Makes a filesystem durable.
    pub fn syncfs(&self, file: impl AsFd) -> Outcome {
        self.sync(Step::Syncfs, file, |file| rustix::fs::syncfs(file))
    }

    /// Renames, and replaces the file at the new name.
    pub fn replace(&self, from: At<'_>, to: At<'_>) -> Outcome {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames to a name that must not exist yet.
    pub fn rename(&self, from: At<'_>, to: At<'_>) -> Outcome {
        self.rename_with(from, to, RenameFlags::NOREPLACE)
    }

    /// Exchanges two entries in one step.
    pub fn exchange(&self, one: At<'_>, other: At<'_>) -> Outcome {
        self.rename_with(one, other, RenameFlags::EXCHANGE)
    }

    fn rename_with(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Outcome {
        self.step(Step::Rename, Object::Moved { from, to }, || {
            rustix::fs::renameat_with(from.dir, from.name, to.dir, to.name, flags)
        })
    }

    /// Removes an entry that is not a directory.
    pub fn unlink(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome {
        self.on_entry(Step::Unlink, At::new(&dir, &name), |at| {
            rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())
        })
    }

    /// As [`Os::unlink`], for an entry that may be absent.
    pub fn unlink_any(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome {
        match self.unlink(dir, name) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome {
        self.on_entry(Step::Rmdir, At::new(&dir, &name), |at| {
            rustix::fs::unlinkat(at.dir, at.name, AtFlags::REMOVEDIR)
        })
    }

    /// Sets the permission bits, also through a descriptor that was opened with `O_PATH`.
    pub fn chmod(&self, file: impl AsFd, mode: u32) -> Outcome {
        let mode = Mode::from_raw_mode(mode);
        self.on_file(Step::Chmod, file, |file| {
            or_by_link(file, rustix::fs::fchmod(file, mode), |link| {
                rustix::fs::chmodat(CWD, link, mode, AtFlags::empty())
            })
        })
    }

    /// Sets owner and group, also through a descriptor that was opened with `O_PATH`.
    pub fn chown(&self, file: impl AsFd, uid: u32, gid: u32) -> Outcome {
        let uid = rustix::fs::Uid::from_raw(uid);
        let gid = rustix::fs::Gid::from_raw(gid);
        self.on_file(Step::Chown, file, |file| {
            rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
        })
    }

    /// Clears the immutable and append-only flags, if any is set.
    pub fn clear_flags(&self, file: impl AsFd) -> Outcome {
        let protected = IFlags::IMMUTABLE | IFlags::APPEND;
        let flags = rustix::fs::ioctl_getflags(&file)?;
        if !flags.intersects(protected) {
            return Ok(());
        }
        self.on_file(Step::SetFlags, file, |file| {
            rustix::fs::ioctl_setflags(file, flags - protected)
        })
    }

    /// Makes a read-only btrfs subvolume writable.
    pub fn clear_read_only(&self, subvolume: impl AsFd) -> Outcome {
        let flags = sys::subvolume_flags(subvolume.as_fd())?;
        if flags & sys::SUBVOLUME_READ_ONLY == 0 {
            return Ok(());
        }
        self.on_file(Step::SetFlags, subvolume, |subvolume| {
            sys::set_subvolume_flags(subvolume, flags & !sys::SUBVOLUME_READ_ONLY)
        })
    }

    /// Sets the limits of a project id of a filesystem, in blocks of 512 bytes and in inodes; 0 lifts
    /// a limit.
    pub fn limit_project(
        &self,
        filesystem: impl AsFd,
        id: u32,
        blocks: u64,
        inodes: u64,
    ) -> Outcome {
        self.on_file(Step::Limit, filesystem, |filesystem| {
            sys::limit_project(filesystem, id, blocks, inodes)
        })
    }

    /// Sets the project id of a file or directory; `inherited`: also of its new entries.
    pub fn set_project(&self, file: impl AsFd, id: u32, inherited: bool) -> Outcome {
        self.on_file(Step::SetProject, file, |file| {
            sys::set_project(file, id, inherited)
        })
    }

    /// Creates a btrfs qgroup that must not exist yet.
    pub fn create_qgroup(&self, filesystem: impl AsFd, qgroup: u64) -> Outcome {
        self.on_file(Step::Qgroup, filesystem, |filesystem| {
            sys::create_qgroup(filesystem, qgroup)
        })
    }

    /// Removes a btrfs qgroup without charges.
    pub fn remove_qgroup(&self, filesystem: impl AsFd, qgroup: u64) -> Outcome {
        self.on_file(Step::Qgroup, filesystem, |filesystem| {
            sys::remove_qgroup(filesystem, qgroup)
        })
    }

    /// Sets the limit of a btrfs qgroup, in bytes; 0 lifts it.
    pub fn limit_qgroup(&self, filesystem: impl AsFd, qgroup: u64, bytes: u64) -> Outcome {
        self.on_file(Step::Limit, filesystem, |filesystem| {
            sys::limit_qgroup(filesystem, qgroup, bytes)
        })
    }

    /// Creates a btrfs subvolume, charged to a qgroup if one is given.
    pub fn create_subvolume(
        &self,
        dir: impl AsFd,
        name: impl AsRef<OsStr>,
        qgroup: Option<u64>,
    ) -> Outcome {
        self.on_entry(Step::CreateSubvolume, At::new(&dir, &name), |at| {
            sys::create_subvolume(at.dir, at.name, qgroup)
        })
    }

    /// Creates a snapshot of a btrfs subvolume, charged to a qgroup if one is given.
    pub fn snapshot_subvolume(
        &self,
        source: impl AsFd,
        target: At<'_>,
        qgroup: Option<u64>,
        read_only: bool,
    ) -> Outcome {
        self.on_entry(Step::SnapshotSubvolume, target, |at| {
            sys::snapshot_subvolume(source.as_fd(), at.dir, at.name, qgroup, read_only)
        })
    }

    /// Makes a btrfs durable, and wakes the thread that frees the space of destroyed subvolumes and lowers the charges of
    /// their qgroups.
    pub fn sync_btrfs(&self, filesystem: impl AsFd) -> Outcome {
        self.sync(Step::Syncfs, filesystem, sys::sync_btrfs)
    }

    /// Waits until an XFS has freed the blocks of removed files.
    pub fn free_removed_of_xfs(&self, filesystem: impl AsFd) -> Outcome {
        self.sync(Step::Syncfs, filesystem, sys::free_removed)
    }

    /// Destroys a btrfs subvolume that contains no other.
    pub fn destroy_subvolume(&self, filesystem: impl AsFd, id: u64) -> Outcome {
        self.on_file(Step::DestroySubvolume, filesystem, |filesystem| {
            sys::destroy_subvolume(filesystem, id)
        })
    }

    /// Has a btrfs rewrite the blocks of a file in place; without effect on other filesystems. The file
    /// must be empty. The files that are made in a directory later inherit it.
    pub fn keep_in_place(&self, file: impl AsFd) -> Outcome {
        self.set_in_place(file, true)
    }

    /// As [`Os::keep_in_place`], or the contrary.
    pub fn set_in_place(&self, file: impl AsFd, in_place: bool) -> Outcome {
        let mut flags = match rustix::fs::ioctl_getflags(&file) {
            Err(Errno::NOTTY | Errno::OPNOTSUPP) => return Ok(()),
            flags => flags?,
        };
        if flags.contains(IFlags::NOCOW) == in_place {
            return Ok(());
        }
        flags.set(IFlags::NOCOW, in_place);
        let set = self.on_file(Step::SetFlags, file, |file| {
            rustix::fs::ioctl_setflags(file, flags)
        });
        match set {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
            set => set,
        }
    }

    /// Extends a file to a length, and allocates all of its blocks.
    pub fn allocate(&self, file: impl AsFd, length: u64) -> Outcome {
        self.on_file(Step::Allocate, file, |file| allocate(file, length))
    }

    /// Makes a filesystem in a file by `make`, whose result is in the outcome of the step.
    pub fn format<E>(
        &self,
        file: impl AsFd,
        make: impl FnOnce() -> Result<(), E>,
    ) -> Outcome<Result<(), E>> {
        self.on_file(Step::Format, file, |_| Ok(make()))
    }
}

/// XFS needs free space for a whole range, even if its blocks are allocated already. So only the new
/// part of a file is one range, and holes are filled in small ones, before the file grows.
fn allocate(file: BorrowedFd<'_>, length: u64) -> Outcome {
    const RANGES: [u64; 2] = [64 << 20, 1 << 20];
    let before = status(file)?;
    let end = before.length.min(length);
    let mut filled = Ok(());
    for bytes in RANGES {
        let mut starts = (0..end).step_by(usize::try_from(bytes).unwrap_or(usize::MAX));
        filled = starts.try_for_each(|at| allocate_range(file, at..(at + bytes).min(end)));
        if filled != Err(Errno::NOSPC) {
            break;
        }
    }
    match filled {
        // The disk has no space for a range, and the file needs none.
        Err(Errno::NOSPC) if before.allocated >= end => {}
        filled => filled?,
    }
    if before.length < length {
        allocate_range(file, before.length..length)?;
    }
    Ok(())
}

fn allocate_range(file: BorrowedFd<'_>, range: Range<u64>) -> Outcome {
    loop {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(file, flags, range.start, range.end - range.start) {
            Err(Errno::INTR) => {}
            allocated => return allocated,
        }
    }
}
