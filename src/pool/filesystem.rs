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

const EXT4: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;

/// Local disk filesystems, and those known to be none: network, memory, union and FUSE.
const KNOWN: &[(u64, &str, bool)] = &[
    (EXT4, "ext4", true),
    (XFS, "xfs", true),
    (0x9123_683E, "btrfs", true),
    (0xF2F5_2010, "f2fs", true),
    (0x2FC1_2FC1, "zfs", true),
    (0xCA45_1A4E, "bcachefs", true),
    (0x0102_1994, "tmpfs", false),
    (0x8584_58F6, "ramfs", false),
    (0x794C_7630, "overlay", false),
    (0x6969, "nfs", false),
    (0x517B, "smb", false),
    (0xFF53_4D42, "cifs", false),
    (0xFE53_4D42, "smb2", false),
    (0x00C3_6400, "ceph", false),
    (0x5346_414F, "afs", false),
    (0x0102_1997, "9p", false),
    (0x0BD0_0BD0, "lustre", false),
    (0x6573_5546, "fuse", false),
    (0x9FA0, "proc", false),
    (0x6265_6572, "sysfs", false),
    (0x7371_7368, "squashfs", false),
    (0xE0F5_E1E2, "erofs", false),
    (0x9660, "iso9660", false),
];

/// The kind of filesystem a directory is on. An unknown one is taken to be a local disk's.
pub(crate) fn kind(directory: impl AsFd) -> Result<Filesystem, Errno> {
    // The type's width and sign differ between architectures; the magic numbers are 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
    let magic = rustix::fs::fstatfs(directory)?.f_type as u64 & 0xFFFF_FFFF;
    let (name, suitable) = KNOWN
        .iter()
        .find(|(known, _, _)| *known == magic)
        .map_or_else(
            || (format!("{magic:#x}"), true),
            |(_, n, s)| ((*n).to_owned(), *s),
        );
    Ok(Filesystem {
        name,
        suitable,
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
