//! Cordoned pools, which get no new volumes, snapshots and copies, so that their disks can be emptied.
//!
//! The state directory has the cordons, because a failing disk should not be written.

use objects::PoolId;

use crate::pool::base::Pool;
use crate::pool::store::error::Result;
use crate::pool::store::marker::Marker;
use crate::pool::store::memory::Memory;
use crate::pool::store::options::PoolOptions;
use crate::pool::store::path::open_mounted;
use crate::pool::store::unavailable::Unavailable;

impl Pool {
    /// Whether the pool is cordoned now. An unreadable memory is an error.
    pub fn is_cordoned(&self) -> Result<bool> {
        let cordoned = self.context.memory.cordoned()?;
        Ok(self.id().is_some_and(|id| cordoned.contains(&id)))
    }
}

/// The pool that a path held last, or else the one that it shows. A remembered pool is found without its
/// disk.
pub fn find_id(memory: &Memory, options: &PoolOptions) -> Result<PoolId, Unavailable> {
    if let Some(remembered) = memory.recall(&options.path)? {
        return Ok(remembered);
    }
    let (at, _) = open_mounted(&options.path, options.require_mount)?;
    let marker = Marker::read(at)?.ok_or(Unavailable::Unmarked)?;
    Ok(marker.id)
}
