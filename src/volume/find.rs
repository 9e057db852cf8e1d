//! Volumes and snapshots by their ids and names, page by page, and their deletion.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::{self, Entry, Lookup, Pool, Resource, VolumeRecord};
use crate::types::{MAX_FIELD_BYTES, ObjectId, PoolId, VolumeId};

use super::Volumes;

/// An entry and its pool.
pub(super) type Located<R = VolumeRecord> = (Arc<Pool>, Arc<Entry<R>>);

impl Volumes {
    /// The pool and entry of a volume.
    pub(super) fn volume(&self, id: VolumeId) -> Result<Located> {
        self.entry(id)
    }

    /// The pool and entry of an object.
    pub(super) fn entry<R: Resource>(&self, id: R::Id) -> Result<Located<R>> {
        let pool = id.pool();
        let mut pools = self.pools.iter().filter(|known| known.id() == Some(pool));
        let first = pools.next().ok_or(Error::PoolNotHere { pool })?;
        // A disk that was moved from one path to another is known at both and open at one.
        let pool = pools
            .find(|pool| pool.why_unavailable().is_none())
            .unwrap_or(first);
        match pool.find::<R>(id) {
            (Lookup::Quarantined(quarantined), _) => Err(pool::Error::Quarantined {
                path: pool.path().join(quarantined.path),
                reason: quarantined.reason,
            }
            .into()),
            (_, Some(reason)) => Err(pool.unavailable(reason).into()),
            (Lookup::Entry(entry), None) => Ok((Arc::clone(pool), entry)),
            (Lookup::Nothing, None) => Err(no_id::<R::Id>(&id.to_string())),
        }
    }

    /// Looks a name up in every pool, the unavailable ones included: an object that is known to live in one
    /// of them must not be made again elsewhere.
    pub(super) fn find_by_name<R: Resource>(
        &self,
        name: &<R::Id as ObjectId>::Name,
    ) -> Result<Option<Located<R>>> {
        for pool in &self.pools {
            let Some(pool_id) = pool.id() else {
                continue;
            };
            let id = R::Id::new(pool_id, name);
            match pool.find::<R>(id) {
                (Lookup::Nothing, _) => {}
                (Lookup::Entry(_) | Lookup::Quarantined(_), _) => return self.entry(id).map(Some),
            }
        }
        Ok(None)
    }

    /// At most `max_entries` objects (0: all) that are asked for, after the one named by `token`
    /// (empty: from the first), and the token of the next page. A token is the last id of the page
    /// before, so an object that is made or deleted in between shifts nothing.
    pub(super) fn page<R: Resource + 'static>(
        &self,
        max_entries: usize,
        token: &str,
        asked_for: impl Fn(&R) -> bool,
    ) -> Result<(Vec<Located<R>>, String)> {
        let after = match token {
            "" => None,
            _ => Some(R::Id::parse(token).ok_or_else(|| Error::BadToken(token.to_owned()))?),
        };
        let wanted = match max_entries {
            0 => usize::MAX,
            wanted => wanted,
        };
        let mut found = Vec::new();
        for pool in &self.pools {
            // One more than is wanted tells whether there is another page.
            let entries = pool.after(after, wanted.saturating_add(1), &asked_for);
            found.extend(entries.into_iter().map(|entry| (Arc::clone(pool), entry)));
        }
        found.sort_by_key(|(_, entry)| entry.record.id());
        let more = found.len() > wanted;
        found.truncate(wanted);
        let last = found.last().filter(|_| more);
        let token = last.map_or(String::new(), |(_, entry)| entry.record.id().to_string());
        Ok((found, token))
    }

    /// Deletes an object that nobody uses; its space comes back in the background. An object of a
    /// pool that was declared gone is gone.
    pub(super) fn delete_unused<R: Resource>(
        &self,
        id: &str,
        check: impl FnOnce(&Entry<R>) -> Result<()>,
    ) -> Result<()> {
        let parsed: R::Id = parse_id(id)?;
        let _held = self.in_flight.hold_to_delete(id)?;
        if self.is_gone_for_good(id, parsed.pool())? {
            return Ok(());
        }
        let (pool, entry) = self.entry::<R>(parsed)?;
        let _work = pool.begin()?;
        check(&entry)?;
        Ok(pool.delete(&entry)?)
    }

    /// Whether an object that is to be deleted was in a pool that was declared gone, and is in none.
    fn is_gone_for_good(&self, id: &str, pool: PoolId) -> Result<bool> {
        let is_here = self.pools.iter().any(|known| known.id() == Some(pool));
        if is_here || !self.memory.is_retired(pool)? {
            return Ok(false);
        }
        tracing::warn!(id, "was in a pool that is gone for good");
        Ok(true)
    }
}

pub(super) fn parse_id<I: ObjectId>(id: &str) -> Result<I> {
    I::parse(id).ok_or_else(|| no_id::<I>(id))
}

/// The error of an id that stands for nothing.
fn no_id<I: ObjectId>(id: &str) -> Error {
    let (what, id) = (I::OBJECT, shorten(id));
    Error::NotFound { what, id }
}

/// The start of an id that is none, for a message.
pub(super) fn shorten(id: &str) -> String {
    id.chars().take(MAX_FIELD_BYTES).collect()
}
