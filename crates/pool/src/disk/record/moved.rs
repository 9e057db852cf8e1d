//! The part of a volume's record about its moves between the members of a set.

use objects::PoolId;
use serde::{Deserialize, Serialize};

/// A move of a volume between two members of a set, in the record of one of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    pub state: MoveState,
    /// The pool of the other copy.
    pub pool: PoolId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveState {
    /// A complete copy, while the one in the other pool may still be the volume.
    Incoming,
    /// The former volume: the copy in the other pool is the volume now.
    Outgoing,
    /// The volume, which came from the other pool.
    Settled,
}
