//! Deleted objects that can come back: keeping, expiry, undeletion, and reclaim for new objects.
//!
//! With the option `keep`, a deletion moves an object to `kept/` instead of the trash. From there it comes back, or
//! goes to the trash when its time is over, when a reservation needs its space, or when the disk is nearly full.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use linux::fault::{Fault, InContext};
use linux::filesystem::Filesystem;
use linux::sync::lock;
use objects::{Bytes, ObjectId, PoolId, SnapshotId, VolumeId};
use uuid::Uuid;

use crate::disk::entry::{Entry, read_kept};
use crate::disk::error::{Busy, Error, Result};
use crate::disk::kept::{KeptEntry, KeptName};
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{SnapshotRecord, Unreadable};
use crate::disk::trash::TrashEntry;
use crate::ledger::RECORD_SERVED_EVERY;
use crate::ledger::free_space::Policy;
use crate::ledger::index::{Index, Resource};
use crate::ledger::kept::{EndCause, Ended};
use crate::ledger::reservations::{Demand, Measurement};
use crate::op::pool::Pool;
use crate::op::work::Work;

/// How often the space of the disk is inspected while objects are kept, because pods write without notice.
const INSPECT_EVERY: Duration = Duration::from_secs(10);
/// After the end of kept objects, no more end for this time, because the blocks of the first ones may be counted late.
const COUNTED_SOON: Duration = Duration::from_secs(2);
/// The time within which the blocks of removed files are counted as free.
const COUNTED_WITHIN: Duration = Duration::from_secs(15);
/// The part of the disk that is to be free while objects are kept.
const LEAST_FREE: u64 = 50;

/// The number of objects that are moved to the trash before that is made durable.
const ENDED_AT_ONCE: usize = 256;

/// Whether a deleted object can come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// For a time, if its pool has the option `keep`.
    Kept,
    ForGood,
}

/// The kept objects that a purge deletes for good.
#[derive(Debug, Clone, Copy)]
pub enum Purge {
    All,
    /// All with this id.
    Volume(VolumeId),
    Snapshot(SnapshotId),
}

impl Purge {
    /// Whether an object of a pool is among them.
    fn includes(self, pool: PoolId, name: &KeptName, kept: &KeptEntry) -> bool {
        match self {
            Self::All => true,
            Self::Volume(id) => kept.is_volume(name, id),
            Self::Snapshot(id) => {
                let is_snapshot = kept.entry.is_record_of::<SnapshotRecord>();
                is_snapshot && id.pool() == pool && name.has_hash(id.hash())
            }
        }
    }
}

/// A kept object that is to come back.
#[derive(Debug)]
pub struct Kept<R> {
    pub name: KeptName,
    pub record: R,
}

impl Pool {
    /// Moves a deleted object to the kept ones, durably; false if this pool keeps none, nothing but the record is left of it,
    /// or the disk is full.
    pub(super) fn keep<R: Resource>(&self, disk: &Disk, entry: &Entry<R>) -> Result<bool> {
        let Some(kept) = disk
            .homes
            .kept
            .as_ref()
            .filter(|_| self.options.keep.is_some())
        else {
            return Ok(false);
        };
        if self.is_emptied(entry)? {
            return Ok(false);
        }
        // So that a crash cannot take back the time in the name.
        self.record_served(disk)?;
        let Some(name) = KeptName::new(&entry.directory, self.state.serving_time_of_deletion())
        else {
            return Ok(false);
        };
        let counted = disk.accounts() && entry.record.quota_id().is_some();
        let kept_entry = KeptEntry::new(TrashEntry::new(&entry.record), counted);
        // Known before it is moved. Until then its record has its size, and nobody ends it.
        let mut moving = kept_entry.clone();
        moving.returns = true;
        moving.entry.reserved = 0;
        self.state.add_kept(name.clone(), moving);
        match disk.keep::<R>(kept, &entry.directory, &name.place()) {
            Ok(true) => {
                self.state.keep::<R>(entry.record.id(), name, kept_entry);
                Ok(true)
            }
            Ok(false) => {
                self.state.remove_kept(&name);
                self.state.remove::<R>(entry.record.id());
                Ok(true)
            }
            Err(fault) if fault.is_full() => {
                self.state.remove_kept(&name);
                tracing::warn!(
                    pool = %self.options.name, directory = entry.directory, %fault,
                    "a deleted object is not kept, because the disk is full"
                );
                Ok(false)
            }
            Err(fault) => {
                if !fault.sync {
                    self.state.remove_kept(&name);
                }
                Err(self.classify(fault))
            }
        }
    }

