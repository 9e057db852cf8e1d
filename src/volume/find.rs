//! Volumes and snapshots by id, by name and in pages, and their deletion.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::{ObjectId, PoolId};

use crate::error::{Error, Refusal, Result};
use crate::pool::{Deletion, Entry, Lookup, Pool, Resource, Unavailable, VolumeRecord};
use crate::volume::ids::{no_id, parse_id};
use crate::volume::requests::Page;
use crate::volume::volumes::Volumes;

pub(super) type Located<R = VolumeRecord> = (Arc<Pool>, Arc<Entry<R>>);

/// A pool that knows an object.
#[derive(Debug)]
pub(super) struct Place<R> {
    pub(super) pool: Arc<Pool>,
    pub(super) known: Lookup<R>,
    /// Why the pool cannot be used, if it cannot.
    pub(super) unavailable: Option<Unavailable>,
}

impl<R: Resource> Place<R> {
    pub(super) fn entry(&self) -> Option<&Arc<Entry<R>>> {
        match &self.known {
            Lookup::Entry(entry) => Some(entry),
            Lookup::Quarantined(_) | Lookup::Nothing => None,
        }
    }

    fn is_known(&self) -> bool {
        !matches!(self.known, Lookup::Nothing)
    }

    /// Whether it has the object itself, and not a copy that an unfinished move left.
    pub(super) fn is_served(&self) -> bool {
        self.entry().is_some_and(|entry| entry.record.is_served())
    }

    /// The object, if its pool can be used.
    fn located(&self) -> Result<Located<R>> {
        match (&self.known, &self.unavailable) {
            (Lookup::Quarantined(quarantined), _) => {
                Err(quarantined.error(self.pool.path()).into())
            }
            (_, Some(reason)) => Err(self.pool.unavailable(reason.clone()).into()),
            (Lookup::Entry(entry), None) => Ok((Arc::clone(&self.pool), Arc::clone(entry))),
            (Lookup::Nothing, None) => Err(Error::Internal("a place of nothing".into())),
        }
    }
}

impl Volumes {
    /// The knowledge of every pool about an object.
    fn in_pools<R: Resource>(&self, id: R::Id) -> BTreeMap<PoolId, Place<R>> {
        self.between_moves(|| self.scan::<R>(id))
    }

    fn scan<R: Resource>(&self, id: R::Id) -> BTreeMap<PoolId, Place<R>> {
        let mut places: BTreeMap<PoolId, Place<R>> = BTreeMap::new();
        for pool in self.pools().iter() {
            let Some(pool_id) = pool.id() else { continue };
            // A disk that was moved to another path is known at both paths and open at one.
            if places
                .get(&pool_id)
                .is_some_and(|place| place.unavailable.is_none())
            {
                continue;
            }
            let (known, unavailable) = pool.state.find::<R>(id);
            let place = Place {
                pool: Arc::clone(pool),
                known,
                unavailable,
            };
            if place.unavailable.is_none() || !places.contains_key(&pool_id) {
                places.insert(pool_id, place);
            }
        }
        places
    }

    /// The pools that know an object. A moved volume is not in the pool that its id names, and an
    /// unfinished move leaves two copies.
    pub(super) fn places<R: Resource>(&self, id: R::Id) -> Vec<Place<R>> {
        let pools = self.in_pools::<R>(id).into_values();
        pools.filter(Place::is_known).collect()
    }

    pub(super) fn entry<R: Resource>(&self, id: R::Id) -> Result<Located<R>> {
        // Before the search, because a pool that is opened after it may have the object.
        let unread = self.unread_members();
        let mut pools = self.in_pools::<R>(id);
        let home = pools.get(&id.pool()).map(|place| {
            let reason = place.unavailable.clone();
            reason.map(|reason| place.pool.unavailable(reason))
        });
        pools.retain(|_, place| place.is_known());
        let places: Vec<Place<R>> = pools.into_values().collect();
        let served: Vec<&Place<R>> = places.iter().filter(|place| place.is_served()).collect();
        match (served.as_slice(), places.as_slice()) {
            ([place], _) => place.located(),
            ([one, other, ..], _) => Err(Refusal::InTwoPools {
                one: one.pool.name().clone(),
                other: other.pool.name().clone(),
                what: R::Id::OBJECT,
                id: id.to_string(),
            }
            .into()),
            ([], []) => match home {
                Some(Some(unavailable)) => Err(unavailable.into()),
                absent => {
                    self.check_not_moved::<R>(id, unread)?;
                    let pool = id.pool();
                    let no_id = |_| no_id::<R::Id>(&id.to_string());
                    Err(absent.map_or(Error::PoolNotHere { pool }, no_id))
                }
            },
            ([], _) => {
                // The reason of a pool that cannot be used comes first.
                for place in &places {
                    place.located()?;
                }
                Err(self.unfinished_move(id, &places))
            }
        }
    }

