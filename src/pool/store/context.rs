//! The settings and services that all pools of a server share.

use std::sync::Arc;
use std::time::Duration;

use linux::os::Os;
use linux::quota::Quotas;
use objects::NodeName;

use crate::pool::store::claims::Claims;
use crate::pool::store::memory::Memory;

/// The settings and services that all pools of a server share.
#[derive(Debug, Clone)]
pub struct Context {
    pub node: NodeName,
    /// The mutating system calls.
    pub os: Os,
    /// The kinds of quota.
    pub quotas: Arc<dyn Quotas>,
    /// The pool that each path held before.
    pub memory: Arc<Memory>,
    /// The devices of the filesystems that the node itself needs.
    pub root_devices: Vec<(u32, u32)>,
    /// The filesystems and identities of the open pools.
    pub claims: Arc<Claims>,
    /// The time after which a disk counts as silent.
    pub patience: Duration,
}
