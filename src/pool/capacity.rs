//! Free space, and the sums of the reservations.
//!
//! The disk is measured without the lock of the pool's state, so that a filesystem that hangs stops only the
//! calls that measure.

mod free_space;
mod reservation;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault::{Fault, InContext};
use crate::pool::error::Result;
use crate::sync::lock;
use crate::types::Bytes;

use super::disk::Disk;
use super::index::Index;
use super::record::Record;
use super::{Entry, Pool, Unavailable, VolumeRecord};

pub(crate) use free_space::{FreeSpace, Others, Policy, Space};
pub(crate) use reservation::Expected;
pub use reservation::Reservation;

/// The marker records the bytes that others use again when they changed by this many.
const OTHER_GRAIN: u64 = 16 << 20;

/// The age at which charges are read again to report the capacity. A grant always reads them.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The age at which an inspection measures the disk of a set's member again.
const MEASURE_AGAIN: Duration = Duration::from_secs(4);

/// The reservations of a pool, and its last measurement.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// The bytes reserved for objects under construction.
    in_flight: u64,
    /// The number of objects under construction, and whether one of them has the whole disk.
    building: usize,
    whole: bool,
    /// The number of grants and openings: nothing was added to the pool while it is the same.
    grants: u64,
    /// The bytes that others used on the filesystem when the pool was empty last.
    pub(super) other: Bytes,
    recent: Option<Recent>,
}

/// A measurement that was summed up.
#[derive(Debug, Clone, Copy)]
struct Recent {
    at: Instant,
    space: Space,
    /// The bytes that are the volumes' own.
    own: u64,
    /// The removals from the index until then: the charge of a deleted volume no longer counts.
    removals: u64,
}

/// The space that a grant reserves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Demand {
    /// These bytes, for a new object or one that grows.
    Object(Bytes),
    /// These bytes more, for an object under construction.
    More(Bytes),
    /// The whole disk, if it is empty and its capacity is in this range.
    Disk { least: Bytes, most: Bytes },
    /// The size of a tree that is on the filesystem already, and uses these bytes.
    Tree { size: Bytes, used: u64 },
}

/// The space of a filesystem and the charges of its volumes.
#[derive(Debug)]
pub(super) struct Measurement {
    at: Instant,
    space: Space,
    charged: Vec<Charged>,
}

#[derive(Debug)]
pub(super) struct Charged {
    entry: Arc<Entry>,
    quota_id: u32,
    bytes: u64,
}

impl Charged {
    /// The charge of a volume that has a size and a quota id, before it is read.
    pub(super) fn of(entry: &Arc<Entry>) -> Option<Self> {
        let has_size = entry.record.size_bytes > Bytes::ZERO;
        let quota_id = entry.record.quota_id().filter(|_| has_size)?;
        Some(Self {
            entry: Arc::clone(entry),
            quota_id,
            bytes: u64::MAX,
        })
    }
}

/// An empty pool. Two of them are equal if the pool was empty all the time in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Empty {
    other: Bytes,
    grants: u64,
}

impl Measurement {
    /// The bytes of the charges that are the volumes' own. A volume that was deleted meanwhile has
    /// no reservation any more, and its space is not free yet.
    fn own(&self, index: &Index) -> u64 {
        let own = self.charged.iter().filter_map(|volume| {
            let record = &index.get::<VolumeRecord>(volume.entry.record.id)?.record;
            // Another volume may have the name of a deleted one.
            if record.quota_id() != Some(volume.quota_id) {
                return None;
            }
            Some(record.own(volume.bytes, index.retained().of(record.id)))
        });
        own.fold(index.sums.copied, u64::saturating_add)
    }
}

impl Reservations {
    /// Starts anew for a disk that was opened.
    pub(super) fn opened(&mut self, other: Bytes) {
        self.other = other;
        self.recent = None;
        self.grants = self.grants.wrapping_add(1);
    }

    /// The free space by a new measurement.
    pub(super) fn measured(
        &mut self,
        index: &Index,
        policy: &Policy,
        measurement: &Measurement,
    ) -> FreeSpace {
        let recent = Recent {
            at: measurement.at,
            space: measurement.space,
            own: measurement.own(index),
            removals: index.sums.removals,
        };
        self.recent = Some(recent);
        self.sum(index, policy, recent.space, recent.own)
    }

    /// The free space by the last measurement, if that is recent enough.
    pub(super) fn remembered(
        &self,
        index: &Index,
        policy: &Policy,
        max_age: Duration,
    ) -> Option<FreeSpace> {
        let recent = self.recent.filter(|last| last.at.elapsed() < max_age)?;
        Some(self.sum(index, policy, recent.space, recent.own))
    }

