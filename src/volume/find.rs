//! Where what an id stands for is, and what of a list a page shows.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::{self, Entry, Kept, Known, Pool};
use crate::types::{MAX_FIELD_BYTES, PoolId, VolumeId};

use super::Volumes;

impl Volumes {
    /// The pool and entry of a volume.
    pub(super) fn volume(&self, id: VolumeId) -> Result<(Arc<Pool>, Arc<Entry>)> {
        self.entry("volume", id, id.pool())
    }

    /// The pool and entry of what an id in a pool stands for.
    pub(super) fn entry<R: Kept>(
        &self,
        what: &'static str,
        id: R::Id,
        pool: PoolId,
    ) -> Result<(Arc<Pool>, Arc<Entry<R>>)> {
        let mut pools = self.pools.iter().filter(|known| known.id() == Some(pool));
        let first = pools.next().ok_or(Error::PoolNotHere { pool })?;
        // A disk that was moved from one path to another is known at both and open at one.
        let pool = pools
            .find(|pool| pool.sickness().is_none())
            .unwrap_or(first);
        match pool.find::<R>(id) {
            (Known::Quarantined(quarantined), _) => Err(pool::Error::Quarantined {
                path: pool.path().join(quarantined.path),
                reason: quarantined.reason,
            }
            .into()),
            (_, Some(reason)) => Err(pool.unavailable(reason).into()),
            (Known::Entry(entry), None) => Ok((Arc::clone(pool), entry)),
            (Known::Nothing, None) => Err(Error::NotFound {
                what,
                id: id.to_string(),
            }),
        }
    }

    /// Whether what is to be deleted was in a pool that was declared gone, and is in none.
    pub(super) fn is_gone_for_good(&self, id: &str, pool: PoolId) -> Result<bool> {
        let is_here = self.pools.iter().any(|known| known.id() == Some(pool));
        if is_here || !self.memory.is_retired(pool)? {
            return Ok(false);
        }
        tracing::warn!(id, "was in a pool that is gone for good");
        Ok(true)
    }
}

pub(super) fn parse_id(id: &str) -> Result<VolumeId> {
    VolumeId::parse(id).ok_or_else(|| no_id("volume", id))
}

/// The error of an id that is none of ours.
pub(super) fn no_id(what: &'static str, id: &str) -> Error {
    let id = shorten(id);
    Error::NotFound { what, id }
}

/// What a message shows of an id that is none.
pub(super) fn shorten(id: &str) -> String {
    id.chars().take(MAX_FIELD_BYTES).collect()
}

/// The id that a page's token stands for; nothing for the first page.
pub(super) fn after_token<I>(token: &str, parse: fn(&str) -> Option<I>) -> Result<Option<I>> {
    match token {
        "" => Ok(None),
        _ => parse(token)
            .map(Some)
            .ok_or_else(|| Error::BadToken(token.to_owned())),
    }
}

/// How many entries a page has at the most; 0 asks for all.
pub(super) fn wanted(max_entries: usize) -> usize {
    match max_entries {
        0 => usize::MAX,
        wanted => wanted,
    }
}

/// Cuts what was found to a page in the order of its ids, and returns the token of the next; it is
/// empty on the last. One more than is wanted tells that there is another.
pub(super) fn cut<T, I: Ord + ToString>(
    found: &mut Vec<T>,
    wanted: usize,
    id: impl Fn(&T) -> I,
) -> String {
    found.sort_by_key(&id);
    let more = found.len() > wanted;
    found.truncate(wanted);
    let last = found.last().filter(|_| more);
    last.map_or(String::new(), |last| id(last).to_string())
}
