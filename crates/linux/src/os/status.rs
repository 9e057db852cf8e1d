//! Facts about files, and about the kernel.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::sys;

pub(super) type Outcome<T = ()> = Result<T, Errno>;

/// The identity of a file or directory: its device and inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    pub device: (u32, u32),
    pub inode: u64,
}

/// The result of statx(2) for an open file or an entry.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    pub id: FileId,
    /// The mount through which it was opened.
    pub mount_id: u64,
    pub is_mount_root: bool,
    pub file_type: FileType,
    /// The number of the device that it is the node of.
    pub rdev: (u32, u32),
    /// The number of its names.
    pub links: u32,
    /// Its length, in bytes.
    pub length: u64,
    /// Its allocated space, in bytes.
    pub allocated: u64,
    /// The time of its last change (ctime), since the Unix epoch.
    pub changed_at: Duration,
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
            rdev: (statx.stx_rdev_major, statx.stx_rdev_minor),
            links: statx.stx_nlink,
            length: statx.stx_size,
            allocated: statx.stx_blocks.saturating_mul(512),
            changed_at: Duration::new(
                u64::try_from(statx.stx_ctime.tv_sec).unwrap_or_default(),
                statx.stx_ctime.tv_nsec,
            ),
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

/// As [`status_at`], with every field of statx(2).
pub fn statx_at(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(dir, name.as_ref(), flags, STATX_WANTED)
}

/// The status of the file behind a link of proc(5), whose server is not asked.
pub fn status_behind(link: &Path) -> Outcome<Status> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(rustix::fs::CWD, link, flags, STATX_WANTED).map(Status::from)
}

pub fn status(file: impl AsFd) -> Outcome<Status> {
    statx(file).map(Status::from)
}

/// As [`status`], with every field of statx(2).
pub fn statx(file: impl AsFd) -> Outcome<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, "", flags, STATX_WANTED)
}

/// Whether the kernel permits direct I/O with an open file. Before Linux 6.1 it does not tell, and only a failure shows it.
pub fn permits_direct_io(file: impl AsFd) -> Outcome<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = rustix::fs::statx(file, "", flags, StatxFlags::DIOALIGN)?;
    let is_told = told.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    Ok(!is_told || told.stx_dio_offset_align != 0)
}

/// The time when the content of an entry was written last (mtime), since the Unix epoch.
pub fn written_at(dir: impl AsFd, name: impl AsRef<OsStr>) -> Outcome<Duration> {
    let written = statx_at(dir, name)?.stx_mtime;
    Ok(Duration::new(
        u64::try_from(written.tv_sec).unwrap_or_default(),
        written.tv_nsec,
    ))
}

/// The major and minor number in a kernel release of uname(2), as in `6.1.0-28-amd64`.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether a directory of a btrfs is the root of a subvolume. Only roots have this inode number.
pub fn is_subvolume(dir: impl AsFd) -> Outcome<bool> {
    Ok(status(dir)?.id.inode == sys::FIRST_FREE_OBJECTID)
}

/// Now, in seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
