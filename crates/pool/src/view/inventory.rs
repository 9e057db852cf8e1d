//! The inventory of a pool, from memory alone.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linux::quota::Enforcement;
use objects::inventory::{Item, PoolInventory};
use objects::{Audience, Bytes, VolumeId};

use crate::disk::entry::Entry;
use crate::disk::record::{Record as _, SnapshotRecord, VolumeRecord};
use crate::disk::unavailable::Unavailable;
use crate::ledger::index::{Index, Resource};
use crate::op::pool::Pool;

/// The most ids of a list. A pool with more shows none of them.
const MAX_IDS: usize = 100_000;

impl Pool {
    /// Its volumes, snapshots and numbers. It asks no disk, and reads only the state directory, for the cordon.
    pub fn inventory(&self) -> PoolInventory {
        let disk = self.disk().ok();
        let free = disk.and_then(|disk| self.state.remembered(&self.policy(&disk), Duration::MAX));
        let view = self.view_with(free.as_ref());
        let unusable = view.why_unusable();
        let served = self.state.serving_time();
        let (ids, moving) = self.state.read(|index| {
            let volumes =
                list::<VolumeRecord>(index, |record| (record.size_bytes, record.created_at));
            let snapshots =
                list::<SnapshotRecord>(index, |record| (record.size_bytes, record.created_at));
            let kept = kept(index, served);
            // The copy that an unfinished move left may become the volume.
            let moving = index.volumes().any(|entry| !entry.record.is_served());
            (volumes.zip(snapshots).zip(kept), moving)
        });
        let complete = unusable.is_none() && ids.is_some() && !moving;
        let ((volumes, snapshots), kept) = ids.unwrap_or_default();
        let text = |audience| Some(unusable.as_ref()?.cause(audience).to_string());
        PoolInventory {
            name: self.name().clone(),
            id: self.id(),
            found: unusable.as_ref().and_then(Unavailable::found),
            empty: unusable.as_ref().is_some_and(Unavailable::is_empty),
            unavailable: text(Audience::Operator),
            reason: text(Audience::Everyone),
            cordoned: view.cordoned,
            enforces: view.enforcement != Enforcement::None,
            total: view.total,
            available: view.available,
            reserved: view.reserved,
            quarantined: u64::try_from(view.quarantined).unwrap_or(u64::MAX),
            complete,
            volumes,
            snapshots,
            kept,
        }
    }
}

/// The objects of a kind that are served; `None` if they are too many.
fn list<R: Resource>(index: &Index, facts: fn(&R) -> (Bytes, u64)) -> Option<Vec<Item<R::Id>>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let entries = R::entries(index).values();
    let item = |entry: &Entry<R>| {
        let record = &entry.record;
        let (bytes, created) = facts(record);
        Item {
            id: record.id(),
            bytes,
            age: now.saturating_sub(created),
        }
    };
    let entries = entries.filter(|entry| entry.record.is_served());
    let items: Vec<_> = entries.map(|entry| item(entry)).take(MAX_IDS + 1).collect();
    (items.len() <= MAX_IDS).then_some(items)
}

/// The deleted volumes that can come back, of each id the last one; `None` if they are too many. `served` is the time for
/// which the pool was served.
fn kept(index: &Index, served: u64) -> Option<Vec<Item<VolumeId>>> {
    let mut items = BTreeMap::new();
    // The oldest comes first.
    for (name, kept) in index.kept().iter() {
        let Some(id) = kept.entry.volume else {
            continue;
        };
        let item = Item {
            id,
            bytes: Bytes(kept.entry.reserved),
            age: served.saturating_sub(name.deleted) / 1000,
        };
        items.insert(id, item);
    }
    (items.len() <= MAX_IDS).then(|| items.into_values().collect())
}
