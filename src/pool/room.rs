//! What a pool has room for, and what it is like.

use crate::error::{Error, Result};
use crate::types::{Bytes, VolumeId};

use super::capacity::{Room, Space};
use super::disk::Disk;
use super::{Pool, PoolStatus, Reservation, Sickness, State};

/// What else is on a filesystem is written down again when it changed by more than this.
const OTHER_GRAIN: u64 = 16 << 20;

impl Pool {
    /// What the next volume may have; zero while the pool is sick.
    pub fn available(&self) -> Bytes {
        self.measured()
            .map_or(Bytes::ZERO, |(room, _)| room.available())
    }

    /// The room and the filesystem's name. The disk is asked without the lock: a filesystem that
    /// hangs must not stop those who ask nothing of it.
    fn measured(&self) -> Option<(Room, String)> {
        let disk = self.disk().ok()?;
        let space = disk.space().ok()?;
        Some((
            self.room(&self.lock(), &disk, space),
            disk.filesystem.name.clone(),
        ))
    }

    fn room(&self, state: &State, disk: &Disk, space: Space) -> Room {
        let reserved = state.index.reserved().saturating_add(state.in_flight);
        Room {
            space,
            other: state.other.0,
            reserved: reserved.saturating_add(self.trash.promised()),
            overcommit: self.options.overcommit,
            reserve: self.options.reserve,
            on_root_disk: disk.is_on_root_disk(),
        }
    }

    /// Promises room to a volume that is about to be made. Check and promise are one step, and so
    /// is a last look whether the volume is there: the pool may have been opened a moment ago.
    pub fn reserve(&self, id: VolumeId, size: Bytes) -> Result<Reservation<'_>> {
        let disk = self.disk().map_err(|sickness| self.sick(sickness))?;
        let space = disk
            .space()
            .map_err(|fault| self.judge(fault, Self::sick))?;
        let mut state = self.lock();
        if let Err(sickness) = &state.disk {
            let sickness = sickness.clone();
            drop(state);
            return Err(self.sick(sickness));
        }
        if state.index.get(id).is_some() || state.index.quarantined_as(id).is_some() {
            return Err(Error::Busy(format!(
                "volume {id}, whose pool was just opened,"
            )));
        }
        let available = self.room(&state, &disk, space).available();
        if size > available {
            return Err(Error::NoRoom {
                pool: self.options.name.clone(),
                size,
                available,
            });
        }
        state.in_flight = state.in_flight.saturating_add(size.0);
        Ok(Reservation { pool: self, size })
    }

    /// Learns what else is on the filesystem while the pool holds nothing. Filesystems give freed
    /// space back late, so only an idle pool may find that it is more than before.
    pub(super) fn settle_if_empty(&self, disk: &Disk, idle: bool) {
        let known = |state: &State| {
            let empty = state.index.is_empty() && state.in_flight == 0;
            empty.then_some(state.other)
        };
        let Some(before) = known(&self.lock()) else {
            return;
        };
        let outcome = disk.used(idle).map_err(Sickness::from).and_then(|used| {
            let other = if idle { used } else { used.min(before) };
            // A full disk has no room to promise by any reckoning, and is asked again later.
            if other.0.abs_diff(before.0) >= OTHER_GRAIN && !disk.keep_other(other)? {
                return Ok(before);
            }
            Ok(other)
        });
        match outcome {
            Ok(other) => {
                let mut state = self.lock();
                if known(&state).is_some() {
                    state.other = other;
                }
            }
            Err(sickness) => self.fall_sick(sickness),
        }
    }

    /// What the pool is like now.
    pub fn status(&self) -> PoolStatus {
        let measured = self.measured();
        let room = measured.as_ref().map(|(room, _)| room);
        let state = self.lock();
        PoolStatus {
            name: self.options.name.clone(),
            path: self.options.path.clone(),
            id: state.id,
            sickness: state.disk.as_ref().err().cloned(),
            filesystem: measured
                .as_ref()
                .map(|(_, name)| name.clone())
                .unwrap_or_default(),
            total: room.map_or(Bytes::ZERO, |room| Bytes(room.space.total)),
            available: room.map_or(Bytes::ZERO, Room::available),
            reserved: Bytes(state.index.reserved()),
            volumes: state.index.volumes(),
            quarantined: state.index.quarantined().len(),
            trash: self.trash.waiting(),
            resisting: self.trash.resisting(),
            reclaimed: self.trash.removed(),
        }
    }
}
