//! The status of a pool, for people, `/readyz` and metrics.

use std::sync::atomic::Ordering;

use objects::Bytes;

use crate::ledger::free_space::FreeSpace;
use crate::ledger::status::PoolStatus;
use crate::op::pool::Pool;

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
        // Calls report that pools.json cannot be read.
        let cordoned = self.is_cordoned().unwrap_or(false);
        let usable = free.filter(|_| !cordoned);
        let member_space = usable.and_then(|_| self.member_space(false));
        let kept_space = member_space.map(|it| it.reported.0.saturating_sub(it.space.0));
        let (copies, copies_waiting) = self.copies.count();
        PoolStatus {
            cordoned,
            kept_space: Bytes(kept_space.unwrap_or_default()),
            purged_early: self.purged_early.load(Ordering::Relaxed),
            silence: self.silence(),
            total: free.map_or(Bytes::ZERO, |free| Bytes(free.space.total)),
            available: usable.map_or(Bytes::ZERO, FreeSpace::available),
            limits_restored: self.limits_restored.load(Ordering::Relaxed),
            resisting: self.trash.resisting.load(Ordering::Relaxed),
            copies,
            copies_waiting,
            copied_entries: self.copies.entries.load(Ordering::Relaxed),
            copied_bytes: Bytes(self.copies.bytes.load(Ordering::Relaxed)),
            reclaimed: self.trash.removed.load(Ordering::Relaxed),
            ..self.state.status()
        }
    }
}
