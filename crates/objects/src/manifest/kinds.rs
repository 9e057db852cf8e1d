//! The fields of the objects, in the order in which they are written. A part whose fields are in the order of the
//! alphabet is a [`Value`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AccessMode, ReclaimPolicy};

/// An object of one of the kinds that are written.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Document {
    Volume(Box<Object<VolumeSpec>>),
    Claim(Object<Claim>),
    SnapshotContent(Object<SnapshotContent>),
    Snapshot(Object<Value>),
    Pod(Object<PodSpec>),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Object<S> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    pub spec: S,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Metadata {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The `spec` of a `PersistentVolume`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    pub capacity: Value,
    pub access_modes: Vec<ClaimMode>,
    pub volume_mode: &'static str,
    pub persistent_volume_reclaim_policy: ReclaimPolicy,
    pub storage_class_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    pub claim_ref: ClaimRef,
    pub csi: Source,
    pub node_affinity: Value,
}

/// A claim of a volume. With the `uid` of a claim that does not exist, Kubernetes releases the volume;
/// without that of an existing claim it does not bind it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRef {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl ClaimRef {
    pub fn new(namespace: &str, name: &str, uid: Option<String>) -> Self {
        Self {
            api_version: "v1",
            kind: "PersistentVolumeClaim",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    pub driver: String,
    pub volume_handle: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_attributes: BTreeMap<String, String>,
}

/// The `spec` of a `PersistentVolumeClaim`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    pub access_modes: Vec<ClaimMode>,
    pub volume_mode: &'static str,
    pub resources: Value,
    pub storage_class_name: String,
    pub volume_name: String,
}

/// The `spec` of a `VolumeSnapshotContent`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotContent {
    pub driver: String,
    pub deletion_policy: ReclaimPolicy,
    pub source: Value,
    pub source_volume_mode: &'static str,
    pub volume_snapshot_ref: SnapshotRef,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnapshotRef {
    pub namespace: String,
    pub name: String,
}

/// The `spec` of a pod that runs a command on a node once.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    #[serde(rename = "hostPID")]
    pub host_pid: bool,
    pub restart_policy: &'static str,
    pub tolerations: Value,
    pub containers: Vec<Container>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub name: &'static str,
    pub image: String,
    pub command: Vec<String>,
    pub security_context: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClaimMode {
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
    ReadWriteOncePod,
}

impl ClaimMode {
    pub const ALL: [Self; 4] = [
        Self::ReadWriteOnce,
        Self::ReadOnlyMany,
        Self::ReadWriteMany,
        Self::ReadWriteOncePod,
    ];

    /// The short name, as `kubectl get pvc` prints it.
    pub fn short(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "RWO",
            Self::ReadOnlyMany => "ROX",
            Self::ReadWriteMany => "RWX",
            Self::ReadWriteOncePod => "RWOP",
        }
    }

    /// Whether it is for several nodes, which the driver accepts for many pods of one.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::ReadOnlyMany | Self::ReadWriteMany)
    }

    /// The modes from which the provisioner made those of a request, each once.
    pub fn of_request(modes: &[AccessMode]) -> Vec<Self> {
        let mut all: Vec<Self> = modes.iter().map(|mode| Self::from(*mode)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The mode that the provisioner requests for a claim, because the driver distinguishes the modes of one node.
impl From<ClaimMode> for AccessMode {
    fn from(mode: ClaimMode) -> Self {
        match mode {
            ClaimMode::ReadWriteOnce => Self::SingleNodeMultiWriter,
            ClaimMode::ReadOnlyMany => Self::MultiNodeReaderOnly,
            ClaimMode::ReadWriteMany => Self::MultiNodeMultiWriter,
            ClaimMode::ReadWriteOncePod => Self::SingleNodeSingleWriter,
        }
    }
}

impl From<AccessMode> for ClaimMode {
    fn from(mode: AccessMode) -> Self {
        match mode {
            // No claim has the second, which a person may have requested.
            AccessMode::SingleNodeWriter
            | AccessMode::SingleNodeReaderOnly
            | AccessMode::SingleNodeMultiWriter => Self::ReadWriteOnce,
            AccessMode::SingleNodeSingleWriter => Self::ReadWriteOncePod,
            AccessMode::MultiNodeReaderOnly => Self::ReadOnlyMany,
            AccessMode::MultiNodeSingleWriter | AccessMode::MultiNodeMultiWriter => {
                Self::ReadWriteMany
            }
        }
    }
}
