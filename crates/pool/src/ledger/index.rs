//! The records of a pool in memory: volumes, snapshots, trash entries and quarantined directories.
//!
//! The sums over them are kept up to date, so that the free space takes the same time for any number of records.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use linux::quota::Enforcement;
use objects::{ObjectId, PoolId, SnapshotId, SnapshotName, VolumeId, VolumeName};

use crate::disk::entry::{Entry, SnapshotEntry};
use crate::disk::kept::{KeptEntry, KeptName};
use crate::disk::layout;
use crate::disk::record::{Record, RetainedCharge, SnapshotRecord, Source, VolumeRecord};
use crate::disk::trash::TrashEntry;
use crate::ledger::kept::KeptObjects;
use crate::ledger::quarantine::Quarantine;
use crate::ledger::quarantine::Quarantined;
use crate::ledger::retained::Retained;

#[derive(Debug, Clone, Default)]
pub struct Index {
    volumes: BTreeMap<VolumeId, Arc<Entry>>,
    snapshots: BTreeMap<SnapshotId, Arc<SnapshotEntry>>,
    /// By name, because a name has another id in each pool, and a creation searches all pools.
    volumes_by_name: HashMap<VolumeName, Arc<Entry>>,
    snapshots_by_name: HashMap<SnapshotName, Arc<SnapshotEntry>>,
    trash: BTreeMap<OsString, TrashEntry>,
    kept: KeptObjects,
    pub(super) quarantine: Quarantine,
    moved: BTreeSet<VolumeId>,
    /// The retained charges of all records, those of deleted objects included.
    retained: Retained,
    pub sums: Sums,
}

/// The knowledge of a pool about an id.
#[derive(Debug, Clone)]
pub enum Lookup<R = VolumeRecord> {
    Entry(Arc<Entry<R>>),
    /// A directory or record that cannot be trusted.
    Quarantined(Quarantined),
    Nothing,
}

/// Sums over all records, in bytes, so that the free space takes constant time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    /// The sizes of volumes and snapshots, and the space of quarantined trees.
    pub sizes: u64,
    /// The part of the snapshots' sizes that retained charges cover.
    covered: u64,
    /// The retained charges of existing volumes.
    retained: u64,
    /// The bytes of copies made byte by byte.
    pub copied: u64,
    /// The sizes of trash entries.
    trash: u64,
    /// The sum over trash entries that were deleted for their space.
    pub(crate) freeing: Freeing,
    /// The number of volumes that have the whole disk.
    exclusive: usize,
    /// The number of volumes with a size to enforce, by the enforcement in their records.
    sized: [usize; 3],
    /// The number of volumes and snapshots that were removed or replaced, and of changes of the kept objects.
    pub changes: u64,
    /// The number of trash entries that freed space for a grant.
    pub freed: u64,
    /// When the last of them was removed.
    pub(crate) freed_at: Option<Instant>,
}

/// The sum over trash entries that were deleted for their space.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Freeing {
    pub entries: usize,
    /// The bytes that they were charged.
    pub bytes: u64,
    /// The sizes.
    pub sizes: u64,
}

impl Freeing {
    fn add(&mut self, entry: &TrashEntry) {
        if let Some(bytes) = entry.frees {
            self.entries += 1;
            self.bytes = self.bytes.saturating_add(bytes);
            self.sizes = self.sizes.saturating_add(entry.reserved);
        }
    }

    fn remove(&mut self, entry: &TrashEntry) {
        if let Some(bytes) = entry.frees {
            self.entries -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
            self.sizes = self.sizes.saturating_sub(entry.reserved);
        }
    }
}

impl Index {
    /// Quarantines an entry whose record or quota id another entry has as well.
    pub(crate) fn distrust<R: Resource>(&mut self, entry: &Entry<R>, reason: String) {
        let id = entry.record.id();
        self.remove::<R>(id);
        let space = Some(entry.record.reserved());
        let name = OsStr::new(&entry.directory);
        self.quarantine::<R>(name, R::volume(id), reason, space);
    }

    /// Quarantines a directory; `volume` is the id of the volume that it claims to be, and `space` its disk usage, if
    /// it is known.
    pub fn quarantine<R: Record>(
        &mut self,
        name: &OsStr,
        volume: Option<VolumeId>,
        reason: String,
        space: Option<u64>,
    ) {
        // A quarantined volume keeps its data, and with it the charges that copies retain.
        let retained = volume.map_or(0, |volume| self.retained_of_new(volume));
        self.sums.retained = self.sums.retained.saturating_add(retained);
        self.sums.sizes = self.sums.sizes.saturating_add(space.unwrap_or_default());
        self.quarantine.add::<R>(name, reason, space);
    }

