//! All facts about types of filesystems on which the driver depends.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use uuid::Uuid;

use crate::{os, sys};

const BTRFS: &str = "/sys/fs/btrfs";
const EXT4: &str = "/sys/fs/ext4";

/// A type of filesystem. statfs(2) reports its magic number (`include/uapi/linux/magic.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// ext4, or ext2 and ext3, which have the same magic number.
    Ext4,
    Xfs,
    Btrfs,
    F2fs,
    /// A filesystem that does not hold a pool, by its name: network, memory, union, FUSE and the like, and
    /// those of local disks that no test runs on.
    Unsuitable(&'static str),
    /// A filesystem that the driver does not know, by its magic number.
    Unknown(u64),
}

/// How the trees of a filesystem are best removed.
#[derive(Debug, Clone, Copy)]
pub struct RemovalPolicy {
    /// The threads that remove one tree.
    pub threads: usize,
    /// Whether the last entries of a directory are removed first.
    pub backwards: bool,
    /// Whether a pod can make subvolumes.
    pub has_subvolumes: bool,
}

impl RemovalPolicy {
    /// One entry after the other.
    pub const PLAIN: Self = Self {
        threads: 1,
        backwards: false,
        has_subvolumes: false,
    };
}

const KNOWN: &[(u64, Filesystem)] = &[
    (0xEF53, Filesystem::Ext4),
    (0x5846_5342, Filesystem::Xfs),
    (0x9123_683E, Filesystem::Btrfs),
    (0xF2F5_2010, Filesystem::F2fs),
    (0x2FC1_2FC1, Filesystem::Unsuitable("zfs")),
    (0xCA45_1A4E, Filesystem::Unsuitable("bcachefs")),
    (0x3153_464A, Filesystem::Unsuitable("jfs")),
    (0x3434, Filesystem::Unsuitable("nilfs2")),
    (0x0102_1994, Filesystem::Unsuitable("tmpfs")),
    (0x8584_58F6, Filesystem::Unsuitable("ramfs")),
    (0x794C_7630, Filesystem::Unsuitable("overlay")),
    (0x6969, Filesystem::Unsuitable("nfs")),
    (0x517B, Filesystem::Unsuitable("smb")),
    (0xFF53_4D42, Filesystem::Unsuitable("cifs")),
    (0xFE53_4D42, Filesystem::Unsuitable("smb2")),
    (0x00C3_6400, Filesystem::Unsuitable("ceph")),
    (0x0102_1997, Filesystem::Unsuitable("9p")),
    (0x0BD0_0BD0, Filesystem::Unsuitable("lustre")),
    (0x6573_5546, Filesystem::Unsuitable("fuse")),
    (0x0116_1970, Filesystem::Unsuitable("gfs2")),
    (0x7461_636F, Filesystem::Unsuitable("ocfs2")),
    (0x4D44, Filesystem::Unsuitable("vfat")),
];

impl Filesystem {
    pub fn of(directory: impl AsFd) -> Result<Self, Errno> {
        // The type's width and sign differ between architectures; the magic numbers are 32 bits.
        #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
        let magic = rustix::fs::fstatfs(directory)?.f_type as u64 & 0xFFFF_FFFF;
        Ok(Self::with_magic(magic))
    }

    fn with_magic(magic: u64) -> Self {
        let known = KNOWN.iter().find(|(number, _)| *number == magic);
        known.map_or(Self::Unknown(magic), |(_, filesystem)| *filesystem)
    }

