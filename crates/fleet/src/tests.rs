//! A cluster as objects of the API, and the steps that a round gives for it.

mod comparing;
mod confirming;
mod feed;
mod http;
mod labels;
mod lists;
mod lost;
mod machines;
mod makers;
mod metrics;
mod plan;
mod reader;
mod reading;
mod released;
mod remedies;
mod retired;
mod steering;
mod tainted;

use std::time::{Duration, Instant};

use clap::CommandFactory;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use objects::{DriverArgs, ObjectId, PoolId, SnapshotId, VolumeId};
use serde_json::{Value, json};

use crate::Cli;
use crate::due::Due;
use crate::objects::{Capacity, Claim, Class, Node, Snapshot, SnapshotContent, Volume};
use crate::report::Report;
use crate::round::Memory;
use crate::settings::{Delays, Functions, Settings};
use crate::step::{Change, Ended, Outcome, Step};
use crate::view::View;
use crate::wire::Object;

#[test]
fn the_command_line_is_consistent_and_its_examples_parse() {
    Cli::command().debug_assert();
    support::help::check_examples::<Cli>();
}

const HERE: &str = "node1";
const OTHER: &str = "node2";

/// A cluster of two nodes with a claim `new`, which restores the ready snapshot `snap` of the pool on [`HERE`].
struct World {
    view: View,
    driver: DriverArgs,
    pool: PoolId,
    memory: Memory,
    now: Instant,
    settings: Settings,
}

