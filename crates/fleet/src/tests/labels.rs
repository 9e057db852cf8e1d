//! Contents and their labels.

use super::*;

/// Proves: F6.
#[test]
fn a_content_without_a_label_gets_the_node_of_its_pool() {
    let bare = json!({"metadata": {"labels": null}});
    let mut world = World::new();
    world.settings.functions.steer = false;
    world.content(bare.clone());
    assert_eq!(world.steps(), ["label node1"]);
    world.untaken(SignedDuration::from_mins(5), bare.clone());
    assert_eq!(world.after(5).steps(), ["label node1"]);
    world.settings.functions.label = false;
    assert!(world.after(600).steps().is_empty(), "switched off");

    let long = format!("{}.example", "n".repeat(60));
    let mut world = World::new();
    world.settings.functions.steer = false;
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
        world.settings.functions.steer = false;
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

/// Proves: F6.
#[test]
fn a_snapshot_of_a_volume_that_was_moved_is_taken_on_its_node() {
    let mut world = World::new();
    world.settings.functions.steer = false;
    world.volume("pv", world.pool, OTHER, "source");
    world.volume("stayed", world.pool, HERE, "x");
    let bare = json!({"metadata": {"labels": null}});
    world.untaken(SignedDuration::from_mins(5), bare.clone());
    assert_eq!(world.steps(), ["label node2"]);
    world.view.volumes.remove("pv");
    world.untaken(SignedDuration::from_mins(5), bare);
    assert_eq!(world.after(60).steps(), ["SourceUnknown"]);
}

/// An object that a move of its disk left behind has the handle of the one that replaced it.
///
/// Proves: F5.
#[test]
fn two_volumes_with_one_handle_name_no_node() {
    for name in ["an-old-one", "zz-old"] {
        let mut world = World::new();
        world.settings.functions.steer = false;
        let mut old = world.view.volumes["pv"].clone();
        old.place = OTHER.into();
        world.view.volumes.insert(name.into(), old);
        world.untaken(
            SignedDuration::from_mins(1),
            json!({"metadata": {"labels": null}}),
        );
        let steps = world.due().steps;
        let reports: Vec<_> = steps.iter().map(|step| step.report.clone()).collect();
        let nodes = [HERE, OTHER].map(str::to_owned);
        assert_eq!(reports, [Some(Report::PoolOnTwoNodes { nodes })], "{name}");
        let note = reports[0].as_ref().map(Report::to_string).unwrap();
        let id = world.pool.to_string();
        assert!(
            !note.contains(&id) && !note.contains(&id.replace('-', "")),
            "a tenant may read it: {note}"
        );
    }
}

/// Proves: F7.
#[test]
fn a_snapshot_that_was_not_taken_for_an_hour_is_not_taken_now() {
    let (old, young) = (SignedDuration::from_mins(61), SignedDuration::from_mins(59));
    let bare = json!({"metadata": {"labels": null}});
    let mut world = World::new();
    world.settings.functions.steer = false;
    world.untaken(old, bare.clone());
    assert_eq!(world.steps(), ["SnapshotTooOld"]);
    // A deletion needs the node, but it may also be one that takes the snapshot first.
    let being = "snapshot.storage.kubernetes.io/volumesnapshot-being-";
    let deletions = [
        (json!({}), "SnapshotTooOld"),
        (json!({format!("{being}deleted"): "yes"}), "label node1"),
        (
            json!({format!("{being}deleted"): "yes", format!("{being}created"): "yes"}),
            "SnapshotTooOld",
        ),
    ];
    for (annotations, expected) in deletions {
        let mut world = World::new();
        world.settings.functions.steer = false;
        world.untaken(
            old,
            json!({"metadata": {"labels": null, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": annotations}}),
        );
        assert_eq!(world.steps(), [expected], "{annotations}");
    }
    let mut world = World::new();
    world.settings.functions.steer = false;
    world.untaken(young, bare.clone());
    assert_eq!(world.steps(), ["label node1"]);

    // A content from the future is one whose age nobody knows.
    let mut world = World::new();
    world.settings.functions.steer = false;
    world.untaken(-old, bare.clone());
    assert_eq!(world.steps(), ["SnapshotTooOld"]);

    let mut world = World::new();
    world.settings.functions.steer = false;
    world.settings.functions.label_old = true;
    world.untaken(old, bare);
    assert_eq!(world.steps(), ["label node1"], "the switch says so");
}
