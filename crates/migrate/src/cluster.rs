//! The objects of a cluster, as `kubectl get -o json` prints them, with the fields that a plan needs.

use std::collections::{BTreeMap, BTreeSet};

use objects::ReclaimPolicy;
use objects::manifest::ClaimMode;
use objects::script::stream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The kinds that a plan reads, and the part of it that is missing without them.
pub(crate) const KINDS: [(&str, &str); 7] = [
    ("PersistentVolume", "there is nothing to plan"),
    ("PersistentVolumeClaim", "there is nothing to plan"),
    ("Node", "the node of a volume is unknown"),
    ("Pod", "running pods and their fsGroup are unchecked"),
    (
        "StatefulSet",
        "the deletion of claims by a scale-down is unchecked",
    ),
    ("Deployment", "Deployments are not scaled down"),
    ("StorageClass", "the growth of claims is unchecked"),
];

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) volumes: Vec<Stored<Volume>>,
    pub(crate) claims: Vec<Stored<Claim>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) stateful_sets: Vec<Workload>,
    pub(crate) deployments: Vec<Workload>,
    pub(crate) classes: Vec<Class>,
    pub(crate) snapshots: Vec<Snapshot>,
    /// The kinds of which the input has objects.
    kinds: BTreeSet<String>,
}

/// An object with its complete JSON.
#[derive(Debug)]
pub(crate) struct Stored<T> {
    pub(crate) object: T,
    pub(crate) json: Value,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
    pub(crate) deletion_timestamp: Option<String>,
}

impl Metadata {
    /// The namespace and the name of an object.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct Owner {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) controller: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Volume {
    pub(crate) metadata: Metadata,
    pub(crate) spec: VolumeSpec,
    #[serde(default)]
    pub(crate) status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSpec {
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) access_modes: Vec<ClaimMode>,
    pub(crate) claim_ref: Option<ClaimRef>,
    pub(crate) host_path: Option<HostPath>,
    pub(crate) local: Option<Local>,
    pub(crate) csi: Option<Csi>,
    pub(crate) node_affinity: Option<Affinity>,
    #[serde(deserialize_with = "known_policy")]
    pub(crate) persistent_volume_reclaim_policy: Option<ReclaimPolicy>,
    pub(crate) storage_class_name: String,
    pub(crate) volume_mode: Option<String>,
    pub(crate) mount_options: Vec<String>,
}

