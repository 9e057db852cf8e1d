//! The free space of a pool, its reservations, and its status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fault::{Fault, InContext};
use crate::pool::error::{Error, Result};
use crate::quota::Enforcement;
use crate::types::Bytes;

use super::capacity::{Others, Room, Space};
use super::disk::Disk;
use super::index::Resource;
use super::record::Record;
use super::{Entry, Pool, PoolStatus, State, Unavailable, VolumeRecord, Work};

/// What else is on a filesystem is written down again when it changed by more than this.
const OTHER_GRAIN: u64 = 16 << 20;

/// So much more is promised at once to what is being made, when it is more than was thought.
const COVER: u64 = 64 << 20;

/// The age at which charges are read again to report the capacity. A grant always reads them.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The space of a filesystem and the charges of its volumes at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    at: Instant,
    space: Space,
    /// The bytes that are the volumes' own.
    own: u64,
    /// The removals from the index until then: a deleted volume's charge no longer counts.
    removals: u64,
}

/// What is charged to a volume.
#[derive(Debug)]
struct Charged {
    entry: Arc<Entry>,
    number: u32,
    bytes: u64,
}

/// A pool that holds nothing. Two of them are equal if it held nothing in between either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Empty {
    other: Bytes,
    grants: u64,
}

/// Room promised to what is being made; given back when dropped.
#[derive(Debug)]
pub struct Reservation<'a> {
    work: &'a Work<'a>,
    size: AtomicU64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.work.pool().lock();
        let size = self.size.load(Ordering::Relaxed);
        state.in_flight = state.in_flight.saturating_sub(size);
    }
}

impl Reservation<'_> {
    /// Says that the disk has answered, and the work that this is for goes on.
    pub(super) fn advance(&self) {
        self.work.advance();
    }

    /// How much is promised.
    pub(super) fn size(&self) -> Bytes {
        Bytes(self.size.load(Ordering::Relaxed))
    }

    /// Has at least so much promised; called by one thread at a time.
    pub(super) fn cover(&self, bytes: u64) -> Result<()> {
        let missing = bytes.saturating_sub(self.size().0);
        if missing == 0 {
            return Ok(());
        }
        let grant = |more| {
            let anything = |_: &State| Ok(());
            self.work.pool().grant_room(Bytes(more), &anything)?;
            self.size.fetch_add(more, Ordering::Relaxed);
            Ok(())
        };
        match grant(missing.max(COVER)) {
            Err(Error::NoSpace { .. }) if missing < COVER => grant(missing),
            granted => granted,
        }
    }
}

/// The bytes of the charges that are the volumes' own. A volume that was deleted meanwhile has
/// nothing reserved any more, and its space is not free yet.
fn own(state: &State, charged: &[Charged]) -> u64 {
    let index = &state.index;
    let own = charged.iter().filter_map(|volume| {
        let record = &index.get::<VolumeRecord>(volume.entry.record.id)?.record;
        // A name can be used again meanwhile.
        if record.quota_id() != Some(volume.number) {
            return None;
        }
        Some(record.own(volume.bytes, index.retained().of(record.id)))
    });
    own.fold(index.copied(), u64::saturating_add)
}

impl Pool {
    /// The largest size of the next volume; zero while the pool is unavailable or its disk does not answer.
    pub fn available(&self) -> Result<Bytes> {
        if self.is_unavailable() || self.silence().is_some() {
            return Ok(Bytes::ZERO);
        }
        let _work = self.begin()?;
        Ok(self
            .measured()
            .as_ref()
            .map_or(Bytes::ZERO, Room::available))
    }

    /// The free space, by charges that are at most [`MAX_AGE`] old: reading them takes time for each
    /// volume. The disk is asked without the lock: a filesystem that hangs must not stop those who
    /// ask nothing of it.
    fn measured(&self) -> Option<Room> {
        let disk = self.disk().ok()?;
        {
            let state = self.lock();
            let removals = state.index.removals();
            let measured = state.measured.filter(|measured| {
                measured.at.elapsed() < MAX_AGE && measured.removals == removals
            });
            if let Some(Measured { space, own, .. }) = measured {
                return Some(self.room(&state, &disk, space, own));
            }
        }
        let at = Instant::now();
        let (space, charged) = self.measure(&disk).ok()?;
        let mut state = self.lock();
        let own = own(&state, &charged);
        if disk.accounts() {
            state.measured = Some(Measured {
                at,
                space,
                own,
                removals: state.index.removals(),
            });
        }
        Some(self.room(&state, &disk, space, own))
    }

