//! Reservations: a grant reserves bytes for an object under construction, if the free space allows it.

use std::sync::Arc;
use std::time::Instant;

use objects::{Bytes, VolumeId};

use crate::pool::base::Pool;
use crate::pool::state::index::{Index, Resource};
use crate::pool::state::reservations::{Demand, Held, Measurement};
use crate::pool::store::error::{Busy, Error, Result};
use crate::pool::store::record::VolumeRecord;
use crate::pool::work::Work;

/// The least growth of a reservation, so that a copy of unknown size does not ask for each file.
const COVER: u64 = 64 << 20;

/// Bytes reserved for an object under construction; released when dropped.
#[derive(Debug)]
pub struct Reservation<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) held: Held,
}

/// A volume that a set has placed in a pool. Until its space is reserved, or this is dropped, the
/// placement of others counts it there.
#[derive(Debug)]
pub(crate) struct Expected {
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
    pub(crate) fn size(&self) -> Bytes {
        self.held.bytes()
    }

    /// Grows the reservation to at least `bytes`; called by one thread at a time.
    pub(super) fn cover(&self, bytes: u64) -> Result<()> {
        let missing = bytes.saturating_sub(self.size().0);
        if missing == 0 {
            return Ok(());
        }
        let grant = |more| {
            let demand = Demand::More(Bytes(more));
            self.work.pool.grant(demand, None, &|_| Ok(()))?;
            self.held.grow(more);
            Ok(())
        };
        match grant(missing.max(COVER)) {
            Err(Error::NoSpace { .. }) if missing < COVER => grant(missing),
            granted => granted,
        }
    }
}

impl Pool {
    /// Counts a volume of this size that a set has placed here.
    pub(crate) fn expect(self: &Arc<Self>, size: Bytes) -> Expected {
        self.state.expect(size);
        Expected {
            pool: Arc::clone(self),
            held: Held::new(size, false),
        }
    }

    /// Reserves bytes for a volume or snapshot that is about to grow from `known`, or to be made if
    /// that is `None`. Fails if the index has another: the pool may have been opened a moment ago.
    pub(crate) fn reserve<'a, R: Resource + PartialEq>(
        &self,
        work: &'a Work<'a>,
        id: R::Id,
        known: Option<&R>,
        size: Bytes,
    ) -> Result<Reservation<'a>> {
        self.reserve_as(work, id, known, Demand::Object(size), None)
    }

    /// Reserves the demand of a new volume, in place of the expected bytes.
    pub(crate) fn reserve_new<'a>(
        &self,
        work: &'a Work<'a>,
        id: VolumeId,
        demand: Demand,
        expected: Option<&Expected>,
    ) -> Result<Reservation<'a>> {
        self.reserve_as::<VolumeRecord>(work, id, None, demand, expected)
    }

    fn reserve_as<'a, R: Resource + PartialEq>(
        &self,
        work: &'a Work<'a>,
        id: R::Id,
        known: Option<&R>,
        demand: Demand,
        expected: Option<&Expected>,
    ) -> Result<Reservation<'a>> {
        let size = self.grant(demand, expected, &|index| {
            let current = index.get::<R>(id).map(|entry| &entry.record);
            if current != known || index.quarantined_as::<R>(id).is_some() {
                return Err(Error::Busy(Busy::Changed(id.to_string())));
            }
            Ok(())
        })?;
        Ok(Reservation {
            work,
            held: Held::new(size, matches!(demand, Demand::Disk { .. })),
        })
    }

    fn grant(
        &self,
        demand: Demand,
        expected: Option<&Expected>,
        admit: &dyn Fn(&Index) -> Result<()>,
    ) -> Result<Bytes> {
        let disk = self.disk()?;
        let policy = match demand {
            Demand::Disk { .. } => self.policy(&disk).of_disk(),
            _ => self.policy(&disk),
        };
        let grant = |measurement: &Measurement| {
            let granted = self.state.grant(
                &policy,
                demand,
                expected.map(|expected| &expected.held),
                measurement,
                |reason, index| {
                    reason.map_or_else(|| admit(index), |reason| Err(self.unavailable(reason)))
                },
            );
            let pool = self.options.name.clone();
            granted?.map_err(|available| match demand {
                Demand::Object(size) | Demand::More(size) | Demand::Tree { size, .. } => {
                    Error::NoSpace {
                        pool,
                        size,
                        available,
                    }
                }
                Demand::Disk { least, .. } => Error::NoEmptyDisk { pool, least },
            })
        };
        let space = disk.space().map_err(|fault| self.classify(fault))?;
        // Charges only add free space, so they are read where there is not enough without them.
        let uncharged = Measurement {
            at: Instant::now(),
            space,
            charged: Vec::new(),
        };
        match grant(&uncharged) {
            Err(Error::NoSpace { .. } | Error::NoEmptyDisk { .. }) if policy.counted => {
                let measured = self.measure_for_grant(&disk);
                grant(&measured.map_err(|fault| self.classify(fault))?)
            }
            granted => granted,
        }
    }
}
