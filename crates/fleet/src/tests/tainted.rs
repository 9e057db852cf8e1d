//! Nodes that start with a taint, and lose it.

use super::*;
use crate::objects::{Pod, Registration};

const TAINT: &str = "csi.rootcellar.dev/agent-not-ready";
pub(super) const POD: &str = "rootcellar-x";

/// [`HERE`] starts with the taint and with others, and its driver is ready. A class waits for its consumer.
fn ready() -> World {
    let mut world = World::empty();
    let functions = &mut world.settings.functions;
    (functions.steer, functions.label, functions.untaint) = (false, false, true);
    world.tainted(&[taint(TAINT, "NoSchedule"), taint("a/b", "NoExecute")]);
    world.binding("fast", "WaitForFirstConsumer");
    world.pod(json!({}));
    world.registration("csi.rootcellar.dev", "uid-node1");
    world.capacity("fast", "uid-pod");
    world
}

fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "value": "x", "effect": effect, "timeAdded": "2026-11-26T16:33:00Z"})
}

impl World {
    fn tainted(&mut self, taints: &[Value]) {
        let node = json!({"metadata": {"name": HERE, "uid": "uid-node1", "resourceVersion": "7"},
            "spec": {"taints": taints}});
        let node = Node::read(object(&node), &self.driver).unwrap();
        self.view.nodes.insert(HERE.into(), node);
    }

    fn binding(&mut self, name: &str, mode: &str) {
        let class = json!({"metadata": {"name": name}, "provisioner": "csi.rootcellar.dev",
            "volumeBindingMode": mode});
        let class = Class::read(object(&class), &self.driver).unwrap();
        self.view.classes.insert(name.into(), class);
    }

