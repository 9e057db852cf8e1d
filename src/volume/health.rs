//! The health of volumes and pools, from memory alone.

use objects::{PoolName, VolumeId};

use crate::error::{Error, Refusal, Result};
use crate::pool::{self, Condition, Impairment, VolumeRecord};
use crate::volume::ids::parse_id;
use crate::volume::volumes::Volumes;

impl Volumes {
    /// The impairments of a volume; none if it is healthy.
    pub fn health(&self, id: &str) -> Result<Vec<Condition>> {
        let parsed: VolumeId = parse_id(id)?;
        let (kind, error) = match self.entry::<VolumeRecord>(parsed) {
            Ok((pool, _)) => return Ok(pool.conditions()),
            Err(Error::Pool {
                error: pool::Error::Unavailable { pool, .. },
                ..
            }) => {
                let pools = self.pools();
                let pool = pools.iter().find(|one| *one.name() == pool);
                return Ok(pool.map_or_else(Vec::new, |pool| pool.conditions()));
            }
            // A volume that was moved is in another pool, which this node may not serve now.
            Err(Error::PoolNotHere { pool })
                if self.memory.is_retired(pool)? && !self.memory.is_moved_from(pool)? =>
            {
                let message = "its pool was declared lost for good by `rootcellar pool retire`; if the disk is back, \
                     `rootcellar pool adopt` takes it back, else delete the claim and restore the data"
                    .to_owned();
                let kind = Impairment::PoolRetired;
                return Ok(vec![Condition { kind, message }]);
            }
            Err(
                error @ Error::Pool {
                    error: pool::Error::Quarantined { .. },
                    ..
                },
            ) => (Impairment::RecordQuarantined, error),
            Err(
                error @ (Error::MoveUnfinished { .. }
                | Error::Precondition(Refusal::InTwoPools { .. })),
            ) => (Impairment::MoveUnfinished, error),
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
