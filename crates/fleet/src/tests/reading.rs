//! Objects that somebody wrote to harm others.

use kube::core::{ObjectList, WatchEvent};

use super::*;
use crate::wire::to_ascii;

/// A year that the times of other languages have, and content deeper than a parser may recurse.
fn poison() -> [String; 2] {
    let deep = format!("{}1{}", "{\"f:a\":".repeat(500), "}".repeat(500));
    [
        r#"[{"manager": "x", "time": "9999-12-31T23:59:59Z"}]"#.to_owned(),
        format!(r#"[{{"manager": "x", "fieldsV1": {deep}}}]"#),
    ]
}

/// Proves: F8.
#[test]
fn an_object_that_others_cannot_read_is_read() {
    for fields in poison() {
        let object = format!(
            r#"{{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {{"name": "new", "namespace": "shop",
                "uid": "u", "resourceVersion": "7", "creationTimestamp": "10000-01-01T00:00:00Z", "managedFields": {fields}}},
                "spec": {{"storageClassName": "fast"}}, "status": {{"conditions": [{{"lastTransitionTime": 7}}]}}}}"#
        );
        let list = format!(
            r#"{{"kind": "List", "apiVersion": "v1", "metadata": {{}}, "items": [{object}, {object}]}}"#
        );
        let list: ObjectList<Object> = serde_json::from_str(&list).unwrap();
        let event = format!(r#"{{"type": "DELETED", "object": {object}}}"#);
        let event: WatchEvent<Object> = serde_json::from_str(&event).unwrap();
        let WatchEvent::Deleted(deleted) = event else {
            panic!("{event:?}");
        };
        for found in list.items.into_iter().chain([deleted]) {
            let claim = Claim::read(found).unwrap();
            assert_eq!(
                (&*claim.identity.name, &*claim.identity.version),
                ("new", "7")
            );
        }
    }
}

/// The API server stores and sends such bytes in managedFields.
///
/// Proves: F8.
#[test]
fn an_answer_that_is_no_text_becomes_one() {
    let object = b"{\"metadata\": {\"name\": \"new\", \"managedFields\": [{\"f:\xff\xc3\": 1}]}}";
    for cut in 0..object.len() {
        let (first, last) = object.split_at(cut);
        let parts = [first, last].map(|part| to_ascii(part.to_vec().into()));
        let found: Object = serde_json::from_slice(&parts.concat()).unwrap();
        assert_eq!(found.meta.name.as_deref(), Some("new"));
    }
}

/// Proves: F8.
#[test]
fn a_malformed_object_is_none_and_hides_no_other() {
    let world = World::new();
    let broken = [
        json!({"spec": {"driver": 7}}),
        json!({"spec": {"driver": "csi.rootcellar.dev", "source": []}}),
        json!({"spec": null, "status": 1}),
        json!({"metadata": {"name": "bare"}}),
        json!({}),
    ];
    for fields in broken {
        assert!(Claim::read(object(&fields)).is_none());
        assert!(Volume::read(object(&fields), &world.driver).is_none());
        assert!(Class::read(object(&fields), &world.driver).is_none());
        assert!(Capacity::read(object(&fields), &world.driver).is_none());
        assert!(SnapshotContent::read(object(&fields), &world.driver).is_none());
        assert!(Snapshot::read(object(&fields)).is_none());
    }
}

/// The texts of others are kept only if they can be names, so they fill neither the memory nor a path nor the log.
///
/// Proves: F8.
#[test]
fn a_name_that_no_node_can_have_counts_as_none() {
    let long = "n".repeat(254);
    for name in [
        "../persistentvolumes",
        "?watch=true",
        "x#\n2026 INFO wrote",
        "..",
        "a/b",
        &long,
    ] {
        let mut world = World::new();
        world.selects(name);
        assert_eq!(world.steps(), ["select node1"], "{name:?}");
    }
    let mut world = World::new();
    world.claim(json!({"spec": {"dataSourceRef": {"name": long}}}));
    assert!(world.steps().is_empty(), "no object has a name so long");
}

/// The API server refuses an event whose message has more than 1,024 bytes.
#[test]
fn the_longest_report_fits_an_event() {
    let long = || "n".repeat(253);
    let (class, node, size) = (long(), long(), objects::Bytes(u64::MAX));
    let reports = [
        Report::PoolOnTwoNodes {
            nodes: [long(), long()],
        },
        Report::Steered {
            node: long(),
            instead_of: long().parse().ok(),
        },
        Report::OtherNode {
            label: long(),
            node: long(),
        },
        Report::NodeFull {
            class,
            node,
            size,
            free: size,
        },
    ];
    for report in reports {
        let text = report.to_string();
        assert!(text.len() <= 1024, "{} bytes: {text}", text.len());
    }
}