impl World {
    fn new() -> Self {
        let mut world = Self::empty();
        world.node(HERE, &json!({"topology.rootcellar.dev/node": HERE}));
        world.node(OTHER, &json!({"topology.rootcellar.dev/node": OTHER}));
        world.class(&json!(null));
        let pool = world.pool;
        world.volume("pv", pool, HERE, "source");
        world.claim(json!({"metadata": {"name": "source"},
            "spec": {"volumeName": "pv", "dataSourceRef": null}, "status": {"phase": "Bound"}}));
        world.snapshot(json!({}));
        world.content(
            json!({"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": HERE}}}),
        );
        world.claim(json!({}));
        world
    }

    fn empty() -> Self {
        let driver = DriverArgs {
            driver_name: "csi.rootcellar.dev".into(),
            topology_key: "topology.rootcellar.dev/node".into(),
        };
        Self {
            view: View::default(),
            pool: PoolId::random(),
            memory: Memory::default(),
            now: Instant::now(),
            driver: driver.clone(),
            settings: Settings {
                functions: Functions {
                    steer: true,
                    label: true,
                    label_old: false,
                    compare: false,
                    finish: false,
                    release: false,
                    untaint: false,
                },
                delays: Delays {
                    absent_for: Duration::from_mins(30),
                    retired_for: Duration::from_mins(5),
                    compare_every: Duration::from_mins(10),
                    tainted_for: Duration::from_mins(5),
                },
                driver,
                namespace: "rootcellar-system".into(),
            },
        }
    }

    fn node(&mut self, name: &str, labels: &Value) {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        let node = Node::read(object(&node), &self.driver).unwrap();
        self.view.nodes.insert(name.into(), node);
    }

    fn class(&mut self, allowed: &Value) {
        let class = json!({"metadata": {"name": "fast"}, "provisioner": "csi.rootcellar.dev",
            "allowedTopologies": allowed});
        let class = Class::read(object(&class), &self.driver).unwrap();
        self.view.classes.insert("fast".into(), class);
    }

    /// A volume of a pool at a place, which belongs to a claim.
    fn volume(&mut self, name: &str, pool: PoolId, place: &str, claim: &str) {
        let handle = VolumeId::new(pool, &name.parse().unwrap()).to_string();
        let volume = json!({"metadata": {"name": name}, "spec": {
            "claimRef": {"namespace": "shop", "name": claim, "uid": format!("uid-{claim}")},
            "csi": {"driver": "csi.rootcellar.dev", "volumeHandle": handle},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.rootcellar.dev/node", "operator": "In", "values": [place]}]}]}}},
            "status": {"phase": "Bound"}});
        let volume = Volume::read(object(&volume), &self.driver).unwrap();
        self.view.volumes.insert(name.into(), volume);
    }

    /// The claim `new` with other fields.
    fn claim(&mut self, other: Value) {
        let mut claim = json!({"metadata": {"namespace": "shop", "name": "new", "resourceVersion": "1"},
            "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}},
                "dataSourceRef": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}},
            "status": {"phase": "Pending"}});
        merge(&mut claim, other);
        let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
        if claim["metadata"]["uid"].is_null() {
            claim["metadata"]["uid"] = format!("uid-{name}").into();
        }
        let key = ("shop".to_owned(), name);
        match Claim::read(object(&claim)) {
            Some(claim) => self.view.claims.insert(key, claim),
            None => self.view.claims.remove(&key),
        };
    }

    fn selects(&mut self, node: &str) {
        self.claim(
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}}),
        );
    }

    /// The snapshot `snap` with other fields.
    fn snapshot(&mut self, other: Value) {
        let mut snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"namespace": "shop", "name": "snap", "uid": "uid-snap"},
            "spec": {}, "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true}});
        merge(&mut snapshot, other);
        let snapshot = Snapshot::read(object(&snapshot));
        let key = ("shop".to_owned(), "snap".to_owned());
        self.view.snapshots.insert(key, snapshot.unwrap());
    }

    /// The content of `snap` with other fields.
    fn content(&mut self, other: Value) {
        let handle = SnapshotId::new(self.pool, &"snap".parse().unwrap()).to_string();
        let created = (Timestamp::now() - SignedDuration::from_mins(1)).to_string();
        let mut content = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content", "uid": "uid-content", "resourceVersion": "1", "creationTimestamp": created},
            "spec": {"driver": "csi.rootcellar.dev", "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {"namespace": "shop", "name": "snap", "uid": "uid-snap"}},
            "status": {"snapshotHandle": handle, "readyToUse": true}});
        merge(&mut content, other);
        let content = SnapshotContent::read(object(&content), &self.driver).unwrap();
        let name = content.identity.name.clone();
        self.view.contents.insert(name, content);
    }

    /// A content whose snapshot was asked for so long ago and was not taken.
    fn untaken(&mut self, age: SignedDuration, other: Value) {
        let handle = VolumeId::new(self.pool, &"pv".parse().unwrap()).to_string();
        let created = (Timestamp::now() - age).to_string();
        let mut fields = json!({"metadata": {"creationTimestamp": created}, "status": null,
            "spec": {"source": {"snapshotHandle": null, "volumeHandle": handle}}});
        merge(&mut fields, other);
        self.content(fields);
    }

    fn free(&mut self, size: &str) {
        let capacity = json!({"metadata": {"name": "c"}, "storageClassName": "fast", "capacity": size,
            "nodeTopology": {"matchLabels": {"topology.rootcellar.dev/node": HERE}}});
        let capacity = Capacity::read(object(&capacity), &self.driver);
        let key = ("system".to_owned(), "c".to_owned());
        self.view.capacities.insert(key, capacity.unwrap());
    }

    fn due(&mut self) -> Due {
        self.memory
            .round(&self.view, &self.settings, self.now, Timestamp::now())
    }

    /// The steps of a round in short: the node written, or the reason reported.
    fn steps(&mut self) -> Vec<String> {
        let short = |step: &Step| match (&step.change, &step.report) {
            (Some(Change::Select { node, .. }), _) if !step.confirm.is_empty() => {
                format!("select {node} if absent")
            }
            (Some(Change::Select { node, .. }), _) => format!("select {node}"),
            (Some(Change::Label(node)), _) => format!("label {node}"),
            (Some(Change::ForgetNode(node)), _) => format!("forget {node}"),
            (Some(Change::Retain { .. }), _) => format!("retain {}", step.about.object.name),
            (Some(Change::DropFinalizer { .. }), _) => {
                format!("drop finalizer of {}", step.about.object.name)
            }
            (Some(Change::RemoveTaint { .. }), _) => format!("untaint {}", step.about.object.name),
            (Some(Change::Delete), _) => format!("delete {}", step.about.object.name),
            (None, Some(report)) => report.reason().to_owned(),
            (None, None) => "nothing".to_owned(),
        };
        let due = self.due();
        for _ in due.steps.iter().filter(|step| step.releases().is_some()) {
            self.memory.released(None, self.now);
        }
        due.steps.iter().map(short).collect()
    }

    fn after(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }
}

/// A change of the world, and its description.
type Case = (&'static str, fn(&mut World));

/// The object as the API server sends it.
fn object(object: &Value) -> Object {
    serde_json::from_str(&object.to_string()).unwrap()
}

/// Merges as a merge patch does, but for `null`, which stays.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
