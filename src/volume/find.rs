//! Volumes and snapshots by id, by name and in pages, and their deletion.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::{Entry, Lookup, Pool, Resource, VolumeRecord};
use crate::types::{MAX_FIELD_BYTES, ObjectId};

use super::{Page, Volumes};

pub(super) type Located<R = VolumeRecord> = (Arc<Pool>, Arc<Entry<R>>);

impl Volumes {
    pub(super) fn entry<R: Resource>(&self, id: R::Id) -> Result<Located<R>> {
        let pool = id.pool();
        let all = self.pools();
        let mut pools = all.iter().filter(|known| known.id() == Some(pool));
        let first = pools.next().ok_or(Error::PoolNotHere { pool })?;
        // A disk that was moved to another path is known at both paths and open at one.
        let pool = pools
            .find(|pool| pool.why_unavailable().is_none())
            .unwrap_or(first);
        match pool.state.find::<R>(id) {
            (Lookup::Quarantined(quarantined), _) => Err(quarantined.error(pool.path()).into()),
            (_, Some(reason)) => Err(pool.unavailable(reason).into()),
            (Lookup::Entry(entry), None) => Ok((Arc::clone(pool), entry)),
            (Lookup::Nothing, None) => Err(no_id::<R::Id>(&id.to_string())),
        }
    }

    /// Finds a name in every pool, including unavailable ones, so that an object in one of them is not
    /// created again in another pool.
    pub(super) fn find_by_name<R: Resource>(
        &self,
        name: &<R::Id as ObjectId>::Name,
    ) -> Result<Option<Located<R>>> {
        let pools = self.pools();
        let id = pools.iter().find_map(|pool| pool.state.id_of::<R>(name));
        id.map(|id| self.entry(id)).transpose()
    }

    /// At most `max_entries` objects (0: all) that match, after the one with the id `token` (empty:
    /// from the first). A token is the last id of the page before, so that an object which is created
    /// or deleted in between does not shift the next page.
    pub(super) fn page<R: Resource, T>(
        &self,
        max_entries: usize,
        token: &str,
        matches: impl Fn(&R) -> bool,
        object: impl Fn(&Pool, &Entry<R>) -> T,
    ) -> Result<Page<T>> {
        let after = match token {
            "" => None,
            _ => Some(R::Id::parse(token).ok_or_else(|| Error::BadToken(token.to_owned()))?),
        };
        let wanted = match max_entries {
            0 => usize::MAX,
            wanted => wanted,
        };
        let mut found = Vec::new();
        let pools = self.pools();
        for pool in pools.iter() {
            // One more than wanted, to find out whether there is another page.
            let entries = pool.state.after(after, wanted.saturating_add(1), &matches);
            found.extend(entries.into_iter().map(|entry| (pool, entry)));
        }
        found.sort_by_key(|(_, entry)| entry.record.id());
        let more = found.len() > wanted;
        found.truncate(wanted);
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
        check: impl FnOnce(&Pool, &Entry<R>) -> Result<()>,
    ) -> Result<()> {
        let parsed: R::Id = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let pool = parsed.pool();
        let is_here = self.pools().iter().any(|known| known.id() == Some(pool));
        if !is_here && self.memory.is_retired(pool)? {
            tracing::warn!(id, "was in a retired pool");
            return Ok(());
        }
        let (pool, entry) = self.entry::<R>(parsed)?;
        let _work = pool.begin()?;
        check(&pool, &entry)?;
        Ok(pool.delete(&entry)?)
    }
}

pub(super) fn parse_id<I: ObjectId>(id: &str) -> Result<I> {
    I::parse(id).ok_or_else(|| no_id::<I>(id))
}

/// The error of an id without an object.
fn no_id<I: ObjectId>(id: &str) -> Error {
    let (what, id) = (I::OBJECT, shorten(id));
    Error::NotFound { what, id }
}

/// The start of a text that may not be an id, for a message.
pub(super) fn shorten(id: &str) -> String {
    id.chars().take(MAX_FIELD_BYTES).collect()
}
