//! The comparison of pages with objects, and the page of the controller.

use objects::inventory::{Inventory, Item, PoolInventory};
use objects::{Bytes, SnapshotName, VolumeName};

use super::lost::pool;
use super::*;
use crate::answer::Page;
use crate::compare::{Objects, compare};
use crate::difference::{Difference, agreed};
use crate::objects::Data;
use crate::status::{Status, metrics};

/// The description of a change, the change, and the differences.
type Expected = (&'static str, fn(&mut World), &'static [&'static str]);
type OnPage = (&'static str, fn(&mut Inventory));

pub(super) fn item<I: ObjectId<Name = N>, N: std::str::FromStr<Err: std::fmt::Debug>>(
    pool: PoolId,
    name: &str,
) -> Item<I> {
    Item {
        id: I::new(pool, &name.parse().unwrap()),
        bytes: Bytes(1 << 30),
        age: 60,
    }
}

/// [`HERE`] has the volume `pv` and the snapshot `snap` in its pool, and both have their objects.
pub(super) fn agreeing() -> World {
    let mut world = World::new();
    let id = world.pool;
    world.page(HERE, |page| {
        page.pools = vec![pool(Some(id))];
        page.pools[0].volumes = vec![item::<VolumeId, VolumeName>(id, "pv")];
        page.pools[0].snapshots = vec![item::<SnapshotId, SnapshotName>(id, "snap")];
    });
    world.page(OTHER, |_| {});
    world.pod(json!({"status": {"podIP": "10.0.0.1"}}));
    world
}

/// Complete lists without an object.
fn nothing() -> Objects {
    Objects {
        named_snapshots: Some([].into()),
        ..Objects::default()
    }
}

impl World {
    /// Changes the page of [`HERE`].
    pub(super) fn on_page(&mut self, change: impl FnOnce(&mut Inventory)) {
        let Ok(mut inventory) = self.view.pages[HERE].answer.clone() else {
            panic!("the page answers");
        };
        change(&mut inventory);
        let page = Page::new(self.now, Ok(inventory));
        self.view.pages.insert(HERE.into(), page);
    }

    pub(super) fn objects(&self) -> Objects {
        let (volumes, contents) = (self.view.volumes.values(), self.view.contents.values());
        let named = contents.clone().filter_map(|content| match content.data {
            Data::Snapshot(id) => Some(id),
            Data::Volume(_) | Data::Malformed => None,
        });
        Objects {
            named_volumes: volumes.clone().map(|volume| volume.id).collect(),
            named_snapshots: Some(named.collect()),
            volumes: volumes.cloned().collect(),
            contents: contents.cloned().collect(),
        }
    }

    pub(super) fn observe(&self) -> Vec<Difference> {
        let found = compare(&self.objects(), &self.view, true);
        agreed(&found.clone(), found)
    }

    fn reasons(&self) -> Vec<String> {
        let look = self.observe();
        look.iter()
            .map(|found| format!("{} {}", found.node, found.report.reason()))
            .collect()
    }
}

/// Proves: F12.
#[test]
fn differences_are_found_and_named() {
    for (difference, change, reasons) in DIFFERENCES {
        let mut world = agreeing();
        change(&mut world);
        assert_eq!(world.reasons(), reasons, "{difference}");
    }
}

/// Each change, and the differences that follow from it.
const DIFFERENCES: [Expected; 11] = [
    ("none", |_| {}, &[]),
    (
        "a volume without an object",
        |w| drop(w.view.volumes.remove("pv")),
        &["node1 VolumeWithoutPersistentVolume"],
    ),
    (
        "a snapshot without an object",
        |w| drop(w.view.contents.remove("content")),
        &["node1 SnapshotWithoutContent"],
    ),
    (
        "an object without a volume",
        |w| w.on_page(|page| page.pools[0].volumes.clear()),
        &["node1 PersistentVolumeWithoutVolume"],
    ),
    (
        "an object of a retired pool",
        |w| {
            let id = w.pool;
            w.on_page(|page| {
                page.pools = vec![pool(Some(PoolId::random()))];
                page.retired = vec![id];
            });
        },
        &["node1 PersistentVolumeWithoutVolume"],
    ),
    (
        "an object of a retired pool with nothing in its place",
        |w| {
            let id = w.pool;
            w.on_page(|page| {
                page.pools = vec![PoolInventory {
                    unavailable: Some("nothing is mounted".into()),
                    empty: true,
                    complete: false,
                    ..pool(None)
                }];
                page.retired = vec![id];
            });
        },
        &["node1 PersistentVolumeWithoutVolume"],
    ),
    (
        "an object of a retired pool whose disk is there again",
        |w| {
            let id = w.pool;
            w.on_page(|page| {
                page.pools = vec![PoolInventory {
                    unavailable: Some("it was retired".into()),
                    found: Some(id),
                    complete: false,
                    ..pool(None)
                }];
                page.retired = vec![id];
            });
        },
        &["node1 PersistentVolumeWithoutVolume"],
    ),
    (
        "one disk on two nodes",
        |w| {
            let id = w.pool;
            w.page(OTHER, |page| page.pools[0].found = Some(id));
        },
        &["node2 PoolOnTwoPages"],
    ),
    (
        "a disk that moved",
        |w| {
            let id = w.pool;
            w.page(OTHER, |page| page.pools[0].found = Some(id));
            w.on_page(|page| page.pools[0].unavailable = Some("nothing is mounted".into()));
        },
        &[],
    ),
    (
        "a volume that moved to another pool of the node",
        |w| {
            w.on_page(|page| {
                page.pools.push(pool(Some(PoolId::random())));
                page.pools[1].volumes = std::mem::take(&mut page.pools[0].volumes);
            });
        },
        &[],
    ),
    (
        "a snapshot that is being made",
        |w| {
            w.view.contents.clear();
            w.untaken(SignedDuration::from_mins(1), json!({}));
        },
        &[],
    ),
];

/// Another pool is in place of the first one, which was retired.
fn retire(page: &mut Inventory) {
    page.retired.extend(page.pools[0].id);
    page.pools[0].id = Some(PoolId::random());
}

/// Proves: F12.
#[test]
fn the_unknown_is_never_missing() {
    for (page, change) in UNKNOWN {
        let mut world = agreeing();
        world.on_page(|page| {
            page.pools[0].volumes.clear();
            page.pools[0].snapshots.clear();
            change(page);
        });
        assert_eq!(world.reasons(), [""; 0], "{page}");
    }
    let mut world = agreeing();
    let silent = Page::new(world.now, Err("does not answer".into()));
    world.view.pages.insert(HERE.into(), silent);
    assert!(world.observe().is_empty());
    let deletion: Value = json!({"status": {"phase": "Released"}, "spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    let mut world = agreeing();
    world.on_page(|page| page.pools[0].volumes.clear());
    world.pv(deletion);
    assert!(world.observe().is_empty(), "its deletion is under way");
}

/// Pages that may have something unseen.
const UNKNOWN: [OnPage; 10] = [
    ("a pool that is unavailable", |page| {
        page.pools[0].unavailable = Some("it is broken".into());
        page.pools[0].complete = false;
    }),
    ("a pool with something quarantined", |page| {
        page.pools[0].quarantined = 1;
    }),
    ("another pool of the node that is unavailable", |page| {
        let mut other = pool(None);
        other.complete = false;
        page.pools.push(other);
    }),
    ("a driver that loads", |page| page.loaded = false),
    ("a node without the pool", |page| page.pools.clear()),
    ("a list that is cut", |page| page.pools[0].complete = false),
    ("a retired pool and a disk that is away", |page| {
        retire(page);
        page.pools[0].unavailable = Some("nothing is mounted".into());
        page.pools[0].empty = true;
        page.pools[0].complete = false;
    }),
    ("a retired pool and a disk that hides what it is", |page| {
        retire(page);
        page.pools[0] = PoolInventory {
            unavailable: Some("it is broken".into()),
            complete: false,
            ..pool(None)
        };
    }),
    ("a retired disk in place of another one", |page| {
        retire(page);
        page.pools[0].found = Some(page.retired[0]);
        page.pools[0].unavailable = Some("its path holds another pool".into());
        page.pools[0].complete = false;
    }),
    ("a retired pool with something quarantined", |page| {
        retire(page);
        page.pools[0].quarantined = 1;
    }),
];

/// The printed command deletes data, so any object that names it counts.
///
/// Proves: F12.
#[test]
fn an_object_of_any_form_names_its_data() {
    let world = agreeing();
    let handle = VolumeId::new(world.pool, &"pv".parse().unwrap()).to_string();
    let snapshot = SnapshotId::new(world.pool, &"snap".parse().unwrap()).to_string();
    let mut objects = nothing();
    assert_eq!(compare(&objects, &world.view, true).len(), 2);
    let volume = json!({"metadata": {"name": "by-hand"}, "spec": {"csi": {"driver": "other", "volumeHandle": handle}}});
    objects.add_volume(object(&volume), &world.driver);
    assert_eq!(compare(&objects, &world.view, true).len(), 1);
    let content =
        json!({"metadata": {"name": "by-hand"}, "spec": {"source": {"snapshotHandle": snapshot}}});
    objects.add_content(object(&content), &world.driver);
    assert!(compare(&objects, &world.view, true).is_empty());
    assert!(objects.volumes.is_empty() && objects.contents.is_empty());
}

/// Proves: F12.
#[test]
fn a_difference_of_one_look_is_none() {
    let mut world = agreeing();
    let objects = nothing();
    let all = compare(&objects, &world.view, true);
    assert_eq!(all.len(), 2);
    world.on_page(|page| page.pools[0].volumes.clear());
    let later = compare(&objects, &world.view, true);
    let found = agreed(&all, later);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].report.reason(), "SnapshotWithoutContent");
}

/// Proves: F12.
#[test]
fn a_difference_has_an_event_a_metric_and_a_line_without_the_pools_id() {
    let mut world = agreeing();
    world.settings.functions.steer = false;
    world.settings.functions.label = false;
    world.view.volumes.remove("pv");
    world.view.contents.remove("content");
    world.view.differences = world.observe();
    let steps = world.due().steps;
    let notes: Vec<String> = steps
        .iter()
        .map(|step| step.report.as_ref().unwrap().to_string())
        .collect();
    let id = VolumeId::new(world.pool, &"pv".parse().unwrap());
    assert!(
        notes
            .iter()
            .any(|note| note.contains(&format!("volume delete {};; esac`", id.hash()))),
        "{notes:?}"
    );
    for note in &notes {
        assert!(!note.contains(&world.pool.0.simple().to_string()), "{note}");
    }
    assert!(world.due().steps.is_empty(), "once");
    world.view.nodes.remove(OTHER);
    world.on_page(|page| {
        let id = page.pools[0].id.unwrap();
        page.pools[0].unavailable = Some(format!("its path holds pool {id} of node b"));
    });
    let lines = Status::of(&world.view, world.now).lines().join("\n");
    let of_older = "unavailable: the log of its driver has the reason";
    assert!(lines.contains(of_older), "{lines}");
    world.on_page(|page| page.pools[0].reason = Some("its path holds pool <id> of node b".into()));
    let status = Status::of(&world.view, world.now);
    let lines = status.lines().join("\n");
    assert!(
        lines.contains("unavailable: its path holds pool <id> of"),
        "{lines}"
    );
    let text = [
        status.lines().join("\n"),
        metrics(&status).unwrap(),
        serde_json::to_string(&status).unwrap(),
    ];
    for text in &text {
        assert!(text.contains("VolumeWithoutPersistentVolume"), "{text}");
        assert!(text.contains(&id.hash().to_string()), "{text}");
        let pool = world.pool.to_string();
        assert!(
            !text.contains(&pool) && !text.contains(&pool.replace('-', "")),
            "{text}"
        );
    }
    assert!(
        text[1]
            .contains("rootcellar_fleet_differences{reason=\"VolumeWithoutPersistentVolume\"} 1")
    );
}

#[test]
fn delays_have_units() {
    let cases = [
        ("30m", Some(1800)),
        ("1s", Some(1)),
        ("168h", Some(604_800)),
        ("169h", None),
        ("0s", None),
        ("30", None),
        ("-1m", None),
        ("+1m", None),
        ("m", None),
        ("99999999999999999999h", None),
        ("99999999999999999h", None),
    ];
    for (text, seconds) in cases {
        let parsed = crate::settings::parse_time(text).ok();
        assert_eq!(parsed, seconds.map(Duration::from_secs), "{text}");
    }
}
