//! The objects of the cluster as the controller needs them. Each is read once, from the form of the API, into one of
//! these types, which are small because the caches hold every volume of the cluster. An object of another driver, or a
//! malformed one, becomes `None` and is in no cache.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use objects::{DriverArgs, NodeName, ObjectId, PoolId, SnapshotId, VolumeId, quantity};
use serde::Deserialize;

/// The node that shall provision a claim. The scheduler writes it, and the csi-provisioner of that node obeys it.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The node whose csi-snapshotter handles a snapshot content.
pub(crate) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// The namespace and the name of an object.
pub(crate) type Key = (String, String);

pub(crate) fn key(meta: &ObjectMeta) -> Key {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// The object that a write is about. The API server refuses the write if uid or version changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
}

impl Identity {
    fn of(meta: &ObjectMeta) -> Self {
        let (namespace, name) = key(meta);
        Self {
            namespace,
            name,
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// The source of a claim: an object in the claim's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Claim(String),
    Snapshot(String),
}

#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) identity: Identity,
    pub(crate) deleting: bool,
    pub(crate) class: String,
    /// `spec.volumeName`, which is set when the claim is bound or reserved for a volume.
    pub(crate) volume: Option<String>,
    pub(crate) bound: bool,
    pub(crate) selector: bool,
    /// The annotation [`SELECTED_NODE`], unless it is empty.
    pub(crate) selected: Option<String>,
    pub(crate) source: Option<Source>,
    /// The requested bytes, unless they cannot be read.
    pub(crate) size: Option<u64>,
}

impl Claim {
    pub(crate) fn read(claim: core::PersistentVolumeClaim) -> Option<Self> {
        let identity = Identity::of(&claim.metadata);
        let annotation = |name| claim.metadata.annotations.as_ref()?.get(name).cloned();
        let spec = claim.spec?;
        let source = source(&spec, &identity.namespace);
        let requests = spec.resources.and_then(|resources| resources.requests);
        Some(Self {
            deleting: claim.metadata.deletion_timestamp.is_some(),
            class: annotation(OLD_CLASS).or(spec.storage_class_name)?,
            volume: spec.volume_name.filter(|name| !name.is_empty()),
            bound: claim.status.and_then(|status| status.phase).as_deref() == Some("Bound"),
            selector: spec.selector.is_some(),
            selected: annotation(SELECTED_NODE).filter(|node| !node.is_empty()),
            source,
            size: requests.and_then(|all| quantity::bytes(&all.get("storage")?.0)),
            identity,
        })
    }
}

/// The API server fills both fields if the source is of one of the two kinds that `dataSource` knows.
fn source(spec: &core::PersistentVolumeClaimSpec, namespace: &str) -> Option<Source> {
    let (group, kind, name) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(from), _) => {
            let here = |other: &String| other.is_empty() || other == namespace;
            from.namespace.as_ref().is_none_or(here).then_some((
                &from.api_group,
                &from.kind,
                &from.name,
            ))?
        }
        (None, Some(from)) => (&from.api_group, &from.kind, &from.name),
        (None, None) => return None,
    };
    match (group.as_deref().unwrap_or_default(), kind.as_str()) {
        ("", "PersistentVolumeClaim") => Some(Source::Claim(name.clone())),
        (SNAPSHOT_GROUP, "VolumeSnapshot") => Some(Source::Snapshot(name.clone())),
        _ => None,
    }
}

/// The claim or snapshot to which a volume or content says that it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) key: Key,
    pub(crate) uid: Option<String>,
}

impl Owner {
    fn of(reference: &core::ObjectReference) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            key: (text(&reference.namespace), text(&reference.name)),
            uid: reference.uid.clone(),
        }
    }
}

/// A `PersistentVolume` of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) claim: Option<Owner>,
    pub(crate) pool: PoolId,
    /// The value of the topology key that the volume requires of its node.
    pub(crate) place: String,
}

impl Volume {
    pub(crate) fn read(volume: core::PersistentVolume, driver: &DriverArgs) -> Option<Self> {
        let spec = volume.spec?;
        let csi = spec.csi.filter(|csi| csi.driver == driver.driver_name)?;
        let required = spec.node_affinity?.required?;
        Some(Self {
            claim: spec.claim_ref.as_ref().map(Owner::of),
            pool: VolumeId::parse(&csi.volume_handle)?.pool(),
            place: only_value(&required, &driver.topology_key)?,
        })
    }
}

