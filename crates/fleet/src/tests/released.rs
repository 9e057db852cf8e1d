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
                    releases: step.releases().map(str::to_owned),
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

/// Proves: F9.
#[test]
fn a_volume_that_is_found_after_its_claim_was_deleted_stays() {
    let cases: [Case; 2] = [
        ("in a pool of another node", |w| {
            let item = w.moved();
            w.page("node7", |page| page.pools[0].volumes.push(item));
        }),
        ("with the lost machine", |w| {
            w.machine("node99", "machine1", "system1");
        }),
    ];
    for (place, change) in cases {
        let mut world = lost();
        let mut released = retained();
        merge(&mut released, json!({"status": {"phase": "Released"}}));
        world.pv(released);
        world.view.claims.clear();
        change(&mut world);
        assert_eq!(world.wait(45), ["ReleaseWaits"], "{place}");
    }
}

/// Proves: F9.
#[test]
fn a_begun_release_that_stops_is_reported() {
    let cases: [(Case, &str); 4] = [
        (
            ("a finalizer of somebody else", |w| {
                let finalizers = ["kubernetes.io/pvc-protection", "me/too"];
                w.bound(json!({"metadata": {"finalizers": finalizers}}), retained());
            }),
            "ReleaseWaits",
        ),
        (
            ("a pod that holds the claim", |w| {
                let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
                w.bound(deleting, retained());
            }),
            "ReleaseWaits",
        ),
        (
            ("a node that is back without its driver", |w| {
                w.pv(retained());
                w.node(HERE, &json!({}));
            }),
            "ReleaseKept",
        ),
        (
            ("a node that has the place by its label", |w| {
                w.pv(retained());
                w.node("renamed", &json!({"topology.rootcellar.dev/node": HERE}));
            }),
            "ReleaseKept",
        ),
    ];
    for ((reason, change), report) in cases {
        let mut world = lost();
        change(&mut world);
        assert_eq!(world.wait(45), [report], "{reason}");
    }
}

/// Proves: F9.
#[test]
fn a_release_that_the_api_server_refuses_is_reported() {
    for outcome in [Outcome::Refused, Outcome::Unanswered] {
        let mut world = lost();
        world.wait(30);
        let mut reports = Vec::new();
        for _ in 0..40 {
            world.after(60).read_again();
            for step in world.due().steps {
                reports.extend(step.report.clone().filter(|_| step.change.is_none()));
                let ended = ended(step, outcome);
                world.memory.ended(&ended, world.now);
            }
        }
        let reasons: Vec<_> = reports.iter().map(Report::reason).collect();
        assert_eq!(reasons, ["ReleaseWaits", "ReleaseWaits"], "{outcome:?}");
    }
}

/// The end of a step, as the program takes note of it.
fn ended(step: Step, outcome: Outcome) -> Ended {
    let failed = step.releases().is_some() && outcome != Outcome::Done;
    Ended {
        releases: step.releases().map(str::to_owned),
        begins: step.begins(),
        report: step.change.is_none(),
        waits: failed.then(|| Report::ReleaseWaits {
            why: "refused".to_owned(),
        }),
        outcome: if step.change.is_none() {
            Outcome::Done
        } else {
            outcome
        },
        uid: step.about.object.uid,
    }
}
