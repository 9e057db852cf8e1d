//! The inventory of the node.

use objects::NodeName;
use objects::inventory::Inventory;

use crate::error::Result;
use crate::volume::volumes::Volumes;

impl Volumes {
    pub fn node(&self) -> &NodeName {
        &self.settings.node
    }

    /// The pools of the node with their volumes and snapshots, and the retired pools. It asks no disk but that of the
    /// state directory.
    pub fn inventory(&self) -> Result<Inventory> {
        Ok(Inventory {
            node: self.settings.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            loaded: self.is_loaded(),
            pools: self.pools().iter().map(|pool| pool.inventory()).collect(),
            retired: self.memory.retired()?.into_iter().collect(),
        })
    }
}
