//! The memory of a pool: its open disk, its index, its reservations and its last measurement.
//!
//! The directories on the disk are the truth. The memory is read from them when the pool is opened, and every
//! operation changes the disk first. After a crash between the two, the next start reads the disk.
//!
//! One mutex guards it all, because a grant depends on the disk, the records and the reservations of one
//! moment. Only this file and `space` lock it, once in each method, and never while a disk is read, written or closed: a disk
//! that hangs must not stop the calls that need the memory alone.

pub(crate) mod free_space;
pub(crate) mod index;
pub(crate) mod kept;
pub(crate) mod quarantine;
pub(crate) mod reservations;
pub(crate) mod retained;
mod space;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::mem;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use linux::image::Allocation;
use linux::quota::Enforcement;
use linux::sync;
use objects::{Bytes, ObjectId, PoolId, VolumeId};
use uuid::Uuid;

use crate::disk::backing::Backing;
use crate::disk::entry::{Entry, claims};
use crate::disk::kept::{KeptEntry, KeptName};
use crate::disk::open::Disk;
use crate::disk::record::RetainedCharge;
use crate::disk::trash::TrashEntry;
use crate::disk::unavailable::Unavailable;
use crate::ledger::index::{Index, Lookup, Resource};
use crate::ledger::kept::{EndCause, Ended, EndedEarly};
use crate::ledger::reservations::{Held, Reservations};

#[derive(Debug)]
pub struct PoolState(Mutex<State>);

#[derive(Debug)]
struct State {
    disk: Result<Arc<Disk>, Unavailable>,
    /// The identity is known while the pool is unavailable, because its volumes still exist.
    id: Option<PoolId>,
    /// Whether the index was read since the start.
    read: bool,
    backing: Backing,
    index: Index,
    ended: EndedEarly,
    /// The time for which the pool is served.
    served: Served,
    /// The charges that copies under construction will retain.
    pending: Vec<RetainedCharge>,
    reservations: Reservations,
}

/// The volumes whose blocks existing copies, or copies under construction, may reference.
#[derive(Debug)]
pub(super) struct References {
    pub(super) volumes: BTreeSet<VolumeId>,
    /// The changes of the index until then. Unknown while a copy is under construction, because
    /// it may be given up without a removal.
    pub(super) changes: Option<u64>,
}

/// How often the serving time is recorded while objects are kept, in milliseconds.
pub(super) const RECORD_SERVED_EVERY: u64 = 300_000;

/// The time for which servers have served a pool, in milliseconds.
#[derive(Debug)]
struct Served {
    /// The time until `since`.
    before: u64,
    since: Instant,
    /// The time that the marker has.
    recorded: u64,
    /// The time of the last deletion, so that no two have the same.
    deleted: u64,
}

impl Served {
    /// `known`: the times of the deletions of kept objects. A server that died has not recorded the last of its time.
    fn from(before: u64, known: impl Iterator<Item = u64>) -> Self {
        let credible = |time: &u64| *time <= before.saturating_add(2 * RECORD_SERVED_EVERY);
        Self {
            before,
            since: Instant::now(),
            recorded: before,
            deleted: known.filter(credible).fold(before, u64::max),
        }
    }

    fn now(&self) -> u64 {
        let since = u64::try_from(self.since.elapsed().as_millis());
        self.before.saturating_add(since.unwrap_or(u64::MAX))
    }
}

impl State {
    fn why_unavailable(&self) -> Option<Unavailable> {
        self.disk.as_ref().err().cloned()
    }

    fn enforcement(&self) -> Enforcement {
        let disk = self.disk.as_ref();
        disk.map_or(Enforcement::None, |disk| disk.quota.enforcement())
    }

    fn serves(&self, disk: &Arc<Disk>) -> bool {
        let current = self.disk.as_ref();
        current.is_ok_and(|current| Arc::ptr_eq(current, disk))
    }
}

