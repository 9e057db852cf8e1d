//! The state of a pool in memory: its open disk, its index, its retained charges and reservations.
//!
//! One mutex guards it, because a grant depends on the disk, the records and the reservations of one
//! moment. Nobody holds it while the disk is read, written or closed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::types::{Bytes, PoolId, VolumeId};

use super::capacity::{Empty, Reservations};
use super::disk::Disk;
use super::index::Index;
use super::record::RetainedCharge;
use super::{Unavailable, VolumeRecord};

#[derive(Debug)]
pub(super) struct State {
    pub(super) disk: Result<Arc<Disk>, Unavailable>,
    /// The identity is known while the pool is unavailable, because its volumes still exist.
    pub(super) id: Option<PoolId>,
    pub(super) index: Index,
    /// The charges that copies under construction will retain.
    pub(super) pending: Vec<RetainedCharge>,
    pub(super) reservations: Reservations,
}

/// The volumes whose blocks existing copies, or copies under construction, may reference.
#[derive(Debug)]
pub(super) struct References {
    pub(super) volumes: BTreeSet<VolumeId>,
    /// The removals from the index until then. Unknown while a copy is under construction, because
    /// it may be given up without a removal.
    pub(super) removals: Option<u64>,
}

impl State {
    /// The state of a pool that is not open yet.
    pub(super) fn new(id: Option<PoolId>) -> Self {
        Self {
            disk: Err(Unavailable::Opening),
            id,
            index: Index::default(),
            pending: Vec::new(),
            reservations: Reservations::default(),
        }
    }

    pub(super) fn why_unavailable(&self) -> Option<Unavailable> {
        self.disk.as_ref().err().cloned()
    }

    /// Whether the pool is served from this disk.
    pub(super) fn serves(&self, disk: &Arc<Disk>) -> bool {
        let current = self.disk.as_ref();
        current.is_ok_and(|current| Arc::ptr_eq(current, disk))
    }

    /// The references to volumes, unless nothing was removed since `removals`.
    pub(super) fn references_since(&self, removals: Option<u64>) -> Option<References> {
        let now = self.index.sums.removals;
        if removals == Some(now) {
            return None;
        }
        let mut volumes = self.index.referenced();
        volumes.extend(self.pending.iter().map(|retained| retained.volume));
        Some(References {
            volumes,
            removals: self.pending.is_empty().then_some(now),
        })
    }

    /// Notes the disk usage of a quarantined tree; false if the pool is not served from `disk`.
    pub(super) fn measured(&mut self, disk: &Arc<Disk>, path: &Path, bytes: u64) -> bool {
        let serves = self.serves(disk);
        if serves {
            self.index.measured(path, bytes);
        }
        serves
    }

    /// The bytes that stay charged to a volume for its copies, those under construction included.
    pub(super) fn retained(&self, volume: VolumeId) -> u64 {
        self.index.retained().with(volume, &self.pending)
    }

    pub(super) fn existing(&self, retains: &[RetainedCharge]) -> Vec<RetainedCharge> {
        let exists =
            |retained: &&RetainedCharge| self.index.get::<VolumeRecord>(retained.volume).is_some();
        retains.iter().filter(exists).copied().collect()
    }

    pub(super) fn remove_pending(&mut self, retains: &[RetainedCharge]) {
        for retained in retains {
            if let Some(at) = self.pending.iter().position(|pending| pending == retained) {
                self.pending.swap_remove(at);
            }
        }
    }

    /// The pool, if it is empty and nothing is under construction.
    pub(super) fn empty(&self) -> Option<Empty> {
        let empty = self.index.is_empty() && self.index.trash().is_empty();
        self.reservations.empty().filter(|_| empty)
    }

    /// Notes the bytes that others use, if the pool is still served from this disk.
    pub(super) fn set_other(&mut self, disk: &Arc<Disk>, other: Bytes) {
        if self.serves(disk) {
            self.reservations.other = other;
        }
    }
}