    /// What the filesystem has, and what of it is charged to the volumes that have a size, to each
    /// no more than that. A volume may be written to or emptied meanwhile, so it is asked before
    /// and after, and the less is believed: to be charged adds room.
    fn measure(&self, disk: &Disk) -> Result<(Space, Vec<Charged>), Fault> {
        if !disk.accounts() {
            return Ok((disk.space()?, Vec::new()));
        }
        let mut charged: Vec<Charged> = {
            let state = self.lock();
            let sized = state.index.volumes();
            let sized = sized.filter(|entry| entry.record.size_bytes > Bytes::ZERO);
            let numbered = sized.filter_map(|entry| {
                Some(Charged {
                    entry: Arc::clone(entry),
                    number: entry.record.quota_id()?,
                    bytes: u64::MAX,
                })
            });
            numbered.collect()
        };
        let believe = |charged: &mut Vec<Charged>| -> Result<(), Fault> {
            for volume in charged {
                let bytes = disk.quota.usage(volume.number);
                let bytes = bytes.context("ask what a volume uses")?;
                volume.bytes = volume.bytes.min(bytes);
            }
            Ok(())
        };
        believe(&mut charged)?;
        let space = disk.space()?;
        believe(&mut charged)?;
        Ok((space, charged))
    }

    fn room(&self, state: &State, disk: &Disk, space: Space, own: u64) -> Room {
        let counted = disk.accounts();
        let reserved = state.index.promised(counted, space.used);
        let others = if counted {
            Others::AllBut(own)
        } else {
            Others::Stood(state.other.0)
        };
        Room {
            space,
            others,
            reserved: reserved.saturating_add(state.in_flight),
            overcommit: self.options.overcommit,
            reserve: self.options.reserve,
            on_root_disk: disk.is_on_root_disk(),
        }
    }

