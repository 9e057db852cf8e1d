//! The Kubernetes objects that the command line writes, with the few fields that bind a claim to a
//! volume. Nothing here reads a disk or talks to Kubernetes.

mod kinds;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{Bytes, NodeName, ReclaimPolicy};

pub use kinds::{
    Claim, ClaimMode, ClaimRef, Container, Document, Metadata, Object, PodSpec, SnapshotContent,
    VolumeSpec,
};
use kinds::{SnapshotRef, Source};

/// The label by which the snapshotter of a node finds its objects.
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The longest name of an object.
const MAX_NAME: usize = 253;
/// The longest name of a namespace, and of an object that is a DNS label.
const MAX_LABEL: usize = 63;

/// The driver and the node of volumes and snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverNode {
    pub driver: String,
    pub topology_key: String,
    pub node: NodeName,
}

/// A volume, as its `PersistentVolume` describes it.
#[derive(Debug, Clone)]
pub struct Volume {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub handle: String,
    pub place: DriverNode,
    pub claim: ClaimRef,
    pub capacity: Bytes,
    pub modes: Vec<ClaimMode>,
    pub is_device: bool,
    pub fs_type: Option<String>,
    pub class: String,
    pub policy: ReclaimPolicy,
    pub mount_options: Vec<String>,
    pub attributes: BTreeMap<String, String>,
}

impl Volume {
    /// Its `PersistentVolume`.
    pub fn document(&self) -> Document {
        let expression = json!({
            "key": self.place.topology_key,
            "operator": "In",
            "values": [self.place.node.topology_value()],
        });
        let term = json!({ "matchExpressions": [expression] });
        Document::Volume(Box::new(Object {
            api_version: "v1",
            kind: "PersistentVolume",
            metadata: Metadata {
                name: self.name.clone(),
                labels: self.labels.clone(),
                ..Metadata::default()
            },
            spec: VolumeSpec {
                capacity: self.storage(),
                access_modes: self.modes.clone(),
                volume_mode: self.mode(),
                persistent_volume_reclaim_policy: self.policy,
                storage_class_name: self.class.clone(),
                mount_options: self.mount_options.clone(),
                claim_ref: self.claim.clone(),
                csi: Source {
                    driver: self.place.driver.clone(),
                    volume_handle: self.handle.clone(),
                    fs_type: self.fs_type.clone(),
                    volume_attributes: self.attributes.clone(),
                },
                node_affinity: json!({ "required": { "nodeSelectorTerms": [term] } }),
            },
        }))
    }

    /// Its claim, which binds to no other volume.
    pub fn claim_document(&self) -> Document {
        Document::Claim(Object {
            api_version: "v1",
            kind: "PersistentVolumeClaim",
            metadata: Metadata {
                name: self.claim.name.clone(),
                namespace: Some(self.claim.namespace.clone()),
                ..Metadata::default()
            },
            spec: Claim {
                access_modes: self.modes.clone(),
                volume_mode: self.mode(),
                resources: json!({ "requests": self.storage() }),
                storage_class_name: self.class.clone(),
                volume_name: self.name.clone(),
            },
        })
    }

    fn storage(&self) -> Value {
        json!({ "storage": quantity(self.capacity) })
    }

    fn mode(&self) -> &'static str {
        volume_mode(self.is_device)
    }
}

/// The size as people write it, such as 10Gi. The claim shows it too.
fn quantity(size: Bytes) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let fits = |(shift, _): &&(u32, &str)| size.0 > 0 && size.0.trailing_zeros() >= *shift;
    match UNITS.iter().find(fits) {
        Some((shift, unit)) => format!("{}{unit}", size.0 >> shift),
        None => size.0.to_string(),
    }
}

fn volume_mode(is_device: bool) -> &'static str {
    if is_device { "Block" } else { "Filesystem" }
}

/// A snapshot, as its `VolumeSnapshotContent` describes it.
#[derive(Debug, Clone)]
pub struct SnapshotOf {
    pub content: String,
    pub namespace: String,
    pub name: String,
    pub handle: String,
    pub place: DriverNode,
    pub is_device: bool,
}

impl SnapshotOf {
    /// Its `VolumeSnapshotContent` and its `VolumeSnapshot`. The policy is Retain, because the deletion of
    /// a content that is not bound yet would delete the snapshot.
    pub fn documents(&self) -> [Document; 2] {
        let node = self.place.node.to_string();
        let content = Object {
            api_version: "snapshot.storage.k8s.io/v1",
            kind: "VolumeSnapshotContent",
            metadata: Metadata {
                name: self.content.clone(),
                labels: [(MANAGED_BY.to_owned(), node)].into(),
                ..Metadata::default()
            },
            spec: SnapshotContent {
                driver: self.place.driver.clone(),
                deletion_policy: ReclaimPolicy::Retain,
                source: json!({ "snapshotHandle": self.handle }),
                source_volume_mode: volume_mode(self.is_device),
                volume_snapshot_ref: SnapshotRef {
                    namespace: self.namespace.clone(),
                    name: self.name.clone(),
                },
            },
        };
        let snapshot = Object {
            api_version: "snapshot.storage.k8s.io/v1",
            kind: "VolumeSnapshot",
            metadata: Metadata {
                name: self.name.clone(),
                namespace: Some(self.namespace.clone()),
                ..Metadata::default()
            },
            spec: json!({ "source": { "volumeSnapshotContentName": self.content } }),
        };
        [
            Document::SnapshotContent(content),
            Document::Snapshot(snapshot),
        ]
    }
}

/// The documents as YAML, each after a line with `---`. A string that another version of YAML would read
/// as a number or a boolean is quoted.
pub fn yaml(documents: &[Document]) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut text = String::new();
    for document in documents {
        text.push_str("---\n");
        serde_saphyr::to_fmt_writer_with_options(&mut text, document, options.clone())?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}

/// Whether Kubernetes accepts the name of an object whose name is a DNS subdomain.
pub fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME && text.split('.').all(is_label_text)
}

/// Whether Kubernetes accepts the name of a namespace.
pub fn is_namespace(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_label_text(text)
}

fn is_label_text(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests;
