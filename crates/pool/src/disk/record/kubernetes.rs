//! The parts of a volume's record from which its Kubernetes objects can be made again.

use std::fmt;

use objects::ReclaimPolicy;
use serde::{Deserialize, Serialize};

/// The fields of a `PersistentVolume` that only its class has. Volumes of older drivers and of classes
/// without the parameters have none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesFields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<ReclaimPolicy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
}

impl KubernetesFields {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The directory that an imported volume was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportOrigin {
    /// Its path in the mount namespace of the host.
    pub path: String,
    /// The time of the import, in seconds since the Unix epoch.
    pub imported_at: u64,
    pub by: ImportMethod,
}

/// How the data of an imported volume came into the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportMethod {
    /// The directory itself was renamed.
    Rename,
    /// It was copied, by an earlier version.
    Copy,
}

impl fmt::Display for ImportMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rename => "rename",
            Self::Copy => "copy",
        })
    }
}