    /// The free space by the last measurement, if that is recent enough and no volume was removed since.
    pub(super) fn known(&self, index: &Index, policy: &Policy) -> Option<FreeSpace> {
        let same = self.recent?.removals == index.sums.removals;
        let recent = self.remembered(index, policy, MAX_AGE);
        recent.filter(|_| policy.counted && same)
    }

    /// Replaces the space of the last measurement.
    pub(super) fn set_space(&mut self, space: Space) {
        if let Some(recent) = &mut self.recent {
            recent.space = space;
        }
    }

    fn sum(&self, index: &Index, policy: &Policy, space: Space, own: u64) -> FreeSpace {
        let others = if policy.counted {
            Others::AllBut(own)
        } else {
            Others::WhenEmpty(self.other.0)
        };
        let reserved = index.reserved_of(policy.counted, space.used);
        FreeSpace {
            space,
            others,
            reserved: reserved.saturating_add(self.in_flight),
            policy: *policy,
            exclusive: self.whole || index.is_exclusive(),
        }
    }

    /// Reserves space and returns its bytes; if there is less, the error is the largest size possible.
    pub(super) fn grant(
        &mut self,
        index: &Index,
        policy: &Policy,
        demand: Demand,
        measurement: &Measurement,
    ) -> Result<Bytes, Bytes> {
        let own = measurement.own(index);
        let mut free = self.sum(index, policy, measurement.space, own);
        if let Demand::Tree { used, .. } = demand {
            free = free.without(used);
        }
        let available = free.available();
        let size = match demand {
            Demand::Object(_) | Demand::Tree { .. } if free.exclusive => return Err(Bytes::ZERO),
            Demand::Object(size) | Demand::More(size) | Demand::Tree { size, .. }
                if size <= available =>
            {
                size
            }
            Demand::Object(_) | Demand::More(_) | Demand::Tree { .. } => return Err(available),
            Demand::Disk { least, most } => {
                let fits = least <= available && available <= most;
                if !fits || !self.is_unused(index) {
                    return Err(Bytes::ZERO);
                }
                self.whole = true;
                available
            }
        };
        self.building += usize::from(!matches!(demand, Demand::More(_)));
        self.in_flight = self.in_flight.saturating_add(size.0);
        self.grants = self.grants.wrapping_add(1);
        Ok(size)
    }

    /// As [`Pool::standing`], by the policy for a part of the disk.
    pub(super) fn standing(&self, index: &Index, whole: bool, policy: &Policy) -> Standing {
        let free = match whole {
            true if !self.is_unused(index) => None,
            true => self.remembered(index, &policy.of_disk(), Duration::MAX),
            false => self.remembered(index, policy, Duration::MAX),
        };
        Standing {
            space: free.as_ref().map_or(Bytes::ZERO, FreeSpace::available),
            volumes: index.volumes().len() + self.building,
        }
    }

    pub(super) fn expect(&mut self, size: Bytes) {
        self.in_flight = self.in_flight.saturating_add(size.0);
        self.building += 1;
    }

    /// Whether the pool has nothing, nothing under construction, and nothing to reclaim.
    pub(super) fn is_unused(&self, index: &Index) -> bool {
        self.building == 0 && index.is_empty() && index.trash().is_empty()
    }

    /// Ends a reservation, which may be of the whole disk.
    pub(super) fn release(&mut self, bytes: u64, whole: bool) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.building = self.building.saturating_sub(1);
        self.whole &= !whole;
    }

    /// The pool, if it is empty and nothing is under construction.
    pub(super) fn empty(&self, index: &Index) -> Option<Empty> {
        self.is_unused(index).then_some(Empty {
            other: self.other,
            grants: self.grants,
        })
    }
}

/// The properties of a member that decide where a volume of its set goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// The largest size of the next volume, by the last inspection of the disk and all reservations
    /// since; zero for a whole disk that is not empty.
    pub(crate) space: Bytes,
    /// The number of volumes, and of objects under construction.
    pub(crate) volumes: usize,
}

impl Pool {
    /// The largest size of the next volume; zero while the pool is unavailable or its disk does not answer.
    pub fn available(&self) -> Result<Bytes> {
        if self.why_unavailable().is_some() || self.silence().is_some() {
            return Ok(Bytes::ZERO);
        }
        let _work = self.begin()?;
        let free = self.free_space();
        Ok(free.as_ref().map_or(Bytes::ZERO, FreeSpace::available))
    }

    /// The standing of a member among the others, for a volume that takes the whole disk or a part of
    /// it; none while the member is unavailable or its disk does not answer. No disk is asked, because
    /// one may hang.
    pub(crate) fn standing(&self, whole: bool) -> Option<Standing> {
        if self.silence().is_some() {
            return None;
        }
        self.state.standing(whole, |disk| self.policy(disk))
    }

