//! The objects of the cluster as the controller needs them. Each is read once into one of these types, which are small
//! because the caches hold every volume of the cluster. An object of another driver, or a malformed one, becomes `None`
//! and is in no cache.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use objects::{DriverArgs, NodeName, ObjectId, PoolId, SnapshotId, VolumeId, quantity};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::wire::{Object, SNAPSHOTS, named};

/// The node that shall provision a claim. The scheduler writes it, and the csi-provisioner of that node obeys it.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The node whose csi-snapshotter handles a snapshot content.
pub(crate) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
/// Annotations of the snapshot-controller and of csi-snapshotter. Without the first, or with the second, a content that
/// is being deleted still has its snapshot taken.
const UNWANTED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
const BEING_TAKEN: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The namespace and the name of an object.
pub(crate) type Key = (String, String);

pub(crate) fn key(object: &Object) -> Key {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (text(&object.meta.namespace), text(&object.meta.name))
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
    fn of(object: &Object) -> Self {
        let (namespace, name) = key(object);
        Self {
            namespace,
            name,
            uid: object.meta.uid.clone().unwrap_or_default(),
            version: object.meta.resource_version.clone().unwrap_or_default(),
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
    /// The annotation [`SELECTED_NODE`], if it can be the name of a node.
    pub(crate) selected: Option<NodeName>,
    pub(crate) source: Option<Source>,
    /// The requested bytes, unless they cannot be read.
    pub(crate) size: Option<u64>,
}

impl Claim {
    pub(crate) fn read(claim: Object) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            storage_class_name: Option<String>,
            volume_name: Option<String>,
            selector: Option<IgnoredAny>,
            data_source: Option<Reference>,
            data_source_ref: Option<Reference>,
            #[serde(default)]
            resources: Resources,
        }
        #[derive(Deserialize, Default)]
        struct Resources {
            requests: Option<BTreeMap<String, String>>,
        }
        #[derive(Deserialize, Default)]
        struct Status {
            phase: Option<String>,
        }
        let (identity, deleting) = (Identity::of(&claim), claim.deleting);
        let selected = claim.annotation(SELECTED_NODE);
        let old_class = claim
            .meta
            .annotations
            .as_ref()
            .and_then(|all| all.get(OLD_CLASS))
            .cloned();
        let Fields { spec, status } = claim.fields()?;
        let source = spec.data_source_ref.or(spec.data_source);
        Some(Self {
            identity,
            deleting,
            class: named(old_class.or(spec.storage_class_name)?)?,
            volume: spec.volume_name.and_then(named),
            bound: status.phase.as_deref() == Some("Bound"),
            selector: spec.selector.is_some(),
            selected: selected.and_then(|name| name.parse().ok()),
            source: source.and_then(Reference::source),
            size: spec
                .resources
                .requests
                .and_then(|all| quantity::bytes(all.get("storage")?)),
        })
    }
}

/// A `dataSource` or `dataSourceRef`. The API server fills both for the two kinds that are sources here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    api_group: Option<String>,
    kind: String,
    name: String,
    namespace: Option<String>,
}

impl Reference {
    fn source(self) -> Option<Source> {
        // Kubernetes treats a reference with a namespace, even the claim's own, as one to another namespace.
        if self
            .namespace
            .is_some_and(|namespace| !namespace.is_empty())
        {
            return None;
        }
        let name = named(self.name)?;
        match (self.api_group.as_deref().unwrap_or_default(), &*self.kind) {
            ("", "PersistentVolumeClaim") => Some(Source::Claim(name)),
            (SNAPSHOTS, "VolumeSnapshot") => Some(Source::Snapshot(name)),
            _ => None,
        }
    }
}

/// The claim or snapshot to which a volume or content says that it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Owner {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    uid: Option<String>,
}

