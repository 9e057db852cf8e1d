//! The free space of a pool, computed from a measurement and its reservations.

use objects::Bytes;

use crate::disk::options::{Overcommit, PoolOptions, Reserve};
use crate::disk::space::Space;

/// Left free for the filesystem's own metadata: 1 %, at most 64 MiB.
const MAX_SLACK: u64 = 64 << 20;

/// The percentage reserved by default on a filesystem that the node itself needs: the kubelet
/// evicts pods when that disk is full.
const ROOT_DISK_RESERVE: u8 = 15;

/// The options and properties of a pool that decide how much of its disk may be reserved.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Whether the kernel counts the usage of each volume.
    pub counted: bool,
    pub overcommit: Overcommit,
    pub reserve: Option<Reserve>,
    /// Whether the node itself needs the filesystem.
    pub on_root_disk: bool,
}

impl Policy {
    pub fn new(options: &PoolOptions, counted: bool, on_root_disk: bool) -> Self {
        Self {
            counted,
            overcommit: options.overcommit,
            reserve: options.reserve,
            on_root_disk,
        }
    }

    /// The bytes of a filesystem of this size that are not used for volumes.
    pub(crate) fn reserve_of(&self, total: u64) -> u64 {
        let default = if self.on_root_disk {
            Reserve::Percent(ROOT_DISK_RESERVE)
        } else {
            Reserve::Percent(0)
        };
        match self.reserve.unwrap_or(default) {
            Reserve::Bytes(bytes) => bytes.0,
            Reserve::Percent(percent) => total / 100 * u64::from(percent),
        }
    }

    /// The policy for a volume that takes the whole disk, of which nothing is overcommitted.
    pub(crate) fn of_disk(self) -> Self {
        Self {
            overcommit: Overcommit::default(),
            ..self
        }
    }
}

/// The values that the free space of a pool depends on.
#[derive(Debug, Clone, Copy)]
pub struct FreeSpace {
    pub space: Space,
    /// The used bytes that are not the volumes' own.
    pub others: Others,
    /// The bytes reserved for volumes, those under construction included; without accounting also
    /// those of trash entries.
    pub reserved: u64,
    pub policy: Policy,
    /// Whether one volume has the whole disk.
    pub exclusive: bool,
}

/// The used bytes of a filesystem that are not its volumes' own.
#[derive(Debug, Clone, Copy)]
pub enum Others {
    /// All used bytes but these, which are charged to volumes that have a size, to each at most its
    /// size: no reservation covers a charge beyond that.
    AllBut(u64),
    /// The bytes used when the pool was empty last, because nothing counts the volumes' own.
    WhenEmpty(u64),
}

impl FreeSpace {
    /// The largest size that the next volume may have: at most the bytes that are available now, and
    /// at most the capacity for volumes times the overcommit, less the reservations. `reserve` and
    /// the slack are subtracted from both, or reservations that are not written yet would use them.
    pub fn available(&self) -> Bytes {
        if self.exclusive {
            return Bytes::ZERO;
        }
        let set_aside = self.set_aside();
        let free = self.space.available.saturating_sub(set_aside);
        let overcommit = u128::from(self.policy.overcommit.0);
        let reservable = u128::from(self.capacity()) * overcommit / 1000;
        let left = reservable.saturating_sub(self.reserved.into());
        Bytes(u64::try_from(left).unwrap_or(u64::MAX).min(free)).min(Bytes::MAX)
    }

    /// The free space after deleted objects are reclaimed, of which no object has these bytes on the disk, and of
    /// whose sizes these bytes are reserved.
    #[must_use]
    pub fn after(self, bytes: u64, size: u64) -> Self {
        let available = self.space.available.saturating_add(bytes);
        let reserved = match self.others {
            Others::AllBut(_) => self.reserved,
            Others::WhenEmpty(_) => self.reserved.saturating_sub(size),
        };
        let space = Space {
            used: self.space.used.saturating_sub(bytes),
            available: available.min(self.space.total),
            ..self.space
        };
        Self {
            space,
            reserved,
            ..self
        }
    }

    /// The free space as if these bytes of other data were not there.
    #[must_use]
    pub fn without(self, bytes: u64) -> Self {
        let others = match self.others {
            Others::AllBut(own) => Others::AllBut(own),
            Others::WhenEmpty(other) => Others::WhenEmpty(other.saturating_sub(bytes)),
        };
        let space = Space {
            used: self.space.used.saturating_sub(bytes),
            available: self
                .space
                .available
                .saturating_add(bytes)
                .min(self.space.total),
            ..self.space
        };
        Self {
            space,
            others,
            ..self
        }
    }

    /// The most bytes that volumes can ever use.
    pub fn capacity(&self) -> u64 {
        let capacity = match self.others {
            Others::AllBut(charged) => {
                let capacity = self.space.available.saturating_add(charged);
                capacity.min(self.space.total)
            }
            Others::WhenEmpty(other) => self.space.total.saturating_sub(other),
        };
        capacity.saturating_sub(self.set_aside())
    }