    /// Finds a name in every pool, including unavailable ones, so that an object in one of them is not
    /// created again in another pool.
    pub(super) fn find_by_name<R: Resource>(
        &self,
        name: &<R::Id as ObjectId>::Name,
    ) -> Result<Option<Located<R>>> {
        let id = self.between_moves(|| {
            let pools = self.pools();
            pools.iter().find_map(|pool| pool.state.id_of::<R>(name))
        });
        id.map(|id| self.entry(id)).transpose()
    }

    /// At most `max_entries` objects that match, after the one with the id `token` (empty:
    /// from the first). A token is the last id of the page before, so that an object which is created
    /// or deleted in between does not shift the next page.
    pub(super) fn page<R: Resource, T>(
        &self,
        max_entries: usize,
        token: &str,
        matches: impl Fn(&R) -> bool,
        object: impl Fn(&Pool, &Entry<R>) -> T,
    ) -> Result<Page<T>> {
        let after = R::Id::parse(token);
        if after.is_none() && !token.is_empty() {
            let token = token.to_owned();
            return Err(Error::BadToken { token });
        }
        let pools = self.pools();
        let mut found = self.between_moves(|| {
            let mut found = Vec::new();
            for pool in pools.iter() {
                // One more, to find out whether there is another page.
                let count = max_entries.saturating_add(1);
                let entries = pool.state.after(after, count, &matches);
                found.extend(entries.into_iter().map(|entry| (pool, entry)));
            }
            found
        });
        // An unfinished move leaves two copies.
        found.sort_by_key(|(_, entry)| (entry.record.id(), !entry.record.is_served()));
        found.dedup_by_key(|(_, entry)| entry.record.id());
        let more = found.len() > max_entries;
        found.truncate(max_entries);
        let last = found.last().filter(|_| more);
        let next_token = last.map_or(String::new(), |(_, entry)| entry.record.id().to_string());
        let objects = found.iter().map(|(pool, entry)| object(pool, entry));
        Ok(Page {
            objects: objects.collect(),
            next_token,
        })
    }

    /// Deletes an object that `check` accepts. Its space is reclaimed in the background. An object of a
    /// retired pool counts as deleted.
    pub(super) fn delete_unused<R: Resource>(
        &self,
        id: &str,
        deletion: Deletion,
        check: impl FnOnce(&Pool, &Entry<R>) -> Result<()>,
    ) -> Result<()> {
        let parsed: R::Id = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let (pool, entry) = match self.entry::<R>(parsed) {
            Err(Error::PoolNotHere { pool }) if self.memory.is_retired(pool)? => {
                tracing::warn!(id, "was in a retired pool");
                return Ok(());
            }
            Err(refusal) => return self.delete_emptied::<R>(parsed, refusal),
            Ok(found) => found,
        };
        let _work = pool.begin()?;
        check(&pool, &entry)?;
        Ok(pool.delete(&entry, deletion)?)
    }

    /// Deletes an object that is in quarantine because somebody removed its data by hand. Any other keeps its refusal.
    fn delete_emptied<R: Resource>(&self, id: R::Id, refusal: Error) -> Result<()> {
        let places = self.places::<R>(id);
        let [
            Place {
                pool,
                known: Lookup::Quarantined(quarantined),
                unavailable: None,
            },
        ] = &places[..]
        else {
            return Err(refusal);
        };
        let _work = pool.begin()?;
        match pool.find_emptied::<R>(id, &quarantined.path)? {
            Some(entry) => {
                tracing::warn!(%id, "its data was removed by hand; its record is deleted");
                Ok(pool.delete_emptied(entry)?)
            }
            None => Err(refusal),
        }
    }
}