    /// Ends the oldest kept objects for a demand that was refused. Fails until their space is free; succeeds if that would
    /// be of no use.
    pub(super) fn make_space(
        &self,
        disk: &Disk,
        policy: &Policy,
        demand: Demand,
        mut measurement: Measurement,
    ) -> Result<()> {
        if !self.is_counted_late(disk, COUNTED_SOON) {
            let measured = self.measure_kept(disk, &mut measurement);
            measured.map_err(|fault| self.classify(fault))?;
            if let Some(oldest) = self.state.to_end(policy, demand, &measurement) {
                self.end(disk, &oldest, EndCause::Demand)?;
            } else if !self.is_counted_late(disk, COUNTED_WITHIN) {
                return Ok(());
            }
        }
        self.measure_member(disk);
        Err(Error::FreeingSpace {
            pool: self.options.name.clone(),
        })
    }

    /// Whether objects that ended for their space were removed within a time, and the filesystem may not count all of
    /// their blocks as free yet. Then btrfs is asked to count them now.
    fn is_counted_late(&self, disk: &Disk, within: Duration) -> bool {
        let freed = self.state.read(|index| index.sums.freed_at);
        let is_late = matches!(disk.filesystem, Filesystem::Btrfs | Filesystem::Xfs)
            && freed.is_some_and(|freed| freed.elapsed() < within);
        if is_late && disk.filesystem == Filesystem::Btrfs {
            // It counts them at its second commit after the removal, if a thread of its own had a file still.
            let _ = disk.free_removed();
        }
        is_late
    }

