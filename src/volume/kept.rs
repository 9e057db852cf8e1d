//! Deleted volumes and snapshots that can come back.

use std::sync::Arc;

use objects::{Bytes, ObjectId, SnapshotId, VolumeId, VolumeName};
use uuid::Uuid;

use crate::error::{Error, Refusal, Result};
use crate::volume::admit::{Arrival, Purpose};
use crate::volume::ids::{no_id, parse_id};
use crate::volume::locate::Location;
use crate::volume::pools::open_id;
use crate::volume::volumes::Volumes;
use pool::{Ended, Kept, Pool, Purge, Resource, SnapshotRecord, VolumeRecord};

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

/// The object after an undeletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undeleted {
    pub id: String,
    /// Whether it existed before, and no deleted object has its id: the request is repeated, or the object was never
    /// deleted.
    pub existed: bool,
    /// When and why an older object with the id was deleted for good before its time was over, if that is known.
    pub ended: Option<String>,
}

impl Undeleted {
    fn back(id: &impl ToString) -> Self {
        Self {
            id: id.to_string(),
            existed: false,
            ended: None,
        }
    }
}

impl Volumes {
    /// Makes a deleted object visible again. It may be repeated.
    pub fn undelete(&self, request: &UndeleteRequest) -> Result<Undeleted> {
        if SnapshotId::parse(&request.id).is_none() {
            return self.undelete_volume(request);
        }
        if request.name.is_some() {
            let problem = "a snapshot comes back under its own name".to_owned();
            return Err(Error::invalid("name", problem));
        }
        self.undelete_snapshot(request)
    }

    fn undelete_volume(&self, request: &UndeleteRequest) -> Result<Undeleted> {
        let id: VolumeId = parse_id(&request.id)?;
        let _lock = self.in_flight.lock_id(&request.id)?;
        // Before the search for the name.
        let unread = self.unread();
        let Some((pool, kept)) = self.find_kept::<VolumeRecord>(id, request)? else {
            return self.undeleted_before::<VolumeRecord>(id, request);
        };
        let record = returning(&pool, id, &kept, request)?;
        let _name = self
            .in_flight
            .lock_name(VolumeId::OBJECT, record.name.as_str())?;
        let new = Some(record.id).filter(|new| *new != id);
        let new = new.map(|new| self.in_flight.lock_id(&new.to_string()));
        let _new = new.transpose()?;
        self.check_name_free::<VolumeRecord>(&record.name)?;
        let arrival = Arrival::named(Purpose::Undelete, Some(record.id), &record.name, &unread);
        self.admit(&pool, &arrival)?;
        let work = pool.begin()?;
        let entry = pool.undelete(&work, &kept, record)?;
        Ok(Undeleted::back(&entry.record.id))
    }

    fn undelete_snapshot(&self, request: &UndeleteRequest) -> Result<Undeleted> {
        let id: SnapshotId = parse_id(&request.id)?;
        let _lock = self.in_flight.lock_id(&request.id)?;
        let Some((pool, kept)) = self.find_kept::<SnapshotRecord>(id, request)? else {
            return self.undeleted_before::<SnapshotRecord>(id, request);
        };
        let record = kept.record.clone();
        let _name = self
            .in_flight
            .lock_name(SnapshotId::OBJECT, record.name.as_str())?;
        self.check_name_free::<SnapshotRecord>(&record.name)?;
        self.admit(&pool, &Arrival::new(Purpose::UndeleteSnapshot))?;
        let work = pool.begin()?;
        let entry = pool.undelete(&work, &kept, record)?;
        Ok(Undeleted::back(&entry.record.id))
    }