/// The disk.
impl PoolState {
    /// The state of a pool that is not open yet.
    pub(super) fn new(id: Option<PoolId>) -> Self {
        Self(Mutex::new(State {
            disk: Err(Unavailable::Opening),
            id,
            read: false,
            backing: Backing::default(),
            index: Index::default(),
            ended: EndedEarly::default(),
            served: Served::from(0, std::iter::empty()),
            pending: Vec::new(),
            reservations: Reservations::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0)
    }

    pub(super) fn id(&self) -> Option<PoolId> {
        self.lock().id
    }

    pub(super) fn disk(&self) -> Result<Arc<Disk>, Unavailable> {
        self.lock().disk.clone()
    }

    pub(super) fn why_unavailable(&self) -> Option<Unavailable> {
        self.lock().why_unavailable()
    }

    pub(super) fn enforcement(&self) -> Enforcement {
        self.lock().enforcement()
    }

    pub(super) fn serves(&self, disk: &Arc<Disk>) -> bool {
        self.lock().serves(disk)
    }

    /// Serves the pool from a disk. `other` are the bytes that others used when it was empty last, and `served` is
    /// the time for which it was served before, in milliseconds.
    pub(super) fn open(&self, disk: Disk, index: Index, other: Bytes, served: u64) {
        let mut state = self.lock();
        let known = index.kept().iter().map(|(name, _)| name.deleted);
        state.served = Served::from(served, known);
        state.id = Some(disk.id);
        state.read = true;
        state.index = index;
        state.reservations.opened(other);
        let before = mem::replace(&mut state.disk, Ok(Arc::new(disk)));
        drop(state);
        drop(before);
    }

    /// Makes the pool unavailable and returns the disk or the reason before. Closing the disk may take
    /// long. An open disk stays open, and nothing is returned, if the reason is a shortage of the
    /// driver's own, which says nothing about the disk.
    pub(super) fn close(&self, reason: &Unavailable) -> Option<Result<Arc<Disk>, Unavailable>> {
        let mut state = self.lock();
        let stays = matches!(reason, Unavailable::Shortage(_)) && state.disk.is_ok();
        (!stays).then(|| mem::replace(&mut state.disk, Err(reason.clone())))
    }

    /// Forgets the identity and the records.
    pub(super) fn forget(&self) {
        let mut state = self.lock();
        state.id = None;
        state.backing = Backing::default();
        state.index = Index::default();
        state.ended = EndedEarly::default();
        state.reservations.other = Bytes::ZERO;
    }

    /// Notes the devices below the pool, and the errors of its disk.
    pub(super) fn seen(&self, backing: Backing) {
        self.lock().backing = backing;
    }

    /// Why the records, which may exist, were never read since the start.
    pub fn why_unread(&self) -> Option<Unavailable> {
        let state = self.lock();
        let reason = state.disk.as_ref().err().filter(|_| !state.read)?;
        let exist =
            state.id.is_some() || matches!(reason, Unavailable::Opening | Unavailable::Locked);
        exist.then(|| reason.clone())
    }

    /// Reads the records in memory.
    pub fn read<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        read(&self.lock().index)
    }

    /// Shows the disk or the reason why there is none, the devices, and the records, all of one moment.
    pub(super) fn view<T>(
        &self,
        view: impl FnOnce(Result<&Disk, &Unavailable>, &Backing, &Index) -> T,
    ) -> T {
        let state = self.lock();
        view(state.disk.as_deref(), &state.backing, &state.index)
    }
}

/// The serving time.
impl PoolState {
    /// The time for which servers have served the pool, in milliseconds.
    pub(super) fn serving_time(&self) -> u64 {
        self.lock().served.now()
    }

    /// The serving time of a deletion, which is later than that of each before.
    pub(super) fn serving_time_of_deletion(&self) -> u64 {
        let served = &mut self.lock().served;
        served.deleted = served.now().max(served.deleted.saturating_add(1));
        served.deleted
    }

    /// The milliseconds that the marker lacks.
    pub(super) fn unrecorded(&self) -> u64 {
        let state = self.lock();
        state.served.now().saturating_sub(state.served.recorded)
    }

    pub(super) fn record_serving_time(&self, milliseconds: u64) {
        self.lock().served.recorded = milliseconds;
    }
}

/// The records.
impl PoolState {
    /// The knowledge about an id, and the reason why the pool cannot be used, if it cannot; both of
    /// one moment.
    pub fn find<R: Resource>(&self, id: R::Id) -> (Lookup<R>, Option<Unavailable>) {
        let state = self.lock();
        let index = &state.index;
        let known = match (index.get::<R>(id), index.quarantined_as::<R>(id)) {
            (Some(entry), _) => Lookup::Entry(Arc::clone(entry)),
            (None, Some(quarantined)) => Lookup::Quarantined(quarantined.clone()),
            (None, None) => Lookup::Nothing,
        };
        (known, state.why_unavailable())
    }

