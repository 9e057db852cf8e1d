//! Adopting a pool from another node, and declaring a pool lost for good; both by an explicit command.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux::fault::InContext;
use linux::os;
use linux::quota::NoQuota;
use objects::{NodeName, PoolId};

use crate::disk::dirs::RecordDirs;
use crate::disk::error::{Error, Result};
use crate::disk::known_pools::KnownPools;
use crate::disk::layout;
use crate::disk::marker::Marker;
use crate::disk::path::{open_mounted, take_lock};
use crate::disk::record;
use crate::disk::unavailable::Unavailable;
use crate::op::init::{Wanted, open_root};
use crate::op::load::load;

/// The time that a stopping server may still have the lock of the pool.
const LOCK_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    pub id: PoolId,
    /// Its node before, which may be this one.
    pub from: NodeName,
    pub volumes: usize,
}

/// Makes the pool at a path belong to this node and to the path, without regard to the node and the
/// pool before. It may be repeated. A pool that a server serves is refused.
pub fn adopt(
    known_pools: &KnownPools,
    path: &Path,
    node: &NodeName,
    wanted: Wanted,
) -> Result<Adopted> {
    let adopted =
        take_over(known_pools, path, node, wanted).map_err(|reason| Error::NotAdopted {
            path: path.to_owned(),
            reason,
        })?;
    known_pools.adopt(path, adopted.id)?;
    Ok(adopted)
}

fn take_over(
    known_pools: &KnownPools,
    path: &Path,
    node: &NodeName,
    wanted: Wanted,
) -> Result<Adopted, Unavailable> {
    let (_, root) = open_root(path, wanted)?;
    if Marker::read(&root)?.is_none() {
        return Err(Unavailable::Unmarked);
    }
    let meta = os::open_dir(&root, layout::META).context("open .rootcellar")?;
    let _lock = take_lock(&meta, Instant::now() + LOCK_WAIT)?;
    let marker = Marker::read(&root)?.ok_or(Unavailable::Unmarked)?;
    let homes = RecordDirs::open(&root)?;
    let adopted = Adopted {
        id: marker.id,
        from: marker.node.clone(),
        volumes: load(&homes, marker.id, &NoQuota)?.volumes().len(),
    };
    // Visible objects of a killed driver must not be lost once the pool is remembered.
    known_pools.os.syncfs(&root).context_sync("sync the disk")?;
    if marker.node != *node {
        let node = node.clone();
        let marker = Marker { node, ..marker };
        record::write(&known_pools.os, &meta, layout::MARKER, &marker)?;
    }
    Ok(adopted)
}

/// Declares a pool lost for good: its volumes may then be deleted, and other pools may use its paths,
/// which are returned. A pool that is found at such a path is not lost.
pub fn retire(known_pools: &KnownPools, id: PoolId) -> Result<Vec<PathBuf>> {
    for path in known_pools.paths()? {
        // A pool that cannot be read cannot be served either.
        let found = open_mounted(&path, false).and_then(|(at, _)| Marker::read(at));
        if matches!(found, Ok(Some(marker)) if marker.id == id) {
            return Err(Error::NotGone { pool: id, path });
        }
    }
    known_pools.retire(id)
}