    /// The free space of [`Pool::standing`], or zero.
    pub(crate) fn inspected_space(&self, whole: bool) -> Bytes {
        let standing = self.standing(whole);
        standing.map_or(Bytes::ZERO, |standing| standing.space)
    }

    /// Measures the disk of a set's member. Failures are left to the inspections.
    pub(super) fn measure_member(&self, disk: &Disk) {
        if self.name().member().is_none() {
            return;
        }
        if let Ok(measurement) = self.measure(disk) {
            self.state.measured(&self.policy(disk), &measurement);
        }
    }

    /// As [`Pool::measure_member`], unless that was done a moment ago.
    pub(super) fn inspect_member(&self, disk: &Disk) {
        let policy = self.policy(disk);
        if self.state.remembered(&policy, MEASURE_AGAIN).is_none() {
            self.measure_member(disk);
        }
    }

    /// Measures the space of a member's disk after a new directory, whose record takes some. The charges stay
    /// those of the last measurement, because reading them takes time for each volume; a grant reads them.
    pub(super) fn measure_space_of_member(&self, disk: &Disk) {
        if self.name().member().is_some()
            && let Ok(space) = disk.space()
        {
            self.state.set_space(space);
        }
    }

    /// The free space, by charges that are at most [`MAX_AGE`] old: reading them takes time for each
    /// volume.
    pub(super) fn free_space(&self) -> Option<FreeSpace> {
        let disk = self.disk().ok()?;
        let policy = self.policy(&disk);
        self.state.known(&policy).or_else(|| {
            let measurement = self.measure(&disk).ok()?;
            Some(self.state.measured(&policy, &measurement))
        })
    }

    fn policy(&self, disk: &Disk) -> Policy {
        Policy::new(&self.options, disk.accounts(), disk.is_on_root_disk())
    }

    /// Measures the filesystem and the charges of all volumes that have a size. A pod may write or
    /// delete meanwhile, so each charge is read twice and the smaller value counts: a charge adds to
    /// the free space.
    fn measure(&self, disk: &Disk) -> Result<Measurement, Fault> {
        let at = Instant::now();
        let mut charged = if disk.accounts() {
            self.state.charged()
        } else {
            Vec::new()
        };
        let read = |charged: &mut Vec<Charged>| -> Result<(), Fault> {
            for volume in charged {
                let bytes = disk.quota.usage(volume.quota_id);
                let bytes = bytes.context("ask what a volume uses")?;
                volume.bytes = volume.bytes.min(bytes);
            }
            Ok(())
        };
        read(&mut charged)?;
        let space = disk.space()?;
        read(&mut charged)?;
        Ok(Measurement { at, space, charged })
    }

    /// Counts the bytes of a tree that became a volume no longer as other data. It is only for pools that
    /// do not count usage.
    pub(super) fn move_from_others(&self, disk: &Arc<Disk>, bytes: u64) {
        self.change_others(disk, |other| other.saturating_sub(bytes));
    }

    /// Counts the bytes of a volume that became a tree of the host as other data.
    pub(super) fn move_to_others(&self, disk: &Arc<Disk>, bytes: u64) {
        self.change_others(disk, |other| other.saturating_add(bytes));
    }

    fn change_others(&self, disk: &Arc<Disk>, change: impl Fn(u64) -> u64) {
        let _marking = lock(&self.marking);
        let other = Bytes(change(self.state.other().0));
        match disk.record_other(other) {
            Ok(_) => self.state.set_other(disk, other),
            Err(unavailable) => self.mark_unavailable(&unavailable),
        }
    }

    /// Measures the use of the filesystem by others while the pool is empty. Filesystems return
    /// freed space late, so only an idle pool may find that others use more than before.
    ///
    /// Returns whether the pool is empty.
    pub(super) fn measure_if_empty(&self, disk: &Arc<Disk>, idle: bool) -> bool {
        let _marking = lock(&self.marking);
        let Some(before) = self.state.empty() else {
            return false;
        };
        let outcome = disk.used(idle).map_err(Unavailable::from).and_then(|used| {
            // A volume that was made meanwhile may be part of the measurement, even if it was deleted.
            if self.state.empty() != Some(before) {
                return Ok(before.other);
            }
            let other = if idle { used } else { used.min(before.other) };
            // A full disk has no free space either way, and is measured again later.
            if other.0.abs_diff(before.other.0) >= OTHER_GRAIN && !disk.record_other(other)? {
                return Ok(before.other);
            }
            Ok(other)
        });
        match outcome {
            Ok(other) => self.state.set_other(disk, other),
            Err(unavailable) => self.mark_unavailable(&unavailable),
        }
        true
    }
}
