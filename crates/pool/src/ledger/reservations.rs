//! The reservations for objects under construction, and the last measurement of the disk.
//!
//! A record in the index counts by itself. A reservation counts from its grant until the record is inserted, or until
//! the object is given up, so that no space is granted twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use objects::Bytes;

use crate::disk::entry::Entry;
use crate::disk::kept::{KeptEntry, KeptName};
use crate::disk::record::{Record, VolumeRecord};
use crate::disk::space::Space;
use crate::ledger::free_space::{FreeSpace, Others, Policy};
use crate::ledger::index::Index;

/// The age at which charges and kept objects are read again to report the capacity. A grant always reads them.
const MAX_AGE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// The bytes reserved for objects under construction.
    in_flight: u64,
    /// The number of objects under construction, and whether one of them has the whole disk.
    building: usize,
    whole: bool,
    /// The number of grants and openings: nothing was added to the pool while it is the same.
    grants: u64,
    /// The bytes that others used on the filesystem when the pool was empty last.
    pub(crate) other: Bytes,
    recent: Option<Recent>,
}

/// A measurement that was summed up.
#[derive(Debug, Clone, Copy)]
struct Recent {
    at: Instant,
    space: Space,
    /// The bytes that are the volumes' own.
    own: u64,
    /// The charges of the kept objects.
    kept: u64,
    /// The changes of the index until then.
    changes: u64,
}

/// The space that a grant reserves.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// These bytes, for a new object or one that grows.
    Object(Bytes),
    /// These bytes more, for an object under construction.
    More(Bytes),
    /// The whole disk, if it is empty and its capacity is in this range.
    Disk { least: Bytes, most: Bytes },
    /// The size of a tree that is on the filesystem already, and uses these bytes.
    Tree {
        size: Bytes,
        used: u64,
        /// Whether it has the whole disk, which has no other object then.
        whole: bool,
    },
}

impl Demand {
    /// This demand for more bytes, which an empty disk does not need.
    #[must_use]
    pub fn with(self, more: u64) -> Self {
        let larger = |size: Bytes| Bytes(size.0.saturating_add(more));
        match self {
            Self::Object(size) => Self::Object(larger(size)),
            Self::Tree { size, used, whole } => Self::Tree {
                size: larger(size),
                used,
                whole,
            },
            Self::More(_) | Self::Disk { .. } => self,
        }
    }

    /// Whether it is for the whole disk.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Tree { whole: true, .. })
    }
}

/// The space of a filesystem and the charges of its volumes.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) at: Instant,
    /// The changes of the index, and the trash entries that had freed space, when it began.
    pub(crate) changes: u64,
    pub(crate) freed: u64,
    pub(crate) space: Space,
    pub(crate) charged: Vec<Charged>,
    /// The charges of the kept objects.
    pub(crate) kept: BTreeMap<KeptName, u64>,
}

#[derive(Debug)]
pub(crate) struct Charged {
    pub(crate) entry: Arc<Entry>,
    pub(crate) quota_id: u32,
    pub(crate) bytes: u64,
}

