//! Cordoned pools, which get no new volumes, snapshots and copies, so that their disks can be emptied.
//!
//! The state directory has the cordons, because a failing disk should not be written.

use objects::PoolId;

use crate::disk::error::Result;
use crate::disk::known_pools::KnownPools;
use crate::disk::marker::Marker;
use crate::disk::options::PoolOptions;
use crate::disk::path::open_mounted;
use crate::disk::unavailable::Unavailable;
use crate::op::pool::Pool;

impl Pool {
    /// Whether the pool is cordoned now. Fails if `pools.json` cannot be read.
    pub fn is_cordoned(&self) -> Result<bool> {
        let cordoned = self.context.known_pools.cordoned()?;
        Ok(self.id().is_some_and(|id| cordoned.contains(&id)))
    }
}

/// The pool that a path held last, or else the one that it shows. A remembered pool is found without its
/// disk.
pub fn find_id(known_pools: &KnownPools, options: &PoolOptions) -> Result<PoolId, Unavailable> {
    if let Some(remembered) = known_pools.recall(&options.path)? {
        return Ok(remembered);
    }
    let (at, _) = open_mounted(&options.path, options.require_mount)?;
    let marker = Marker::read(at)?.ok_or(Unavailable::Unmarked)?;
    Ok(marker.id)
}