/// The value of the key if the selector allows one alone, as csi-provisioner writes it.
fn only_value(selector: &core::NodeSelector, key: &str) -> Option<String> {
    let [term] = selector.node_selector_terms.as_slice() else {
        return None;
    };
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let of_key = expressions.iter().find(|found| found.key == key)?;
    match of_key.values.as_deref() {
        Some([value]) if of_key.operator == "In" => Some(value.clone()),
        _ => None,
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The value of the topology key in volumes of this node. It follows from the name. The label of the node is not
    /// asked, because anybody who may label nodes could name another one there.
    pub(crate) place: String,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Node {
    pub(crate) fn read(node: core::Node) -> Option<Self> {
        let name: NodeName = node.metadata.name?.parse().ok()?;
        Some(Self {
            place: name.topology_value(),
            labels: node.metadata.labels.unwrap_or_default(),
        })
    }
}

/// One of the `allowedTopologies` of a class: each key with its values.
pub(crate) type Term = Vec<(String, Vec<String>)>;

/// A `StorageClass` of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    /// Empty: every node.
    pub(crate) allowed: Vec<Term>,
}

impl Class {
    pub(crate) fn read(class: storage::StorageClass, driver: &DriverArgs) -> Option<Self> {
        let terms = class.allowed_topologies.unwrap_or_default().into_iter();
        let term = |term: core::TopologySelectorTerm| {
            let expressions = term.match_label_expressions.unwrap_or_default().into_iter();
            expressions.map(|one| (one.key, one.values)).collect()
        };
        (class.provisioner == driver.driver_name).then(|| Self {
            allowed: terms.map(term).collect(),
        })
    }
}

/// The space that the csi-provisioner of a node reports for a class, in a `CSIStorageCapacity`.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    pub(crate) class: String,
    pub(crate) place: String,
    pub(crate) bytes: u64,
}

impl Capacity {
    pub(crate) fn read(found: storage::CSIStorageCapacity, driver: &DriverArgs) -> Option<Self> {
        let labels = found.node_topology?.match_labels?;
        let size = found.maximum_volume_size.or(found.capacity)?;
        Some(Self {
            class: found.storage_class_name,
            place: labels.get(&driver.topology_key)?.clone(),
            bytes: quantity::bytes(&size.0)?,
        })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) uid: String,
    pub(crate) deleting: bool,
    pub(crate) ready: bool,
    /// The bound content.
    pub(crate) content: String,
}

impl Snapshot {
    pub(crate) fn read(snapshot: &DynamicObject) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            bound_volume_snapshot_content_name: String,
            #[serde(default)]
            ready_to_use: bool,
        }
        let status: Status = serde_json::from_value(snapshot.data.get("status")?.clone()).ok()?;
        Some(Self {
            uid: snapshot.metadata.uid.clone()?,
            deleting: snapshot.metadata.deletion_timestamp.is_some(),
            ready: status.ready_to_use,
            content: status.bound_volume_snapshot_content_name,
        })
    }
}

/// A `VolumeSnapshotContent` of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) identity: Identity,
    pub(crate) deleting: bool,
    pub(crate) created: Option<Timestamp>,
    pub(crate) snapshot: Owner,
    /// The pool of the snapshot, or of the volume that it is to be taken of.
    pub(crate) pool: Option<PoolId>,
    /// Whether the snapshot exists in the pool, as far as the content says.
    pub(crate) taken: bool,
    pub(crate) ready: bool,
    /// The label [`MANAGED_BY`].
    pub(crate) label: Option<String>,
}

impl Content {
    pub(crate) fn read(content: &DynamicObject, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            driver: String,
            source: ContentSource,
            volume_snapshot_ref: core::ObjectReference,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ContentSource {
            volume_handle: Option<String>,
            snapshot_handle: Option<String>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            snapshot_handle: Option<String>,
            ready_to_use: bool,
        }
        let field = |name: &str| content.data.get(name).cloned();
        let spec: Spec = serde_json::from_value(field("spec")?).ok()?;
        let status = field("status").and_then(|status| serde_json::from_value(status).ok());
        let status: Status = status.unwrap_or_default();
        if spec.driver != driver.driver_name {
            return None;
        }
        let handle = status.snapshot_handle.or(spec.source.snapshot_handle);
        let pool = match (&handle, &spec.source.volume_handle) {
            (Some(snapshot), _) => SnapshotId::parse(snapshot).map(|id| id.pool()),
            (None, Some(volume)) => VolumeId::parse(volume).map(|id| id.pool()),
            (None, None) => None,
        };
        let meta = &content.metadata;
        let label = meta.labels.as_ref().and_then(|all| all.get(MANAGED_BY));
        Some(Self {
            identity: Identity::of(meta),
            deleting: meta.deletion_timestamp.is_some(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            snapshot: Owner::of(&spec.volume_snapshot_ref),
            pool,
            taken: handle.is_some(),
            ready: status.ready_to_use,
            label: label.cloned(),
        })
    }
}
