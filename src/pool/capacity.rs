//! How much a pool may still promise.

use rustix::fs::StatVfs;

use crate::types::Bytes;

use super::{Overcommit, Reserve};

/// Left free for the filesystem's own metadata: 1 %, at most 64 MiB.
const MAX_SLACK: u64 = 64 << 20;

/// The hundredths kept free where a pool shares the node's root disk and nothing else is said:
/// the kubelet evicts pods when that disk runs full.
const ROOT_DISK_RESERVE: u8 = 15;

/// What a volume is made of: two directories and a record.
const INODES_OF_A_VOLUME: u64 = 3;

/// The room of a filesystem as statvfs(2) gives it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// What is used and what is available, without what the filesystem keeps for root.
    pub(crate) total: u64,
    /// What is used.
    pub(crate) used: u64,
    /// What is available; nothing where there are no inodes for a volume.
    pub(crate) available: u64,
}

impl From<StatVfs> for Space {
    fn from(vfs: StatVfs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(vfs.f_frsize);
        let used = bytes(vfs.f_blocks.saturating_sub(vfs.f_bfree));
        let available = bytes(vfs.f_bavail);
        // A filesystem that does not number its inodes, such as btrfs, says that it has none.
        let has_inodes = vfs.f_files == 0 || vfs.f_favail >= INODES_OF_A_VOLUME;
        Self {
            total: used.saturating_add(available),
            used,
            available: if has_inodes { available } else { 0 },
        }
    }
}

/// Everything the capacity of a pool depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) space: Space,
    /// How much of what is used is not the volumes' own.
    pub(crate) others: Others,
    /// What is promised to volumes, those being made included; without accounting, also to what
    /// waits in the trash.
    pub(crate) reserved: u64,
    pub(crate) overcommit: Overcommit,
    pub(crate) reserve: Option<Reserve>,
    pub(crate) on_root_disk: bool,
}

/// How much of what is used on a filesystem is not its volumes' own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Others {
    /// All but this, which is charged to volumes that have a size, to each no more than its size:
    /// what is beyond that is nobody's promise.
    AllBut(u64),
    /// What stood there when the pool held nothing, for nobody counts.
    Stood(u64),
}

impl Room {
    /// The largest size the next volume may have: never more than is free now, and never more
    /// than what volumes may ever hold, times the overcommit, less what is promised. `reserve`
    /// and the slack are kept out of both, or promises not yet written to would eat them.
    pub(crate) fn available(&self) -> Bytes {
        let kept = self.kept();
        let free = self.space.available.saturating_sub(kept);
        let promise = u128::from(self.holds()) * u128::from(self.overcommit.0) / 1000;
        let left = promise.saturating_sub(self.reserved.into());
        Bytes(u64::try_from(left).unwrap_or(u64::MAX).min(free)).min(Bytes::MAX)
    }

    /// What volumes may ever hold.
    pub(crate) fn holds(&self) -> u64 {
        let holds = match self.others {
            Others::AllBut(charged) => {
                let holds = self.space.available.saturating_add(charged);
                holds.min(self.space.total)
            }
            Others::Stood(other) => self.space.total.saturating_sub(other),
        };
        holds.saturating_sub(self.kept())
    }