    /// Deletes kept objects for good, durably, except for those that are coming back; returns the number of the others.
    /// Each has the bytes that it is charged.
    fn end(&self, disk: &Disk, objects: &[(KeptName, u64)], cause: EndCause) -> Result<usize> {
        let Some(kept) = &disk.homes.kept else {
            return Ok(0);
        };
        let mut ended = 0;
        let mut failed = Ok(());
        for group in objects.chunks(ENDED_AT_ONCE) {
            match self.end_group(disk, kept, group, cause) {
                Ok(number) => ended += number,
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.map(|()| ended)
    }

    /// Moves kept objects to the trash, where the reclaimer leaves them until that is durable.
    fn end_group(
        &self,
        disk: &Disk,
        kept: &OwnedFd,
        group: &[(KeptName, u64)],
        cause: EndCause,
    ) -> Result<usize> {
        let (mut moved, mut failed) = (Vec::new(), Ok(()));
        for (name, bytes) in group {
            let Some(entry) = self.state.end(name, cause.is_for_space().then_some(*bytes)) else {
                continue;
            };
            match disk.end_kept(kept, &name.place()) {
                Ok(true) => moved.push((name.clone(), entry)),
                Ok(false) => self.state.remove_from_trash(&name.place()),
                // The others still end.
                Err(fault) => {
                    self.state.keep_again(name, entry);
                    failed = failed.and(Err(fault));
                }
            }
        }
        let ended = moved.len();
        if ended > 0 {
            // Linux reports it once, so it comes first. The pool is opened again, and until then the reclaimer leaves them.
            let synced = disk.sync_ended(kept);
            synced.map_err(|fault| self.classify(fault))?;
            for (name, _) in &moved {
                tracing::info!(
                    pool = %self.options.name, entry = %name.place().display(), ?cause,
                    "a kept object is deleted for good"
                );
            }
            self.state.ended(moved, cause);
            self.trash.notify();
        }
        if cause.is_for_space() && ended > 0 {
            let ended = u64::try_from(ended).unwrap_or(u64::MAX);
            self.purged_early.fetch_add(ended, Ordering::Relaxed);
            self.trash.hurry();
        }
        failed.map_err(|fault| self.classify(fault))?;
        Ok(ended)
    }

    /// Deletes for good the kept objects that are wanted; returns their number.
    pub fn purge(&self, wanted: Purge) -> Result<usize> {
        let (disk, _) = self.attached()?;
        let mut kept = self.state.kept();
        kept.retain(|(name, kept)| wanted.includes(disk.id, name, kept));
        let names: Vec<_> = kept.into_iter().map(|(name, _)| (name, 0)).collect();
        self.end(&disk, &names, EndCause::Purge)
    }

    /// Whether it keeps objects that are wanted.
    pub fn keeps(&self, wanted: Purge) -> bool {
        self.id().is_some_and(|id| {
            self.state.read(|index| {
                let mut kept = index.kept().iter();
                kept.any(|(name, kept)| wanted.includes(id, name, kept))
            })
        })
    }

    /// As [`Pool::keeps`], or whether it may, because its records were not read.
    pub fn may_keep(&self, wanted: Purge) -> bool {
        self.state.why_unread().is_some() || self.keeps(wanted)
    }

    /// The last object with an id that was deleted for good before its time was over, as long as the driver remembers
    /// that.
    pub fn ended<R: Resource>(&self, id: R::Id, entry: Option<Uuid>) -> Option<Ended> {
        self.state.find_ended::<R>(id, entry)
    }

    /// Records the serving time of a pool with kept objects at the end of the server.
    pub(super) fn record_last_served(&self, disk: &Disk) {
        if self.state.oldest_kept().is_some()
            && let Err(error) = self.write_served(disk)
        {
            tracing::warn!(pool = %self.options.name, %error, "cannot record the serving time, so deleted objects are kept longer");
        }
    }

    /// Records the serving time, unless that was done a moment ago.
    fn record_served(&self, disk: &Disk) -> Result<()> {
        if self.state.unrecorded() < RECORD_SERVED_EVERY {
            return Ok(());
        }
        self.write_served(disk)
    }

    fn write_served(&self, disk: &Disk) -> Result<()> {
        let _marking = lock(&self.marking);
        let served = self.state.serving_time();
        match disk.record_served(served) {
            Ok(true) => self.state.record_serving_time(served),
            // The disk is full.
            Ok(false) => {}
            Err(unavailable) => {
                self.mark_unavailable(&unavailable);
                return Err(self.unavailable(unavailable));
            }
        }
        Ok(())
    }

    /// Deletes for good the kept objects whose time is over, and the oldest while the disk is nearly full. Returns
    /// the time until the next inspection, if any object is kept.
    pub(super) fn expire(&self, disk: &Disk) -> Result<Option<Duration>> {
        let Some(oldest) = self.state.oldest_kept() else {
            return Ok(None);
        };
        self.record_served(disk)?;
        let (objects, cause) = self.to_expire(disk)?;
        if self.end(disk, &objects, cause)? > 0 {
            return Ok(Some(Duration::ZERO));
        }
        let served = self.state.serving_time();
        let left = self.options.keep.map(|keep| oldest.left(served, keep));
        Ok(Some(
            left.map_or(INSPECT_EVERY, |left| left.min(INSPECT_EVERY)),
        ))
    }

    /// Whether [`Pool::expire`] would end any object now.
    pub(super) fn has_to_expire(&self, disk: &Disk) -> bool {
        let objects = self.to_expire(disk);
        objects.is_ok_and(|(objects, _)| !objects.is_empty())
    }

    /// The kept objects to end now, with the charge of each.
    fn to_expire(&self, disk: &Disk) -> Result<(Vec<(KeptName, u64)>, EndCause)> {
        let keep = self.options.keep;
        let expired = keep.map_or_else(Vec::new, |keep| self.state.expired(keep, ENDED_AT_ONCE));
        if !expired.is_empty() {
            let expired = expired.into_iter().map(|name| (name, 0));
            return Ok((expired.collect(), EndCause::Time));
        }
        let mut objects = Vec::new();
        let ends = |index: &Index| !index.kept().is_empty() && index.sums.freeing.entries == 0;
        if !self.state.read(ends) {
            return Ok((objects, EndCause::FullDisk));
        }
        let space = disk.space().map_err(|fault| self.classify(fault))?;
        let least = self.policy(disk).reserve_of(space.total);
        if space.available < least.max(space.total / LEAST_FREE) {
            for (name, kept) in self.state.read(|index| index.kept().oldest_with_copies()) {
                let charged = disk.charged(&kept.entry);
                let charged = charged.map_err(|fault| self.classify(fault))?;
                objects.push((name, charged.saturating_add(kept.used.unwrap_or_default())));
            }
        }
        Ok((objects, EndCause::FullDisk))
    }

    /// Finds the newest kept object with an id, or the one of these with an entry. An undeletion that was interrupted
    /// has given the record another name and id, and the object has its former id in the name of its directory.
    pub fn find_kept<R: Resource>(
        &self,
        id: R::Id,
        entry: Option<Uuid>,
    ) -> Result<Option<Kept<R>>> {
        let mut all = self.state.kept();
        all.retain(|(name, kept)| {
            let is_volume = R::volume(id).is_some_and(|volume| kept.is_volume(name, volume));
            let has_id = is_volume || name.has_hash(id.hash());
            has_id && entry.is_none_or(|entry| entry == name.entry)
        });
        if all.is_empty() {
            return Ok(None);
        }
        self.check_answers()?;
        let (_work, disk) = (self.begin()?, self.disk()?);
        let Some(kept) = &disk.homes.kept else {
            return Ok(None);
        };
        for (name, _) in all.into_iter().rev() {
            match read_kept::<R>(kept, &name.place(), disk.id) {
                Ok(Some(record)) if record.id() == id || !name.has_hash(record.id().hash()) => {
                    return Ok(Some(Kept { name, record }));
                }
                Ok(_) | Err(Unreadable::Damaged(_)) => {}
                Err(Unreadable::Fault(fault)) => return Err(self.classify(fault)),
            }
        }
        Ok(None)
    }

    /// Makes a kept object visible again, with the record that it is to have; durable on return. Its size is reserved
    /// again.
    pub fn undelete<R: Resource + PartialEq>(
        &self,
        work: &Work<'_>,
        kept: &Kept<R>,
        record: R,
    ) -> Result<Arc<Entry<R>>> {
        let (disk, _) = self.attached()?;
        if !self.state.set_returns(&kept.name, true) {
            let id = kept.record.id().to_string();
            return Err(Error::Busy(Busy::Changed(id)));
        }
        let returned = self.bring_back(work, &disk, kept, record);
        self.state.set_returns(&kept.name, false);
        let entry = returned?;
        self.limit_again::<R>(entry.record.id())?;
        self.measure_member(&disk);
        Ok(entry)
    }

    /// Limits an object that is back, because copies may have been deleted meanwhile.
    pub fn limit_again<R: Resource>(&self, id: R::Id) -> Result<()> {
        let Some(volume) = R::volume(id) else {
            return Ok(());
        };
        let limited = self.refresh_limit(&*self.disk()?, volume);
        let limited = limited.context("set a volume's limit");
        limited.map_err(|fault| self.classify(fault))
    }

    fn bring_back<R: Resource + PartialEq>(
        &self,
        work: &Work<'_>,
        disk: &Disk,
        kept: &Kept<R>,
        record: R,
    ) -> Result<Arc<Entry<R>>> {
        let name = &kept.name;
        let home = disk.homes.kept.as_ref();
        let home = home.ok_or_else(|| Error::Busy(Busy::Changed(record.id().to_string())))?;
        let path = Path::new(layout::META)
            .join(layout::KEPT)
            .join(name.place());
        self.check_charged_at(disk, home, &path, &kept.record)?;
        // Without accounting its size is reserved already.
        let (mut size, mut used) = (0, 0);
        if disk.accounts() {
            let charged = kept.record.quota_id().map(|id| disk.quota.usage(id));
            let charged = charged.transpose().context("ask what a kept object uses");
            let charged = charged.map_err(|fault| self.classify(fault))?;
            let retained = R::volume(record.id()).map(|volume| self.state.retained(volume));
            let retained = retained.unwrap_or_default();
            size = record.reserved().saturating_add(retained);
            size = size.saturating_sub(record.covered());
            used = size.min(record.own_of(charged.unwrap_or_default(), retained));
        }
        let demand = Demand::Tree {
            size: Bytes(size),
            used,
            whole: record.is_exclusive(),
        };
        let reservation = self.reserve_again(work, &record, demand)?;
        let place = name.place();
        let is_new = record != kept.record;
        if is_new {
            let written = disk.amend_kept(home, &place, &record);
            written.map_err(|fault| self.classify(fault))?;
        }
        let directory = record.directory();
        let moved = disk.bring_back::<R>(home, &place, &directory);
        if is_new && matches!(moved, Err(Fault { sync: false, .. })) {
            // It is kept under its own name still.
            if let Err(fault) = disk.amend_kept(home, &place, &kept.record) {
                let pool = &self.options.name;
                tracing::warn!(%pool, %fault, "cannot give a kept object its former name again; repeat the undelete with the same --as");
            }
        }
        moved.map_err(|fault| self.unsynced(fault))?;
        let held = &reservation.held;
        let deleted = (name, kept.record.id());
        Ok(self.state.bring_back(deleted, record, directory, held))
    }
}
