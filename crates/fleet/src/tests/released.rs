//! Releases that do not go on.

use super::lost::{lost, retained};
use super::*;

/// Proves: F9.
#[test]
fn nothing_is_put_back() {
    let mut world = lost();
    world.wait(31);
    world.pv(retained());
    world.back();
    assert_eq!(world.wait(60), ["ReleaseKept"], "its node is back");

    let mut world = lost();
    world.bound(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        retained(),
    );
    world.back();
    assert_eq!(world.wait(60), ["ReleaseKept"], "the user deletes it");

    let mut world = lost();
    world.pv(retained());
    world.class(&json!(null));
    assert_eq!(
        world.wait(60),
        ["ReleaseKept"],
        "its class does not ask for it any more"
    );

    let mut world = lost();
    let mut released = retained();
    merge(&mut released, json!({"status": {"phase": "Released"}}));
    world.pv(released);
    world.view.claims.clear();
    world.back();
    assert_eq!(world.wait(60), ["ReleaseKept"], "its claim was deleted");
}

/// An annotation of an earlier version names no claim.
///
/// Proves: F9.
#[test]
fn a_volume_with_another_claim_is_not_the_controllers_any_more() {
    let rescue = json!({"spec": {"claimRef": {"name": "rescue", "uid": "uid-rescue"}}});
    let before = json!({"metadata": {"annotations": {"rootcellar.dev/policy-before-release": "Delete"}},
        "spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    for (change, phase, is_back, steps) in [
        (&rescue, "Bound", true, &[][..]),
        (&rescue, "Released", false, &[]),
        (&rescue, "Released", true, &[]),
        (&before, "Bound", true, &["ReleaseKept"]),
        (&before, "Bound", false, &["ReleaseKept"]),
        (&before, "Released", false, &["ReleaseKept"]),
        (&before, "Released", true, &["ReleaseKept"]),
    ] {
        let mut world = lost();
        let mut fields = if change == &rescue {
            retained()
        } else {
            json!({})
        };
        merge(&mut fields, change.clone());
        merge(&mut fields, json!({"status": {"phase": phase}}));
        world.pv(fields);
        world.claim(json!({"metadata": {"name": "rescue"}, "spec": {"volumeName": "pv", "dataSourceRef": null},
            "status": {"phase": "Bound"}}));
        if is_back {
            world.back();
        }
        // The class releases claims, so that of the rescue is released too, in the end; its data stays.
        let found = world.wait(45);
        let found: Vec<_> = found
            .iter()
            .filter(|step| *step != "delete rescue")
            .collect();
        assert_eq!(found, steps, "{change} {phase}, back: {is_back}");
    }
}

/// A lost node with a claim of another tenant.
fn two_lost() -> World {
    let mut world = lost();
    let mut second = world.view.volumes["pv"].clone();
    second.place = "node2".into();
    second.identity.name = "second".into();
    second.identity.uid = "uid-second".into();
    second.claim = serde_json::from_value(
        json!({"namespace": "bank", "name": "data-db-1", "uid": "uid-data-db-1"}),
    )
    .unwrap();
    world.view.volumes.insert("second".into(), second);
    world.view.nodes.remove("node2");
    world.view.volumes.remove("pv-node2");
    let claim = json!({"metadata": {"namespace": "bank", "name": "data-db-1", "uid": "uid-data-db-1", "resourceVersion": "1"},
        "spec": {"storageClassName": "fast", "volumeName": "second"}, "status": {"phase": "Bound"}});
    let key = ("bank".into(), "data-db-1".into());
    let claim = Claim::read(object(&claim)).unwrap();
    world.view.claims.insert(key, claim);
    world
}

/// Proves: F8, F9.
#[test]
fn a_release_that_cannot_go_on_delays_no_other_node() {
    let cases: [Case; 3] = [
        ("held", |w| {
            w.bound(
                json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "me/too"]}}),
                retained(),
            );
        }),
        ("in deletion", |w| {
            w.bound(
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["me/too"]}}),
                retained(),
            );
        }),
        ("without a pod that waits", |w| w.pv(retained())),
    ];
    for (claim, change) in cases {
        let mut world = two_lost();
        change(&mut world);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..60 {
            world.after(60);
            world.read_again();
            for step in world.due().steps {
                seen.insert(step.about.object.name.clone());
                let ended = Ended {
                    releases: step.releases(),
                    begins: step.begins(),
                    report: step.change.is_none(),
                    uid: step.about.object.uid,
                    outcome: Outcome::Waits,
                    waits: None,
                };
                world.memory.ended(&ended, world.now);
            }
        }
        assert!(seen.contains("second"), "the first is {claim}: {seen:?}");
    }
}
