//! The status of a pool, for people, `/readyz` and metrics.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::quota::Enforcement;
use crate::types::{Bytes, PoolId};

use super::capacity::FreeSpace;
use super::{Pool, Unavailable};

#[derive(Debug, Clone, Default)]
pub struct PoolStatus {
    /// Its identity, once known.
    pub id: Option<PoolId>,
    /// The reason why it cannot be used, if it cannot.
    pub unavailable: Option<Unavailable>,
    /// The time since its disk answered last, if that is too long.
    pub silence: Option<Duration>,
    /// Whether it gets no new volumes, snapshots and copies.
    pub cordoned: bool,
    /// The type of its filesystem, as in `ext4`; empty while the pool is unavailable.
    pub filesystem: String,
    /// The enforcement of sizes in it; none while the pool is unavailable.
    pub enforcement: Enforcement,
    /// The size of its filesystem; 0 while the pool is unavailable or its disk does not answer.
    pub total: Bytes,
    /// The largest size of the next volume; 0 while the pool is unavailable or cordoned, or its disk does
    /// not answer.
    pub available: Bytes,
    /// The sum of the sizes of its volumes.
    pub reserved: Bytes,
    pub volumes: usize,
    pub snapshots: usize,
    /// The number of volumes whose size is not enforced.
    pub not_enforced: usize,
    /// The number of limits that differed from the records and were restored, since start.
    pub limits_restored: u64,
    /// The number of quarantined directories and records.
    pub quarantined: usize,
    /// The number of trash entries; without accounting their sizes stay reserved.
    pub trash: usize,
    /// The number of trash entries that could not be removed at the last attempt.
    pub resisting: usize,
    /// The number of copies that are made file by file now.
    pub copies: usize,
    /// The number of files and directories copied since start.
    pub copied_entries: u64,
    /// The disk usage of the files copied since start.
    pub copied_bytes: Bytes,
    /// The number of files and directories reclaimed since start.
    pub reclaimed: u64,
}

impl Pool {
    /// The status now. A disk that is known not to answer is not asked.
    pub fn status(&self) -> PoolStatus {
        let _work = match self.silence() {
            Some(_) => return self.remembered(),
            None => self.begin_own(),
        };
        self.status_with(self.free_space().as_ref())
    }

    /// The status as far as it is known without the disk.
    pub fn remembered(&self) -> PoolStatus {
        self.status_with(None)
    }

    fn status_with(&self, free: Option<&FreeSpace>) -> PoolStatus {
        // Calls report an unreadable memory.
        let cordoned = self.is_cordoned().unwrap_or(false);
        let usable = free.filter(|_| !cordoned);
        PoolStatus {
            cordoned,
            silence: self.silence(),
            total: free.map_or(Bytes::ZERO, |free| Bytes(free.space.total)),
            available: usable.map_or(Bytes::ZERO, FreeSpace::available),
            limits_restored: self.limits_restored.load(Ordering::Relaxed),
            resisting: self.trash.resisting.load(Ordering::Relaxed),
            copies: self.copies.running.load(Ordering::Relaxed),
            copied_entries: self.copies.entries.load(Ordering::Relaxed),
            copied_bytes: Bytes(self.copies.bytes.load(Ordering::Relaxed)),
            reclaimed: self.trash.removed.load(Ordering::Relaxed),
            ..self.state.status()
        }
    }
}