impl Charged {
    /// The charge of a volume that has a size and a quota id, before it is read.
    pub(crate) fn of(entry: &Arc<Entry>) -> Option<Self> {
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
pub(crate) struct Empty {
    pub(crate) other: Bytes,
    pub(crate) grants: u64,
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

    /// The bytes that a kept object is charged, as far as they are known. Its end may free fewer, because others may
    /// share its blocks.
    fn kept(&self, name: &KeptName, kept: &KeptEntry) -> u64 {
        let charged = self.kept.get(name).copied().unwrap_or_default();
        charged.saturating_add(kept.used.unwrap_or_default())
    }
}

impl Reservations {
    /// Starts again for a disk that was opened.
    pub(crate) fn opened(&mut self, other: Bytes) {
        self.other = other;
        self.recent = None;
        self.grants = self.grants.wrapping_add(1);
    }

    /// The free space by a new measurement.
    pub(crate) fn measured(
        &mut self,
        index: &Index,
        policy: &Policy,
        measurement: &Measurement,
    ) -> FreeSpace {
        let charges = measurement.kept.iter();
        let kept = charges.filter(|(name, _)| index.kept().get(name).is_some());
        let recent = Recent {
            at: measurement.at,
            space: measurement.space,
            own: measurement.own(index),
            kept: kept.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add),
            changes: measurement.changes,
        };
        self.recent = Some(recent);
        self.reported(index, policy, recent)
    }

    /// The free space by the last measurement, if that is recent enough.
    pub(crate) fn remembered(
        &self,
        index: &Index,
        policy: &Policy,
        max_age: Duration,
    ) -> Option<FreeSpace> {
        let recent = self.recent.filter(|last| last.at.elapsed() < max_age)?;
        Some(self.reported(index, policy, recent))
    }

    /// The free space by the last measurement, if that is recent enough and no object was deleted since.
    pub(crate) fn known(&self, index: &Index, policy: &Policy) -> Option<FreeSpace> {
        let changes = self.recent?.changes;
        let is_known = policy.counted && changes == index.sums.changes;
        self.remembered(index, policy, MAX_AGE).filter(|_| is_known)
    }

    /// Replaces the space of the last measurement.
    pub(crate) fn set_space(&mut self, space: Space) {
        if let Some(recent) = &mut self.recent {
            recent.space = space;
        }
    }

    /// The free space with that of deleted objects, which a grant would reclaim.
    fn reported(&self, index: &Index, policy: &Policy, recent: Recent) -> FreeSpace {
        let free = self.sum(index, policy, recent.space, recent.own);
        let kept = index.kept();
        free.after(index.sums.freeing.bytes, index.sums.freeing.sizes)
            .after(recent.kept.saturating_add(kept.used()), kept.sizes())
    }

    /// The kept objects to end for a demand that was refused, with the charge of each; none as long as others that were
    /// ended are being reclaimed. They are the oldest, each with the kept copies that retain its blocks. `None`: the
    /// demand is above the reported capacity.
    pub(crate) fn to_end(
        &self,
        index: &Index,
        policy: &Policy,
        demand: Demand,
        measurement: &Measurement,
    ) -> Option<Vec<(KeptName, u64)>> {
        if measurement.freed != index.sums.freed {
            // Meanwhile an entry became free space, which is neither in the measurement nor in the index.
            return Some(Vec::new());
        }
        let own = measurement.own(index);
        let freeing = index.sums.freeing;
        let mut free = self
            .sum(index, policy, measurement.space, own)
            .after(freeing.bytes, freeing.sizes);
        if free.exclusive || (demand.is_whole() && self.has_objects(index)) {
            return None;
        }
        if let Demand::Tree { used, .. } = demand {
            free = free.without(used);
        }
        let copies = index.kept().copies();
        let is_alive = |volume| index.get::<VolumeRecord>(volume).is_some();
        let mut ended = BTreeMap::new();
        let mut kept = index.kept().iter();
        loop {
            let available = free.available();
            let suffices = match demand {
                Demand::Object(size) | Demand::More(size) | Demand::Tree { size, .. } => {
                    size <= available
                }
                Demand::Disk { least, most } => {
                    let is_empty = kept.len() == 0 && self.is_to_be_unused(index);
                    is_empty && (least..=most).contains(&available)
                }
            };
            if suffices {
                ended.retain(|_, _| freeing.entries == 0);
                return Some(ended.into_iter().collect());
            }
            let (name, entry) = kept.next()?;
            // The copies of an existing volume with the same id are its own.
            let volume = entry.entry.volume.filter(|volume| !is_alive(*volume));
            let copies = volume.and_then(|volume| copies.get(&volume));
            let copies = copies.into_iter().flatten().copied();
            for (name, entry) in copies.chain([(name, entry)]) {
                if !entry.returns && !ended.contains_key(name) {
                    let bytes = measurement.kept(name, entry);
                    free = free.after(bytes, entry.entry.reserved);
                    ended.insert(name.clone(), bytes);
                }
            }
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
    pub(crate) fn grant(
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
            Demand::Tree { whole: true, .. } if self.has_objects(index) => return Err(Bytes::ZERO),
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
                available
            }
        };
        self.whole |= demand.is_whole();
        self.building += usize::from(!matches!(demand, Demand::More(_)));
        self.in_flight = self.in_flight.saturating_add(size.0);
        self.grants = self.grants.wrapping_add(1);
        Ok(size)
    }

    /// As [`Pool::member_space`], by the policy for a part of the disk.
    pub(crate) fn member_space(&self, index: &Index, whole: bool, policy: &Policy) -> MemberSpace {
        let policy = if whole { policy.of_disk() } else { *policy };
        let available = |is_there: bool, free: &dyn Fn(Recent) -> FreeSpace| {
            let recent = self.recent.filter(|_| is_there || !whole);
            recent.map_or(Bytes::ZERO, |recent| free(recent).available())
        };
        MemberSpace {
            space: available(self.is_unused(index), &|recent| {
                self.sum(index, &policy, recent.space, recent.own)
            }),
            reported: available(self.is_to_be_unused(index), &|recent| {
                self.reported(index, &policy, recent)
            }),
            volumes: index.volumes().len() + self.building,
        }
    }

    pub(crate) fn expect(&mut self, size: Bytes) {
        self.in_flight = self.in_flight.saturating_add(size.0);
        self.building += 1;
    }

    /// Whether the pool has objects that are not deleted, or some are under construction.
    fn has_objects(&self, index: &Index) -> bool {
        self.building > 0 || !index.is_empty()
    }

    /// Whether the pool has nothing, nothing under construction, and nothing to reclaim.
    pub(crate) fn is_unused(&self, index: &Index) -> bool {
        let nothing_deleted = index.trash().is_empty() && index.kept().is_empty();
        !self.has_objects(index) && nothing_deleted
    }

    /// Whether the pool has nothing but deleted objects that a grant would reclaim.
    fn is_to_be_unused(&self, index: &Index) -> bool {
        let only_freeing = index.trash().len() == index.sums.freeing.entries;
        !self.has_objects(index) && only_freeing
    }

    /// Releases what is held, which may be the whole disk, unless that is done.
    pub(crate) fn end(&mut self, held: &Held) {
        if !held.is_over.swap(true, Ordering::Relaxed) {
            self.in_flight = self.in_flight.saturating_sub(held.bytes().0);
            self.building = self.building.saturating_sub(1);
            self.whole &= !held.whole;
        }
    }

    /// The pool, if it is empty and nothing is under construction.
    pub(crate) fn empty(&self, index: &Index) -> Option<Empty> {
        self.is_unused(index).then_some(Empty {
            other: self.other,
            grants: self.grants,
        })
    }
}

/// The properties of a member that decide where a volume of its set goes.
#[derive(Debug, Clone, Copy)]
pub struct MemberSpace {
    /// The largest size of the next volume, by the last inspection of the disk and all reservations
    /// since; zero for a whole disk that is not empty.
    pub space: Bytes,
    /// The same with the space that kept objects would free.
    pub reported: Bytes,
    /// The number of volumes, and of objects under construction.
    pub volumes: usize,
}

/// Bytes that are reserved until they are released, once.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: AtomicU64,
    /// Whether they are those of the whole disk.
    whole: bool,
    is_over: AtomicBool,
}

impl Held {
    pub(crate) fn new(bytes: Bytes, whole: bool) -> Self {
        Self {
            bytes: AtomicU64::new(bytes.0),
            whole,
            is_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn grow(&self, more: u64) {
        self.bytes.fetch_add(more, Ordering::Relaxed);
    }
}