    pub fn insert<R: Resource>(&mut self, entry: Entry<R>) -> Arc<Entry<R>> {
        let id = entry.record.id();
        self.remove::<R>(id);
        self.change_retained(entry.record.retains(), Retained::add);
        let record = &entry.record;
        let retained = R::volume(id).map_or(0, |volume| self.retained_of_new(volume));
        let sums = &mut self.sums;
        sums.sizes = sums.sizes.saturating_add(record.reserved());
        sums.covered = sums.covered.saturating_add(record.covered());
        sums.copied = sums.copied.saturating_add(record.copied());
        sums.retained = sums.retained.saturating_add(retained);
        sums.exclusive += usize::from(record.is_exclusive());
        if let Some(by) = record.size_enforcement() {
            sums.sized[by as usize] += 1;
        }
        self.moved
            .extend(R::volume(id).filter(|_| entry.record.moved().is_some()));
        let entry = Arc::new(entry);
        let name = entry.record.name().clone();
        R::by_name_mut(self).insert(name, Arc::clone(&entry));
        R::entries_mut(self).insert(id, Arc::clone(&entry));
        entry
    }

    pub fn remove<R: Resource>(&mut self, id: R::Id) {
        let Some(entry) = R::entries_mut(self).remove(&id) else {
            return;
        };
        let record = &entry.record;
        R::by_name_mut(self).remove(record.name());
        let retained = R::volume(id).map_or(0, |volume| self.retained_of_new(volume));
        let sums = &mut self.sums;
        sums.sizes = sums.sizes.saturating_sub(record.reserved());
        sums.covered = sums.covered.saturating_sub(record.covered());
        sums.copied = sums.copied.saturating_sub(record.copied());
        sums.retained = sums.retained.saturating_sub(retained);
        sums.exclusive -= usize::from(record.is_exclusive());
        if let Some(by) = record.size_enforcement() {
            sums.sized[by as usize] -= 1;
        }
        sums.changes += 1;
        if let Some(volume) = R::volume(id) {
            self.moved.remove(&volume);
        }
        self.change_retained(record.retains(), Retained::remove);
    }

    /// Removes an object that was deleted, from the quarantine too.
    pub(crate) fn remove_deleted<R: Resource>(&mut self, entry: &Entry<R>) {
        let id = entry.record.id();
        self.remove::<R>(id);
        let Some(removed) = self.quarantine.remove(&entry.path()) else {
            return;
        };
        let space = removed.space.map_or(0, |space| space.0);
        let retained = R::volume(id).map_or(0, |volume| self.retained_of_new(volume));
        self.sums.sizes = self.sums.sizes.saturating_sub(space);
        self.sums.retained = self.sums.retained.saturating_sub(retained);
        self.sums.changes += 1;
    }

    /// The retained charges of a volume that does not exist; 0 for one that does.
    fn retained_of_new(&self, volume: VolumeId) -> u64 {
        if self.has_volume(volume) {
            0
        } else {
            self.retained.of(volume)
        }
    }

    pub(crate) fn add_to_trash(&mut self, name: OsString, entry: TrashEntry) {
        self.change_retained(&entry.retains, Retained::add);
        self.sums.trash = self.sums.trash.saturating_add(entry.reserved);
        self.sums.freeing.add(&entry);
        self.trash.insert(name, entry);
    }

    pub(crate) fn add_kept(&mut self, name: KeptName, kept: KeptEntry) {
        self.change_retained(&kept.entry.retains, Retained::add);
        self.sums.changes += 1;
        self.kept.add(name, kept);
    }

    pub(crate) fn remove_kept(&mut self, name: &KeptName) -> Option<KeptEntry> {
        let kept = self.kept.remove(name)?;
        self.sums.changes += 1;
        self.change_retained(&kept.entry.retains, Retained::remove);
        Some(kept)
    }

    pub(crate) fn remove_from_trash(&mut self, name: &OsStr) -> Option<TrashEntry> {
        let entry = self.trash.remove(name)?;
        self.sums.trash = self.sums.trash.saturating_sub(entry.reserved);
        self.sums.freeing.remove(&entry);
        if entry.frees.is_some() {
            self.sums.freed += 1;
            self.sums.freed_at = Some(Instant::now());
        }
        self.change_retained(&entry.retains, Retained::remove);
        Some(entry)
    }

