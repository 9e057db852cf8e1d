//! A volume at one end of a copy: a directory or a block device.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use linux::os::{self, Os, Status};
use linux::tree::Source;
use rustix::fs::{FileType, FlockOperation, IFlags, OFlags, flock};
use rustix::io::Errno;

use crate::content::ChunkReader;
use crate::fault::{At, Error, Result};
use crate::record::CHUNK_BYTES;

/// The extended attribute of a target's top with the id of its copy, from its beginning until it is cleaned. It changes
/// no time, and no entry of the target belongs to the copy.
pub(crate) const MARK: &CStr = c"trusted.rootcellar.copy";
/// The directory that each filesystem of the ext family makes.
const LOST_AND_FOUND: &str = "lost+found";
/// The inode number of `lost+found` in each filesystem of the ext family.
const LOST_AND_FOUND_INODE: u64 = 11;
/// The inode number of the root of such a filesystem.
const ROOT_INODE: u64 = 2;
const EXT_MAGIC: u64 = 0xEF53;

#[derive(Debug)]
pub(crate) enum Top {
    Directory(OwnedFd),
    /// With its size.
    Device(OwnedFd, u64),
}

impl Top {
    /// Opens a volume, for writing if it is a target.
    pub(crate) fn open(path: &std::path::Path, is_target: bool) -> Result<Self> {
        let at_path = || path.display().to_string();
        let place = os::open_node(path).at("open a volume", at_path)?;
        let status = os::status(&place).at("read the status of a volume", at_path)?;
        match status.file_type {
            FileType::Directory => {
                let dir = os::open_dir(&place, ".").at("open a directory", at_path)?;
                Ok(Self::Directory(dir))
            }
            FileType::BlockDevice => {
                let access = if is_target {
                    OFlags::RDWR
                } else {
                    OFlags::RDONLY
                };
                let device =
                    rustix::fs::open(path, access | OFlags::CLOEXEC, rustix::fs::Mode::empty());
                let device = device.at("open a block device", at_path)?;
                let size = rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0));
                let size = size.at("read the size of a block device", at_path)?;
                // Another loop device of the same file may have written since these pages were read.
                let _ = rustix::fs::fadvise(&device, 0, None, rustix::fs::Advice::DontNeed);
                Ok(Self::Device(device, size))
            }
            _ => Err(Error::NoVolume { path: at_path() }),
        }
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        match self {
            Self::Directory(file) | Self::Device(file, _) => file,
        }
    }

    /// Refuses the other end of the copy if it is the same volume.
    pub(crate) fn is_not(&self, other: &Self) -> Result<()> {
        let status =
            |top: &Self| os::status(top.file()).at("read the status of a volume", String::new);
        let (one, two) = (status(self)?, status(other)?);
        let is_same = match self {
            Self::Directory(_) => one.id == two.id,
            Self::Device(..) => one.rdev == two.rdev && matches!(other, Self::Device(..)),
        };
        if is_same { Err(Error::Same) } else { Ok(()) }
    }

    /// Waits until no other process copies into this target. The lock ends with the returned descriptor's process.
    pub(crate) fn lock(&self) -> Result<()> {
        match flock(self.file(), FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                eprintln!("another process copies into this target; this one waits for its end");
                let locked = flock(self.file(), FlockOperation::LockExclusive);
                locked.at("lock the target", String::new)
            }
            locked => locked.at("lock the target", String::new),
        }
    }

    /// Holds a target that is a device against mounts. A mounted one is refused.
    pub(crate) fn claim(&self) -> Result<Option<OwnedFd>> {
        let Self::Device(device, _) = self else {
            return Ok(None);
        };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(device));
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let held = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
        held.map(Some)
            .at("hold the block device, which may be mounted", String::new)
    }

    pub(crate) fn unlock(&self) -> Result<()> {
        flock(self.file(), FlockOperation::Unlock).at("unlock the target", String::new)
    }
}

/// The size of a device's sectors, in bytes.
pub(crate) fn sector(device: &OwnedFd) -> Result<u32> {
    rustix::fs::ioctl_blksszget(device).at("read the size of a device's sectors", String::new)
}

pub(crate) fn device(file: &OwnedFd, size: u64) -> ChunkReader<'_> {
    ChunkReader {
        file,
        size,
        is_device: true,
        is_dense: false,
    }
}

/// A mark with this id, and whether the copy is complete. A mark of another copy is refused.
fn mark(target: &OwnedFd, id: &str) -> Result<Option<bool>> {
    let found = match os::attribute(target, MARK) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        mark => mark.at("read the mark of a copy", String::new)?,
    };
    if found == id.as_bytes() || found == complete(id).as_bytes() {
        return Ok(Some(found != id.as_bytes()));
    }
    let found = format!("of the copy {}", String::from_utf8_lossy(&found));
    Err(Error::NotEmpty { found })
}

fn complete(id: &str) -> String {
    format!("{id} complete")
}

/// Whether a copy with this id was begun in a directory. One with another id, or files without a copy, are refused.
pub(crate) fn is_begun(target: &OwnedFd, id: &str) -> Result<bool> {
    if mark(target, id)?.is_some() {
        return Ok(true);
    }
    let names = os::entry_names(target.as_fd()).at("list the target", String::new)?;
    for found in names {
        if !is_of_filesystem_at(target, &found)? {
            let found = found.to_string_lossy().into_owned();
            return Err(Error::NotEmpty { found });
        }
    }
    Ok(false)
}

