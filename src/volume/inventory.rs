//! The inventory of the node.

use objects::inventory::Inventory;
use objects::{NodeName, PoolId};

use crate::error::Result;
use crate::volume::volumes::Volumes;

impl Volumes {
    pub fn node(&self) -> &NodeName {
        &self.settings.node
    }

    /// The pools of the node with their volumes and snapshots, and the pools that are not served. It asks no disk but that of
    /// the state directory.
    pub fn inventory(&self) -> Result<Inventory> {
        let pools: Vec<_> = self.pools().iter().map(|pool| pool.inventory()).collect();
        let is_served = |id: &PoolId| pools.iter().any(|pool| pool.id == Some(*id));
        let mut unserved = self.known_pools.held()?;
        unserved.retain(|id| !is_served(id));
        Ok(Inventory {
            node: self.settings.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            loaded: self.is_loaded(),
            pools,
            retired: self.known_pools.retired()?.into_iter().collect(),
            unserved: Some(unserved.into_iter().collect()),
        })
    }
}
