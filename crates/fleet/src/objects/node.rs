//! Nodes, and the objects that say what they offer: classes, capacities and the pods of the driver.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use objects::{DriverArgs, NodeName, quantity};
use serde::Deserialize;
use serde_json::Value;

use super::{Identity, Kept};
use crate::wire::Object;

/// The annotation of a class whose claims are released when their node is lost.
const RELEASE: &str = "rootcellar.dev/release-claims";
/// The label and the port of the driver's pods.
pub(super) const NAME: (&str, &str) = ("app.kubernetes.io/name", "rootcellar");
const PORT: &str = "http";
/// The longest id of a machine.
const MAX_ID: usize = 64;

/// The key of the taint with which a node may start, named as other CSI drivers name theirs.
pub(crate) fn startup_taint(driver: &DriverArgs) -> String {
    format!("{}/agent-not-ready", driver.driver_name)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) identity: Identity,
    /// The value of the topology key in volumes of this node. It follows from the name. The label of the node is not
    /// asked, because anybody who may label nodes could name another one there.
    pub(crate) place: String,
    /// The value of its topology label, which the kubelet writes when the driver registers.
    pub(crate) label: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Its other taints, if it has the startup taint.
    pub(crate) startup: Option<Vec<Value>>,
    /// Its machine, unless the kubelet named none.
    pub(crate) machine: Option<Machine>,
}

/// The ids that a kubelet reads from its machine. Copies of a virtual machine may share one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
}

impl Machine {
    /// The ids as [`fmt::Display`] writes them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (machine_id, system_uuid) = text.split_once(' ')?;
        Some(Self {
            machine_id: machine_id.to_owned(),
            system_uuid: system_uuid.to_owned(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.machine_id, self.system_uuid)
    }
}

impl Kept for Node {
    fn identity(&mut self) -> Option<&mut Identity> {
        Some(&mut self.identity)
    }
}

impl Node {
    pub(crate) fn read(node: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        struct Spec {
            taints: Option<Vec<Value>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            node_info: Info,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Info {
            #[serde(rename = "machineID")]
            machine_id: String,
            #[serde(rename = "systemUUID")]
            system_uuid: String,
        }
        let identity = Identity::of(&node);
        let name: NodeName = node.meta.name.clone()?.parse().ok()?;
        let labels = node.meta.labels.clone().unwrap_or_default();
        let fields: Option<Fields> = node.fields();
        let (taints, info) = match fields {
            Some(Fields { spec, status }) => (spec.taints, status.node_info),
            None => (None, Info::default()),
        };
        let taints = taints.unwrap_or_default();
        let machine = [info.machine_id, info.system_uuid].map(id);
        let key = startup_taint(driver);
        let (ours, others): (Vec<Value>, _) = taints
            .into_iter()
            .partition(|taint| taint.get("key").and_then(Value::as_str) == Some(&*key));
        Some(Self {
            identity,
            place: name.topology_value(),
            label: labels.get(&driver.topology_key).cloned(),
            labels,
            startup: (!ours.is_empty()).then_some(others),
            machine: match machine {
                [Some(machine_id), Some(system_uuid)] => Some(Machine {
                    machine_id,
                    system_uuid,
                }),
                _ => None,
            },
        })
    }
}

impl Node {
    /// Whether it has a place, by its name or by its label.
    pub(crate) fn has_place(&self, place: &str) -> bool {
        self.place == place || self.label.as_deref() == Some(place)
    }
}

/// An id of a machine, as the object that remembers it can hold it.
fn id(text: String) -> Option<String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    (plain && (1..=MAX_ID).contains(&text.len())).then_some(text)
}

/// The drivers that the kubelet of a node has registered: a `CSINode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The uid of the Node for which the kubelet made it.
    pub(crate) node: String,
}

impl Kept for Registration {}

impl Registration {
    /// `None` if the driver is not registered.
    pub(crate) fn read(found: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            drivers: Vec<Registered>,
        }
        #[derive(Deserialize)]
        struct Registered {
            name: String,
        }
        let mut owners = found.owners.iter();
        let node = owners.find(|owner| owner.kind == "Node")?.uid.clone();
        let Fields { spec } = found.fields()?;
        let mut drivers = spec.drivers.iter();
        drivers
            .any(|one| one.name == driver.driver_name)
            .then_some(Self { node })
    }
}

/// One of the `allowedTopologies` of a class.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Term {
    #[serde(default)]
    match_label_expressions: Vec<Allowed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Allowed {
    key: String,
    values: Vec<String>,
}

/// A `StorageClass` of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Class {
    /// Empty: every node.
    allowed: Vec<Term>,
    /// Whether the claims of a lost node are released.
    pub(crate) releases: bool,
    /// Whether the scheduler compares the capacities of the nodes.
    pub(crate) waits: bool,
}

impl Kept for Class {}

impl Class {
    pub(crate) fn read(class: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            provisioner: String,
            allowed_topologies: Option<Vec<Term>>,
            volume_binding_mode: Option<String>,
        }
        let releases = class.annotation(RELEASE).as_deref() == Some("true");
        let fields: Fields = class.fields()?;
        (fields.provisioner == driver.driver_name).then(|| Self {
            releases,
            waits: fields.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) class: String,
    pub(crate) place: String,
    pub(crate) bytes: u64,
    /// The uid of the pod that reported it.
    pub(crate) owner: Option<String>,
}

impl Kept for Capacity {}

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
        let owner = capacity.controller().map(|owner| owner.uid.clone());
        let mut fields: Fields = capacity.fields()?;
        Some(Self {
            class: fields.storage_class_name,
            place: fields
                .node_topology
                .match_labels
                .remove(&driver.topology_key)?,
            bytes: quantity::bytes(&fields.maximum_volume_size.or(fields.capacity)?)?,
            owner,
        })
    }
}

/// A pod of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) node: String,
    /// Whether all its containers are: the driver has loaded its records.
    pub(crate) ready: bool,
    /// Its page; none while it has no address or is about to end.
    pub(crate) page: Option<SocketAddr>,
}

impl Kept for Pod {}

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
            conditions: Vec<Condition>,
        }
        #[derive(Deserialize)]
        struct Condition {
            #[serde(rename = "type")]
            kind: String,
            status: String,
        }
        let labels = pod.meta.labels.as_ref()?;
        if labels.get(NAME.0).map(String::as_str) != Some(NAME.1) {
            return None;
        }
        let deleting = pod.deleting;
        let uid = pod.meta.uid.clone().unwrap_or_default();
        let Fields { spec, status } = pod.fields()?;
        let mut ports = spec.containers.iter().flat_map(|one| &one.ports);
        let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
        let is_ready = |one: &Condition| one.kind == "Ready" && one.status == "True";
        let ready = !deleting && status.conditions.iter().any(is_ready);
        let runs = !deleting && status.phase.as_deref() == Some("Running");
        let address = status.pod_ip.filter(|_| runs);
        Some(Self {
            uid,
            ready,
            node: spec.node_name,
            page: address.map(|address| SocketAddr::new(address, port.container_port)),
        })
    }
}
