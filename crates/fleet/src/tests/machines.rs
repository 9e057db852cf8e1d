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
fn a_daemon_set_selects_nodes_by_their_labels_and_names() {
    let node = json!({"metadata": {"name": "new", "labels": {"disks": "yes", "cpus": "8"}},
        "spec": {"taints": [{"key": "starting", "effect": "NoSchedule"}]}});
    let node = Node::read(object(&node), &World::empty().driver).unwrap();
    let cases = [
        (json!({}), true),
        ((json!({"nodeSelector": {"disks": "yes"}})), true),
        ((json!({"nodeSelector": {"disks": "no"}})), false),
        ((expression("disks", "In", &["no", "yes"])), true),
        ((expression("disks", "In", &["no"])), false),
        ((expression("disks", "NotIn", &["yes"])), false),
        ((expression("other", "NotIn", &["yes"])), true),
        ((expression("disks", "Exists", &[])), true),
        ((expression("disks", "DoesNotExist", &[])), false),
        ((expression("cpus", "Gt", &["4"])), true),
        ((expression("cpus", "Lt", &["4"])), false),
        ((expression("disks", "Gt", &["4"])), false),
        ((expression("disks", "Sounds", &["like"])), true),
        (
            (term(
                &json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["new"]}]}),
            )),
            true,
        ),
        (
            (term(
                &json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["old"]}]}),
            )),
            false,
        ),
        ((term(&json!({}))), false),
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
    world.machine("node5", "machine5", "system5");
    world.machine("node6", "machine6", "system6");
    world.machine("node3", "machine3 ", "system3");
    world.machine("without-volumes", "machine4", "system4");
    let remembered = [
        (HERE, "machine1 system1"),
        ("node4", "old old"),
        ("node5", "old old"),
        ("node6", "old old\nmachine6 system6\nlater later"),
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
        [
            ("node2", Some("machine2 system2")),
            ("node5", Some("old old\nmachine5 system5")),
            ("unused", None)
        ]
    );
}
