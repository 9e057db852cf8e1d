//! Claims and the nodes of their sources.

use super::*;

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
        world.settings.functions.label = false;
        change(&mut world);
        assert!(world.steps().is_empty(), "a claim that {claim}");
    }
}

/// Each makes the claim one that the controller may not write.
const NOT_OURS: [Case; 19] = [
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
    ("has a snapshot recreated under the same name", |w| {
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
        "clones a recreated claim, whose volume belongs to the former",
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
    let cases: [Case; 8] = [
        ("SourceNodeGone", |w| drop(w.view.nodes.remove(HERE))),
        ("SourceNodeGone", |w| {
            // Another node that carries the label of the lost one has none of its data.
            w.view.nodes.remove(HERE);
            w.node(OTHER, &json!({"topology.rootcellar.dev/node": HERE}));
        }),
        ("ClassExcludesNode", |w| w.class(&only(OTHER))),
        ("NoRoomOnNode", |w| w.free("1023Mi")),
        ("PoolOnTwoNodes", |w| {
            w.volume("copy", w.pool, OTHER, "x");
            w.content(json!({"metadata": {"labels": null}}));
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
        world.settings.functions.label = false;
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
fn volumes_and_labels_that_contradict_each_other_name_no_node() {
    let label = |node: &str| json!({"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": node}}});
    let mut world = World::new();
    world.content(label(OTHER));
    assert_eq!(
        world.steps(),
        ["LabelOfOtherNode", "LabelOfOtherNode"],
        "claim and content"
    );

    let mut world = World::new();
    world.content(label("node9"));
    assert_eq!(
        world.steps(),
        ["select node1", "LabelOfOtherNode"],
        "no node has that name"
    );

    let mut world = World::new();
    world.view.volumes.clear();
    assert_eq!(
        world.steps(),
        ["select node1"],
        "the label of a pool without volumes"
    );

    // A volume requires its node itself.
    let mut world = World::new();
    world.settings.functions.label = false;
    world.volume("copy", world.pool, OTHER, "x");
    clone_source(&mut world);
    assert_eq!(world.steps(), ["select node1"]);

    // Of two nodes the label decides.
    let mut world = World::new();
    world.volume("copy", world.pool, OTHER, "x");
    assert_eq!(world.steps(), ["select node1"]);

    // A node may be away for a moment, and only it may have the disk.
    let mut world = World::new();
    world.settings.functions.label = false;
    world.content(json!({"metadata": {"labels": null}}));
    world.volume("copy", world.pool, "node9", "x");
    assert_eq!(world.steps(), ["PoolOnTwoNodes"]);
    let mut world = World::new();
    world.settings.functions.steer = false;
    world.volume("copy", world.pool, "node9", "x");
    world.content(json!({"metadata": {"labels": null}}));
    assert_eq!(world.steps(), ["PoolOnTwoNodes"]);
}

/// Proves: F4.
#[test]
fn many_objects_of_one_namespace_delay_no_other() {
    let mut world = World::new();
    for number in 0..100 {
        let name = format!("a-{number}");
        world.content(
            json!({"metadata": {"name": name, "uid": name, "labels": null},
            "spec": {"volumeSnapshotRef": {"namespace": "crowd"}}}),
        );
    }
    let first = world.steps();
    assert_eq!((first.len(), &*first[0]), (1 + 16, "select node1"));
    let next = world.due().next.unwrap();
    assert!(
        next - world.now < Duration::from_secs(1),
        "the others follow at once"
    );
    world.now = next;
    assert_eq!(world.steps().len(), 16);
}

/// Proves: F5.
#[test]
fn two_reports_in_turn_are_made_once_a_minute() {
    let mut world = World::new();
    world.settings.functions.label = false;
    let mut made = 0;
    for second in 0..120 {
        world.free(if second % 2 == 0 { "1Mi" } else { "2Gi" });
        world.class(&if second % 2 == 0 {
            json!(null)
        } else {
            only(OTHER)
        });
        made += world.steps().len();
        world.after(1);
    }
    assert_eq!(made, 2);
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
        "a recreated claim begins again"
    );
}

/// Proves: F3, F8.
#[test]
fn a_step_that_failed_is_done_again() {
    let ended = |report, outcome| Ended {
        releases: None,
        uid: "uid-new".into(),
        report,
        begins: false,
        outcome,
        waits: None,
    };
    for (outcome, seconds) in [(Outcome::Changed, 1), (Outcome::Unanswered, 5)] {
        let mut world = World::new();
        for _ in 0..5 {
            assert_eq!(world.steps(), ["select node1"]);
            let retry = world.memory.ended(&ended(false, outcome), world.now);
            assert_eq!(retry, Some(world.now + Duration::from_secs(seconds)));
            assert!(world.steps().is_empty());
            world.after(seconds);
        }
    }
    let mut world = World::new();
    assert_eq!(world.steps(), ["select node1"]);
    let refused = ended(false, Outcome::Refused);
    assert_eq!(world.memory.ended(&refused, world.now), None);
    assert_eq!(world.after(5).steps(), ["select node1"]);
    assert!(
        world.after(5).steps().is_empty(),
        "a refusal backs off as a write"
    );

    let mut world = World::new();
    world.free("1Mi");
    assert_eq!(world.steps(), ["NoRoomOnNode"]);
    let lost = ended(true, Outcome::Unanswered);
    let retry = world.memory.ended(&lost, world.now);
    assert_eq!(retry, Some(world.now + Duration::from_mins(1)));
    assert!(world.after(59).steps().is_empty());
    assert_eq!(world.after(1).steps(), ["NoRoomOnNode"]);
}
