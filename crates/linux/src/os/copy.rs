//! System calls of a tree copy: they open the source, read an inode's attributes, and write content
//! and attributes of the target.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, FileType, IFlags, Mode, OFlags, SeekFrom, Statx, Timespec, Timestamps, XattrFlags,
    seek, sendfile,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::change::{At, Os, Step};
use super::open::{open_beneath, or_by_link};
use super::status::Outcome;

/// The maximum size of the list of an inode's extended attributes, and of one value:
/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const MAX_ATTRIBUTE: usize = 64 * 1024;

/// The names of an inode's extended attributes, each with a NUL at its end; empty if the filesystem has
/// no extended attributes.
pub fn attributes(file: impl AsFd) -> Outcome<Vec<u8>> {
    let list = |names: &mut Vec<u8>| {
        let direct = rustix::fs::flistxattr(&file, spare_capacity(names));
        or_by_link(&file, direct, |link| {
            rustix::fs::listxattr(link, spare_capacity(names))
        })
    };
    match read_growing(list) {
        Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
        names => names,
    }
}

pub fn attribute(file: impl AsFd, name: &CStr) -> Outcome<Vec<u8>> {
    read_growing(|value| {
        let direct = rustix::fs::fgetxattr(&file, name, spare_capacity(value));
        or_by_link(&file, direct, |link| {
            rustix::fs::getxattr(link, name, spare_capacity(value))
        })
    })
}

/// Reads into a small buffer, or into one of the maximum size.
fn read_growing(mut read: impl FnMut(&mut Vec<u8>) -> Outcome<usize>) -> Outcome<Vec<u8>> {
    let mut buffer = Vec::with_capacity(512);
    match read(&mut buffer) {
        Err(Errno::RANGE) => {
            buffer.reserve(MAX_ATTRIBUTE);
            read(&mut buffer)?;
        }
        outcome => {
            outcome?;
        }
    }
    Ok(buffer)
}

/// Whether the blocks of a file are rewritten in place on a btrfs; false on other filesystems.
pub fn is_kept_in_place(file: impl AsFd) -> Outcome<bool> {
    match rustix::fs::ioctl_getflags(file) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(false),
        flags => Ok(flags?.contains(IFlags::NOCOW)),
    }
}

/// Opens a directory beneath another to copy it. It follows no link, crosses no mount and does not
/// change the access time.
pub fn open_source_dir(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    open_beneath(dir, name.as_ref(), flags)
}

/// Opens a file to copy it, as [`open_source_dir`]. The caller checks the type afterwards, because
/// another entry may have replaced the file.
pub fn open_source_file(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<OwnedFd> {
    let flags = OFlags::RDONLY
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::NOATIME
        | OFlags::CLOEXEC;
    open_beneath(dir, name.as_ref(), flags)
}

/// Times of an inode, each in seconds and nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    pub accessed: (i64, u32),
    pub modified: (i64, u32),
}

impl Times {
    pub fn of(status: &Statx) -> Self {
        let (accessed, modified) = (status.stx_atime, status.stx_mtime);
        Self {
            accessed: (accessed.tv_sec, accessed.tv_nsec),
            modified: (modified.tv_sec, modified.tv_nsec),
        }
    }
}

impl Os {
    /// Has a btrfs rewrite the blocks of an empty file in place exactly if it rewrites those of another so.
    /// Otherwise the two could not share blocks.
    pub fn keep_in_place_as(&self, target: impl AsFd, source: impl AsFd) -> Outcome {
        self.set_in_place(target, is_kept_in_place(source)?)
    }

    /// Makes an empty file share all blocks of another.
    pub fn share(&self, target: impl AsFd, source: impl AsFd) -> Outcome {
        self.on_file(Step::Share, target, |target| {
            rustix::fs::ioctl_ficlone(target, source)
        })
    }

    /// Copies at most `bytes` bytes from one file to the same offset of another, and returns their
    /// number: 0 at the end of the file. The position of the target is undefined after it.
    pub fn copy_range(
        &self,
        target: impl AsFd,
        source: impl AsFd,
        offset: u64,
        bytes: usize,
    ) -> Outcome<u64> {
        let mut from = offset;
        self.on_file(Step::CopyRange, target, |target| {
            // Not copy_file_range(2), which shares blocks where the filesystem can. Simple quota would charge
            // them to the source.
            seek(target, SeekFrom::Start(offset))?;
            sendfile(target, &source, Some(&mut from), bytes)
        })
        .map(|copied| copied as u64)
    }

    pub fn truncate(&self, file: impl AsFd, size: u64) -> Outcome {
        self.on_file(Step::Truncate, file, |file| {
            rustix::fs::ftruncate(file, size)
        })
    }

    /// Gives a file another name, which must not exist yet.
    pub fn link(&self, from: At<'_>, to: At<'_>) -> Outcome {
        self.on_entry(Step::Link, to, |to| {
            rustix::fs::linkat(from.dir, from.name, to.dir, to.name, AtFlags::empty())
        })
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &CStr, dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome {
        self.on_entry(Step::Symlink, At::new(&dir, &name), |at| {
            rustix::fs::symlinkat(target, at.dir, at.name)
        })
    }

    /// Makes a FIFO, a socket or a device, for root alone.
    pub fn mknod(
        &self,
        dir: impl AsFd,
        name: impl AsRef<OsStr>,
        kind: FileType,
        (major, minor): (u32, u32),
    ) -> Outcome {
        let mode = Mode::from_raw_mode(0o600);
        let device = rustix::fs::makedev(major, minor);
        self.on_entry(Step::Mknod, At::new(&dir, &name), |at| {
            rustix::fs::mknodat(at.dir, at.name, kind, mode, device)
        })
    }

    pub fn set_attribute(&self, file: impl AsFd, name: &CStr, value: &[u8]) -> Outcome {
        self.on_file(Step::SetAttribute, file, |file| {
            let flags = XattrFlags::empty();
            or_by_link(
                file,
                rustix::fs::fsetxattr(file, name, value, flags),
                |link| rustix::fs::setxattr(link, name, value, flags),
            )
        })
    }

    pub fn remove_attribute(&self, file: impl AsFd, name: &CStr) -> Outcome {
        self.on_file(Step::SetAttribute, file, |file| {
            or_by_link(file, rustix::fs::fremovexattr(file, name), |link| {
                rustix::fs::removexattr(link, name)
            })
        })
    }

    /// Sets the access and modification times of an inode.
    pub fn set_times(&self, file: impl AsFd, times: &Times) -> Outcome {
        let timespec = |(seconds, nanoseconds): (i64, u32)| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.into(),
        };
        let times = Timestamps {
            last_access: timespec(times.accessed),
            last_modification: timespec(times.modified),
        };
        self.on_file(Step::SetTimes, file, |file| {
            match rustix::fs::futimens(file, &times) {
                Err(Errno::BADF) => rustix::fs::utimensat(file, "", &times, AtFlags::EMPTY_PATH),
                set => set,
            }
        })
    }

    /// Sets inode flags in addition to the present ones.
    pub fn add_flags(&self, file: impl AsFd, flags: IFlags) -> Outcome {
        let before = rustix::fs::ioctl_getflags(&file)?;
        self.on_file(Step::SetFlags, file, |file| {
            rustix::fs::ioctl_setflags(file, before | flags)
        })
    }
}
