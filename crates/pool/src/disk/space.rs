//! The space of a filesystem.

use rustix::fs::StatVfs;

/// The inodes of an empty volume: two directories and a record.
const INODES_OF_A_VOLUME: u64 = 3;

/// The space of a filesystem by statvfs(2), in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Used and available bytes, without those that the filesystem reserves for root.
    pub total: u64,
    pub used: u64,
    /// Available bytes; 0 if there are too few inodes for a volume.
    pub available: u64,
}

impl From<StatVfs> for Space {
    fn from(vfs: StatVfs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(vfs.f_frsize);
        let used = bytes(vfs.f_blocks.saturating_sub(vfs.f_bfree));
        let available = bytes(vfs.f_bavail);
        // A filesystem without a table of inodes, such as btrfs, reports 0.
        let has_inodes = vfs.f_files == 0 || vfs.f_favail >= INODES_OF_A_VOLUME;
        Self {
            total: used.saturating_add(available),
            used,
            available: if has_inodes { available } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: G3.
    #[test]
    fn nothing_is_available_without_inodes_for_a_volume() {
        let cases = [
            // inodes in all, inodes available, bytes available
            (0, 0, 5 << 12),
            (1000, 3, 5 << 12),
            (1000, 2, 0),
            (1000, 0, 0),
        ];
        for (f_files, f_favail, available) in cases {
            let space = Space::from(StatVfs {
                f_bsize: 4096,
                f_frsize: 4096,
                f_blocks: 10,
                f_bfree: 6,
                f_bavail: 5,
                f_files,
                f_ffree: f_favail,
                f_favail,
                f_fsid: 0,
                f_flag: rustix::fs::StatVfsMountFlags::empty(),
                f_namemax: 255,
            });
            let (total, used) = (9 << 12, 4 << 12);
            let expected = Space {
                total,
                used,
                available,
            };
            assert_eq!(space, expected, "{f_favail} of {f_files}");
        }
    }
}
