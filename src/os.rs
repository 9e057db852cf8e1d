//! The seam to the operating system: every step that changes a pool's disk goes through [`Os`],
//! so that a test can watch, fail or stop each one, and skip a sync. Reading needs no seam and
//! stands beside it.

mod copy;

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, IFlags, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, Statx,
    StatxAttributes, StatxFlags,
};
use rustix::io::Errno;

use crate::sys;

pub use copy::{Inode, open_source_dir, open_source_file};

/// A step that changes a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// mkdirat(2).
    Mkdir,
    /// openat(2) that makes a file.
    Create,
    /// write(2).
    Write,
    /// fsync(2).
    Fsync,
    /// syncfs(2).
    Syncfs,
    /// renameat2(2).
    Rename,
    /// unlinkat(2).
    Unlink,
    /// unlinkat(2) of a directory.
    Rmdir,
    /// fchmod(2).
    Chmod,
    /// fchown(2).
    Chown,
    /// `FS_IOC_SETFLAGS`.
    SetFlags,
    /// `Q_XSETQLIM` or `BTRFS_IOC_QGROUP_LIMIT`: a limit is set or lifted.
    Limit,
    /// `BTRFS_IOC_QGROUP_CREATE`: a qgroup is made or removed.
    Qgroup,
    /// `FS_IOC_FSSETXATTR`: a directory is given a project number.
    SetProject,
    /// `BTRFS_IOC_SUBVOL_CREATE_V2`.
    CreateSubvolume,
    /// `BTRFS_IOC_SNAP_CREATE_V2`.
    SnapshotSubvolume,
    /// `BTRFS_IOC_SNAP_DESTROY_V2`.
    DestroySubvolume,
    /// `FICLONE`.
    Share,
    /// `copy_file_range(2)`.
    CopyRange,
    /// ftruncate(2).
    Truncate,
    /// linkat(2).
    Link,
    /// symlinkat(2).
    Symlink,
    /// mknodat(2).
    Mknod,
    /// fsetxattr(2).
    SetAttribute,
    /// utimensat(2).
    SetTimes,
}

/// What a step is on.
#[derive(Debug, Clone, Copy)]
pub enum Object<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// An entry of a directory.
    Entry(BorrowedFd<'a>, &'a OsStr),
    /// An entry that moves, from one directory and name to another.
    Moved {
        /// Where it was.
        from: (BorrowedFd<'a>, &'a OsStr),
        /// Where it is then.
        to: (BorrowedFd<'a>, &'a OsStr),
    },
}

impl<'a> Object<'a> {
    fn name(&self) -> &'a OsStr {
        match self {
            Self::Open(_) => OsStr::new(""),
            Self::Entry(_, name) | Self::Moved { to: (_, name), .. } => name,
        }
    }
}

/// Sees every step before and after it; an error before stands for the step's own.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Called before a step on an entry (or on an open file, whose name is then empty).
    fn before(&self, _step: Step, _name: &OsStr) -> Result<(), Errno> {
        Ok(())
    }
    /// Called after a step that succeeded.
    fn after(&self, _step: Step, _name: &OsStr) {}
    /// Called after that with what the step was on, for those who follow what is on the disk.
    fn changed(&self, _step: Step, _object: Object<'_>) {}
    /// Whether a sync is skipped. Its caller is told that it succeeded; nothing else is called.
    fn skips(&self, _sync: Step, _file: BorrowedFd<'_>) -> bool {
        false
    }
}

/// The mutating system calls.
#[derive(Debug, Clone, Default)]
pub struct Os {
    observer: Option<Arc<dyn Observer>>,
}

type Outcome<T = ()> = Result<T, Errno>;

impl Os {
    /// The system with an observer of every step.
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

    fn sync(&self, step: Step, file: impl AsFd, call: fn(BorrowedFd<'_>) -> Outcome) -> Outcome {
        let file = file.as_fd();
        match &self.observer {
            Some(observer) if observer.skips(step, file) => Ok(()),
            _ => self.step(step, Object::Open(file), || call(file)),
        }
    }

    /// Makes a directory with a mode, less the umask.
    pub fn mkdir(&self, dir: impl AsFd, name: impl AsRef<OsStr>, mode: u32) -> Outcome {
        let (dir, name) = (dir.as_fd(), name.as_ref());
        self.step(Step::Mkdir, Object::Entry(dir, name), || {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
        })
    }

    /// Makes a file that must not exist yet, for writing, readable by root alone.
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
        let (dir, name) = (dir.as_fd(), name.as_ref());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        self.step(Step::Create, Object::Entry(dir, name), || {
            rustix::fs::openat(dir, name, flags, mode)
        })
    }

