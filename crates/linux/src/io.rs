//! The I/O of block devices: its limits for pods, and its statistics.

mod cgroup;
mod statistics;

use std::fmt;

use objects::Bytes;
use serde::{Deserialize, Serialize};

pub use cgroup::{CgroupFault, CgroupPlace, PodsCgroup};
pub use statistics::{Statistics, Transfers};

/// The most I/O in a second with one device. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_operations: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_operations: Option<u64>,
}

impl IoLimits {
    pub const NONE: Self = Self {
        read_bytes: None,
        write_bytes: None,
        read_operations: None,
        write_operations: None,
    };

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Display for IoLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |limit: Option<u64>, what| {
            limit.map(|limit| format!("{} per second {what}", Bytes(limit).rounded()))
        };
        let operations =
            |limit: Option<u64>, what| limit.map(|limit| format!("{limit} {what} per second"));
        let parts = [
            bytes(self.read_bytes, "read"),
            bytes(self.write_bytes, "written"),
            operations(self.read_operations, "reads"),
            operations(self.write_operations, "writes"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&parts.join(", "))
    }
}
