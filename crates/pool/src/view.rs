//! The one picture of a pool, from memory. Pages, metrics, health and the inventory show parts of it.

pub(crate) mod health;
mod inventory;

use std::sync::atomic::Ordering;
use std::time::Duration;

use linux::quota::Enforcement;
use objects::Bytes;

use crate::disk::backing::Backing;
use crate::disk::unavailable::Unavailable;
use crate::ledger::free_space::FreeSpace;
use crate::op::pool::Pool;

/// The state of a pool. Nothing in it takes longer with more volumes.
#[derive(Debug, Clone, Default)]
pub struct PoolView {
    /// The reason why it cannot be used, if it cannot.
    pub unavailable: Option<Unavailable>,
    /// The time since its disk answered last, if that is too long.
    pub silence: Option<Duration>,
    /// Whether it gets no new volumes, snapshots and copies.
    pub cordoned: bool,
    /// The enforcement of sizes in it; none while the pool is unavailable.
    pub enforcement: Enforcement,
    /// The size of its filesystem; 0 if it was not measured.
    pub total: Bytes,
    /// The largest size of the next volume; 0 if it was not measured, and while the pool cannot be used or is cordoned.
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

impl PoolView {
    /// The reason why the pool cannot be used now: it is unavailable, or its disk does not answer.
    pub fn why_unusable(&self) -> Option<Unavailable> {
        Unavailable::now(self.unavailable.clone(), self.silence)
    }

    /// The names of its devices; none while it is unavailable, because another disk may have them then.
    pub fn devices(&self) -> &[String] {
        let devices = &self.backing.devices;
        self.unavailable.as_ref().map_or(devices, |_| &[])
    }
}

impl Pool {
    /// The view without the free space. It asks no disk, and reads only the state directory, for the cordon.
    pub fn view(&self) -> PoolView {
        self.view_with(None)
    }

    /// The view with the free space of now. A disk that is known not to answer is not asked.
    pub fn measured_view(&self) -> PoolView {
        if self.silence().is_some() {
            return self.view();
        }
        let _work = self.begin_own();
        self.view_with(self.free_space().as_ref())
    }

    fn view_with(&self, free: Option<&FreeSpace>) -> PoolView {
        // A call reports that pools.json cannot be read.
        let cordoned = self.is_cordoned().unwrap_or(false);
        let silence = self.silence();
        let (copies, copies_waiting) = self.copies.count();
        let mut view = self.state.view(|disk, backing, index| {
            let enforcement = disk.map_or(Enforcement::None, |disk| disk.quota.enforcement());
            PoolView {
                unavailable: disk.err().cloned(),
                silence,
                cordoned,
                enforcement,
                total: free.map_or(Bytes::ZERO, |free| Bytes(free.space.total)),
                available: Bytes::ZERO,
                reserved: Bytes(index.sums.sizes),
                volumes: index.volumes().len(),
                snapshots: index.snapshots().len(),
                not_enforced: index.not_enforced(enforcement),
                backing: backing.clone(),
                limits_restored: self.limits_restored.load(Ordering::Relaxed),
                quarantined: index.quarantined().len(),
                trash: index.trash().len(),
                kept: index.kept().len(),
                kept_space: Bytes::ZERO,
                purged_early: self.purged_early.load(Ordering::Relaxed),
                resisting: self.trash.resisting.load(Ordering::Relaxed),
                copies,
                copies_waiting,
                copied_entries: self.copies.entries.load(Ordering::Relaxed),
                copied_bytes: Bytes(self.copies.bytes.load(Ordering::Relaxed)),
                reclaimed: self.trash.removed.load(Ordering::Relaxed),
            }
        });
        if let Some(free) = free.filter(|_| !cordoned && view.why_unusable().is_none()) {
            view.available = free.available();
            let member_space = self.member_space(false);
            let kept = member_space.map(|it| it.reported.0.saturating_sub(it.space.0));
            view.kept_space = Bytes(kept.unwrap_or_default());
        }
        view
    }
}