    pub fn id_of<R: Resource>(&self, name: &<R::Id as ObjectId>::Name) -> Option<R::Id> {
        let state = self.lock();
        state.index.id_of::<R>(state.id?, name)
    }

    pub(super) fn get<R: Resource>(&self, id: R::Id) -> Option<Arc<Entry<R>>> {
        self.lock().index.get::<R>(id).cloned()
    }

    /// The volumes that are images with all of their blocks.
    pub fn thick_images(&self) -> Vec<Arc<Entry>> {
        let is_thick = |entry: &&Arc<Entry>| {
            let image = entry.record.image;
            image.is_some_and(|image| image.allocation == Allocation::Thick)
        };
        self.lock()
            .index
            .volumes()
            .filter(is_thick)
            .cloned()
            .collect()
    }

    /// The images with a filesystem that have only the blocks that were written.
    pub fn thin_filesystems(&self) -> Vec<Arc<Entry>> {
        let is_thin = |entry: &&Arc<Entry>| {
            let image = entry.record.image;
            image.is_some_and(|it| it.allocation == Allocation::Thin && !it.is_device())
        };
        let state = self.lock();
        state.index.volumes().filter(is_thin).cloned().collect()
    }

    /// The images with limits of I/O.
    pub fn limited_images(&self) -> Vec<Arc<Entry>> {
        let is_limited = |entry: &&Arc<Entry>| !entry.record.io_limits.is_none();
        let state = self.lock();
        state.index.volumes().filter(is_limited).cloned().collect()
    }