    /// Writes all of `bytes`.
    pub fn write_all(&self, file: impl AsFd, bytes: &[u8]) -> Outcome {
        let file = file.as_fd();
        self.step(Step::Write, Object::Open(file), || {
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

    /// Makes all of a filesystem durable.
    pub fn syncfs(&self, file: impl AsFd) -> Outcome {
        self.sync(Step::Syncfs, file, |file| rustix::fs::syncfs(file))
    }

    /// Renames, replacing the file that is there.
    pub fn replace(
        &self,
        from: (impl AsFd, impl AsRef<OsStr>),
        to: (impl AsFd, impl AsRef<OsStr>),
    ) -> Outcome {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames to a name that must not exist yet.
    pub fn rename(
        &self,
        from: (impl AsFd, impl AsRef<OsStr>),
        to: (impl AsFd, impl AsRef<OsStr>),
    ) -> Outcome {
        self.rename_with(from, to, RenameFlags::NOREPLACE)
    }

    fn rename_with(
        &self,
        (from_dir, from): (impl AsFd, impl AsRef<OsStr>),
        (to_dir, to): (impl AsFd, impl AsRef<OsStr>),
        flags: RenameFlags,
    ) -> Outcome {
        let (from_dir, from) = (from_dir.as_fd(), from.as_ref());
        let (to_dir, to) = (to_dir.as_fd(), to.as_ref());
        let object = Object::Moved {
            from: (from_dir, from),
            to: (to_dir, to),
        };
        self.step(Step::Rename, object, || {
            rustix::fs::renameat_with(from_dir, from, to_dir, to, flags)
        })
    }

    /// Removes a name that is no directory.
    pub fn unlink(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome {
        let (dir, name) = (dir.as_fd(), name.as_ref());
        self.step(Step::Unlink, Object::Entry(dir, name), || {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome {
        let (dir, name) = (dir.as_fd(), name.as_ref());
        self.step(Step::Rmdir, Object::Entry(dir, name), || {
            rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
        })
    }

    /// Sets the permission bits.
    pub fn chmod(&self, file: impl AsFd, mode: u32) -> Outcome {
        let file = file.as_fd();
        self.step(Step::Chmod, Object::Open(file), || {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
        })
    }

    /// Sets owner and group, also of what is held as a place only.
    pub fn chown(&self, file: impl AsFd, uid: u32, gid: u32) -> Outcome {
        let file = file.as_fd();
        let uid = rustix::fs::Uid::from_raw(uid);
        let gid = rustix::fs::Gid::from_raw(gid);
        self.step(Step::Chown, Object::Open(file), || {
            rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
        })
    }

    /// Clears the immutable and append-only flags, if any is set.
    pub fn clear_flags(&self, file: impl AsFd) -> Outcome {
        let file = file.as_fd();
        let protected = IFlags::IMMUTABLE | IFlags::APPEND;
        let flags = rustix::fs::ioctl_getflags(file)?;
        if !flags.intersects(protected) {
            return Ok(());
        }
        self.step(Step::SetFlags, Object::Open(file), || {
            rustix::fs::ioctl_setflags(file, flags - protected)
        })
    }

    /// Makes a btrfs subvolume writable, if it is not.
    pub fn clear_read_only(&self, subvolume: impl AsFd) -> Outcome {
        let subvolume = subvolume.as_fd();
        let flags = sys::subvolume_flags(subvolume)?;
        if flags & sys::SUBVOLUME_READ_ONLY == 0 {
            return Ok(());
        }
        self.step(Step::SetFlags, Object::Open(subvolume), || {
            sys::set_subvolume_flags(subvolume, flags & !sys::SUBVOLUME_READ_ONLY)
        })
    }

    /// Limits what may be charged under a project number of a filesystem, in blocks of 512 bytes
    /// and in inodes; 0 lifts a limit.
    pub fn limit_project(
        &self,
        filesystem: impl AsFd,
        id: u32,
        blocks: u64,
        inodes: u64,
    ) -> Outcome {
        let filesystem = filesystem.as_fd();
        self.step(Step::Limit, Object::Open(filesystem), || {
            sys::limit_project(filesystem, id, blocks, inodes)
        })
    }

    /// Gives a file or directory a project number; `inherited`: everything made in it has it too.
    pub fn set_project(&self, file: impl AsFd, id: u32, inherited: bool) -> Outcome {
        let file = file.as_fd();
        self.step(Step::SetProject, Object::Open(file), || {
            sys::set_project(file, id, inherited)
        })
    }

    /// Makes a btrfs qgroup that must not exist yet.
    pub fn create_qgroup(&self, filesystem: impl AsFd, qgroup: u64) -> Outcome {
        let filesystem = filesystem.as_fd();
        self.step(Step::Qgroup, Object::Open(filesystem), || {
            sys::create_qgroup(filesystem, qgroup)
        })
    }

    /// Removes a btrfs qgroup that nothing is charged to.
    pub fn remove_qgroup(&self, filesystem: impl AsFd, qgroup: u64) -> Outcome {
        let filesystem = filesystem.as_fd();
        self.step(Step::Qgroup, Object::Open(filesystem), || {
            sys::remove_qgroup(filesystem, qgroup)
        })
    }

    /// Limits what may be charged to a btrfs qgroup, in bytes; 0 lifts the limit.
    pub fn limit_qgroup(&self, filesystem: impl AsFd, qgroup: u64, bytes: u64) -> Outcome {
        let filesystem = filesystem.as_fd();
        self.step(Step::Limit, Object::Open(filesystem), || {
            sys::limit_qgroup(filesystem, qgroup, bytes)
        })
    }

    /// Makes a btrfs subvolume, charged to a qgroup if one is given.
    pub fn create_subvolume(
        &self,
        dir: impl AsFd,
        name: impl AsRef<OsStr>,
        qgroup: Option<u64>,
    ) -> Outcome {
        let (dir, name) = (dir.as_fd(), name.as_ref());
        self.step(Step::CreateSubvolume, Object::Entry(dir, name), || {
            sys::create_subvolume(dir, name, qgroup)
        })
    }

    /// Makes `name` in `dir` a snapshot of a btrfs subvolume, charged to a qgroup if one is given.
    pub fn snapshot_subvolume(
        &self,
        source: impl AsFd,
        (dir, name): (impl AsFd, &str),
        qgroup: Option<u64>,
        read_only: bool,
    ) -> Outcome {
        let (source, dir, name) = (source.as_fd(), dir.as_fd(), OsStr::new(name));
        self.step(Step::SnapshotSubvolume, Object::Entry(dir, name), || {
            sys::snapshot_subvolume(source, dir, name, qgroup, read_only)
        })
    }

    /// Makes all of a btrfs durable, and has the space of destroyed subvolumes freed soon.
    pub fn sync_btrfs(&self, filesystem: impl AsFd) -> Outcome {
        self.sync(Step::Syncfs, filesystem, sys::sync_btrfs)
    }

    /// Destroys a btrfs subvolume that holds no other.
    pub fn destroy_subvolume(&self, filesystem: impl AsFd, id: u64) -> Outcome {
        let filesystem = filesystem.as_fd();
        self.step(Step::DestroySubvolume, Object::Open(filesystem), || {
            sys::destroy_subvolume(filesystem, id)
        })
    }
}

/// What identifies a file or directory: the device and inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// Whether it is the root of a subvolume, if it is a directory of a btrfs; there alone it has
    /// this number.
    pub fn is_subvolume(self) -> bool {
        self.inode == sys::FIRST_FREE_OBJECTID
    }
}

/// What statx(2) says of an open file or an entry.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    /// What it is identified by.
    pub id: FileId,
    /// The mount it was seen through.
    pub mount_id: u64,
    /// Whether it is the root of that mount.
    pub is_mount_root: bool,
    /// Its type.
    pub file_type: FileType,
    /// How many names it has.
    pub links: u32,
    /// What it occupies, in bytes.
    pub allocated: u64,
}

impl From<Statx> for Status {
    fn from(statx: Statx) -> Self {
        Self {
            id: FileId {
                device: (statx.stx_dev_major, statx.stx_dev_minor),
                inode: statx.stx_ino,
            },
            mount_id: statx.stx_mnt_id,
            is_mount_root: statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            file_type: FileType::from_raw_mode(statx.stx_mode.into()),
            links: statx.stx_nlink,
            allocated: statx.stx_blocks.saturating_mul(512),
        }
    }
}

const STATX_WANTED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID);

/// The status of an entry, without following a link, mounting anything or asking a server.
pub fn status_at(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<Status> {
    statx_at(dir, name).map(Status::from)
}

/// All that statx(2) says of an entry, as [`status_at`] asks it.
pub fn statx_at(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(dir, name.as_ref(), flags, STATX_WANTED)
}

/// The status of an open file.
pub fn status(file: impl AsFd) -> Outcome<Status> {
    statx(file).map(Status::from)
}

/// All that statx(2) says of an open file.
pub fn statx(file: impl AsFd) -> Outcome<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, "", flags, STATX_WANTED)
}

/// Whether a directory of a btrfs is the root of a subvolume.
pub fn is_subvolume(dir: impl AsFd) -> Outcome<bool> {
    Ok(status(dir)?.id.is_subvolume())
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a directory beneath another for reading, following no link and crossing no mount.
pub fn open_dir(dir: impl AsFd, path: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_beneath(dir, path.as_ref(), flags)
}

/// Opens a directory beneath another as a place only, as mounts need it.
pub fn open_place(dir: impl AsFd, path: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_beneath(dir, path.as_ref(), flags)
}

/// Opens whatever an entry is, for reading; never blocks on a FIFO or a device that the caller's
/// nodev mount forbids anyway.
fn open_entry(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open_beneath(dir, name.as_ref(), flags)
}

/// Opens a file or directory for changing its flags; anything else is not opened, even if it takes
/// the entry's place meanwhile.
pub fn open_protected(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = open_beneath(dir, name.as_ref(), flags)?;
    if !matches!(
        status(&place)?.file_type,
        FileType::RegularFile | FileType::Directory
    ) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(own_link(&place), flags, Mode::empty()).map(Some)
}

/// The link by which the kernel shows an open file.
fn own_link(file: impl AsFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn open_beneath(dir: impl AsFd, path: &OsStr, flags: OFlags) -> Outcome<OwnedFd> {
    // EAGAIN: something above was renamed while a BENEATH look-up went on.
    const ATTEMPTS: usize = 16;
    let mut outcome = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        outcome = rustix::fs::openat2(&dir, path, flags, Mode::empty(), BENEATH);
        if !matches!(outcome, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    outcome
}

/// Opens a directory by its absolute path as a place only, following links.
pub fn open_path(path: &Path) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Reads a small regular file whole; a larger one, or anything else, is an error.
pub fn read_file(dir: impl AsFd, name: impl AsRef<OsStr>, limit: usize) -> Outcome<Vec<u8>> {
    let file = open_entry(dir, name)?;
    if status(&file)?.file_type != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let mut content = Vec::with_capacity(4096);
    loop {
        if content.len() > limit {
            return Err(Errno::FBIG);
        }
        let mut chunk = [0; 4096];
        match rustix::io::read(&file, &mut chunk) {
            Ok(0) => return Ok(content),
            Ok(count) => content.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Calls `each` with the name and type of every entry of a directory, `.` and `..` left out.
pub fn for_each_entry(
    dir: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr, FileType) -> Outcome,
) -> Outcome {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            each(name, entry.file_type())?;
        }
    }
    Ok(())
}

/// The names of a directory's entries, sorted.
pub fn entry_names(dir: BorrowedFd<'_>) -> Outcome<Vec<std::ffi::OsString>> {
    use std::os::unix::ffi::OsStrExt;
    let mut names = Vec::new();
    for_each_entry(dir, |name, _| {
        names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
        Ok(())
    })?;
    names.sort();
    Ok(names)
}

/// Whether a directory has no entry.
pub fn is_empty(dir: BorrowedFd<'_>) -> Outcome<bool> {
    Ok(entry_names(dir)?.is_empty())
}

/// The path an open file has in this process's view of the mounts.
pub fn path_of(file: impl AsFd) -> Outcome<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let target = rustix::fs::readlink(own_link(&file), Vec::new())?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(
        target.into_bytes(),
    )))
}
