//! Deletion of volumes and snapshots. Their space is reclaimed in the background.

use objects::{ObjectId, SnapshotId, VolumeId};

use crate::error::{Error, Result};
use crate::volume::ids::parse_id;
use crate::volume::locate::{Located, Location, MoveCopy};
use crate::volume::volumes::Volumes;
use pool::{Deletion, Resource, SnapshotRecord, VolumeRecord};

impl Volumes {
    /// Deletes a volume that is not published. A volume of a retired pool counts as deleted.
    pub fn delete(&self, id: &str) -> Result<()> {
        self.delete_volume(id, Deletion::Kept)
    }

    /// Deletes a snapshot, and not its copies. A snapshot of a retired pool counts as deleted.
    pub fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.delete_snapshot_as(id, Deletion::Kept)
    }

    /// Deletes a volume or a snapshot for good, as [`Volumes::delete`] does in a pool that keeps nothing.
    pub fn delete_now(&self, id: &str) -> Result<()> {
        match SnapshotId::parse(id) {
            Some(_) => self.delete_snapshot_as(id, Deletion::ForGood),
            None => self.delete_volume(id, Deletion::ForGood),
        }
    }

    fn delete_volume(&self, id: &str, deletion: Deletion) -> Result<()> {
        let parsed: VolumeId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let mut location = self.locate::<VolumeRecord>(parsed)?;
        if location.has_copies() {
            let finished = self.finish_move(parsed, &location);
            location = self.locate(parsed)?;
            match (&location, finished) {
                (_, Err(busy @ Error::Busy(_))) => return Err(busy),
                // A full disk, for example, keeps no volume from its deletion.
                (Location::OnlyCopies(copies), _) => return self.delete_copies(parsed, copies),
                (_, finished) => finished.map(drop)?,
            }
        }
        let Some((pool, entry)) = self.to_delete(parsed, location)? else {
            return Ok(());
        };
        let _work = pool.begin()?;
        self.check_unpublished(&pool, &entry)?;
        Ok(pool.delete(&entry, deletion)?)
    }

    fn delete_snapshot_as(&self, id: &str, deletion: Deletion) -> Result<()> {
        let parsed: SnapshotId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let location = self.locate::<SnapshotRecord>(parsed)?;
        let Some((pool, entry)) = self.to_delete(parsed, location)? else {
            return Ok(());
        };
        let _work = pool.begin()?;
        Ok(pool.delete(&entry, deletion)?)
    }

    /// The object to delete; `None` if it counts as deleted, or if its data was removed by hand and now its record is
    /// deleted as well.
    fn to_delete<R: Resource>(
        &self,
        id: R::Id,
        location: Location<R>,
    ) -> Result<Option<Located<R>>> {
        match &location {
            Location::Absent {
                is_pool_here: false,
            } if self.known_pools.is_retired(id.pool())? => {
                tracing::warn!(%id, "the pool of the object is retired, so the object counts as deleted");
                return Ok(None);
            }
            Location::Quarantined {
                pool,
                quarantined,
                is_only: true,
            } => {
                let _work = pool.begin()?;
                if let Some(entry) = pool.find_emptied::<R>(id, &quarantined.path)? {
                    tracing::warn!(%id, "the data of the object was removed by hand, so the driver deletes its record");
                    pool.delete_emptied(entry)?;
                    return Ok(None);
                }
            }
            _ => {}
        }
        self.found(id, location).map(Some)
    }

    /// Deletes the copies of a move that cannot be finished. The pools of the others must be readable or retired.
    fn delete_copies(&self, id: VolumeId, copies: &[MoveCopy]) -> Result<()> {
        for copy in copies {
            let other = copy.moved.pool;
            if !self.reads(other) && !self.known_pools.is_retired(other)? {
                return Err(self.unfinished_move::<VolumeRecord>(id, copies));
            }
        }
        for copy in copies {
            let _work = copy.pool.begin()?;
            copy.pool.delete(&copy.entry, Deletion::ForGood)?;
        }
        Ok(())
    }
}
