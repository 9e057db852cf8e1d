//! What the memory says about space: retained charges, reservations and free space.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use objects::{Bytes, VolumeId};

use crate::disk::error;
use crate::disk::kept::KeptName;
use crate::disk::open::Disk;
use crate::disk::record::{RetainedCharge, Source, VolumeRecord};
use crate::disk::space::Space;
use crate::disk::unavailable::Unavailable;
use crate::ledger::PoolState;
use crate::ledger::free_space::{FreeSpace, Policy};
use crate::ledger::index::Index;
use crate::ledger::reservations::{Demand, Empty, Held, Measurement, MemberSpace};

impl PoolState {
    /// The bytes that stay charged to a volume for its copies, those under construction included.
    pub fn retained(&self, volume: VolumeId) -> u64 {
        let state = self.lock();
        state.index.retained().with(volume, &state.pending)
    }

    /// The bytes of a volume that deleted copies of this name retain, which a new one does not share.
    pub(crate) fn retained_before(&self, volume: VolumeId, copy: Source) -> u64 {
        self.lock().index.retained().of_copy(volume, copy)
    }

    /// The retained charges of volumes that exist or are kept.
    pub(crate) fn existing(&self, retains: &[RetainedCharge]) -> Vec<RetainedCharge> {
        let state = self.lock();
        let kept = state.index.kept().iter();
        let kept: BTreeSet<VolumeId> = kept.filter_map(|(_, kept)| kept.entry.volume).collect();
        let exists = |retained: &&RetainedCharge| {
            let volume = retained.volume;
            state.index.get::<VolumeRecord>(volume).is_some() || kept.contains(&volume)
        };
        retains.iter().filter(exists).copied().collect()
    }

    pub(crate) fn add_pending(&self, retains: &[RetainedCharge]) {
        self.lock().pending.extend(retains);
    }

    pub(crate) fn remove_pending(&self, retains: &[RetainedCharge]) {
        let mut state = self.lock();
        for retained in retains {
            if let Some(at) = state.pending.iter().position(|pending| pending == retained) {
                state.pending.swap_remove(at);
            }
        }
    }

    pub(crate) fn measured(&self, policy: &Policy, measurement: &Measurement) -> FreeSpace {
        let state = &mut *self.lock();
        let reservations = &mut state.reservations;
        reservations.measured(&state.index, policy, measurement)
    }

    pub(crate) fn remembered(&self, policy: &Policy, max_age: Duration) -> Option<FreeSpace> {
        let state = self.lock();
        state.reservations.remembered(&state.index, policy, max_age)
    }

    pub(crate) fn set_space(&self, space: Space) {
        self.lock().reservations.set_space(space);
    }

    pub(crate) fn known(&self, policy: &Policy) -> Option<FreeSpace> {
        let state = self.lock();
        state.reservations.known(&state.index, policy)
    }

    /// Reserves space if `admit` accepts the pool, and returns its bytes; if there is less, the inner error
    /// is the largest size possible.
    pub(crate) fn grant(
        &self,
        policy: &Policy,
        demand: Demand,
        expected: Option<&Held>,
        measurement: &Measurement,
        admit: impl Fn(Option<Unavailable>, &Index) -> error::Result<()>,
    ) -> error::Result<Result<Bytes, Bytes>> {
        let state = &mut *self.lock();
        admit(state.why_unavailable(), &state.index)?;
        let reservations = &mut state.reservations;
        if let Some(expected) = expected {
            reservations.end(expected);
        }
        Ok(reservations.grant(&state.index, policy, demand, measurement))
    }

    /// The kept objects to end for a demand that was refused, as in [`Reservations::to_end`].
    pub(crate) fn to_end(
        &self,
        policy: &Policy,
        demand: Demand,
        measurement: &Measurement,
    ) -> Option<Vec<(KeptName, u64)>> {
        let state = self.lock();
        let reservations = &state.reservations;
        reservations.to_end(&state.index, policy, demand, measurement)
    }

    /// Reserves space for a volume that a set has placed, without regard to the free space.
    pub(crate) fn expect(&self, size: Bytes) {
        self.lock().reservations.expect(size);
    }

    pub(crate) fn release(&self, held: &Held) {
        self.lock().reservations.end(held);
    }

    /// As `Pool::member_space`, by the policy of a disk.
    pub(crate) fn member_space(
        &self,
        whole: bool,
        policy: impl Fn(&Disk) -> Policy,
    ) -> Option<MemberSpace> {
        let state = self.lock();
        let policy = policy(state.disk.as_ref().ok()?);
        let reservations = &state.reservations;
        Some(reservations.member_space(&state.index, whole, &policy))
    }

    pub(crate) fn empty(&self) -> Option<Empty> {
        let state = self.lock();
        state.reservations.empty(&state.index)
    }

    pub(crate) fn other(&self) -> Bytes {
        self.lock().reservations.other
    }

    /// Notes the bytes that others use, if the pool is still served from this disk.
    pub(crate) fn set_other(&self, disk: &Arc<Disk>, other: Bytes) {
        let mut state = self.lock();
        if state.serves(disk) {
            state.reservations.other = other;
        }
    }
}