    fn kept(&self) -> u64 {
        let default = if self.on_root_disk {
            Reserve::Percent(ROOT_DISK_RESERVE)
        } else {
            Reserve::Percent(0)
        };
        let reserve = match self.reserve.unwrap_or(default) {
            Reserve::Bytes(bytes) => bytes.0,
            Reserve::Percent(percent) => self.space.total / 100 * u64::from(percent),
        };
        reserve.saturating_add((self.space.total / 100).min(MAX_SLACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(available: u64, other: u64, reserved: u64) -> Room {
        let total = 100 * GIB;
        Room {
            space: Space {
                total,
                used: total - available,
                available,
            },
            others: Others::Stood(other),
            reserved,
            overcommit: Overcommit(1000),
            reserve: Some(Reserve::Bytes(Bytes(0))),
            on_root_disk: false,
        }
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "it is one table")]
    fn a_pool_promises_no_more_than_it_may_ever_hold_and_no_more_than_is_free() {
        let slack = MAX_SLACK;
        let plain = room(100 * GIB, 0, 0);
        let cases = [
            ("empty", plain, 100 * GIB - slack),
            (
                "promised, nothing written",
                room(100 * GIB, 0, 60 * GIB),
                40 * GIB - slack,
            ),
            (
                "promised and written",
                room(40 * GIB, 0, 60 * GIB),
                40 * GIB - slack,
            ),
            ("all promised", room(100 * GIB, 0, 100 * GIB), 0),
            (
                "other data",
                room(70 * GIB, 30 * GIB, 20 * GIB),
                50 * GIB - slack,
            ),
            (
                "other data grew since",
                room(10 * GIB, 30 * GIB, 20 * GIB),
                10 * GIB - slack,
            ),
            ("full", room(0, 0, 0), 0),
            (
                "reserve in bytes",
                Room {
                    reserve: Some(Reserve::Bytes(Bytes(10 * GIB))),
                    ..plain
                },
                90 * GIB - slack,
            ),
            (
                "reserve of hundredths",
                Room {
                    reserve: Some(Reserve::Percent(25)),
                    ..plain
                },
                75 * GIB - slack,
            ),
            (
                "the reserve is not promised away while nothing is written",
                Room {
                    reserve: Some(Reserve::Percent(25)),
                    ..room(100 * GIB, 0, 75 * GIB)
                },
                0,
            ),
            (
                "root disk",
                Room {
                    reserve: None,
                    on_root_disk: true,
                    ..plain
                },
                85 * GIB - slack,
            ),
            (
                "own disk",
                Room {
                    reserve: None,
                    ..plain
                },
                100 * GIB - slack,
            ),
            (
                "overcommit shows no more than is free",
                Room {
                    overcommit: Overcommit(2000),
                    ..room(100 * GIB, 0, 90 * GIB)
                },
                100 * GIB - slack,
            ),
            (
                "overcommit has an end",
                Room {
                    overcommit: Overcommit(1500),
                    ..room(100 * GIB, 0, 140 * GIB)
                },
                10 * GIB - slack * 3 / 2,
            ),
            (
                "undercommit",
                Room {
                    overcommit: Overcommit(500),
                    ..plain
                },
                50 * GIB - slack / 2,
            ),
        ];
        for (name, room, expected) in cases {
            assert_eq!(room.available(), Bytes(expected), "{name}");
        }
    }

    #[test]
    fn what_is_charged_to_volumes_is_theirs_and_all_else_is_not() {
        let slack = MAX_SLACK;
        let charged = |available: u64, charged: u64, reserved: u64| Room {
            others: Others::AllBut(charged),
            ..room(available, 0, reserved)
        };
        let cases = [
            ("empty", charged(100 * GIB, 0, 0), 100 * GIB - slack),
            (
                "promised, nothing written",
                charged(100 * GIB, 0, 60 * GIB),
                40 * GIB - slack,
            ),
            (
                "promised and written",
                charged(40 * GIB, 60 * GIB, 60 * GIB),
                40 * GIB - slack,
            ),
            (
                "half written",
                charged(70 * GIB, 30 * GIB, 60 * GIB),
                40 * GIB - slack,
            ),
            (
                "other data stands there",
                charged(40 * GIB, 30 * GIB, 60 * GIB),
                10 * GIB - slack,
            ),
            (
                "other data ate what is promised",
                charged(20 * GIB, 30 * GIB, 60 * GIB),
                0,
            ),
            (
                "more is charged than the disk holds, as of shared blocks",
                charged(90 * GIB, 60 * GIB, 60 * GIB),
                40 * GIB - slack,
            ),
        ];
        for (name, room, expected) in cases {
            assert_eq!(room.available(), Bytes(expected), "{name}");
        }
    }

    #[test]
    fn nothing_is_available_where_a_volume_finds_no_inodes() {
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

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let space = Space {
            total: u64::MAX,
            used: 0,
            available: u64::MAX,
        };
        let room = Room {
            space,
            others: Others::Stood(0),
            reserved: 0,
            overcommit: Overcommit(1_000_000),
            reserve: Some(Reserve::Percent(0)),
            on_root_disk: false,
        };
        assert_eq!(room.available(), Bytes::MAX);
        let full = Room {
            others: Others::Stood(u64::MAX),
            reserved: u64::MAX,
            ..room
        };
        assert_eq!(full.available(), Bytes::ZERO);
        let charged = Room {
            others: Others::AllBut(u64::MAX),
            ..room
        };
        assert_eq!(charged.available(), Bytes::MAX);
    }
}
