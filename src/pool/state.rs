//! The state of a pool in memory: its open disk, its index, its retained charges and reservations.
//!
//! One mutex guards it, because a grant depends on the disk, the records and the reservations of one
//! moment. Only this file locks it, and never while the disk is read or written.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::filesystem::Filesystem;
use crate::quota::Enforcement;
use crate::types::{Bytes, PoolId, VolumeId};

use super::capacity::{Charged, Empty, FreeSpace, Measurement, Policy, Reservations};
use super::disk::Disk;
use super::index::{Entry, Index, Resource};
use super::record::RetainedCharge;
use super::trash::TrashEntry;
use super::{Lookup, Unavailable, VolumeRecord};

#[derive(Debug)]
pub(super) struct PoolState(Mutex<State>);

#[derive(Debug)]
struct State {
    disk: Result<Arc<Disk>, Unavailable>,
    /// The identity is known while the pool is unavailable, because its volumes still exist.
    id: Option<PoolId>,
    index: Index,
    /// The charges that copies under construction will retain.
    pending: Vec<RetainedCharge>,
    reservations: Reservations,
}

impl State {
    fn serves(&self, disk: &Arc<Disk>) -> bool {
        let current = self.disk.as_ref();
        current.is_ok_and(|current| Arc::ptr_eq(current, disk))
    }

    fn why_unavailable(&self) -> Option<Unavailable> {
        self.disk.as_ref().err().cloned()
    }
}

/// The effect of closing a pool's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// The pool was open, or unavailable for another reason.
    Closed,
    /// The pool was unavailable for the same reason.
    AsBefore,
    /// The disk stays open, because a shortage of the driver's own says nothing about it.
    StaysOpen,
}

/// The state of a pool at one moment, for its status.
#[derive(Debug)]
pub(super) struct Overview {
    pub(super) unavailable: Option<Unavailable>,
    pub(super) filesystem: Option<Filesystem>,
    pub(super) enforcement: Enforcement,
    pub(super) id: Option<PoolId>,
    pub(super) reserved: Bytes,
    pub(super) volumes: usize,
    pub(super) snapshots: usize,
    pub(super) not_enforced: usize,
    pub(super) quarantined: usize,
    pub(super) trash: usize,
}

/// The volumes whose blocks existing copies, or copies under construction, may reference.
#[derive(Debug)]
pub(super) struct References {
    pub(super) volumes: BTreeSet<VolumeId>,
    /// The removals from the index until then. Unknown while a copy is under construction, because
    /// it may be given up without a removal.
    pub(super) removals: Option<u64>,
}