    /// The driver's pod with other fields.
    pub(super) fn pod(&mut self, other: Value) {
        let mut pod = json!({"metadata": {"namespace": "rootcellar-system", "name": POD, "uid": "uid-pod",
                "labels": {"app.kubernetes.io/name": "rootcellar"}},
            "spec": {"nodeName": HERE, "containers": [{"ports": [{"name": "http", "containerPort": 9808}]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        merge(&mut pod, other);
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let key = ("rootcellar-system".to_owned(), uid.replace("uid-pod", POD));
        self.view.pods.insert(key, Pod::read(object(&pod)).unwrap());
    }

    fn registration(&mut self, driver: &str, node: &str) {
        let found = json!({"metadata": {"name": HERE,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": HERE, "uid": node}]},
            "spec": {"drivers": [{"name": "other", "nodeID": "x", "topologyKeys": null},
                {"name": driver, "nodeID": HERE, "topologyKeys": ["topology.rootcellar.dev/node"]}]}});
        match Registration::read(object(&found), &self.driver) {
            Some(found) => self.view.registrations.insert(HERE.into(), found),
            None => self.view.registrations.remove(HERE),
        };
    }

    /// A capacity that a pod has reported.
    fn capacity(&mut self, class: &str, pod: &str) {
        let capacity = json!({"metadata": {"name": "c", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": POD, "uid": pod, "controller": true}]},
            "storageClassName": class, "capacity": "0",
            "nodeTopology": {"matchLabels": {"topology.rootcellar.dev/node": HERE}}});
        let capacity = Capacity::read(object(&capacity), &self.driver).unwrap();
        let key = ("system".to_owned(), format!("{class}-{pod}"));
        self.view.capacities.insert(key, capacity);
    }
}

/// Proves: F14.
#[test]
fn a_node_whose_driver_is_ready_loses_the_startup_taint_alone() {
    let other = taint("a/b", "NoExecute");
    let cases = [
        (vec![taint(TAINT, "NoSchedule")], Some(vec![])),
        (
            vec![
                other.clone(),
                taint(TAINT, "NoExecute"),
                taint(TAINT, "NoSchedule"),
            ],
            Some(vec![other.clone()]),
        ),
        (vec![other.clone()], None),
        (vec![taint("csi.rootcellar.dev/other", "NoSchedule")], None),
        (vec![taint("other/agent-not-ready", "NoSchedule")], None),
        (vec![], None),
    ];
    for (taints, rest) in cases {
        let mut world = ready();
        world.tainted(&taints);
        let steps = world.due().steps;
        let Some(rest) = rest else {
            assert!(steps.is_empty(), "{taints:?}");
            continue;
        };
        assert_eq!(steps.len(), 1, "{taints:?}");
        let change = steps[0].change.clone();
        let key = TAINT.to_owned();
        assert_eq!(change, Some(Change::RemoveTaint { key, rest }));
        let object = &steps[0].about.object;
        assert_eq!((&*object.uid, &*object.version), ("uid-node1", "7"));
    }
    let mut world = ready();
    world.settings.functions.untaint = false;
    assert!(world.steps().is_empty(), "switched off");
}

/// Proves: F14.
#[test]
fn a_node_keeps_the_taint_until_its_driver_is_ready_and_says_why() {
    let cases: &[Case] = &[
        ("no pod of the driver", |w| w.view.pods.clear()),
        ("no pod of the driver", |w| {
            w.pod(json!({"spec": {"nodeName": OTHER}}));
        }),
        (
            "kubectl describe pod -n rootcellar-system rootcellar-x`",
            |w| {
                w.pod(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
            },
        ),
        ("is not ready", |w| {
            w.pod(json!({"metadata": {"deletionTimestamp": "2026-11-26T16:33:00Z"}}));
        }),
        ("is not ready", |w| {
            w.pod(json!({"status": {"conditions": []}}));
        }),
        (
            "kubectl logs -n rootcellar-system rootcellar-x -c node-driver-registrar`",
            |w| {
                w.view.registrations.clear();
            },
        ),
        ("has not registered", |w| {
            w.registration("other", "uid-node1");
        }),
        // An earlier node had this name.
        ("has not registered", |w| {
            w.registration("csi.rootcellar.dev", "uid-old");
        }),
        (
            "for class fast: `kubectl logs -n rootcellar-system rootcellar-x -c csi-provisioner`",
            |w| {
                w.view.capacities.clear();
            },
        ),
        ("for class fast", |w| {
            w.view.capacities.clear();
            w.capacity("fast", "uid-pod-old");
        }),
        ("for class slow", |w| {
            w.binding("slow", "WaitForFirstConsumer");
        }),
    ];
    for (expected, change) in cases {
        let mut world = ready();
        change(&mut world);
        assert!(world.steps().is_empty(), "{expected}: not yet");
        assert!(world.after(299).steps().is_empty(), "{expected}: not yet");
        let due = world.after(1).due();
        let note = due.steps[0].report.as_ref().unwrap().to_string();
        assert!(note.contains(expected) && note.contains(TAINT), "{note}");
        assert!(due.steps[0].change.is_none(), "{note}");
        assert!(world.after(600).steps().is_empty(), "{expected}: once");
        world.view.pods.clear();
        world.pod(json!({}));
        world.registration("csi.rootcellar.dev", "uid-node1");
        world.binding("slow", "Immediate");
        world.capacity("fast", "uid-pod");
        assert_eq!(world.steps(), ["untaint node1"], "{expected}");
    }
}

/// Proves: F14.
#[test]
fn a_class_that_does_not_wait_needs_no_capacity_and_one_ready_pod_is_enough() {
    let cases: &[Case] = &[
        ("an Immediate class", |w| w.binding("now", "Immediate")),
        ("no class", |w| {
            w.view.classes.clear();
            w.view.capacities.clear();
        }),
        ("two pods during an update", |w| {
            w.pod(json!({"metadata": {"uid": "uid-pod-old", "deletionTimestamp": "2026-11-26T16:33:00Z"}}));
        }),
        (
            "a capacity of an earlier pod next to that of this one",
            |w| {
                w.capacity("fast", "uid-pod-old");
            },
        ),
    ];
    for (case, change) in cases {
        let mut world = ready();
        change(&mut world);
        assert_eq!(world.steps(), ["untaint node1"], "{case}");
    }
}

/// Somebody else may put the taint back at once.
///
/// Proves: F14.
#[test]
fn a_taint_that_comes_back_is_removed_less_and_less_often() {
    let mut world = ready();
    let mut removed = 0;
    for _ in 0..600 {
        removed += world.after(1).steps().len();
        world.tainted(&[]);
        assert!(world.steps().is_empty());
        world.tainted(&[taint(TAINT, "NoSchedule")]);
    }
    assert!((3..10).contains(&removed), "{removed} times in 10 minutes");
}
