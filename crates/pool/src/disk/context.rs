//! The settings and services that all pools of a server share.

use std::sync::Arc;
use std::time::Duration;

use linux::os::Os;
use linux::quota::Quotas;
use objects::NodeName;

use crate::disk::claims::Claims;
use crate::disk::known_pools::KnownPools;

#[derive(Debug, Clone)]
pub struct Context {
    pub node: NodeName,
    pub os: Os,
    pub quotas: Arc<dyn Quotas>,
    pub known_pools: Arc<KnownPools>,
    /// The devices of the filesystems that the node itself needs.
    pub root_devices: Vec<(u32, u32)>,
    pub claims: Arc<Claims>,
    /// The time after which a disk counts as silent.
    pub timeout: Duration,
}