/// Notes that a copy begins, in an empty directory or in its own.
pub(crate) fn begin(os: &Os, target: &OwnedFd, id: &str) -> Result<()> {
    is_begun(target, id)?;
    set_mark(os, target, id)
}

/// Notes that a copy is complete.
pub(crate) fn finish(os: &Os, target: &OwnedFd, id: &str) -> Result<()> {
    set_mark(os, target, &complete(id))
}

fn set_mark(os: &Os, target: &OwnedFd, mark: &str) -> Result<()> {
    with_flags_cleared(os, target, || {
        os.set_attribute(target, MARK, mark.as_bytes())
    })
    .at(
        "note the state of the copy in an extended attribute",
        String::new,
    )
}

/// Changes a directory that may be protected.
fn with_flags_cleared(
    os: &Os,
    target: &OwnedFd,
    change: impl FnOnce() -> std::result::Result<(), Errno>,
) -> std::result::Result<(), Errno> {
    let flags = Source::new(os::open_dir(target, ".")?)?.flags();
    unprotect(os, target)?;
    change()?;
    protect(os, target, flags)
}

/// Removes the note of a copy that is complete. It may be repeated.
pub(crate) fn clean(top: &Top, id: &str) -> Result<()> {
    let Top::Directory(target) = top else {
        return Ok(());
    };
    top.lock()?;
    match mark(target, id)? {
        None => return Ok(()),
        Some(false) => return Err(Error::Incomplete),
        Some(true) => {}
    }
    let os = Os::default();
    with_flags_cleared(&os, target, || os.remove_attribute(target, MARK))
        .at("remove the note of the copy", String::new)?;
    os.syncfs(target).at("make the copy durable", String::new)
}

/// The free bytes and entries of a target; `None` where there is no limit of entries.
pub(crate) fn space(target: &Top) -> Result<(u64, Option<u64>)> {
    let target = match target {
        Top::Device(_, size) => return Ok((*size, None)),
        Top::Directory(target) => target,
    };
    let status = rustix::fs::fstatvfs(target).at("read the free space", String::new)?;
    let bytes = status.f_bavail.saturating_mul(status.f_frsize);
    Ok((bytes, (status.f_files > 0).then_some(status.f_favail)))
}

/// A pipe between two threads, which has space for a chunk.
pub(crate) fn pipe() -> Result<(File, File)> {
    let (from, to) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at("make a pipe", String::new)?;
    // Less is only slower.
    let _ = rustix::pipe::fcntl_setpipe_size(&to, CHUNK_BYTES);
    Ok((File::from(from), File::from(to)))
}

/// Opens a file for reading, also one with mandatory access control.
pub(crate) fn open_file(dir: &OwnedFd, name: &OsStr) -> std::result::Result<OwnedFd, Errno> {
    match os::open_source_file(dir, name) {
        Err(Errno::ACCESS) => {
            os::open_protected(dir, name).and_then(|file| file.ok_or(Errno::NOENT))
        }
        file => file,
    }
}

/// Whether an entry of the top is the `lost+found` that its filesystem made, as it made it; that of the target stays.
pub(crate) fn is_of_filesystem(top: &OwnedFd, name: &OsStr, source: &Source) -> bool {
    let status = &source.status;
    let is_as_made = name == LOST_AND_FOUND
        && source.kind() == FileType::Directory
        && status.stx_ino == LOST_AND_FOUND_INODE
        && status.stx_mode & 0o7777 == 0o700
        && (status.stx_uid, status.stx_gid) == (0, 0);
    let is_root = || os::statx(top).is_ok_and(|top| top.stx_ino == ROOT_INODE);
    let is_ext = || {
        let found = rustix::fs::fstatfs(&source.inode);
        found.is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|magic| magic == EXT_MAGIC))
    };
    let is_plain = || {
        let names = os::attributes(&source.inode).unwrap_or_default();
        let mut names = names.split(|byte| *byte == 0);
        names.all(|name| name.is_empty() || name.starts_with(b"security."))
    };
    is_as_made
        && is_root()
        && is_ext()
        && is_plain()
        && os::is_empty(source.inode.as_fd()).is_ok_and(|is_empty| is_empty)
}

/// The same of a name.
pub(crate) fn is_of_filesystem_at(top: &OwnedFd, name: &OsStr) -> Result<bool> {
    if name != LOST_AND_FOUND {
        return Ok(false);
    }
    let at = || name.to_string_lossy().into_owned();
    let status: Status = os::status_at(top, name).at("read the status of an entry", at)?;
    if status.file_type != FileType::Directory {
        return Ok(false);
    }
    let dir = os::open_source_dir(top, name).and_then(Source::new);
    Ok(is_of_filesystem(
        top,
        name,
        &dir.at("open a directory", at)?,
    ))
}

/// Clears the flags that prevent changes, where the filesystem has any.
pub(crate) fn unprotect(os: &Os, file: impl AsFd) -> std::result::Result<(), Errno> {
    match os.clear_flags(file) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(()),
        cleared => cleared,
    }
}

pub(crate) fn protect(os: &Os, file: impl AsFd, flags: IFlags) -> std::result::Result<(), Errno> {
    if flags.is_empty() {
        return Ok(());
    }
    os.add_flags(file, flags)
}
