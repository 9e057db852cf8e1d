//! Opens files and directories, beneath others where a path is not the driver's own, and reads them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

use super::status::{Outcome, status};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a directory beneath another for reading, following no link and crossing no mount.
pub fn open_dir(dir: impl AsFd, path: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_beneath(dir, path.as_ref(), flags)
}

/// Opens a directory beneath another with `O_PATH`, as mounts need it.
pub fn open_place(dir: impl AsFd, path: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_beneath(dir, path.as_ref(), flags)
}

/// Opens an entry of any type with `O_PATH`. Only the link to it in /proc gives access to its extended
/// attributes and mode.
pub fn open_entry(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_beneath(dir, name.as_ref(), flags)
}

/// Opens a file or directory to change its flags. Another type is not opened, even if it replaces
/// the entry meanwhile.
pub fn open_protected(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<Option<OwnedFd>> {
    let place = open_entry(dir, name)?;
    if !matches!(
        status(&place)?.file_type,
        FileType::RegularFile | FileType::Directory
    ) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(own_link(&place), flags, Mode::empty()).map(Some)
}

fn own_link(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// The outcome of a call on a descriptor, or of one on its link in /proc: a descriptor that was opened with `O_PATH` is
/// refused with EBADF. Each lookup of such a link makes an entry in /proc, so other descriptors are used directly.
pub(super) fn or_by_link<T>(
    file: impl AsFd,
    direct: Outcome<T>,
    by_link: impl FnOnce(&str) -> Outcome<T>,
) -> Outcome<T> {
    match direct {
        Err(Errno::BADF) => by_link(&own_link(file)),
        outcome => outcome,
    }
}

pub(super) fn open_beneath(dir: impl AsFd, path: &OsStr, flags: OFlags) -> Outcome<OwnedFd> {
    // EAGAIN: a directory above was renamed during the lookup.
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

/// Opens a directory by its absolute path with `O_PATH`, following links.
pub fn open_path(path: &Path) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Opens a device node with `O_PATH`, as mounts need it, without following a link.
pub fn open_node(path: &Path) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Opens a regular file for reading. EINVAL: it is not a regular file.
pub fn open_file(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<File> {
    // NONBLOCK, because the entry may be a FIFO.
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open_beneath(dir, name.as_ref(), flags)?;
    if status(&file)?.file_type != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    Ok(File::from(file))
}

/// Opens a regular file of the driver's own for reading and writing. EINVAL: it is not a regular file.
pub fn open_writable(dir: impl AsFd, path: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open_beneath(dir, path.as_ref(), flags)?;
    if status(&file)?.file_type != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    Ok(file)
}

/// Reads a file to its end. EFBIG: it has more than `limit` bytes.
pub fn read_all(file: &File, limit: usize) -> Outcome<Vec<u8>> {
    let mut content = Vec::new();
    match file.take(limit as u64 + 1).read_to_end(&mut content) {
        Ok(_) if content.len() > limit => Err(Errno::FBIG),
        Ok(_) => Ok(content),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// The names of a directory's entries except `.` and `..`, sorted.
pub fn entry_names(dir: BorrowedFd<'_>) -> Outcome<Vec<OsString>> {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

pub fn is_empty(dir: BorrowedFd<'_>) -> Outcome<bool> {
    Ok(entry_names(dir)?.is_empty())
}

/// The path of an open file in the mount namespace of this process.
pub fn path_of(file: impl AsFd) -> Outcome<PathBuf> {
    let target = rustix::fs::readlink(own_link(&file), Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}
