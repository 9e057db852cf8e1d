//! How a pool comes and goes: opened when its disk is there, unavailable when the disk has changed.

use std::mem;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Instant;

use crate::types::Bytes;

use super::disk::Disk;
use super::enforcement::Unenforced;
use super::index::Index;
use super::{Learn, Pool, Unavailable};

/// What opening a pool yields.
struct Opened {
    disk: Disk,
    index: Index,
    other: Bytes,
}

impl Pool {
    /// Opens the pool, waiting for its lock until the deadline, reads its records, and serves it
    /// once `learn` has learned what of it is published.
    pub fn open(&self, deadline: Instant, learn: Learn<'_>) -> Result<(), Unavailable> {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        self.open_looking(deadline, learn)
    }

    fn open_looking(&self, deadline: Instant, learn: Learn<'_>) -> Result<(), Unavailable> {
        match self.try_open(deadline, learn) {
            Ok(opened) => {
                self.serve(opened);
                Ok(())
            }
            Err(unavailable) => {
                self.mark_unavailable(unavailable.clone());
                Err(unavailable)
            }
        }
    }

    fn try_open(&self, deadline: Instant, learn: Learn<'_>) -> Result<Opened, Unavailable> {
        let disk = Disk::open(&self.options, &self.context, deadline)?;
        if self.why_unavailable() != Some(Unavailable::Opening) {
            disk.try_writing()?;
        }
        let mut index = Index::load(disk.homes(), disk.id, &*disk.quota)?;
        let other = disk.other()?;
        self.reconcile(&disk, &mut index)?;
        learn(disk.site()).map_err(|error| Unavailable::Io {
            what: "learn what is published".into(),
            error: error.to_string(),
        })?;
        Ok(Opened { disk, index, other })
    }

    fn serve(&self, opened: Opened) {
        let Opened { disk, index, other } = opened;
        tracing::info!(
            pool = %self.options.name,
            path = %self.options.path.display(),
            id = %disk.id,
            filesystem = %disk.filesystem,
            volumes = index.volumes().len(),
            snapshots = index.snapshots().len(),
            quarantined = index.quarantined().len(),
            "pool is open"
        );
        for quarantined in index.quarantined() {
            tracing::error!(
                pool = %self.options.name,
                path = %quarantined.path.display(),
                reason = quarantined.reason,
                "quarantined, not touched"
            );
        }
        self.warn_if_unenforced(&disk);
        let mut state = self.lock();
        state.id = Some(disk.id);
        state.index = index;
        state.other = other;
        state.measured = None;
        state.grants = state.grants.wrapping_add(1);
        let before = mem::replace(&mut state.disk, Ok(Arc::new(disk)));
        drop(state);
        drop(before);
        self.trash.notify();
    }

    fn warn_if_unenforced(&self, disk: &Disk) {
        let (pool, path) = (&self.options.name, &self.options.path);
        match disk.unenforced(path) {
            Ok(None) => {}
            Ok(Some(Unenforced { reason, remedy })) => tracing::warn!(
                %pool, path = %path.display(), reason, remedy,
                "pool enforces no sizes: a pod can fill the disk"
            ),
            Err(errno) => tracing::warn!(
                %pool, path = %path.display(), %errno,
                "pool enforces no sizes, and the reason cannot be found"
            ),
        }
    }

    /// Inspects the pool: an open one may become unavailable, an unavailable one is opened if it can be. A look
    /// that has not ended is not joined by another.
    pub fn check(&self, learn: Learn<'_>) {
        let _looking = match self.looking.try_lock() {
            Ok(looking) => looking,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Ok(disk) = self.disk() {
            let _work = self.begin_own();
            if let Err(unavailable) = disk.verify(&self.options) {
                self.mark_unavailable(unavailable);
            }
            return;
        }
        self.forget_if_retired();
        // It has said by itself why it is still unavailable.
        let _ = self.open_looking(Instant::now(), learn);
    }

    /// Forgets a pool that was declared gone for good: nothing is known to live in it any more.
    fn forget_if_retired(&self) {
        let Some(id) = self.id() else { return };
        // What cannot be read is told when the pool is opened.
        if self.context.memory.is_retired(id).unwrap_or(false) {
            tracing::warn!(pool = %self.options.name, %id, "declared gone for good; forgotten");
            let mut state = self.lock();
            state.id = None;
            state.index = Index::default();
            state.other = Bytes::ZERO;
        }
    }

    /// Closes everything held on the disk until it is found well again. A shortage of the driver's
    /// own says nothing of an open disk, which stays open.
    pub(crate) fn mark_unavailable(&self, unavailable: Unavailable) {
        let mut state = self.lock();
        if matches!(unavailable, Unavailable::Shortage(_)) && state.disk.is_ok() {
            drop(state);
            tracing::warn!(pool = %self.options.name, reason = %unavailable, "not looked at");
            return;
        }
        let is_news = state.disk.as_ref().err() != Some(&unavailable);
        if is_news {
            tracing::error!(pool = %self.options.name, reason = %unavailable, "pool is unavailable");
        }
        let before = mem::replace(&mut state.disk, Err(unavailable));
        drop(state);
        // Closing the last descriptor on a disk that was unmounted is what unmounts it, and may
        // take long: nobody must wait for the lock meanwhile.
        drop(before);
        self.context.claims.release(&self.options.name);
    }
}
