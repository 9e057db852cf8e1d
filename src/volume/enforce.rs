//! Enforcement for volumes that are older than the quota of their pool.

use objects::{ObjectId, SnapshotId};

use crate::error::Result;
use crate::volume::ids::parse_id;
use crate::volume::volumes::Volumes;
use pool::{Advance, Enforced, Source, VolumeRecord};

impl Volumes {
    /// How far long work on a volume or snapshot has come, such as a move or a copy; `None` if there is none.
    pub fn advance(&self, id: &str) -> Result<Option<Advance>> {
        let on = match SnapshotId::parse(id) {
            Some(id) => Source::Snapshot(id),
            None => Source::Volume(parse_id(id)?),
        };
        let pools = self.pools();
        Ok(pools.iter().find_map(|pool| pool.advances.get(on)))
    }

    /// Makes the kernel enforce the size of a volume that is not published. It may be repeated.
    pub fn enforce(&self, id: &str) -> Result<Enforced> {
        let parsed = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let (pool, entry) = self.served::<VolumeRecord>(parsed)?;
        let work = pool.begin()?;
        if entry.record.enforcing && entry.record.enforcement_declined {
            // An export was interrupted.
            self.check_unpublished(&pool, &entry)?;
            pool.unenforce(&work, &entry)?;
            return Ok(Enforced::Declined);
        }
        if let Some(outcome) = pool.is_enforced(&entry.record) {
            return Ok(outcome);
        }
        self.check_unpublished(&pool, &entry)?;
        pool.enforce(&work, &entry)?;
        Ok(Enforced::Now)
    }
}
