//! The two copies of a volume that is being moved between two members of a set.
//!
//! The new copy is `incoming` until the record of the old one says `outgoing`, which is the commit of
//! the move. Then the new one becomes `settled`, and the old one is deleted. Neither an incoming nor an
//! outgoing copy is served, because the other one may be newer.

use std::sync::Arc;

use crate::pool::error::Result;
use crate::quota::Enforcement;
use crate::sync::lock;
use crate::types::{Bytes, ObjectId, PoolId};

use super::record::{Move, MoveState, VolumeRecord};
use super::{Content, CopyPolicy, Entry, Origin, Pool, Reservation, Work};

impl Pool {
    /// Copies a volume of another pool byte by byte, as the incoming copy of its move.
    pub(crate) fn receive(
        &self,
        reservation: &Reservation<'_>,
        enforcement: Enforcement,
        (from, id): (&Pool, PoolId),
        reading: &Work<'_>,
        entry: &Arc<Entry>,
    ) -> Result<Arc<Entry>> {
        let moved = Move {
            state: MoveState::Incoming,
            pool: id,
        };
        let declined = entry.record.declines_enforcement();
        let record = VolumeRecord {
            enforcement: match entry.record.size_bytes {
                Bytes(1..) if !declined => enforcement,
                _ => Enforcement::None,
            },
            quota_id: None,
            enforcement_declined: declined,
            ..entry.record.with_move(Some(moved))
        };
        let content = Content {
            origin: &Origin::Volume(Arc::clone(entry)),
            from,
            reading: Some(reading),
            policy: CopyPolicy {
                copy: true,
                max_stall: None,
            },
        };
        self.create(reservation, enforcement, Some(content), record)
    }

    /// Makes a copy the former volume, durably: the one in another pool is the volume now.
    pub(crate) fn hand_over(&self, entry: &Entry, to: PoolId) -> Result<Arc<Entry>> {
        let moved = Move {
            state: MoveState::Outgoing,
            pool: to,
        };
        self.set_move(entry, Some(moved))
    }

    /// Makes a copy the volume, durably.
    pub(crate) fn settle(&self, entry: &Entry) -> Result<Arc<Entry>> {
        let is_at_home = self.id() == Some(entry.record.id.pool());
        let moved = entry.record.moved.filter(|_| !is_at_home);
        self.set_move(
            entry,
            moved.map(|moved| Move {
                state: MoveState::Settled,
                ..moved
            }),
        )
    }

    fn set_move(&self, entry: &Entry, moved: Option<Move>) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let _limiting = lock(&self.limiting);
        let record = entry.record.with_move(moved);
        let amended = disk.amend(&entry.directory, &record);
        amended.map_err(|fault| self.classify(fault))?;
        Ok(self.state.insert(record, entry.directory.clone()))
    }
}
