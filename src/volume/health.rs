//! The health of volumes and pools, from memory alone.

use objects::{ObjectId, PoolName, VolumeId};

use crate::error::{Error, Refusal, Result};
use crate::volume::ids::parse_id;
use crate::volume::locate::Location;
use crate::volume::volumes::Volumes;
use pool::{Condition, Impairment, VolumeRecord};

impl Volumes {
    /// The impairments of a volume; none if it is healthy.
    pub fn health(&self, id: &str) -> Result<Vec<Condition>> {
        let parsed: VolumeId = parse_id(id)?;
        let (kind, error) = match self.locate::<VolumeRecord>(parsed) {
            Ok(Location::Served { found, .. }) => return Ok(found.0.conditions()),
            Ok(Location::Unread(Error::Pool {
                error: pool::Error::Unavailable { pool, .. },
                ..
            })) => {
                let pools = self.pools();
                let pool = pools.iter().find(|one| *one.name() == pool);
                return Ok(pool.map_or_else(Vec::new, |pool| pool.conditions()));
            }
            // A volume that was moved is in another pool, which this node may not serve now.
            Ok(Location::Absent {
                is_pool_here: false,
            }) if self.known_pools.is_retired(parsed.pool())?
                && !self.known_pools.is_moved_from(parsed.pool())? =>
            {
                let message = "its pool was declared lost for good by `rootcellar pool retire`; if the disk is back, \
                     `rootcellar pool adopt` takes it back, else delete the claim and restore the data"
                    .to_owned();
                let kind = Impairment::PoolRetired;
                return Ok(vec![Condition { kind, message }]);
            }
            Ok(Location::OnlyCopies(copies)) => match self.unfinished_move(parsed, &copies) {
                error @ Error::MoveUnfinished { .. } => (Impairment::MoveUnfinished, error),
                error => return Err(error),
            },
            Ok(Location::Quarantined {
                pool, quarantined, ..
            }) => {
                let error = quarantined.error(pool.path()).into();
                (Impairment::RecordQuarantined, error)
            }
            Ok(location) => return self.found(parsed, location).map(|_| Vec::new()),
            Err(error @ Error::Precondition(Refusal::InTwoPools { .. })) => {
                (Impairment::MoveUnfinished, error)
            }
            Err(error) => return Err(error),
        };
        let message = objects::without_pool_ids(&error.to_string());
        Ok(vec![Condition { kind, message }])
    }

    /// The impairments of each pool.
    pub fn storage_health(&self) -> Vec<(PoolName, Condition)> {
        let pools = self.pools();
        let conditions = pools.iter().flat_map(|pool| {
            let conditions = pool.conditions().into_iter();
            conditions.map(|condition| (pool.name().clone(), condition))
        });
        conditions.collect()
    }
}