    /// The answer if no deleted object has the id: the request is repeated, or the object was never deleted.
    fn undeleted_before<R: Resource>(
        &self,
        id: R::Id,
        request: &UndeleteRequest,
    ) -> Result<Undeleted> {
        let is_named = request.entry.is_some() || request.name.is_some();
        let (ended, location) = (self.ended_early::<R>(id, request.entry), self.locate(id)?);
        match &ended {
            Some(ended) if is_named || matches!(location, Location::Absent { .. }) => {
                return Err(Error::EndedEarly {
                    what: R::Id::OBJECT,
                    id: request.id.clone(),
                    ago: ended.at.elapsed(),
                    cause: ended.cause,
                });
            }
            None if is_named => return Err(no_id::<R::Id>(&request.id)),
            _ => {}
        }
        let (pool, entry) = self.found::<R>(id, location)?;
        let _work = pool.begin()?;
        pool.limit_again::<R>(id)?;
        let ended = ended.map(|ended| {
            let ago = objects::rounded(ended.at.elapsed());
            format!("deleted for good {ago} ago, {}", ended.cause)
        });
        Ok(Undeleted {
            id: entry.record.id().to_string(),
            existed: true,
            ended,
        })
    }

    /// The last object with an id, or the one with an entry, that a pool deleted for good before its time was over.
    fn ended_early<R: Resource>(&self, id: R::Id, entry: Option<Uuid>) -> Option<Ended> {
        let pools = self.pools();
        let ended = pools.iter().filter_map(|pool| pool.ended::<R>(id, entry));
        ended.max_by_key(|ended| ended.at)
    }

    fn check_name_free<R: Resource>(&self, name: &<R::Id as ObjectId>::Name) -> Result<()> {
        let Some((_, other)) = self.served_name::<R>(name)? else {
            return Ok(());
        };
        Err(Refusal::NameLives {
            what: R::Id::OBJECT,
            name: name.to_string(),
            id: other.record.id().to_string(),
        }
        .into())
    }

    /// The newest deleted object with an id, or the one with the requested entry. A pool that cannot be read may have
    /// a newer one.
    fn find_kept<R: Resource>(
        &self,
        id: R::Id,
        request: &UndeleteRequest,
    ) -> Result<Option<(Arc<Pool>, Kept<R>)>> {
        let mut found: Option<(Arc<Pool>, Kept<R>)> = None;
        for pool in self.pools_by_id() {
            let Some(kept) = pool.find_kept::<R>(id, request.entry)? else {
                continue;
            };
            // Each pool counts its own serving time, so nothing says which one is newer.
            if let Some((other, other_kept)) = &found {
                return Err(Refusal::KeptTwice {
                    one: other.name().clone(),
                    entry: other_kept.name.entry,
                    other: pool.name().clone(),
                    other_entry: kept.name.entry,
                    what: R::Id::OBJECT,
                    id: id.to_string(),
                }
                .into());
            }
            found = Some((pool, kept));
        }
        Ok(found)
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
        for pool in self.pools_by_id() {
            let begun = pool.check_answers().and_then(|()| pool.begin());
            match begun.and_then(|_work| pool.purge(wanted)) {
                Ok(count) => purged += count,
                Err(error) => {
                    let may_keep = pool.may_keep(wanted);
                    refusal = refusal
                        .filter(|(_, may_keep)| *may_keep)
                        .or(Some((error, may_keep)));
                }
            }
        }
        match (refusal, id) {
            (Some((_, false)), Some(_)) if purged > 0 => Ok(purged),
            (Some((error, _)), _) => Err(error.into()),
            (None, Some(id)) if purged == 0 => Err(no_id::<VolumeId>(id)),
            (None, _) => Ok(purged),
        }
    }
}

/// The record that a deleted volume with an id is to have.
fn returning(
    pool: &Pool,
    id: VolumeId,
    kept: &Kept<VolumeRecord>,
    request: &UndeleteRequest,
) -> Result<VolumeRecord> {
    let record = &kept.record;
    let Some(name) = &request.name else {
        if record.id != id {
            let (new, name) = (record.id, record.name.clone());
            return Err(Refusal::HalfRenamed { id, new, name }.into());
        }
        return Ok(record.clone());
    };
    // The new id of a moved volume differs also under its own name.
    let new = VolumeId::new(open_id(pool)?, name);
    let retained = Bytes(pool.state.retained(id));
    if retained > Bytes::ZERO && new != id {
        return Err(Refusal::HasCopies { id, retained }.into());
    }
    Ok(VolumeRecord {
        id: new,
        name: name.clone(),
        ..record.with_move(None)
    })
}