    fn set_aside(&self) -> u64 {
        let total = self.space.total;
        let slack = (total / 100).min(MAX_SLACK);
        self.policy.reserve_of(total).saturating_add(slack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    const PLAIN: Policy = Policy {
        counted: false,
        overcommit: Overcommit(1000),
        reserve: Some(Reserve::Bytes(Bytes(0))),
        on_root_disk: false,
    };

    fn free_space(available: u64, other: u64, reserved: u64) -> FreeSpace {
        let total = 100 * GIB;
        FreeSpace {
            space: Space {
                total,
                used: total - available,
                available,
            },
            others: Others::WhenEmpty(other),
            reserved,
            policy: PLAIN,
            exclusive: false,
        }
    }

    /// Proves: G1.
    #[test]
    fn reservations_exceed_neither_the_capacity_nor_the_available_bytes() {
        // GiB: available, other data, reserved; the largest size, slack included
        let cases = [
            ("empty", [100, 0, 0], 100),
            ("reserved", [100, 0, 60], 40),
            ("half written", [70, 0, 60], 40),
            ("written", [40, 0, 60], 40),
            ("all reserved", [100, 0, 100], 0),
            ("other data", [70, 30, 20], 50),
            ("other data, half written", [40, 30, 60], 10),
            ("other data uses reserved bytes", [20, 50, 60], 0),
            ("full", [0, 0, 0], 0),
        ];
        for (name, gib, largest) in cases {
            let [available, other, reserved] = gib.map(|gib| gib * GIB);
            let free = free_space(available, other, reserved);
            let expected = Bytes((largest * GIB).saturating_sub(MAX_SLACK));
            assert_eq!(free.available(), expected, "{name}, not counted");
            let others = Others::AllBut(free.space.used - other);
            let counted = FreeSpace { others, ..free };
            assert_eq!(counted.available(), expected, "{name}, counted");
        }
    }

    #[test]
    fn the_options_of_a_pool_change_its_free_space() {
        let slack = MAX_SLACK;
        let reserve = |reserve, on_root_disk| Policy {
            reserve,
            on_root_disk,
            ..PLAIN
        };
        let percent = reserve(Some(Reserve::Percent(25)), false);
        let bytes = reserve(Some(Reserve::Bytes(Bytes(10 * GIB))), false);
        let overcommit = |thousandths| Policy {
            overcommit: Overcommit(thousandths),
            ..PLAIN
        };
        let cases = [
            // policy, bytes reserved, bytes available
            (bytes, 0, 90 * GIB - slack),
            (percent, 0, 75 * GIB - slack),
            (percent, 75 * GIB, 0),
            (reserve(None, true), 0, 85 * GIB - slack),
            (reserve(None, false), 0, 100 * GIB - slack),
            // The available bytes are the limit.
            (overcommit(2000), 90 * GIB, 100 * GIB - slack),
            (overcommit(1500), 140 * GIB, 10 * GIB - slack * 3 / 2),
            (overcommit(500), 0, 50 * GIB - slack / 2),
        ];
        for (policy, reserved, expected) in cases {
            let free = FreeSpace {
                policy,
                ..free_space(100 * GIB, 0, reserved)
            };
            assert_eq!(free.available(), Bytes(expected), "{policy:?}, {reserved}");
        }
    }

    /// Proves: G1.
    #[test]
    fn new_other_data_and_shared_blocks_leave_no_more_than_is_available() {
        let grown = free_space(10 * GIB, 30 * GIB, 20 * GIB);
        assert_eq!(grown.available(), Bytes(10 * GIB - MAX_SLACK));
        // More is charged than is used.
        let shared = FreeSpace {
            others: Others::AllBut(60 * GIB),
            ..free_space(90 * GIB, 0, 60 * GIB)
        };
        assert_eq!(shared.available(), Bytes(40 * GIB - MAX_SLACK));
    }

    /// Proves: G1.
    #[test]
    fn absurd_numbers_do_not_overflow() {
        let space = Space {
            total: u64::MAX,
            used: 0,
            available: u64::MAX,
        };
        let free = FreeSpace {
            space,
            others: Others::WhenEmpty(0),
            reserved: 0,
            policy: Policy {
                overcommit: Overcommit(1_000_000),
                ..PLAIN
            },
            exclusive: false,
        };
        assert_eq!(free.available(), Bytes::MAX);
        let full = FreeSpace {
            others: Others::WhenEmpty(u64::MAX),
            reserved: u64::MAX,
            ..free
        };
        assert_eq!(full.available(), Bytes::ZERO);
        let charged = FreeSpace {
            others: Others::AllBut(u64::MAX),
            ..free
        };
        assert_eq!(charged.available(), Bytes::MAX);
    }
}
