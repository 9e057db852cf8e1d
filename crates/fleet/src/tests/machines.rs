//! The nodes on which the driver is to run, and the machines that the controller remembers.

use super::lost::lost;
use super::*;
use crate::machines::changes;
use crate::objects::DriverSet;

fn set(spec: Value) -> DriverSet {
    let mut set = json!({"spec": {"template": {"metadata": {"labels": {"app.kubernetes.io/name": "rootcellar"}}, "spec": {}}}});
    merge(&mut set["spec"]["template"]["spec"], spec);
    DriverSet::read(object(&set)).unwrap()
}

/// A term of a required affinity for nodes.
fn term(term: &Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [term]}}}})
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    term(&json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
}

/// Proves: F9.
#[test]
fn a_daemon_set_selects_the_nodes_that_kubernetes_selects() {
    let node = json!({"metadata": {"name": "new", "labels": {"disks": "yes", "cpus": "8"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
            {"key": "soft", "value": "v", "effect": "PreferNoSchedule"},
            {"key": "hard", "value": "v", "effect": "NoSchedule"}]}});
    let node = Node::read(object(&node), &World::empty().driver).unwrap();
    let all = json!({"tolerations": [{"operator": "Exists"}]});
    let with_all = |spec: Value| {
        let mut both = all.clone();
        merge(&mut both, spec);
        both
    };
    let cases = [
        (with_all(json!({})), true),
        (json!({}), false),
        (
            json!({"tolerations": [{"key": "hard", "operator": "Exists"}]}),
            true,
        ),
        (
            json!({"tolerations": [{"key": "hard", "value": "v", "effect": "NoSchedule"}]}),
            true,
        ),
        (
            json!({"tolerations": [{"key": "hard", "value": "w"}]}),
            false,
        ),
        (
            json!({"tolerations": [{"key": "hard", "operator": "Exists", "effect": "NoExecute"}]}),
            false,
        ),
        (with_all(json!({"nodeSelector": {"disks": "yes"}})), true),
        (with_all(json!({"nodeSelector": {"disks": "no"}})), false),
        (with_all(expression("disks", "In", &["no", "yes"])), true),
        (with_all(expression("disks", "In", &["no"])), false),
        (with_all(expression("disks", "NotIn", &["yes"])), false),
        (with_all(expression("other", "NotIn", &["yes"])), true),
        (with_all(expression("disks", "Exists", &[])), true),
        (with_all(expression("disks", "DoesNotExist", &[])), false),
        (with_all(expression("cpus", "Gt", &["4"])), true),
        (with_all(expression("cpus", "Lt", &["4"])), false),
        (with_all(expression("disks", "Gt", &["4"])), false),
        (with_all(expression("disks", "Sounds", &["like"])), true),
        (
            with_all(term(
                &json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["new"]}]}),
            )),
            true,
        ),
        (
            with_all(term(
                &json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["old"]}]}),
            )),
            false,
        ),
        (with_all(term(&json!({}))), false),
    ];
    for (spec, selects) in cases {
        assert_eq!(set(spec.clone()).selects(&node), selects, "{spec}");
    }
}

/// Proves: F9.
#[test]
fn an_unreadable_daemon_set_of_the_driver_selects_every_node() {
    let node = json!({"metadata": {"name": "new"}, "spec": {"taints": [{"key": "hard", "effect": "NoSchedule"}]}});
    let node = Node::read(object(&node), &World::empty().driver).unwrap();
    let foreign = json!({"spec": {"template": {"metadata": {"labels": {"app.kubernetes.io/name": "other"}}}}});
    assert!(DriverSet::read(object(&foreign)).is_none());
    let unreadable = json!({"spec": {"template": {"metadata": {"labels": {"app.kubernetes.io/name": "rootcellar"}},
        "spec": {"nodeSelector": 7}}}});
    let unreadable = DriverSet::read(object(&unreadable)).unwrap();
    assert!(unreadable.selects(&node), "it may select any node");
}

/// Proves: F9.
#[test]
fn the_machines_of_nodes_with_volumes_are_remembered() {
    let mut world = lost();
    world.machine("node2", "machine2", "system2");
    world.machine("node3", "machine3 ", "system3");
    world.machine("without-volumes", "machine4", "system4");
    let remembered = [
        (HERE, "machine1 system1"),
        ("node4", "old old"),
        ("unused", "m s"),
    ];
    let remembered = remembered.map(|(place, ids)| (place.to_owned(), ids.to_owned()));
    let found = changes(&remembered.into(), &world.view);
    let found: Vec<_> = found
        .iter()
        .map(|(place, ids)| (&**place, ids.as_deref()))
        .collect();
    assert_eq!(
        found,
        [("node2", Some("machine2 system2")), ("unused", None)]
    );
}
