//! A cluster as objects of the API, and the steps that a round gives for it.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use objects::{DriverArgs, ObjectId, PoolId, SnapshotId, VolumeId};
use serde_json::{Value, json};

use crate::Functions;
use crate::objects::{Capacity, Claim, Class, Content, Node, Snapshot, Volume};
use crate::report::Report;
use crate::round::{Due, Memory, Outcome, Step};
use crate::view::View;

const HERE: &str = "node1";
const OTHER: &str = "node2";

/// A cluster of two nodes with a claim `new`, which restores the ready snapshot `snap` of the pool on [`HERE`].
struct World {
    view: View,
    driver: DriverArgs,
    pool: PoolId,
    memory: Memory,
    now: Instant,
    functions: Functions,
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
        Self {
            view: View::default(),
            driver: DriverArgs {
                driver_name: "csi.rootcellar.dev".into(),
                topology_key: "topology.rootcellar.dev/node".into(),
            },
            pool: PoolId::random(),
            memory: Memory::default(),
            now: Instant::now(),
            functions: Functions {
                steer: true,
                label: true,
                label_old: false,
            },
        }
    }

    fn node(&mut self, name: &str, labels: &Value) {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        let node = Node::read(serde_json::from_value(node).unwrap()).unwrap();
        self.view.nodes.insert(name.into(), node);
    }

    fn class(&mut self, allowed: &Value) {
        let class = json!({"metadata": {"name": "fast"}, "provisioner": "csi.rootcellar.dev",
            "allowedTopologies": allowed});
        let class = Class::read(serde_json::from_value(class).unwrap(), &self.driver).unwrap();
        self.view.classes.insert("fast".into(), class);
    }

    /// A volume of a pool at a place, which belongs to a claim.
    fn volume(&mut self, name: &str, pool: PoolId, place: &str, claim: &str) {
        let handle = VolumeId::new(pool, &name.parse().unwrap()).to_string();
        let volume = json!({"metadata": {"name": name}, "spec": {
            "claimRef": {"namespace": "shop", "name": claim, "uid": format!("uid-{claim}")},
            "csi": {"driver": "csi.rootcellar.dev", "volumeHandle": handle},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.rootcellar.dev/node", "operator": "In", "values": [place]}]}]}}}});
        let volume = Volume::read(serde_json::from_value(volume).unwrap(), &self.driver).unwrap();
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
        match Claim::read(serde_json::from_value(claim).unwrap()) {
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
        let snapshot = Snapshot::read(&serde_json::from_value(snapshot).unwrap());
        let key = ("shop".to_owned(), "snap".to_owned());
        self.view.snapshots.insert(key, snapshot.unwrap());
    }

    /// The content of `snap` with other fields.
    fn content(&mut self, other: Value) {
        let handle = SnapshotId::new(self.pool, &"snap".parse().unwrap()).to_string();
        let mut content = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content", "uid": "uid-content", "resourceVersion": "1"},
            "spec": {"driver": "csi.rootcellar.dev", "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {"namespace": "shop", "name": "snap", "uid": "uid-snap"}},
            "status": {"snapshotHandle": handle, "readyToUse": true}});
        merge(&mut content, other);
        let content = Content::read(&serde_json::from_value(content).unwrap(), &self.driver);
        self.view
            .contents
            .insert("content".into(), content.unwrap());
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
        let capacity = Capacity::read(serde_json::from_value(capacity).unwrap(), &self.driver);
        let key = ("system".to_owned(), "c".to_owned());
        self.view.capacities.insert(key, capacity.unwrap());
    }

    fn due(&mut self) -> Due {
        self.memory
            .round(&self.view, &self.functions, self.now, Timestamp::now())
    }

    /// The steps of a round in short: the node written, or the reason reported.
    fn steps(&mut self) -> Vec<String> {
        let short = |step: &Step| match step {
            Step::Select { node, missing, .. } if *missing => format!("select {node} if absent"),
            Step::Select { node, .. } => format!("select {node}"),
            Step::Label { node, .. } => format!("label {node}"),
            Step::Report { report, .. } => report.reason().to_owned(),
        };
        self.due().steps.iter().map(short).collect()
    }

    fn after(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }
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

/// Proves: F2.
#[test]
fn a_restore_and_a_clone_go_to_the_node_of_their_source() {
    let claim =
        |kind: &str, group: Value| json!({"apiGroup": group, "kind": kind, "name": "source"});
    let mut world = World::new();
    assert_eq!(world.steps(), ["select node1"]);
    for field in ["dataSourceRef", "dataSource"] {
        let mut world = World::new();
        let mut spec = json!({"dataSourceRef": null});
        spec[field] = claim("PersistentVolumeClaim", json!(null));
        world.claim(json!({ "spec": spec }));
        assert_eq!(world.steps(), ["select node1"], "{field}");
    }
    let mut world = World::new();
    world.selects(HERE);
    assert!(world.steps().is_empty(), "the claim names its node");
}

/// Proves: F2, F3.
#[test]
fn a_claim_that_is_not_the_controllers_is_left_alone() {
    for (claim, change) in NOT_OURS {
        let mut world = World::new();
        world.functions.label = false;
        change(&mut world);
        assert!(world.steps().is_empty(), "a claim that {claim}");
    }
}

/// A change, and its description.
type Change = (&'static str, fn(&mut World));

/// Each makes the claim one that the controller may not write.
const NOT_OURS: [Change; 19] = [
    ("has a volume", |w| {
        w.claim(json!({"spec": {"volumeName": "pv9"}}));
    }),
    ("is bound", |w| {
        w.claim(json!({"status": {"phase": "Bound"}}));
    }),
    ("has a selector", |w| {
        w.claim(json!({"spec": {"selector": {}}}));
    }),
    ("is in deletion", |w| {
        w.claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    }),
    ("has another class", |w| {
        w.claim(json!({"spec": {"storageClassName": "other"}}));
    }),
    ("has another class in the old annotation", |w| {
        w.claim(json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "other"}}}));
    }),
    ("has no class", |w| {
        w.claim(json!({"spec": {"storageClassName": null}}));
    }),
    ("has no source", |w| {
        w.claim(json!({"spec": {"dataSourceRef": null}}));
    }),
    ("has a source of another kind", |w| {
        w.claim(json!({"spec": {"dataSourceRef": {"kind": "VolumeCloneSource"}}}));
    }),
    ("has a source of another group", |w| {
        w.claim(json!({"spec": {"dataSourceRef": {"apiGroup": "example.com"}}}));
    }),
    ("has a source of another namespace", |w| {
        w.claim(json!({"spec": {"dataSourceRef": {"namespace": "bank"}}}));
    }),
    ("has a snapshot that is missing", |w| {
        w.view.snapshots.clear();
    }),
    ("has a snapshot that is not ready", |w| {
        w.snapshot(json!({"status": {"readyToUse": false}}));
    }),
    ("has a snapshot in deletion", |w| {
        w.snapshot(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    }),
    ("has a snapshot that names another's content", |w| {
        w.content(json!({"spec": {"volumeSnapshotRef": {"namespace": "bank"}}}));
    }),
    ("has a snapshot made anew under the same name", |w| {
        w.snapshot(json!({"metadata": {"uid": "uid-anew"}}));
    }),
    ("has a content that is not ready", |w| {
        w.content(json!({"status": {"readyToUse": false}}));
    }),
    ("clones a claim that is not bound", |w| {
        clone_source(w);
        w.claim(json!({"metadata": {"name": "source"}, "spec": {"volumeName": "pv", "dataSourceRef": null}}));
    }),
    (
        "clones a claim made anew, whose volume belongs to the former",
        |w| {
            clone_source(w);
            w.claim(json!({"metadata": {"name": "source", "uid": "uid-anew"},
                "spec": {"volumeName": "pv", "dataSourceRef": null}, "status": {"phase": "Bound"}}));
        },
    ),
];

fn only(node: &str) -> Value {
    let expression = json!({"key": "topology.rootcellar.dev/node", "values": [node]});
    json!([{"matchLabelExpressions": [expression]}])
}

fn clone_source(world: &mut World) {
    world.claim(json!({"spec": {"dataSourceRef": {"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "source"}}}));
}

/// Proves: F5.
#[test]
fn a_claim_that_no_node_can_provision_gets_an_event() {
    let cases: [Change; 9] = [
        ("SourceNodeGone", |w| drop(w.view.nodes.remove(HERE))),
        ("SourceNodeGone", |w| {
            // Another node that carries the label of the lost one has none of its data.
            w.view.nodes.remove(HERE);
            w.node(OTHER, &json!({"topology.rootcellar.dev/node": HERE}));
        }),
        ("ClassExcludesNode", |w| w.class(&only(OTHER))),
        ("NoRoomOnNode", |w| w.free("1023Mi")),
        ("PoolOnTwoNodes", |w| w.volume("copy", w.pool, OTHER, "x")),
        ("PoolOnTwoNodes", |w| {
            w.volume("copy", w.pool, OTHER, "x");
            clone_source(w);
        }),
        ("SourceUnknown", |w| {
            w.view.volumes.clear();
            w.content(json!({"metadata": {"labels": null}}));
        }),
        ("MalformedHandle", |w| {
            w.content(json!({"status": {"snapshotHandle": "s1-../../etc"}}));
        }),
        ("MalformedHandle", |w| {
            // The id of a volume is none of a snapshot.
            let volume = VolumeId::new(w.pool, &"pv".parse().unwrap()).to_string();
            w.content(json!({"status": {"snapshotHandle": volume}}));
        }),
    ];
    for (reason, change) in cases {
        let mut world = World::new();
        world.functions.label = false;
        change(&mut world);
        assert_eq!(world.steps(), [reason]);
        assert!(world.after(60).steps().is_empty(), "{reason} is news once");
        assert_eq!(
            world.after(30 * 60).steps(),
            [reason],
            "and again after half an hour"
        );
    }
    let mut world = World::new();
    world.class(&only(HERE));
    world.free("1Gi");
    assert_eq!(
        world.steps(),
        ["select node1"],
        "allowed, and just enough room"
    );
}

/// Proves: F5.
#[test]
fn the_volumes_of_a_pool_name_its_node_before_a_label() {
    let mut world = World::new();
    world.content(
        json!({"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": OTHER}}}),
    );
    assert_eq!(world.steps(), ["select node1", "LabelOfOtherNode"]);

    let mut world = World::new();
    world.view.volumes.clear();
    assert_eq!(
        world.steps(),
        ["select node1"],
        "the label of a pool without volumes"
    );

    let mut world = World::new();
    world.volume("old", world.pool, "node9", "x");
    assert_eq!(
        world.steps(),
        ["select node1"],
        "a volume of a lost node does not count"
    );
}

/// Proves: F4.
#[test]
fn the_name_of_another_node_stands_for_ten_seconds() {
    let mut world = World::new();
    world.selects(OTHER);
    assert!(world.steps().is_empty());
    assert_eq!(world.due().next, Some(world.now + Duration::from_secs(10)));
    assert!(world.after(9).steps().is_empty());
    assert_eq!(world.after(1).steps(), ["select node1"]);

    let mut world = World::new();
    world.selects(OTHER);
    assert!(world.after(8).steps().is_empty());
    world.selects("");
    assert_eq!(
        world.steps(),
        ["select node1"],
        "at once when its provisioner returned the claim"
    );

    let mut world = World::new();
    world.selects("node9");
    assert_eq!(
        world.steps(),
        ["select node1 if absent"],
        "the API server is asked, because caches are late"
    );
}

/// Proves: F4.
#[test]
fn writes_of_one_claim_back_off_to_five_minutes() {
    let mut world = World::new();
    let mut waits = Vec::new();
    for _ in 0..9 {
        assert_eq!(world.steps(), ["select node1"]);
        let next = world.due().next.unwrap();
        waits.push((next - world.now).as_secs());
        world.now = next.checked_sub(Duration::from_millis(1)).unwrap();
        assert!(world.steps().is_empty());
        world.now = next;
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    world
        .view
        .claims
        .remove(&("shop".to_owned(), "new".to_owned()));
    assert!(world.steps().is_empty());
    world.claim(json!({"metadata": {"uid": "uid-anew"}}));
    assert_eq!(
        world.steps(),
        ["select node1"],
        "a claim made anew begins anew"
    );
}

/// Proves: F3, F8.
#[test]
fn a_write_that_did_not_land_is_judged_again_soon() {
    for (outcome, seconds) in [(Outcome::Changed, 1), (Outcome::Unanswered, 5)] {
        let mut world = World::new();
        for _ in 0..5 {
            assert_eq!(world.steps(), ["select node1"]);
            let retry = world.memory.ended("uid-new", outcome, world.now);
            assert_eq!(retry, Some(world.now + Duration::from_secs(seconds)));
            assert!(world.steps().is_empty());
            world.after(seconds);
        }
    }
    let mut world = World::new();
    assert_eq!(world.steps(), ["select node1"]);
    assert_eq!(
        world.memory.ended("uid-new", Outcome::Refused, world.now),
        None
    );
    assert_eq!(world.after(5).steps(), ["select node1"]);
    assert!(
        world.after(5).steps().is_empty(),
        "a refusal backs off as a write"
    );
}

/// Proves: F6.
#[test]
fn a_content_without_a_label_gets_the_node_of_its_pool() {
    let none = json!({"metadata": {"labels": null}});
    let mut world = World::new();
    world.functions.steer = false;
    world.content(none.clone());
    assert_eq!(world.steps(), ["label node1"]);
    world.untaken(SignedDuration::from_mins(5), none.clone());
    assert_eq!(world.after(5).steps(), ["label node1"]);
    world.functions.label = false;
    assert!(world.after(600).steps().is_empty(), "switched off");

    let long = format!("{}.example", "n".repeat(60));
    let mut world = World::new();
    world.functions.steer = false;
    world.node(&long, &json!({}));
    let place = world.view.nodes[&long].place.clone();
    world.volume("pv", world.pool, &place, "source");
    world.content(none);
    assert_eq!(world.steps(), ["NodeNameTooLong"]);
}

/// Proves: F6.
#[test]
fn a_label_is_never_changed() {
    for label in ["node1", "node2", "node9", ""] {
        let mut world = World::new();
        world.functions.steer = false;
        world.content(
            json!({"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": label}}}),
        );
        let expected: &[&str] = if label == HERE {
            &[]
        } else {
            &["LabelOfOtherNode"]
        };
        assert_eq!(world.steps(), expected, "{label:?}");
    }
}

/// Proves: F7.
#[test]
fn a_snapshot_that_was_not_taken_for_an_hour_is_not_taken_now() {
    let (old, young) = (SignedDuration::from_mins(61), SignedDuration::from_mins(59));
    let none = json!({"metadata": {"labels": null}});
    let mut world = World::new();
    world.functions.steer = false;
    world.untaken(old, none.clone());
    assert_eq!(world.steps(), ["SnapshotTooOld"]);
    world.untaken(
        old,
        json!({"metadata": {"labels": null, "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    assert_eq!(
        world.steps(),
        ["label node1"],
        "its deletion needs the node"
    );

    let mut world = World::new();
    world.functions.steer = false;
    world.untaken(young, none.clone());
    world.view.nodes.remove(HERE);
    assert_eq!(world.steps(), ["SourceNodeGone"]);
    world.untaken(old, none.clone());
    world.node(HERE, &json!({}));
    assert_eq!(
        world.steps(),
        ["label node1"],
        "it was young when it was first seen"
    );

    let mut world = World::new();
    world.functions = Functions {
        steer: false,
        label: true,
        label_old: true,
    };
    world.untaken(old, none);
    assert_eq!(world.steps(), ["label node1"], "the switch says so");
}

/// Proves: F8.
#[test]
fn a_malformed_object_of_snapshots_hides_no_other() {
    let world = World::new();
    let broken = [
        json!({"spec": {"driver": 7}}),
        json!({"spec": {"driver": "csi.rootcellar.dev", "source": []}}),
        json!({"spec": null}),
        json!({}),
    ];
    for fields in broken {
        let mut object = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "broken"}});
        merge(&mut object, fields);
        let object = serde_json::from_value(object).unwrap();
        assert!(Content::read(&object, &world.driver).is_none());
        assert!(Snapshot::read(&object).is_none());
    }
}

/// The API server refuses an event whose message has more than 1,024 bytes.
#[test]
fn the_longest_report_fits_an_event() {
    let long = "n".repeat(253);
    let nodes = vec![long; 9];
    let pool = PoolId::random();
    let report = Report::PoolOnTwoNodes { pool, nodes };
    assert!(
        report.to_string().len() <= 1024,
        "{}",
        report.to_string().len()
    );
}