    /// Promises room to a volume or snapshot that is about to be made. Check and promise are one
    /// step, and so is a last look whether it is there: the pool may have been opened a moment ago.
    pub(crate) fn reserve<'a, R: Resource>(
        &self,
        work: &'a Work<'a>,
        id: R::Id,
        size: Bytes,
    ) -> Result<Reservation<'a>> {
        self.promise(work, size, |state| {
            let known = state.index.get::<R>(id).is_some();
            if known || state.index.quarantined_as::<R>(id).is_some() {
                return Err(Error::Busy(format!("{id}, whose pool was just opened,")));
            }
            Ok(())
        })
    }

    /// Promises room to a volume that is about to grow by `more`.
    pub(crate) fn reserve_growth<'a>(
        &self,
        work: &'a Work<'a>,
        entry: &Arc<Entry>,
        more: Bytes,
    ) -> Result<Reservation<'a>> {
        let id = entry.record.id;
        let unchanged = |state: &State| match state.index.get::<VolumeRecord>(id) {
            Some(current) if current.record == entry.record => Ok(()),
            _ => Err(Error::Busy(format!("{id}, whose pool was just opened,"))),
        };
        self.promise(work, more, unchanged)
    }

    /// Promises room if there is that much, and nothing is amiss with what it is for.
    fn promise<'a>(
        &self,
        work: &'a Work<'a>,
        size: Bytes,
        look: impl Fn(&State) -> Result<()>,
    ) -> Result<Reservation<'a>> {
        self.grant_room(size, &look)?;
        Ok(Reservation {
            work,
            size: AtomicU64::new(size.0),
        })
    }

    fn grant_room(&self, size: Bytes, look: &impl Fn(&State) -> Result<()>) -> Result<()> {
        let disk = self.disk()?;
        let space = disk.space().map_err(|fault| self.classify(fault))?;
        // What is charged only adds room, so it is asked for where there is not enough without.
        match self.grant(&disk, size, (space, &[]), look) {
            Err(Error::NoSpace { .. }) if disk.accounts() => {
                let measured = self.measure(&disk);
                let (space, charged) = measured.map_err(|fault| self.classify(fault))?;
                self.grant(&disk, size, (space, &charged), look)
            }
            granted => granted,
        }
    }

    fn grant(
        &self,
        disk: &Disk,
        size: Bytes,
        (space, charged): (Space, &[Charged]),
        look: &impl Fn(&State) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock();
        if let Err(unavailable) = &state.disk {
            let unavailable = unavailable.clone();
            drop(state);
            return Err(self.unavailable(unavailable));
        }
        look(&state)?;
        let own = own(&state, charged);
        let available = self.room(&state, disk, space, own).available();
        if size > available {
            return Err(Error::NoSpace {
                pool: self.options.name.clone(),
                size,
                available,
            });
        }
        state.in_flight = state.in_flight.saturating_add(size.0);
        state.grants = state.grants.wrapping_add(1);
        Ok(())
    }

    /// Measures the use of the filesystem by others while the pool is empty. Filesystems give freed
    /// space back late, so only an idle pool may find that it is more than before.
    ///
    /// Returns whether it holds nothing.
    pub(super) fn settle_if_empty(&self, disk: &Arc<Disk>, idle: bool) -> bool {
        let Some(before) = self.empty() else {
            return false;
        };
        let outcome = disk.used(idle).map_err(Unavailable::from).and_then(|used| {
            // A volume that came meanwhile may be part of the measurement, even if it is gone.
            if self.empty() != Some(before) {
                return Ok(before.other);
            }
            let other = if idle { used } else { used.min(before.other) };
            // A full disk has no room to promise by any reckoning, and is asked again later.
            if other.0.abs_diff(before.other.0) >= OTHER_GRAIN && !disk.keep_other(other)? {
                return Ok(before.other);
            }
            Ok(other)
        });
        match outcome {
            Ok(other) => {
                let mut state = self.lock();
                if state.serves(disk) {
                    state.other = other;
                }
            }
            Err(unavailable) => self.mark_unavailable(unavailable),
        }
        true
    }

    /// The pool while it holds nothing.
    fn empty(&self) -> Option<Empty> {
        let state = self.lock();
        let empty =
            state.index.is_empty() && state.in_flight == 0 && state.index.trash().is_empty();
        empty.then_some(Empty {
            other: state.other,
            grants: state.grants,
        })
    }

    /// The pool's status now. A disk that is known not to answer is not asked.
    pub fn status(&self) -> PoolStatus {
        let _work = match self.silence() {
            Some(_) => return self.remembered(),
            None => self.begin_own(),
        };
        self.status_with(self.measured().as_ref())
    }

    /// The pool's status as far as it is known without its disk.
    pub fn remembered(&self) -> PoolStatus {
        self.status_with(None)
    }

    fn status_with(&self, room: Option<&Room>) -> PoolStatus {
        let silence = self.silence();
        let state = self.lock();
        let disk = state.disk.as_ref().ok();
        let enforcement = disk.map_or(Enforcement::None, |disk| disk.quota.enforcement());
        PoolStatus {
            name: self.options.name.clone(),
            path: self.options.path.clone(),
            id: state.id,
            unavailable: state.disk.as_ref().err().cloned(),
            silence,
            filesystem: disk
                .map(|disk| disk.filesystem.to_string())
                .unwrap_or_default(),
            enforcement,
            total: room.map_or(Bytes::ZERO, |room| Bytes(room.space.total)),
            available: room.map_or(Bytes::ZERO, Room::available),
            reserved: Bytes(state.index.reserved()),
            volumes: state.index.volumes().len(),
            snapshots: state.index.snapshots().len(),
            not_enforced: state.index.not_enforced(enforcement),
            limits_restored: self.limits_restored.load(Ordering::Relaxed),
            quarantined: state.index.quarantined().len(),
            trash: state.index.trash().len(),
            resisting: self.trash.resisting(),
            copies: self.copies.running(),
            copied_entries: self.copies.entries(),
            copied_bytes: Bytes(self.copies.bytes()),
            reclaimed: self.trash.removed(),
        }
    }
}