/// The disk.
impl PoolState {
    /// The state of a pool that is not open yet.
    pub(super) fn new(id: Option<PoolId>) -> Self {
        Self(Mutex::new(State {
            disk: Err(Unavailable::Opening),
            id,
            index: Index::default(),
            pending: Vec::new(),
            reservations: Reservations::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether the pool is served from this disk.
    pub(super) fn serves(&self, disk: &Arc<Disk>) -> bool {
        self.lock().serves(disk)
    }

    /// Serves the pool from a disk. `other` are the bytes that others used when it was empty last.
    pub(super) fn open(&self, disk: Disk, index: Index, other: Bytes) {
        let mut state = self.lock();
        state.id = Some(disk.id);
        state.index = index;
        state.reservations.opened(other);
        let before = mem::replace(&mut state.disk, Ok(Arc::new(disk)));
        drop(state);
        drop(before);
    }

    /// Closes all descriptors on the disk. Closing the last one may take long, so nobody waits for
    /// the lock meanwhile.
    pub(super) fn close(&self, reason: &Unavailable) -> Closing {
        let mut state = self.lock();
        if matches!(reason, Unavailable::Shortage(_)) && state.disk.is_ok() {
            return Closing::StaysOpen;
        }
        let closing = if state.disk.as_ref().err() == Some(reason) {
            Closing::AsBefore
        } else {
            Closing::Closed
        };
        let before = mem::replace(&mut state.disk, Err(reason.clone()));
        drop(state);
        drop(before);
        closing
    }

    /// Forgets the identity and the records.
    pub(super) fn forget(&self) {
        let mut state = self.lock();
        state.id = None;
        state.index = Index::default();
        state.reservations.set_other(Bytes::ZERO);
    }

    pub(super) fn overview(&self) -> Overview {
        let state = self.lock();
        let disk = state.disk.as_ref();
        let enforcement = disk.map_or(Enforcement::None, |disk| disk.quota.enforcement());
        Overview {
            unavailable: state.why_unavailable(),
            filesystem: disk.ok().map(|disk| disk.filesystem),
            enforcement,
            id: state.id,
            reserved: Bytes(state.index.reserved()),
            volumes: state.index.volumes().len(),
            snapshots: state.index.snapshots().len(),
            not_enforced: state.index.not_enforced(enforcement),
            quarantined: state.index.quarantined().len(),
            trash: state.index.trash().len(),
        }
    }
}

/// The records.
impl PoolState {
    /// The knowledge about an id, and the reason why the pool is unavailable, of one moment.
    pub(super) fn find<R: Resource>(&self, id: R::Id) -> (Lookup<R>, Option<Unavailable>) {
        let state = self.lock();
        let index = &state.index;
        let known = match (index.get::<R>(id), index.quarantined_as::<R>(id)) {
            (Some(entry), _) => Lookup::Entry(Arc::clone(entry)),
            (None, Some(quarantined)) => Lookup::Quarantined(quarantined.clone()),
            (None, None) => Lookup::Nothing,
        };
        (known, state.why_unavailable())
    }

    pub(super) fn get<R: Resource>(&self, id: R::Id) -> Option<Arc<Entry<R>>> {
        self.lock().index.get::<R>(id).cloned()
    }

    /// At most `count` entries that match, with ids after the given one, in order.
    pub(super) fn after<R: Resource + 'static>(
        &self,
        id: Option<R::Id>,
        count: usize,
        matches: impl Fn(&R) -> bool,
    ) -> Vec<Arc<Entry<R>>> {
        let state = self.lock();
        let entries = state.index.after::<R>(id);
        let matching = entries.filter(|entry| matches(&entry.record));
        matching.take(count).cloned().collect()
    }

    pub(super) fn insert<R: Resource>(&self, entry: Entry<R>) -> Arc<Entry<R>> {
        self.lock().index.insert(entry)
    }

    pub(super) fn remove<R: Resource>(&self, id: R::Id) {
        self.lock().index.remove::<R>(id);
    }

    pub(super) fn add_to_trash(&self, name: OsString, entry: TrashEntry) {
        self.lock().index.add_to_trash(name, entry);
    }

    pub(super) fn remove_from_trash(&self, name: &OsStr) {
        self.lock().index.remove_from_trash(name);
    }

    /// The references to volumes, unless nothing was removed since `removals`.
    pub(super) fn references_since(&self, removals: Option<u64>) -> Option<References> {
        let state = self.lock();
        let now = state.index.removals();
        if removals == Some(now) {
            return None;
        }
        let mut volumes = state.index.referenced();
        volumes.extend(state.pending.iter().map(|retained| retained.volume));
        Some(References {
            volumes,
            removals: state.pending.is_empty().then_some(now),
        })
    }

    /// The path of a quarantined tree whose disk usage is not known, if there is one.
    pub(super) fn unmeasured(&self) -> Option<PathBuf> {
        self.lock().index.unmeasured()
    }

    /// Notes the disk usage of a quarantined tree; false if the pool is not served from `disk`.
    pub(super) fn measured(&self, disk: &Arc<Disk>, path: &Path, bytes: u64) -> bool {
        let mut state = self.lock();
        let serves = state.serves(disk);
        if serves {
            state.index.measured(path, bytes);
        }
        serves
    }
}

/// Retained charges.
impl PoolState {
    /// The bytes that stay charged to a volume for its copies, those under construction included.
    pub(super) fn retained(&self, volume: VolumeId) -> u64 {
        let state = self.lock();
        state.index.retained().with(volume, &state.pending)
    }

    /// The retained charges of volumes that exist.
    pub(super) fn existing(&self, retains: &[RetainedCharge]) -> Vec<RetainedCharge> {
        let state = self.lock();
        let exists =
            |retained: &&RetainedCharge| state.index.get::<VolumeRecord>(retained.volume).is_some();
        retains.iter().filter(exists).copied().collect()
    }

    pub(super) fn add_pending(&self, retains: &[RetainedCharge]) {
        self.lock().pending.extend(retains);
    }

    pub(super) fn remove_pending(&self, retains: &[RetainedCharge]) {
        let mut state = self.lock();
        for retained in retains {
            if let Some(at) = state.pending.iter().position(|pending| pending == retained) {
                state.pending.swap_remove(at);
            }
        }
    }
}

/// Reservations and free space.
impl PoolState {
    /// The volumes whose charges the free space depends on.
    pub(super) fn charged(&self) -> Vec<Charged> {
        self.lock()
            .index
            .volumes()
            .filter_map(Charged::of)
            .collect()
    }

    /// The free space by the last measurement, if that is recent and no volume was removed since.
    pub(super) fn recent_free_space(&self, policy: &Policy) -> Option<FreeSpace> {
        let state = self.lock();
        state.reservations.recent_free_space(&state.index, policy)
    }

    /// The free space by a new measurement.
    pub(super) fn free_space(&self, policy: &Policy, measurement: &Measurement) -> FreeSpace {
        let state = &mut *self.lock();
        state
            .reservations
            .measured(&state.index, policy, measurement)
    }

    /// Reserves `size` if there is that much free space and `admit` accepts the index; otherwise the
    /// error has the reason.
    pub(super) fn grant(
        &self,
        policy: &Policy,
        size: Bytes,
        measurement: &Measurement,
        admit: &dyn Fn(&Index) -> super::Result<()>,
    ) -> Result<(), Refused> {
        let state = &mut *self.lock();
        if let Some(reason) = state.why_unavailable() {
            return Err(Refused::Unavailable(reason));
        }
        admit(&state.index).map_err(Refused::Error)?;
        let reservations = &mut state.reservations;
        let granted = reservations.grant(&state.index, policy, size, measurement);
        granted.map_err(|available| Refused::NoSpace { available })
    }

    /// Returns reserved bytes.
    pub(super) fn release(&self, bytes: u64) {
        self.lock().reservations.release(bytes);
    }

    /// The pool, if it is empty and nothing is under construction.
    pub(super) fn empty(&self) -> Option<Empty> {
        let state = self.lock();
        let empty = state.index.is_empty() && state.index.trash().is_empty();
        state.reservations.empty().filter(|_| empty)
    }

    /// Notes the bytes that others use, if the pool is still served from this disk.
    pub(super) fn set_other(&self, disk: &Arc<Disk>, other: Bytes) {
        let mut state = self.lock();
        if state.serves(disk) {
            state.reservations.set_other(other);
        }
    }
}

/// The reason why nothing was reserved.
#[derive(Debug)]
pub(super) enum Refused {
    Unavailable(Unavailable),
    NoSpace { available: Bytes },
    Error(super::Error),
}
