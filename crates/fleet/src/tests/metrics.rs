//! The metrics of the controller, and their reference in docs/metrics.md.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::status::{Status, metrics};

/// A status of which every metric has a value.
fn full() -> Status {
    let node = |name: &str, exists: bool| {
        json!({"name": name, "exists": exists, "startup_taint": exists, "persistent_volumes": 3, "kept_releases": 2,
            "version": null, "problem": null, "pools": []})
    };
    let status = json!({"nodes": [node(HERE, true), node(OTHER, false)], "pages_read": true, "compared": 60,
        "differences": [{"reason": "PoolOnTwoPages", "node": HERE, "object": "default"}],
        "counts": {"PoolOnTwoPages": 1}, "unread": {"persistentvolumes": 1}});
    serde_json::from_value(status).unwrap()
}

#[test]
fn every_metric_has_its_row_in_the_reference() {
    let page = metrics(&full()).unwrap();
    // A family without a value in the status above would be missing.
    let registered = include_str!("../status.rs")
        .matches("registry.register(")
        .count();
    assert_eq!(page.matches("# TYPE ").count(), registered, "{page}");
    page::reference::check(&page, "controller").unwrap();
}

/// The series with this name, and their values by the label `node`.
fn series(world: &World, name: &str) -> BTreeMap<String, String> {
    let text = metrics(&Status::of(&world.view, world.now)).unwrap();
    let prefix = format!("rootcellar_fleet_{name}{{node=\"");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    let parts = lines.filter_map(|line| line.split_once("\"} "));
    parts
        .map(|(node, value)| (node.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_volumes_of_an_absent_node_are_counted_under_its_name() {
    let mut world = World::new();
    let name = "absent_node_volumes";
    assert!(series(&world, name).is_empty(), "no node is absent");
    world.volume("pv2", world.pool, "missing", "other");
    world.volume("pv3", world.pool, "missing", "third");
    world.volume("pv4", world.pool, "also-missing", "fourth");
    let expected = [("also-missing", "1"), ("missing", "2")];
    let expected = expected.map(|(node, count)| (node.to_owned(), count.to_owned()));
    assert_eq!(series(&world, name), expected.clone().into());
    // A node whose label has the name is the node.
    world.node(
        "renamed",
        &json!({"topology.rootcellar.dev/node": "missing"}),
    );
    assert_eq!(
        series(&world, name),
        expected[..1].iter().cloned().collect()
    );
}

/// Without the key nobody reads the pages, so no page is silent.
#[test]
fn a_page_counts_as_silent_only_after_the_pages_have_been_read() {
    let mut world = World::new();
    assert!(series(&world, "page_answers").is_empty());
    world.view.pages_read = true;
    let silent = series(&world, "page_answers");
    let nodes: BTreeSet<&str> = silent.keys().map(String::as_str).collect();
    assert_eq!(nodes, [HERE, OTHER].into());
    assert!(silent.values().all(|value| value == "0"), "{silent:?}");
}
