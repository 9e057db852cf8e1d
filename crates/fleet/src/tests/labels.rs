//! Contents and their labels.

use super::*;

/// Proves: F6.
#[test]
fn a_content_without_a_label_gets_the_node_of_its_pool() {
    let bare = json!({"metadata": {"labels": null}});
    let mut world = World::new();
    world.functions.steer = false;
    world.content(bare.clone());
    assert_eq!(world.steps(), ["label node1"]);
    world.untaken(SignedDuration::from_mins(5), bare.clone());
    assert_eq!(world.after(5).steps(), ["label node1"]);
    world.functions.label = false;
    assert!(world.after(600).steps().is_empty(), "switched off");

    let long = format!("{}.example", "n".repeat(60));
    let mut world = World::new();
    world.functions.steer = false;
    world.node(&long, &json!({}));
    let place = world.view.nodes[&long].place.clone();
    world.volume("pv", world.pool, &place, "source");
    world.content(bare);
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
    let bare = json!({"metadata": {"labels": null}});
    let mut world = World::new();
    world.functions.steer = false;
    world.untaken(old, bare.clone());
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

    // Its node is away until the snapshot would be as late as an old one.
    for (minutes, expected) in [(59, "label node1"), (61, "SnapshotTooOld")] {
        let mut world = World::new();
        world.functions.steer = false;
        world.untaken(young, bare.clone());
        let node = world.view.nodes.remove(HERE).unwrap();
        assert_eq!(world.steps(), ["SourceNodeGone"]);
        world.view.nodes.insert(HERE.into(), node);
        assert_eq!(world.after(minutes * 60).steps(), [expected]);
    }

    // A content from the future is one whose age nobody knows.
    let mut world = World::new();
    world.functions.steer = false;
    world.untaken(-old, bare.clone());
    assert_eq!(world.steps(), ["SnapshotTooOld"]);

    let mut world = World::new();
    world.functions = Functions {
        steer: false,
        label: true,
        label_old: true,
    };
    world.untaken(old, bare);
    assert_eq!(world.steps(), ["label node1"], "the switch says so");
}
