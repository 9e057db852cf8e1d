//! The filesystems and identities of the open pools of a server: a filesystem has one pool, and a pool
//! is served at one path.

use std::collections::BTreeMap;
use std::sync::Mutex;

use linux::sync::lock;
use objects::{PoolId, PoolName};

use crate::disk::unavailable::Unavailable;

#[derive(Debug, Default)]
pub struct Claims {
    maps: Mutex<Maps>,
}

#[derive(Debug, Default)]
struct Maps {
    filesystems: BTreeMap<(u32, u32), PoolName>,
    ids: BTreeMap<PoolId, PoolName>,
}

impl Claims {
    /// Claims a filesystem by its device number.
    pub fn filesystem(&self, device: (u32, u32), name: &PoolName) -> Result<(), Unavailable> {
        let with = claim(&mut lock(&self.maps).filesystems, device, name);
        with.map_or(Ok(()), |with| Err(Unavailable::SharesFilesystem { with }))
    }

    /// Claims an identity. A copy of a disk has the identity of the original.
    pub fn id(&self, id: PoolId, name: &PoolName) -> Result<(), Unavailable> {
        let with = claim(&mut lock(&self.maps).ids, id, name);
        with.map_or(Ok(()), |with| Err(Unavailable::Twin { id, with }))
    }

    pub fn release(&self, name: &PoolName) {
        let mut maps = lock(&self.maps);
        maps.filesystems.retain(|_, holder| holder != name);
        maps.ids.retain(|_, holder| holder != name);
    }
}

/// Claims a key for a pool; returns the other pool that has it.
fn claim<K: Ord>(map: &mut BTreeMap<K, PoolName>, key: K, name: &PoolName) -> Option<PoolName> {
    let holder = map.entry(key).or_insert_with(|| name.clone());
    Some(&*holder).filter(|holder| *holder != name).cloned()
}