    /// Whether it can hold a pool. An unknown filesystem cannot.
    pub fn is_suitable(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs | Self::Btrfs | Self::F2fs)
    }

    /// The block devices of the filesystem of `root`, as entries of sysfs. A filesystem without a device
    /// number of its own has none, except btrfs, which may have several.
    pub fn devices(self, root: BorrowedFd<'_>) -> Result<Vec<PathBuf>, Errno> {
        if self == Self::Btrfs {
            let id = Uuid::from_bytes(sys::btrfs_id(root)?);
            let devices = PathBuf::from(format!("{BTRFS}/{id}/devices"));
            let names = os::entry_names(os::open_dir(os::open_path(&devices)?, ".")?.as_fd())?;
            return Ok(names.iter().map(|name| devices.join(name)).collect());
        }
        Ok(match os::status(root)?.id.device {
            (0, _) => Vec::new(),
            (major, minor) => vec![format!("/sys/dev/block/{major}:{minor}").into()],
        })
    }

    /// The names of these devices, such as `nvme0n1p1`.
    pub fn device_names(self, root: BorrowedFd<'_>) -> io::Result<Vec<String>> {
        let name = |entry: &PathBuf| {
            let entry = entry.canonicalize()?;
            let name = entry.file_name().unwrap_or_default();
            Ok(name.to_string_lossy().into_owned())
        };
        self.devices(root)?.iter().map(name).collect()
    }

    /// The errors that the kernel has counted for the filesystem of `root` and keeps on it: on ext4 all that it has met,
    /// on btrfs those of its devices. `None`: it counts none, as XFS. The disk is not asked. `devices` are its
    /// [`Filesystem::device_names`].
    pub fn errors(self, root: BorrowedFd<'_>, devices: &[String]) -> io::Result<Option<u64>> {
        let read = |path: &Path| Ok::<_, io::Error>(sum_of_counters(&fs::read_to_string(path)?));
        match self {
            Self::Ext4 => {
                let count = |name: &String| read(&Path::new(EXT4).join(name).join("errors_count"));
                devices.first().map(count).transpose()
            }
            Self::Btrfs => {
                let id = Uuid::from_bytes(sys::btrfs_id(root)?);
                let mut errors = 0_u64;
                for device in fs::read_dir(format!("{BTRFS}/{id}/devinfo"))? {
                    errors = errors.saturating_add(read(&device?.path().join("error_stats"))?);
                }
                Ok(Some(errors))
            }
            _ => Ok(None),
        }
    }

    /// Whether only syncfs(2) makes mode and owner of a directory's entries durable. On XFS and ext4
    /// an fsync of the directory is enough, because the log keeps the order.
    pub fn needs_syncfs(self) -> bool {
        !matches!(self, Self::Ext4 | Self::Xfs)
    }

    /// Whether it writes changed blocks to another place, which may need more space than a file has.
    pub fn copies_on_write(self) -> bool {
        self == Self::Btrfs
    }

    /// The threads that copy one tree. On btrfs and XFS they only wait for the same locks. Elsewhere
    /// one reads from the disk while the other writes.
    pub fn copying_threads(self) -> usize {
        match self {
            Self::Btrfs | Self::Xfs => 1,
            _ => 2,
        }
    }

    /// How its trees are best removed.
    ///
    /// On btrfs several threads wait for the same nodes of its tree; removing the last entry of a
    /// node does not move the others. XFS frees inodes in the background, and several threads wait
    /// for each other's directory lock. Elsewhere freeing inodes is most of the work, which several
    /// threads share.
    pub fn removal(self) -> RemovalPolicy {
        match self {
            Self::Btrfs => RemovalPolicy {
                backwards: true,
                has_subvolumes: true,
                ..RemovalPolicy::PLAIN
            },
            Self::Xfs => RemovalPolicy::PLAIN,
            _ => RemovalPolicy {
                threads: 4,
                ..RemovalPolicy::PLAIN
            },
        }
    }

    /// Whether files on the filesystem of `root` can share blocks; `None` if that is unknown.
    pub fn shares_blocks(self, root: BorrowedFd<'_>) -> Result<Option<bool>, Errno> {
        match self {
            Self::Btrfs => Ok(Some(true)),
            Self::Xfs => sys::has_reflinks(root).map(Some),
            Self::Ext4 => Ok(Some(false)),
            _ => Ok(None),
        }
    }

    /// The most bytes of names that a directory on the filesystem of `root` has in its inode, so that a
    /// longer list needs a block. `None`: every directory has a block of its own, or needs none.
    pub fn names_in_inode(self, root: BorrowedFd<'_>) -> Result<Option<usize>, Errno> {
        match self {
            Self::Xfs => sys::inode_bytes(root).map(Some),
            _ => Ok(None),
        }
    }
}

/// The sum of the counters in a file of sysfs: one number, or lines with a name and a number.
fn sum_of_counters(text: &str) -> u64 {
    let counters = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counters.fold(0, u64::saturating_add)
}

/// The name that mount(8) knows.
impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ext4 => f.pad("ext4"),
            Self::Xfs => f.pad("xfs"),
            Self::Btrfs => f.pad("btrfs"),
            Self::F2fs => f.pad("f2fs"),
            Self::Unsuitable(name) => f.pad(name),
            Self::Unknown(magic) => write!(f, "a filesystem of unknown type {magic:#x}"),
        }
    }
}

/// Whether the filesystem of a directory is read-only, or mounted so.
pub fn is_read_only(directory: impl AsFd) -> Result<bool, Errno> {
    let flags = rustix::fs::fstatvfs(directory)?.f_flag;
    Ok(flags.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_kernel_are_added() {
        let btrfs =
            "write_errs 1\nread_errs 20\nflush_errs 0\ncorruption_errs 300\ngeneration_errs 0\n";
        for (text, sum) in [("7\n", 7), (btrfs, 321), ("invalid\n", 0), ("", 0)] {
            assert_eq!(sum_of_counters(text), sum, "{text:?}");
        }
    }

    /// Proves: P14.
    #[test]
    fn filesystems_without_tests_are_refused() {
        for (magic, name) in [
            (0x2FC1_2FC1, "zfs"),
            (0xCA45_1A4E, "bcachefs"),
            (0x3153_464A, "jfs"),
            (0x3434, "nilfs2"),
            (0x7, "a filesystem of unknown type 0x7"),
        ] {
            let filesystem = Filesystem::with_magic(magic);
            assert!(!filesystem.is_suitable(), "{filesystem}");
            assert_eq!(filesystem.to_string(), name);
        }
    }
}
