//! The inventory of a node: the answer of the driver's page `/inventory`, which the controller reads. It has ids and
//! sizes, and no names of claims.
//!
//! A reader of another version ignores fields that it does not know, and counts an answer without one that it needs as
//! none.

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{Bytes, NodeName, PoolId, PoolName, SnapshotId, VolumeId};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub node: NodeName,
    /// The version of the driver.
    pub version: String,
    /// Whether the driver has looked for all its pools. Before, a missing pool means nothing.
    pub loaded: bool,
    pub pools: Vec<PoolInventory>,
    /// The pools that `pool retire` declared lost for good on this node.
    pub retired: Vec<PoolId>,
    /// The pools that a path of this node held and that no configured pool is. Each may have volumes. An older driver does
    /// not list them.
    pub unserved: Option<Vec<PoolId>>,
}

/// A configured pool, or a member of a pool set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PoolInventory {
    #[serde(deserialize_with = "pool_name")]
    pub name: PoolName,
    /// The pool that its path has, or had when the driver last saw one there.
    pub id: Option<PoolId>,
    /// The pool that its path has instead, and that the driver does not serve.
    pub found: Option<PoolId>,
    /// The reason why the pool cannot be used or does not answer.
    pub unavailable: Option<String>,
    /// The same for pages that every pod can read. An older driver does not send it.
    pub reason: Option<String>,
    /// Whether nothing is at its path: no disk is mounted, or no pool was made in it.
    pub empty: bool,
    pub cordoned: bool,
    /// Whether the kernel enforces the sizes of its volumes.
    pub enforces: bool,
    /// The size of its filesystem, as it was last measured.
    pub total: Bytes,
    /// The largest size of the next volume, as it was last measured.
    pub available: Bytes,
    pub reserved: Bytes,
    /// The number of directories and records that the driver does not trust. Each may be a volume or a snapshot.
    pub quarantined: u64,
    /// Whether all its volumes, snapshots and kept volumes are listed. If not, a missing id means nothing.
    pub complete: bool,
    pub volumes: Vec<Item<VolumeId>>,
    pub snapshots: Vec<Item<SnapshotId>>,
    /// The deleted volumes that `volume undelete` brings back. An older driver lists none.
    #[serde(default)]
    pub kept: Vec<Item<VolumeId>>,
}

/// The name of a pool or of a member of a set. Its reader prints it.
fn pool_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PoolName, D::Error> {
    let text = String::deserialize(deserializer)?;
    PoolName::of_any(&text).map_err(de::Error::custom)
}

/// A volume or a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item<I> {
    pub id: I,
    pub bytes: Bytes,
    /// The seconds since it was created, as the node knows the time. For a kept volume, the seconds since its deletion
    /// for which its pool was served.
    pub age: u64,
}
