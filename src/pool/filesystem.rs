//! What is to be known of the filesystem a pool is on.

use std::os::fd::AsFd;

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use super::capacity::Space;

/// A kind of filesystem, by its magic number (`include/uapi/linux/magic.h`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filesystem {
    /// The name mount(8) knows it by.
    pub(crate) name: String,
    /// Whether it keeps a pool's promises.
    pub(crate) suitable: bool,
    /// Whether an fsync of a directory may leave out mode and owner of what is in it, as on btrfs,
    /// so that only a sync of the whole filesystem makes them durable. On XFS and ext4 the log
    /// keeps the order.
    pub(crate) needs_syncfs: bool,
}

impl Filesystem {
    /// How many threads copy a tree: on btrfs they wait for the same few nodes of its tree.
    pub(crate) fn copying_threads(&self) -> usize {
        if self.name == "btrfs" { 1 } else { 2 }
    }
}

const EXT4: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;

/// The filesystems of local disks that can hold a pool.
const SUITABLE: &[(u64, &str)] = &[
    (EXT4, "ext4"),
    (XFS, "xfs"),
    (0x9123_683E, "btrfs"),
    (0xF2F5_2010, "f2fs"),
    (0x2FC1_2FC1, "zfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3153_464A, "jfs"),
    (0x3434, "nilfs2"),
];

/// Some that cannot, to call them by name: network, memory, union, FUSE and the like.
const UNSUITABLE: &[(u64, &str)] = &[
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlay"),
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x00C3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x0BD0_0BD0, "lustre"),
    (0x6573_5546, "fuse"),
    (0x0116_1970, "gfs2"),
    (0x7461_636F, "ocfs2"),
    (0x4D44, "vfat"),
];

/// The kind of filesystem a directory is on. An unknown one is none that a pool can trust.
pub(crate) fn kind(directory: impl AsFd) -> Result<Filesystem, Errno> {
    // The type's width and sign differ between architectures; the magic numbers are 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
    let magic = rustix::fs::fstatfs(directory)?.f_type as u64 & 0xFFFF_FFFF;
    let named = |list: &[(u64, &str)]| {
        let entry = list.iter().find(|(known, _)| *known == magic);
        entry.map(|(_, name)| (*name).to_owned())
    };
    let suitable = named(SUITABLE);
    Ok(Filesystem {
        suitable: suitable.is_some(),
        name: suitable
            .or_else(|| named(UNSUITABLE))
            .unwrap_or_else(|| format!("a filesystem of unknown type {magic:#x}")),
        needs_syncfs: !matches!(magic, EXT4 | XFS),
    })
}

/// The room of the filesystem.
pub(crate) fn space(directory: impl AsFd) -> Result<Space, Errno> {
    rustix::fs::fstatvfs(directory).map(Space::from)
}

/// Whether it is, or is mounted, read-only.
pub(crate) fn is_read_only(directory: impl AsFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatvfs(directory)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY))
}
