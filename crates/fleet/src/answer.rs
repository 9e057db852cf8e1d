//! The answer of a driver's page, and what it says.

use std::time::{Duration, Instant};

use objects::inventory::{Inventory, PoolInventory};
use objects::{ObjectId, PoolId, VolumeId};

use crate::settings::Delays;

/// The time for one page. It comes from the memory of the driver.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// The answer of a node's page.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) asked: Instant,
    pub(crate) answer: Result<Inventory, String>,
}

impl Page {
    pub(crate) fn new(asked: Instant, answer: Result<Inventory, String>) -> Self {
        Self { asked, answer }
    }

    /// A complete answer that is not older than two rounds.
    pub(crate) fn fresh(&self, now: Instant, delays: &Delays) -> Option<&Inventory> {
        let age = now.saturating_duration_since(self.asked);
        let inventory = self.answer.as_ref().ok()?;
        (age <= delays.between_pages() * 2 + TIMEOUT && inventory.loaded).then_some(inventory)
    }
}

/// How a page shows a pool, or that it may have it unseen. `retired` says that the pool was declared lost there, so a
/// disk that is left counts as lost too.
pub(crate) fn shows(inventory: &Inventory, id: PoolId, retired: bool) -> Option<String> {
    if !inventory.loaded {
        return Some("is loading its records".to_owned());
    }
    let unserved = inventory.unserved.as_deref().unwrap_or_default();
    if unserved.contains(&id) {
        return Some(
            "had the pool, which its configuration lacks now; configure it again, because the disk may be there"
                .to_owned(),
        );
    }
    inventory.pools.iter().find_map(|pool| {
        let name = &pool.name;
        if has(pool, id) && !(retired && pool.unavailable.is_some()) {
            return Some(format!("has the disk of the pool as pool {name}"));
        }
        let hidden = pool.unavailable.is_some() && pool.id.is_none() && pool.found.is_none();
        (hidden && !pool.empty).then(|| format!("cannot read the disk of pool {name}"))
    })
}

/// Whether a page lists every volume that its node has. A retired pool, and a path that never held one, have none. A pool
/// that the configuration lacks may have some, and an older driver does not name such pools.
pub(crate) fn lists_all(inventory: &Inventory) -> bool {
    let serves_all = inventory.unserved.as_ref().is_some_and(Vec::is_empty);
    serves_all
        && inventory.pools.iter().all(|pool| {
            let lists = pool.complete && pool.quarantined == 0;
            lists || has_none(pool, inventory)
        })
}

/// Whether a page says that the pool of a volume was declared lost, and shows that no other pool has the volume.
pub(crate) fn has_lost(inventory: &Inventory, volume: VolumeId) -> bool {
    let pools = inventory.pools.iter();
    let mut pools = pools.filter(|pool| !has_none(pool, inventory));
    let is_listed = pools.any(|pool| pool.volumes.iter().any(|found| found.id == volume));
    inventory.loaded
        && inventory.retired.contains(&volume.pool())
        && lists_all(inventory)
        && !is_listed
}

/// Whether nothing was ever at the path of a pool, or its disk was declared lost.
pub(crate) fn has_none(pool: &PoolInventory, inventory: &Inventory) -> bool {
    let mut ids = [pool.id, pool.found].into_iter().flatten().peekable();
    if ids.peek().is_none() {
        return pool.empty;
    }
    pool.unavailable.is_some() && ids.all(|id| inventory.retired.contains(&id))
}

/// Whether a pool of a page is, or holds the disk of, the pool with this id.
pub(crate) fn has(pool: &PoolInventory, id: PoolId) -> bool {
    pool.id == Some(id) || pool.found == Some(id)
}