/// The policy, or none if it is Recycle, which only old volumes have.
fn known_policy<'de, D: Deserializer<'de>>(json: D) -> Result<Option<ReclaimPolicy>, D::Error> {
    let json = Value::deserialize(json)?;
    Ok(ReclaimPolicy::deserialize(json).ok())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) phase: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HostPath {
    pub(crate) path: String,
    pub(crate) r#type: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Local {
    pub(crate) path: String,
    pub(crate) fs_type: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Csi {
    pub(crate) driver: String,
    pub(crate) volume_handle: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Affinity {
    pub(crate) required: Selector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Selector {
    pub(crate) node_selector_terms: Vec<Term>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Term {
    pub(crate) match_expressions: Vec<Expression>,
    pub(crate) match_fields: Vec<Expression>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Expression {
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) values: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Claim {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ClaimSpec,
    #[serde(default)]
    pub(crate) status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Vec<ClaimMode>,
    pub(crate) resources: Resources,
    pub(crate) volume_name: String,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    pub(crate) requests: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) metadata: Metadata,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    pub(crate) spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) node_name: String,
    pub(crate) volumes: Vec<PodVolume>,
    pub(crate) security_context: SecurityContext,
    /// The fields that choose a node, as they are.
    pub(crate) node_selector: Value,
    pub(crate) tolerations: Value,
    pub(crate) affinity: Value,
}

impl PodSpec {
    /// Whether its own fields bind it to some nodes.
    pub(crate) fn chooses_node(&self) -> bool {
        !self.node_selector.is_null() || !self.affinity["nodeAffinity"].is_null()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodVolume {
    pub(crate) persistent_volume_claim: Option<ClaimSource>,
    pub(crate) host_path: Option<HostPath>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSource {
    pub(crate) claim_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SecurityContext {
    pub(crate) fs_group: Option<i64>,
    pub(crate) fs_group_change_policy: Option<String>,
}

/// A Deployment or a `StatefulSet`.
#[derive(Debug, Deserialize)]
pub(crate) struct Workload {
    pub(crate) metadata: Metadata,
    pub(crate) spec: WorkloadSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct WorkloadSpec {
    pub(crate) replicas: Option<u32>,
    pub(crate) template: Template,
    pub(crate) volume_claim_templates: Vec<ClaimTemplate>,
    pub(crate) persistent_volume_claim_retention_policy: Retention,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Template {
    pub(crate) spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimTemplate {
    pub(crate) metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Retention {
    pub(crate) when_scaled: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Class {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) provisioner: String,
    #[serde(default)]
    pub(crate) volume_binding_mode: String,
    #[serde(default)]
    pub(crate) allow_volume_expansion: bool,
    #[serde(default)]
    pub(crate) parameters: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: SnapshotSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotSpec {
    pub(crate) source: SnapshotSource,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotSource {
    pub(crate) persistent_volume_claim_name: String,
}

fn typed<T: DeserializeOwned>(json: &Value) -> Result<T, String> {
    T::deserialize(json).map_err(|error| {
        let name = &json["metadata"]["name"];
        format!("{} {name} cannot be read: {error}", json["kind"])
    })
}

impl Cluster {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut cluster = Self::default();
        for json in stream(text)? {
            cluster.add(json)?;
        }
        Ok(cluster)
    }

    fn add(&mut self, json: Value) -> Result<(), String> {
        let kind = json["kind"].as_str();
        let kind = kind
            .ok_or("not the output of kubectl: an object has no kind")?
            .to_owned();
        match kind.as_str() {
            "PersistentVolume" => self.volumes.push(Stored {
                object: typed(&json)?,
                json,
            }),
            "PersistentVolumeClaim" => self.claims.push(Stored {
                object: typed(&json)?,
                json,
            }),
            "Node" => self.nodes.push(typed(&json)?),
            "Pod" => self.pods.push(typed(&json)?),
            "StatefulSet" => self.stateful_sets.push(typed(&json)?),
            "Deployment" => self.deployments.push(typed(&json)?),
            "StorageClass" => self.classes.push(typed(&json)?),
            "VolumeSnapshot" => self.snapshots.push(typed(&json)?),
            _ => return Ok(()),
        }
        self.kinds.insert(kind);
        Ok(())
    }

    /// A sentence for each kind that the input lacks.
    pub(crate) fn unchecked(&self) -> Vec<String> {
        let missing = KINDS.iter().filter(|(kind, _)| !self.kinds.contains(*kind));
        missing
            .map(|(kind, consequence)| format!("the input has no {kind}: {consequence}"))
            .collect()
    }

    pub(crate) fn claim(&self, namespace: &str, name: &str) -> Option<&Stored<Claim>> {
        self.claims.iter().find(|claim| {
            let metadata = &claim.object.metadata;
            metadata.namespace == namespace && metadata.name == name
        })
    }

    /// The pods that mount a claim, ended and terminating ones included.
    pub(crate) fn pods_of<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = &'a Pod> {
        let claim = &claim.metadata;
        self.pods
            .iter()
            .filter(|pod| pod.metadata.namespace == claim.namespace && pod.spec.mounts(&claim.name))
    }
}

impl PodSpec {
    pub(crate) fn mounts(&self, claim: &str) -> bool {
        let mut claims = self
            .volumes
            .iter()
            .flat_map(|volume| &volume.persistent_volume_claim);
        claims.any(|source| source.claim_name == claim)
    }
}

impl Workload {
    /// Whether its pods use a claim of its namespace.
    pub(crate) fn uses(&self, claim: &Metadata) -> bool {
        self.metadata.namespace == claim.namespace
            && (self.spec.template.spec.mounts(&claim.name) || self.makes(claim))
    }

    /// Whether it is a `StatefulSet` with a template for the claim.
    pub(crate) fn makes(&self, claim: &Metadata) -> bool {
        let Metadata {
            name, namespace, ..
        } = &self.metadata;
        let mut templates = self.spec.volume_claim_templates.iter();
        *namespace == claim.namespace
            && templates.any(|template| {
                let prefix = format!("{}-{name}-", template.metadata.name);
                let ordinal = claim.name.strip_prefix(&prefix);
                ordinal.is_some_and(|text| {
                    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
                })
            })
    }

    /// Its number of pods; Kubernetes' default is one.
    pub(crate) fn replicas(&self) -> u32 {
        self.spec.replicas.unwrap_or(1)
    }
}
