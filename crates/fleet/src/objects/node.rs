//! Nodes, and the objects that say what they offer: classes, capacities and the pods of the driver.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use objects::{DriverArgs, NodeName, quantity};
use serde::Deserialize;

use super::Identity;
use crate::wire::Object;

/// The annotation of a class whose claims are released when their node is lost.
const RELEASE: &str = "rootcellar.dev/release-claims";
/// The label and the port of the driver's pods.
const NAME: (&str, &str) = ("app.kubernetes.io/name", "rootcellar");
const PORT: &str = "http";

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) identity: Identity,
    /// The value of the topology key in volumes of this node. It follows from the name. The label of the node is not
    /// asked, because anybody who may label nodes could name another one there.
    pub(crate) place: String,
    /// The value of its topology label, which the kubelet writes when the driver registers.
    pub(crate) label: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Node {
    pub(crate) fn read(node: Object, driver: &DriverArgs) -> Option<Self> {
        let identity = Identity::of(&node);
        let name: NodeName = node.meta.name?.parse().ok()?;
        let labels = node.meta.labels.unwrap_or_default();
        Some(Self {
            identity,
            place: name.topology_value(),
            label: labels.get(&driver.topology_key).cloned(),
            labels,
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
    /// Whether the claims of a lost node are released.
    pub(crate) releases: bool,
}

impl Class {
    pub(crate) fn read(class: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            provisioner: String,
            allowed_topologies: Option<Vec<Term>>,
        }
        let releases = class.annotation(RELEASE).as_deref() == Some("true");
        let fields: Fields = class.fields()?;
        (fields.provisioner == driver.driver_name).then(|| Self {
            releases,
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

/// A pod of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) node: String,
    /// Its page; none while it has no address or is about to end.
    pub(crate) page: Option<SocketAddr>,
}

impl Pod {
    pub(crate) fn read(pod: Object) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            node_name: String,
            containers: Vec<Container>,
        }
        #[derive(Deserialize)]
        struct Container {
            #[serde(default)]
            ports: Vec<Port>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Port {
            name: Option<String>,
            container_port: u16,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            phase: Option<String>,
            #[serde(rename = "podIP")]
            pod_ip: Option<IpAddr>,
        }
        let labels = pod.meta.labels.as_ref()?;
        if labels.get(NAME.0).map(String::as_str) != Some(NAME.1) {
            return None;
        }
        let deleting = pod.deleting;
        let Fields { spec, status } = pod.fields()?;
        let mut ports = spec.containers.iter().flat_map(|one| &one.ports);
        let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
        let runs = !deleting && status.phase.as_deref() == Some("Running");
        let address = status.pod_ip.filter(|_| runs);
        Some(Self {
            node: spec.node_name,
            page: address.map(|address| SocketAddr::new(address, port.container_port)),
        })
    }
}
