//! Opening a pool when its disk is present, and closing it when the disk fails or changes.
//!
//! A pool is never repaired in place. After a failed write the state of the disk is unknown, so the pool becomes
//! unavailable, closes its disk, and reads everything again at the next opening.

use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use linux::sync::lock;
use objects::ObjectId;

use crate::disk::backing::Backing;
use crate::disk::cause::Cause;
use crate::disk::marker::Marker;
use crate::disk::open::Disk;
use crate::disk::trash::TrashEntry;
use crate::disk::unavailable::Unavailable;
use crate::ledger::index::Index;
use crate::op::load::load;
use crate::op::pool::Pool;

/// Learns which volumes of a pool are published, before it is served.
pub(crate) type Learn<'a> = &'a dyn Fn(&Disk, &Index) -> std::io::Result<()>;

impl Pool {
    /// Opens the pool, waiting for its lock until the deadline, reads its records, and serves it
    /// once `learn` knows which volumes are published.
    pub fn open(&self, deadline: Instant, learn: Learn<'_>) -> Result<(), Unavailable> {
        let _inspecting = lock(&self.inspecting);
        self.open_inspecting(deadline, learn)
    }

    fn open_inspecting(&self, deadline: Instant, learn: Learn<'_>) -> Result<(), Unavailable> {
        let opened = self.try_open(deadline, learn);
        opened.inspect_err(|unavailable| self.mark_unavailable(unavailable))
    }

    fn try_open(&self, deadline: Instant, learn: Learn<'_>) -> Result<(), Unavailable> {
        let disk = Disk::open(&self.options, &self.context, deadline)?;
        if self.why_unavailable() != Some(Unavailable::Opening) {
            disk.try_writing()?;
        }
        let mut index = load(&disk.homes, disk.id, &*disk.quota)?;
        for (name, place) in disk.left() {
            index.add_to_trash(place.into(), TrashEntry::find(&disk.staging, &name)?);
        }
        self.protect(&disk, &index)?;
        let marker = disk.marker()?;
        let moved = index.moved().map(|entry| entry.record.id.pool());
        let kept = index.kept().iter();
        let kept = kept.filter_map(|(_, kept)| kept.entry.volume.map(|volume| volume.pool()));
        let origins = moved.chain(kept.filter(|origin| *origin != disk.id));
        self.context
            .known_pools
            .add_moved_from(&origins.collect())?;
        self.reconcile(&disk, &mut index)?;
        learn(&disk, &index).map_err(|error| Unavailable::Io {
            what: "find the published volumes".into(),
            error: error.to_string(),
        })?;
        self.serve(disk, index, &marker);
        Ok(())
    }

    /// Serves the pool from a disk with a marker.
    fn serve(&self, disk: Disk, index: Index, marker: &Marker) {
        tracing::info!(
            pool = %self.options.name,
            path = %self.options.path.display(),
            id = %disk.id,
            filesystem = %disk.filesystem,
            volumes = index.volumes().len(),
            snapshots = index.snapshots().len(),
            quarantined = index.quarantined().len(),
            "the pool is open"
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
        self.warn_if_full(&disk);
        self.state.seen(Backing::of(&disk));
        let (other, served) = (marker.other_bytes, marker.served_ms);
        self.state.open(disk, index, other, served);
        if let Ok(disk) = self.disk() {
            self.measure_member(&disk);
        }
        self.trash.notify();
    }

    fn warn_if_unenforced(&self, disk: &Disk) {
        let (pool, path) = (&self.options.name, &self.options.path);
        match disk.unenforced(path) {
            Ok(None) => {}
            Ok(Some(Cause { what, remedy })) => tracing::warn!(
                %pool, path = %path.display(), reason = what, remedy,
                "the pool enforces no sizes, so a pod can fill the disk"
            ),
            Err(errno) => tracing::warn!(
                %pool, path = %path.display(), %errno,
                "the pool enforces no sizes, and the reason cannot be found"
            ),
        }
    }

    /// Reports that a full disk has delayed work of the reclaimer, which tries it again silently.
    fn warn_if_full(&self, disk: &Disk) {
        let (pool, path) = (&self.options.name, self.options.path.display());
        if !disk.has_placeholders.load(Ordering::Relaxed) {
            tracing::warn!(
                %pool, %path,
                "the disk is full, so it may refuse to delete some volumes and snapshots; delete files in the volumes, or other data, but nothing in .rootcellar"
            );
        }
        let entries = disk.left().len();
        if entries > 0 {
            tracing::warn!(%pool, %path, entries, "the disk is full, so unfinished objects stay in staging until it has space");
        }
    }

    /// Inspects the pool: an open one may become unavailable, an unavailable one is opened if possible.
    /// Only one inspection runs at a time.
    pub fn check(&self, learn: Learn<'_>) {
        let _inspecting = match self.inspecting.try_lock() {
            Ok(inspecting) => inspecting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Ok(disk) = self.disk() {
            let _work = self.begin_own();
            // First, because a disk with errors may be closed.
            self.state.seen(Backing::of(&disk));
            match disk.verify(&self.options) {
                Ok(()) => self.inspect_member(&disk),
                Err(unavailable) => self.mark_unavailable(&unavailable),
            }
            return;
        }
        self.forget_if_retired();
        // The reason was logged already.
        let _ = self.open_inspecting(Instant::now(), learn);
    }

    /// Forgets the records of a pool that was declared lost for good.
    fn forget_if_retired(&self) {
        let Some(id) = self.id() else { return };
        // Opening the pool reports that pools.json cannot be read.
        if self.context.known_pools.is_retired(id).unwrap_or(false) {
            let pool = &self.options.name;
            tracing::warn!(%pool, %id, "the pool was declared lost for good, so the driver forgets its records");
            self.state.forget();
        }
    }

    /// Closes all descriptors on the disk until an inspection succeeds. A shortage of the driver's own
    /// says nothing about an open disk, which stays open.
    pub(crate) fn mark_unavailable(&self, unavailable: &Unavailable) {
        let pool = &self.options.name;
        let Some(before) = self.state.close(unavailable) else {
            tracing::warn!(%pool, reason = %unavailable, "the pool was not inspected; it stays open");
            return;
        };
        // This drops the disk. Closing it may take long, so nobody waits for a lock meanwhile, and the claims
        // end after it.
        if before.err().as_ref() != Some(unavailable) {
            tracing::error!(%pool, reason = %unavailable, "the pool is unavailable");
        }
        self.context.claims.release(&self.options.name);
    }
}