    pub(crate) fn set_returns(&mut self, name: &KeptName, returns: bool) -> bool {
        let changed = self.kept.set_returns(name, returns);
        self.sums.changes += u64::from(changed);
        changed
    }

    fn change_retained(
        &mut self,
        retains: &[RetainedCharge],
        change: fn(&mut Retained, &RetainedCharge),
    ) {
        for retained in retains {
            let before = self.retained.of(retained.volume);
            change(&mut self.retained, retained);
            if self.has_volume(retained.volume) {
                let after = self.retained.of(retained.volume);
                let retained = self.sums.retained.saturating_add(after);
                self.sums.retained = retained.saturating_sub(before);
            }
        }
    }

    pub fn get<R: Resource>(&self, id: R::Id) -> Option<&Arc<Entry<R>>> {
        R::entries(self).get(&id)
    }

    /// The id of an object with this name, trusted or in quarantine, if there is one.
    pub fn id_of<R: Resource>(
        &self,
        pool: PoolId,
        name: &<R::Id as ObjectId>::Name,
    ) -> Option<R::Id> {
        if let Some(entry) = R::by_name(self).get(name) {
            return Some(entry.record.id());
        }
        // A record that cannot be read has its name only in the hash of its directory.
        let id = (!self.quarantined().is_empty()).then(|| R::Id::new(pool, name));
        id.filter(|id| self.quarantined_as::<R>(*id).is_some())
    }

    pub fn quarantined_as<R: Record>(&self, id: R::Id) -> Option<&Quarantined> {
        self.quarantine.get::<R>(id)
    }

    pub fn volumes(&self) -> impl ExactSizeIterator<Item = &Arc<Entry>> {
        self.volumes.values()
    }

    pub fn snapshots(&self) -> impl ExactSizeIterator<Item = &Arc<SnapshotEntry>> {
        self.snapshots.values()
    }

    pub(crate) fn trash(&self) -> &BTreeMap<OsString, TrashEntry> {
        &self.trash
    }

    /// Counts a trash entry no longer as space to come.
    pub(crate) fn frees_nothing(&mut self, name: &OsStr) {
        if let Some(entry) = self.trash.get_mut(name) {
            self.sums.freeing.remove(entry);
            entry.frees = None;
        }
    }

    /// Whether there are objects that are kept, or were, for whose space a demand may wait. A filesystem may count it late.
    pub(crate) fn has_ended_or_kept(&self) -> bool {
        let sums = &self.sums;
        !self.kept.is_empty() || sums.freeing.entries > 0 || sums.freed_at.is_some()
    }

    /// Whether a trash entry may be removed now, and whether others wait for its space.
    pub(crate) fn urgency(&self, name: &OsStr) -> (bool, bool) {
        let entry = self.trash.get(name);
        entry.map_or((true, false), |entry| {
            (!entry.is_moving, entry.frees.is_some())
        })
    }

    /// Notes that the move of an object to the trash is durable.
    pub(crate) fn moved_to_trash(&mut self, name: &OsStr) {
        if let Some(entry) = self.trash.get_mut(name) {
            entry.is_moving = false;
        }
    }

    /// The deleted objects that can come back.
    pub fn kept(&self) -> &KeptObjects {
        &self.kept
    }

    pub fn retained(&self) -> &Retained {
        &self.retained
    }

    /// The volumes that were moved, or are being moved.
    pub fn moved(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.moved.iter().filter_map(|id| self.volumes.get(id))
    }

    /// The volumes whose blocks a volume or snapshot may reference, kept ones included.
    pub(crate) fn referenced(&self) -> BTreeSet<VolumeId> {
        let (volumes, snapshots) = (self.volumes.values(), self.snapshots.values());
        let sources = volumes.clone().filter_map(|entry| entry.record.source);
        let mut referenced: BTreeSet<VolumeId> = sources
            .filter_map(|source| match source {
                Source::Volume(id) => Some(id),
                Source::Snapshot(_) => None,
            })
            .collect();
        referenced.extend(snapshots.clone().map(|entry| entry.record.source_volume_id));
        let retains = volumes.flat_map(|entry| &entry.record.retains);
        let retains = retains.chain(snapshots.flat_map(|entry| &entry.record.retains));
        let kept = self.kept.iter().flat_map(|(_, kept)| &kept.entry.retains);
        referenced.extend(retains.chain(kept).map(|retained| retained.volume));
        referenced
    }