impl Owner {
    pub(crate) fn is(&self, key: &Key, uid: &str) -> bool {
        (&self.namespace, &self.name) == (&key.0, &key.1) && self.uid.as_deref() == Some(uid)
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// A `PersistentVolume` of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) claim: Option<Owner>,
    pub(crate) id: VolumeId,
    /// The value of the topology key that the volume requires of its node.
    pub(crate) place: String,
}

impl Volume {
    pub(crate) fn read(volume: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            csi: Csi,
            claim_ref: Option<Owner>,
            node_affinity: Affinity,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Csi {
            driver: String,
            volume_handle: String,
        }
        #[derive(Deserialize)]
        struct Affinity {
            required: Selector,
        }
        let Fields { spec } = volume.fields()?;
        if spec.csi.driver != driver.driver_name {
            return None;
        }
        Some(Self {
            claim: spec.claim_ref,
            id: VolumeId::parse(&spec.csi.volume_handle)?,
            place: spec
                .node_affinity
                .required
                .only_value(&driver.topology_key)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    node_selector_terms: Vec<SelectorTerm>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorTerm {
    #[serde(default)]
    match_expressions: Vec<Expression>,
}

#[derive(Deserialize)]
struct Expression {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl Selector {
    /// The value of the key if the selector allows one alone, as csi-provisioner writes it.
    fn only_value(&self, key: &str) -> Option<String> {
        let [term] = self.node_selector_terms.as_slice() else {
            return None;
        };
        let of_key = term
            .match_expressions
            .iter()
            .find(|found| found.key == key)?;
        match of_key.values.as_slice() {
            [value] if of_key.operator == "In" => named(value.clone()),
            _ => None,
        }
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
    pub(crate) fn read(node: Object) -> Option<Self> {
        let name: NodeName = node.meta.name?.parse().ok()?;
        Some(Self {
            place: name.topology_value(),
            labels: node.meta.labels.unwrap_or_default(),
        })
    }
}

/// One of the `allowedTopologies` of a class.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Term {
    #[serde(default)]
    match_label_expressions: Vec<Allowed>,
}

#[derive(Debug, Clone, Deserialize)]
struct Allowed {
    key: String,
    values: Vec<String>,
}

/// A `StorageClass` of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    /// Empty: every node.
    allowed: Vec<Term>,
}

impl Class {
    pub(crate) fn read(class: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            provisioner: String,
            allowed_topologies: Option<Vec<Term>>,
        }
        let fields: Fields = class.fields()?;
        (fields.provisioner == driver.driver_name).then(|| Self {
            allowed: fields.allowed_topologies.unwrap_or_default(),
        })
    }

    /// Whether the node's labels fulfil one of the terms.
    pub(crate) fn allows(&self, node: &Node) -> bool {
        let fulfils = |one: &Allowed| {
            let value = node.labels.get(&one.key);
            value.is_some_and(|value| one.values.contains(value))
        };
        let term = |term: &Term| term.match_label_expressions.iter().all(fulfils);
        self.allowed.is_empty() || self.allowed.iter().any(term)
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
    pub(crate) fn read(capacity: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            storage_class_name: String,
            node_topology: Topology,
            capacity: Option<String>,
            maximum_volume_size: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Topology {
            match_labels: BTreeMap<String, String>,
        }
        let mut fields: Fields = capacity.fields()?;
        Some(Self {
            class: fields.storage_class_name,
            place: fields
                .node_topology
                .match_labels
                .remove(&driver.topology_key)?,
            bytes: quantity::bytes(&fields.maximum_volume_size.or(fields.capacity)?)?,
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
    pub(crate) fn read(snapshot: Object) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            bound_volume_snapshot_content_name: String,
            #[serde(default)]
            ready_to_use: bool,
        }
        let (uid, deleting) = (snapshot.meta.uid.clone()?, snapshot.deleting);
        let Fields { status } = snapshot.fields()?;
        Some(Self {
            uid,
            deleting,
            ready: status.ready_to_use,
            content: named(status.bound_volume_snapshot_content_name)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handles {
    volume_handle: Option<String>,
    snapshot_handle: Option<String>,
}

/// The data of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// A snapshot in this pool.
    Snapshot(PoolId),
    /// A volume, of which no snapshot has been taken yet.
    Volume(VolumeId),
    /// The handle is none of the driver's.
    Malformed,
}

/// A `VolumeSnapshotContent` of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) identity: Identity,
    pub(crate) deleting: bool,
    pub(crate) created: Option<Timestamp>,
    pub(crate) snapshot: Owner,
    /// Whether the snapshot is not wanted any more, so that csi-snapshotter deletes it and never takes it.
    pub(crate) unwanted: bool,
    pub(crate) data: Data,
    pub(crate) ready: bool,
    /// The label [`MANAGED_BY`].
    pub(crate) label: Option<String>,
}

impl Content {
    pub(crate) fn read(mut content: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
            #[serde(default)]
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            driver: String,
            source: Handles,
            volume_snapshot_ref: Owner,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            snapshot_handle: Option<String>,
            ready_to_use: bool,
        }
        let (identity, deleting) = (Identity::of(&content), content.deleting);
        let created = content.created.parse().ok();
        let has = |key| {
            content
                .meta
                .annotations
                .as_ref()
                .is_some_and(|all| all.contains_key(key))
        };
        let unwanted = deleting && has(UNWANTED) && !has(BEING_TAKEN);
        let label = content
            .meta
            .labels
            .as_mut()
            .and_then(|all| all.remove(MANAGED_BY));
        let Fields { spec, status } = content.fields()?;
        if spec.driver != driver.driver_name {
            return None;
        }
        let status = status.unwrap_or_default();
        let handle = status.snapshot_handle.or(spec.source.snapshot_handle);
        let data = match (&handle, &spec.source.volume_handle) {
            (Some(snapshot), _) => SnapshotId::parse(snapshot).map(|id| Data::Snapshot(id.pool())),
            (None, Some(volume)) => VolumeId::parse(volume).map(Data::Volume),
            (None, None) => None,
        };
        Some(Self {
            identity,
            deleting,
            created,
            snapshot: spec.volume_snapshot_ref,
            unwanted,
            data: data.unwrap_or(Data::Malformed),
            ready: status.ready_to_use,
            label,
        })
    }
}
