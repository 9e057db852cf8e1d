//! The status of a pool.

use std::time::Duration;

use linux::quota::Enforcement;
use objects::Bytes;

use crate::disk::backing::Backing;
use crate::disk::unavailable::Unavailable;

#[derive(Debug, Clone, Default)]
pub struct PoolStatus {
    /// The reason why it cannot be used, if it cannot.
    pub unavailable: Option<Unavailable>,
    /// The time since its disk answered last, if that is too long.
    pub silence: Option<Duration>,
    /// Whether it gets no new volumes, snapshots and copies.
    pub cordoned: bool,
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
    pub backing: Backing,
    /// The number of limits that differed from the records and were restored, since start.
    pub limits_restored: u64,
    pub quarantined: usize,
    /// The number of trash entries; without accounting their sizes stay reserved.
    pub trash: usize,
    /// The number of deleted volumes and snapshots that can come back.
    pub kept: usize,
    /// The part of `available` that is free only without those.
    pub kept_space: Bytes,
    /// The number of those that were deleted for good for their space, since start.
    pub purged_early: u64,
    /// The number of trash entries that could not be removed at the last attempt.
    pub resisting: usize,
    /// The number of copies that are made file by file now.
    pub copies: usize,
    /// The number of copies that wait for their turn.
    pub copies_waiting: usize,
    /// The number of files and directories copied since start.
    pub copied_entries: u64,
    /// The disk usage of the files copied since start.
    pub copied_bytes: Bytes,
    /// The number of files and directories reclaimed since start.
    pub reclaimed: u64,
}
