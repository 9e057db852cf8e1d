//! Reservations: a grant reserves bytes for an object under construction, if the free space allows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use objects::{Bytes, VolumeId};

use crate::disk::error::{Busy, Error, Result};
use crate::disk::record::VolumeRecord;
use crate::disk::refusal::Refusal;
use crate::ledger::index::{Index, Resource};
use crate::ledger::reservations::{Demand, Held, Measurement};
use crate::op::pool::Pool;
use crate::op::work::Work;

/// The least growth of a reservation, so that a copy of unknown size does not ask for each file.
const COVER: u64 = 64 << 20;

/// Whether kept objects are ended for a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Real,
    /// The caller only asks, or can do with less.
    Possible,
}

/// Bytes reserved for an object under construction; released when dropped.
#[derive(Debug)]
pub struct Reservation<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) held: Held,
    /// The part for charges that copies of a former volume with this id retain, and that count as the new one's.
    retained: u64,
}

/// A volume that a set has placed in a pool. Until its space is reserved, or this is dropped, the
/// placement of others counts it there.
#[derive(Debug)]
pub struct Expected {
    pool: Arc<Pool>,
    held: Held,
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.pool.state.release(&self.held);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.work.pool.state.release(&self.held);
    }
}

impl Reservation<'_> {
    pub fn size(&self) -> Bytes {
        Bytes(self.held.bytes().0.saturating_sub(self.retained))
    }

    /// Grows the reservation to at least `bytes`; called by one thread at a time.
    pub(super) fn cover(&self, bytes: u64) -> Result<()> {
        let missing = bytes.saturating_sub(self.size().0);
        if missing == 0 {
            return Ok(());
        }
        let grant = |more, need| {
            let demand = Demand::More(Bytes(more));
            self.work.pool.grant(demand, None, need, &|_| Ok(()))?;
            self.held.grow(more);
            Ok(())
        };
        // Kept objects end for as much as the next files need, too, because the copy begins again after their end.
        let steps = [
            (missing.max(COVER), Need::Possible),
            (missing, Need::Possible),
            (missing.max(COVER), Need::Real),
        ];
        for (more, need) in steps {
            match grant(more, need) {
                Err(Error::NoSpace { .. }) => {}
                granted => return granted,
            }
        }
        grant(missing, Need::Real)
    }
}

impl Pool {
    /// Counts a volume of this size that a set has placed here.
    pub fn expect(self: &Arc<Self>, size: Bytes) -> Expected {
        self.state.expect(size);
        Expected {
            pool: Arc::clone(self),
            held: Held::new(size, false),
        }
    }

    /// Reserves bytes for a volume or snapshot that is about to grow from `known`, or to be made if
    /// that is `None`. Fails if the index has another: the pool may have been opened a moment ago.
    pub fn reserve<'a, R: Resource + PartialEq>(
        &self,
        work: &'a Work<'a>,
        id: R::Id,
        known: Option<&R>,
        size: Bytes,
    ) -> Result<Reservation<'a>> {
        self.reserve_as(work, id, known, Demand::Object(size), None, Need::Real)
    }

    /// Reserves the demand of a new volume, in place of the expected bytes.
    pub fn reserve_new<'a>(
        &self,
        work: &'a Work<'a>,
        id: VolumeId,
        demand: Demand,
        expected: Option<&Expected>,
    ) -> Result<Reservation<'a>> {
        self.reserve_as::<VolumeRecord>(work, id, None, demand, expected, Need::Real)
    }

    /// Fails if the demand of a new volume cannot be reserved now, and changes nothing.
    pub fn check_new(&self, work: &Work<'_>, id: VolumeId, demand: Demand) -> Result<()> {
        let possible = Need::Possible;
        let reserved = self.reserve_as::<VolumeRecord>(work, id, None, demand, None, possible);
        reserved.map(drop)
    }

    /// Reserves the demand of a kept object that comes back, unless another has its id, or its disk.
    pub(super) fn reserve_again<'a, R: Resource>(
        &self,
        work: &'a Work<'a>,
        record: &R,
        demand: Demand,
    ) -> Result<Reservation<'a>> {
        let id = record.id();
        // Other kept objects do not end for its return: its blocks are there already.
        let size = self.grant(demand, None, Need::Possible, &|index| {
            if index.get::<R>(id).is_some() || index.quarantined_as::<R>(id).is_some() {
                return Err(Refusal::IdTaken { id: id.to_string() }.into());
            }
            Ok(())
        })?;
        Ok(Reservation {
            work,
            held: Held::new(size, demand.is_whole()),
            retained: 0,
        })
    }

    fn reserve_as<'a, R: Resource + PartialEq>(
        &self,
        work: &'a Work<'a>,
        id: R::Id,
        known: Option<&R>,
        demand: Demand,
        expected: Option<&Expected>,
        need: Need,
    ) -> Result<Reservation<'a>> {
        let volume = R::volume(id).filter(|_| known.is_none());
        let retained = volume.map_or(0, |volume| self.state.retained(volume));
        let demand = demand.with(retained);
        let size = self.grant(demand, expected, need, &|index| {
            let current = index.get::<R>(id).map(|entry| &entry.record);
            if current != known || index.quarantined_as::<R>(id).is_some() {
                return Err(Error::Busy(Busy::Changed(id.to_string())));
            }
            Ok(())
        })?;
        Ok(Reservation {
            work,
            held: Held::new(size, demand.is_whole()),
            retained,
        })
    }

    fn grant(
        &self,
        demand: Demand,
        expected: Option<&Expected>,
        need: Need,
        admit: &dyn Fn(&Index) -> Result<()>,
    ) -> Result<Bytes> {
        let disk = self.disk()?;
        let policy = if demand.is_whole() {
            self.policy(&disk).of_disk()
        } else {
            self.policy(&disk)
        };
        let grant = |measurement: &Measurement| {
            self.state.grant(
                &policy,
                demand,
                expected.map(|expected| &expected.held),
                measurement,
                |reason, index| {
                    reason.map_or_else(|| admit(index), |reason| Err(self.unavailable(reason)))
                },
            )
        };
        let sums = self.state.read(|index| index.sums);
        let space = disk.space().map_err(|fault| self.classify(fault))?;
        // Charges only add free space, so they are read where there is not enough without them.
        let mut measured = Measurement {
            at: Instant::now(),
            changes: sums.changes,
            freed: sums.freed,
            space,
            charged: Vec::new(),
            kept: BTreeMap::new(),
        };
        let mut granted = grant(&measured)?;
        if granted.is_err() && (policy.counted || self.state.read(Index::has_ended_or_kept)) {
            let all = self.measure_for_grant(&disk);
            measured = all.map_err(|fault| self.classify(fault))?;
            granted = grant(&measured)?;
            if granted.is_err() && need == Need::Real {
                self.make_space(&disk, &policy, demand, measured)?;
            }
        }
        let pool = self.options.name.clone();
        granted.map_err(|available| match demand {
            Demand::Tree {
                size: least,
                whole: true,
                ..
            }
            | Demand::Disk { least, .. } => Error::NoEmptyDisk { pool, least },
            Demand::Object(size) | Demand::More(size) | Demand::Tree { size, .. } => {
                Error::NoSpace {
                    pool,
                    size,
                    available,
                }
            }
        })
    }
}