    /// Whether an object that is not deleted retains charges of a volume.
    pub fn is_retained(&self, volume: VolumeId) -> bool {
        let volumes = self.volumes.values().flat_map(|it| &it.record.retains);
        let snapshots = self.snapshots.values().flat_map(|it| &it.record.retains);
        let mut retains = volumes.chain(snapshots);
        retains.any(|retained| retained.volume == volume)
    }

    /// The bytes reserved on a disk with `used` bytes in use. All used bytes are reserved for
    /// quarantined trees until those are measured.
    ///
    /// If the kernel counts, the sum has the sizes, the bytes of snapshots beyond their retained charges,
    /// and the retained charges of each existing volume. The blocks of a deleted volume are used already,
    /// and nobody writes to it. Otherwise the sum has the sizes, those of deleted objects included.
    pub fn reserved_of(&self, counted: bool, used: u64) -> u64 {
        let sums = &self.sums;
        let reserved = if counted {
            let alone = sums.sizes.saturating_sub(sums.covered);
            alone.saturating_add(sums.retained)
        } else {
            let deleted = sums.trash.saturating_add(self.kept.sizes());
            sums.sizes.saturating_add(deleted)
        };
        let unknown = self.quarantine.unmeasured().map_or(0, |_| used);
        reserved.saturating_add(unknown)
    }

    /// The path of an entry whose disk usage is to be measured, if there is one.
    pub fn unmeasured(&self) -> Option<PathBuf> {
        let above = Path::new(layout::META).join(layout::KEPT);
        let kept = self.kept.unmeasured();
        let kept = kept.map(|name| above.join(name.place()));
        self.quarantine.unmeasured().map(Path::to_owned).or(kept)
    }

    pub fn measured(&mut self, path: &Path, bytes: u64) {
        if path.starts_with(layout::META) {
            let name = path.file_name().unwrap_or_default();
            self.kept.measured(name, bytes);
        } else if self.quarantine.measured(path, bytes) {
            self.sums.sizes = self.sums.sizes.saturating_add(bytes);
        }
    }

    /// Whether a volume exists, possibly in quarantine.
    fn has_volume(&self, volume: VolumeId) -> bool {
        self.volumes.contains_key(&volume) || self.quarantined_as::<VolumeRecord>(volume).is_some()
    }

    /// The number of volumes with a size that a pool with this enforcement does not enforce.
    pub fn not_enforced(&self, enforcement: Enforcement) -> usize {
        let sized = self.sums.sized;
        let enforced = match enforcement {
            Enforcement::None => 0,
            by => sized[by as usize],
        };
        sized.iter().sum::<usize>() - enforced
    }

    pub fn quarantined(&self) -> &[Quarantined] {
        self.quarantine.all()
    }

    /// Whether a volume has the whole disk.
    pub fn is_exclusive(&self) -> bool {
        self.sums.exclusive > 0
    }

    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.quarantined().is_empty()
    }
}

type ByName<R> = HashMap<<<R as Record>::Id as ObjectId>::Name, Arc<Entry<R>>>;

/// A kind of record with its place in the index.
pub trait Resource: Record + Sized {
    fn entries(index: &Index) -> &BTreeMap<Self::Id, Arc<Entry<Self>>>;
    fn entries_mut(index: &mut Index) -> &mut BTreeMap<Self::Id, Arc<Entry<Self>>>;
    fn by_name(index: &Index) -> &ByName<Self>;
    fn by_name_mut(index: &mut Index) -> &mut ByName<Self>;
}

impl Resource for VolumeRecord {
    fn entries(index: &Index) -> &BTreeMap<VolumeId, Arc<Entry>> {
        &index.volumes
    }

    fn entries_mut(index: &mut Index) -> &mut BTreeMap<VolumeId, Arc<Entry>> {
        &mut index.volumes
    }

    fn by_name(index: &Index) -> &ByName<Self> {
        &index.volumes_by_name
    }

    fn by_name_mut(index: &mut Index) -> &mut ByName<Self> {
        &mut index.volumes_by_name
    }
}

impl Resource for SnapshotRecord {
    fn entries(index: &Index) -> &BTreeMap<SnapshotId, Arc<SnapshotEntry>> {
        &index.snapshots
    }

    fn entries_mut(index: &mut Index) -> &mut BTreeMap<SnapshotId, Arc<SnapshotEntry>> {
        &mut index.snapshots
    }

    fn by_name(index: &Index) -> &ByName<Self> {
        &index.snapshots_by_name
    }

    fn by_name_mut(index: &mut Index) -> &mut ByName<Self> {
        &mut index.snapshots_by_name
    }
}