    /// At most `count` entries that match, with ids after the given one, in order.
    pub fn after<R: Resource>(
        &self,
        id: Option<R::Id>,
        count: usize,
        matches: impl Fn(&R) -> bool,
    ) -> Vec<Arc<Entry<R>>> {
        let state = self.lock();
        let after = (
            id.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let entries = R::entries(&state.index).range(after);
        let entries = entries.map(|(_, entry)| entry);
        let matching = entries.filter(|entry| matches(&entry.record));
        matching.take(count).cloned().collect()
    }

    pub(super) fn insert<R: Resource>(&self, record: R, directory: String) -> Arc<Entry<R>> {
        self.lock().index.insert(Entry { record, directory })
    }

    /// Inserts a new object, whose record now counts in place of its reservation.
    pub(super) fn insert_reserved<R: Resource>(
        &self,
        record: R,
        directory: String,
        reserved: &Held,
    ) -> Arc<Entry<R>> {
        let mut state = self.lock();
        state.reservations.end(reserved);
        state.index.insert(Entry { record, directory })
    }

    pub(super) fn remove<R: Resource>(&self, id: R::Id) {
        self.lock().index.remove::<R>(id);
    }

    /// Removes an object that was deleted, from the quarantine too.
    pub(super) fn remove_deleted<R: Resource>(&self, entry: &Entry<R>) {
        self.lock().index.remove_deleted(entry);
    }

    /// Whether the object with an id is in quarantine, and no other entry claims the id.
    pub(super) fn is_alone_in_quarantine<R: Resource>(&self, id: R::Id) -> bool {
        let index = &self.lock().index;
        let quarantined = index.quarantined().iter();
        let claims = quarantined.filter(|entry| claims::<R>(&entry.path, id));
        index.get::<R>(id).is_none() && claims.count() == 1
    }

    pub(super) fn add_to_trash(&self, name: OsString, entry: TrashEntry) {
        self.lock().index.add_to_trash(name, entry);
    }

    pub(super) fn remove_from_trash(&self, name: &OsStr) {
        self.lock().index.remove_from_trash(name);
    }

    pub(super) fn add_kept(&self, name: KeptName, kept: KeptEntry) {
        self.lock().index.add_kept(name, kept);
    }

    /// Counts an object as a kept one in place of its record.
    pub(super) fn keep<R: Resource>(&self, id: R::Id, name: KeptName, kept: KeptEntry) {
        let index = &mut self.lock().index;
        index.remove::<R>(id);
        // Otherwise the pool was opened again meanwhile.
        if index.remove_kept(&name).is_some() {
            index.add_kept(name, kept);
        }
    }

    pub(super) fn remove_kept(&self, name: &KeptName) {
        self.lock().index.remove_kept(name);
    }

    /// Counts a kept object as a trash entry whose move is not durable yet; `None` if it is not kept any more.
    pub(super) fn end(&self, name: &KeptName, frees: Option<u64>) -> Option<KeptEntry> {
        let index = &mut self.lock().index;
        index.kept().get(name).filter(|kept| !kept.returns)?;
        let kept = index.remove_kept(name)?;
        let entry = TrashEntry {
            frees,
            is_moving: true,
            ..kept.entry.clone()
        };
        index.add_to_trash(name.place(), entry);
        Some(kept)
    }

    /// Undoes [`PoolState::end`].
    pub(super) fn keep_again(&self, name: &KeptName, kept: KeptEntry) {
        let index = &mut self.lock().index;
        // Otherwise the pool was opened again meanwhile.
        if index.remove_from_trash(&name.place()).is_some() {
            index.add_kept(name.clone(), kept);
        }
    }

    /// Notes that kept objects were moved to the trash, durably or not.
    pub(super) fn ended(&self, objects: Vec<(KeptName, KeptEntry)>, cause: EndCause) {
        let state = &mut *self.lock();
        for (name, kept) in objects {
            state.index.moved_to_trash(&name.place());
            state.ended.add(name, &kept, cause);
        }
    }

    /// The last object with an id that was deleted for good before its time was over, as long as that is remembered.
    pub(super) fn find_ended<R: Resource>(&self, id: R::Id, entry: Option<Uuid>) -> Option<Ended> {
        self.lock().ended.find::<R>(id, entry).cloned()
    }

    /// The oldest kept objects whose time is over, at most as many as given.
    pub(super) fn expired(&self, keep: Duration, count: usize) -> Vec<KeptName> {
        let state = self.lock();
        let served = state.served.now();
        let kept = state.index.kept().iter();
        let kept = kept.filter(|(_, kept)| !kept.returns);
        let expired = kept.take_while(|(name, _)| name.left(served, keep).is_zero());
        expired.map(|(name, _)| name.clone()).take(count).collect()
    }

    /// Reserves a kept object for its return, or ends that; false if it was so, or is kept no more.
    pub(super) fn set_returns(&self, name: &KeptName, returns: bool) -> bool {
        self.lock().index.set_returns(name, returns)
    }

    /// Inserts a kept object that came back, with the id that it had, whose record now counts in place of its reservation.
    pub(super) fn bring_back<R: Resource>(
        &self,
        (name, deleted): (&KeptName, R::Id),
        record: R,
        directory: String,
        reserved: &Held,
    ) -> Arc<Entry<R>> {
        let mut state = self.lock();
        state.index.remove_kept(name);
        state.ended.forget::<R>(deleted);
        state.reservations.end(reserved);
        state.index.insert(Entry { record, directory })
    }

    /// Notes that a trash entry frees nothing soon.
    pub(super) fn frees_nothing(&self, name: &OsStr) {
        self.lock().index.frees_nothing(name);
    }

    /// The kept objects, the oldest first.
    pub(super) fn kept(&self) -> Vec<(KeptName, KeptEntry)> {
        let state = self.lock();
        let kept = state.index.kept().iter();
        kept.map(|(name, kept)| (name.clone(), kept.clone()))
            .collect()
    }

    /// The oldest kept object that is not coming back.
    pub(super) fn oldest_kept(&self) -> Option<KeptName> {
        let state = self.lock();
        let oldest = state.index.kept().oldest();
        oldest.map(|(name, _)| name.clone())
    }

    /// The references to volumes, unless the index did not change since `changes`.
    pub(super) fn references_since(&self, changes: Option<u64>) -> Option<References> {
        let state = self.lock();
        let now = state.index.sums.changes;
        if changes == Some(now) {
            return None;
        }
        let mut volumes = state.index.referenced();
        volumes.extend(state.pending.iter().map(|retained| retained.volume));
        Some(References {
            volumes,
            changes: state.pending.is_empty().then_some(now),
        })
    }

    /// Notes the disk usage of a quarantined or kept tree; false if the pool is not served from `disk`.
    pub(super) fn measured_tree(&self, disk: &Arc<Disk>, path: &Path, bytes: u64) -> bool {
        let mut state = self.lock();
        let serves = state.serves(disk);
        if serves {
            state.index.measured(path, bytes);
        }
        serves
    }
}
