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
        let (kind, message) = match self.locate::<VolumeRecord>(parsed) {
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
                     `rootcellar pool adopt` takes it back, else delete the claim and restore the data";
                (Impairment::PoolRetired, message.to_owned())
            }
            Ok(Location::OnlyCopies(copies)) => match self.unfinished_move(parsed, &copies) {
                Error::MoveUnfinished { pool, .. } => {
                    let message = format!(
                        "it was being moved between pool {pool} and another one, and the copy in {pool} may be out of \
                         date; mount the disk of the other one, or see `rootcellar check`"
                    );
                    (Impairment::MoveUnfinished, message)
                }
                error => return Err(error),
            },
            Ok(Location::Quarantined { pool, .. }) => {
                let message = format!(
                    "pool {} does not trust its record or directory; `rootcellar check` has the reason and the way out",
                    pool.name()
                );
                (Impairment::RecordQuarantined, message)
            }
            Ok(location) => return self.found(parsed, location).map(|_| Vec::new()),
            Err(Error::Precondition(Refusal::InTwoPools { one, other, .. })) => {
                let message = format!(
                    "pools {one} and {other} both have it; take the disk of one of them away"
                );
                (Impairment::MoveUnfinished, message)
            }
            Err(error) => return Err(error),
        };
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
