//! Deleted volumes and snapshots that can come back.

use std::sync::Arc;

use objects::{Bytes, ObjectId, SnapshotId, VolumeId, VolumeName};
use uuid::Uuid;

use crate::error::{Error, Refusal, Result};
use crate::pool::{
    Deletion, Kept, KeptEntry, KeptName, Pool, Purge, Resource, SnapshotRecord, VolumeRecord,
};
use crate::volume::ids::{no_id, parse_id};
use crate::volume::pools::open_id;
use crate::volume::volumes::Volumes;

/// A deleted object that is to come back.
#[derive(Debug, Clone, Default)]
pub struct UndeleteRequest {
    /// The id of a volume or a snapshot, as received.
    pub id: String,
    /// One of several deleted objects with the id; otherwise the newest.
    pub entry: Option<Uuid>,
    /// The name that a volume gets, and with it another id; otherwise it has its own.
    pub name: Option<VolumeName>,
}

impl Volumes {
    /// Makes a deleted object visible again, and returns its id. It may be repeated.
    pub fn undelete(&self, request: &UndeleteRequest) -> Result<String> {
        if SnapshotId::parse(&request.id).is_some() {
            if request.name.is_some() {
                let problem = "a snapshot comes back under its own name".to_owned();
                return Err(Error::invalid("name", problem));
            }
            let same = |_: &Pool, record: &SnapshotRecord| Ok(record.clone());
            return self.undelete_as::<SnapshotRecord>(request, same);
        }
        self.undelete_as::<VolumeRecord>(request, |pool, record| {
            let Some(name) = &request.name else {
                return Ok(record.clone());
            };
            // The new id of a moved volume differs also under its own name.
            let (id, new) = (record.id, VolumeId::new(open_id(pool)?, name));
            let retained = Bytes(pool.state.retained(id));
            if retained > Bytes::ZERO && new != id {
                return Err(Refusal::HasCopies { id, retained }.into());
            }
            Ok(VolumeRecord {
                id: new,
                name: name.clone(),
                ..record.with_move(None)
            })
        })
    }

    /// `record` makes the record that the object is to have.
    fn undelete_as<R: Resource + PartialEq>(
        &self,
        request: &UndeleteRequest,
        record: impl Fn(&Pool, &R) -> Result<R>,
    ) -> Result<String> {
        let id: R::Id = parse_id(&request.id)?;
        let _lock = self.in_flight.lock_id(&request.id)?;
        let Some((pool, kept)) = self.find_kept::<R>(id, request)? else {
            // A repeated request, or an object that was never deleted.
            if request.entry.is_some() || request.name.is_some() {
                return Err(no_id::<R::Id>(&request.id));
            }
            let (pool, entry) = self.entry::<R>(id)?;
            let _work = pool.begin()?;
            pool.limit_again::<R>(id)?;
            return Ok(entry.record.id().to_string());
        };
        let record = record(&pool, &kept.record)?;
        // A member that was not read may have a volume with this name.
        self.check_destinations(&pool)?;
        self.check_not_moved::<R>(record.id(), self.unread_members())?;
        let _name = self
            .in_flight
            .lock_name(R::Id::OBJECT, &record.name().to_string())?;
        let is_new = record.id() != id;
        let new = record.id().to_string();
        let _new = is_new.then(|| self.in_flight.lock_id(&new)).transpose()?;
        if let Some((_, other)) = self.find_by_name::<R>(record.name())? {
            return Err(Refusal::NameLives {
                what: R::Id::OBJECT,
                name: record.name().to_string(),
                id: other.record.id().to_string(),
            }
            .into());
        }
        let work = pool.begin()?;
        let entry = pool.undelete(&work, &kept, record)?;
        Ok(entry.record.id().to_string())
    }

    /// The newest deleted object with an id, or the one with the requested entry. A pool that cannot be read may have
    /// a newer one.
    fn find_kept<R: Resource>(
        &self,
        id: R::Id,
        request: &UndeleteRequest,
    ) -> Result<Option<(Arc<Pool>, Kept<R>)>> {
        let may_be = |name: &KeptName, kept: &KeptEntry| {
            let is_volume = R::volume(id).is_some_and(|volume| kept.entry.volume == Some(volume));
            let has_id = is_volume || name.has_hash(id.hash());
            has_id && request.entry.is_none_or(|entry| entry == name.entry)
        };
        let is_wanted = |record: &R| {
            // An interrupted request has given the record its new name.
            let new = request.name.as_ref().map(ToString::to_string);
            record.id() == id || new.is_some_and(|new| new == record.name().to_string())
        };
        let mut found: Option<(Arc<Pool>, Kept<R>)> = None;
        for pool in self.pools().iter() {
            let Some(kept) = pool.find_kept::<R>(may_be, is_wanted)? else {
                continue;
            };
            if let Some((other, _)) = &found {
                return Err(Refusal::InTwoPools {
                    one: other.name().clone(),
                    other: pool.name().clone(),
                    what: R::Id::OBJECT,
                    id: id.to_string(),
                }
                .into());
            }
            found = Some((Arc::clone(pool), kept));
        }
        Ok(found)
    }

    /// Deletes a volume or a snapshot for good, as [`Volumes::delete`] does in a pool that keeps nothing.
    pub fn delete_now(&self, id: &str) -> Result<()> {
        if SnapshotId::parse(id).is_some() {
            return self.delete_unused::<SnapshotRecord>(id, Deletion::ForGood, |_, _| Ok(()));
        }
        self.delete_as(id, Deletion::ForGood)
    }

    /// Deletes kept objects for good: those with an id, or all. Returns their number.
    pub fn purge(&self, id: Option<&str>) -> Result<usize> {
        let wanted = match id.map(|id| (id, SnapshotId::parse(id))) {
            None => Purge::All,
            Some((_, Some(snapshot))) => Purge::Snapshot(snapshot),
            Some((id, None)) => Purge::Volume(parse_id(id)?),
        };
        let mut purged = 0;
        let mut refusal = None;
        for pool in self.pools().iter() {
            let begun = pool.check_answers().and_then(|()| pool.begin());
            match begun.and_then(|_work| pool.purge(wanted)) {
                Ok(count) => purged += count,
                // The others are purged still.
                Err(error) => refusal = Some(error),
            }
        }
        match (refusal, id) {
            (_, Some(_)) if purged > 0 => Ok(purged),
            (Some(error), _) => Err(error.into()),
            (None, Some(id)) if purged == 0 => Err(no_id::<VolumeId>(id)),
            (None, _) => Ok(purged),
        }
    }
}
