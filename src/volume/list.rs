//! The pages of the lists of volumes and snapshots.

use objects::ObjectId;

use crate::error::{Error, Result};
use crate::volume::requests::Page;
use crate::volume::volumes::Volumes;
use pool::{Entry, Pool, Resource};

impl Volumes {
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
}
