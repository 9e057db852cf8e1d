//! Nodes that are missing, and what they leave behind.

use objects::inventory::{Inventory, Item, PoolInventory};
use objects::{Bytes, PoolId};

use super::*;
use crate::answer::Page;
use crate::objects::{DriverSet, Machine};

/// A cluster of [`HERE`], [`OTHER`] and 18 more nodes with volumes, of which [`HERE`] is missing. The claim `data-db-0` on
/// it has a class that releases.
pub(super) fn lost() -> World {
    let mut world = World::empty();
    world.settings.functions.label = false;
    world.settings.functions.steer = false;
    world.settings.functions.finish = true;
    world.settings.functions.release = true;
    for number in 2..=20 {
        let name = format!("node{number}");
        world.node(&name, &json!({"topology.rootcellar.dev/node": name}));
        world.volume(
            &format!("pv-{name}"),
            PoolId::random(),
            &name,
            &format!("of-{name}"),
        );
        world.page(&name, |_| {});
    }
    let of_disks = json!({"spec": {"template": {"metadata": {"labels": {"app.kubernetes.io/name": "rootcellar"}},
        "spec": {"nodeSelector": {"disks": "yes"}}}}});
    world.view.driver_sets = Some(vec![DriverSet::read(object(&of_disks)).unwrap()]);
    let machines = ["machine0 system0", "machine1 system1"].map(|ids| Machine::parse(ids).unwrap());
    world.view.machines.insert(HERE.into(), machines.into());
    world.releasing_class();
    world.bound(json!({}), json!({}));
    world.view.pages_read = true;
    world
}

impl World {
    /// A node without a driver, whose kubelet names these ids.
    pub(super) fn machine(&mut self, name: &str, machine: &str, system: &str) {
        let node = json!({"metadata": {"name": name},
            "status": {"nodeInfo": {"machineID": machine, "systemUUID": system}}});
        let node = Node::read(object(&node), &self.driver).unwrap();
        self.view.nodes.insert(name.into(), node);
    }

    fn releasing_class(&mut self) {
        let class = json!({"metadata": {"name": "fast", "annotations": {"rootcellar.dev/release-claims": "true"}},
            "provisioner": "csi.rootcellar.dev"});
        let class = Class::read(object(&class), &self.driver).unwrap();
        self.view.classes.insert("fast".into(), class);
    }

    /// The claim `data-db-0` and its volume `pv` on [`HERE`], with other fields.
    pub(super) fn bound(&mut self, claim: Value, volume: Value) {
        let mut fields = json!({"metadata": {"name": "data-db-0", "finalizers": ["kubernetes.io/pvc-protection"]},
            "spec": {"volumeName": "pv", "dataSourceRef": null}, "status": {"phase": "Bound"}});
        merge(&mut fields, claim);
        self.claim(fields);
        self.pv(volume);
    }

    pub(super) fn pv(&mut self, other: Value) {
        let handle = VolumeId::new(self.pool, &"pv".parse().unwrap()).to_string();
        let mut volume = json!({"metadata": {"name": "pv", "uid": "uid-pv", "resourceVersion": "1",
            "finalizers": ["kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"]},
            "spec": {"claimRef": {"namespace": "shop", "name": "data-db-0", "uid": "uid-data-db-0"},
            "storageClassName": "fast", "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "csi.rootcellar.dev", "volumeHandle": handle},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.rootcellar.dev/node", "operator": "In", "values": [HERE]}]}]}}},
            "status": {"phase": "Bound"}});
        merge(&mut volume, other);
        let volume = Volume::read(object(&volume), &self.driver).unwrap();
        self.view.volumes.insert("pv".into(), volume);
    }

    /// The page of a node, which answers now.
    pub(super) fn page(&mut self, node: &str, change: impl FnOnce(&mut Inventory)) {
        let mut inventory = Inventory {
            node: node.parse().unwrap(),
            version: "1".into(),
            loaded: true,
            pools: vec![pool(Some(PoolId::random()))],
            retired: vec![],
            unserved: Some(vec![]),
        };
        change(&mut inventory);
        self.view
            .pages
            .insert(node.into(), Page::new(self.now, Ok(inventory)));
    }

    /// Time passes, and the pages are read again. A round is made each minute, as in the program. Returns the steps, each
    /// once if it is repeated.
    pub(super) fn wait(&mut self, minutes: u64) -> Vec<String> {
        let mut steps = Vec::new();
        for _ in 0..minutes {
            self.after(60);
            self.read_again();
            steps.extend(self.steps());
        }
        steps.dedup();
        steps
    }

    pub(super) fn read_again(&mut self) {
        for page in self.view.pages.values_mut() {
            *page = Page::new(self.now, page.answer.clone());
        }
    }

    /// The volume `pv` in a list.
    pub(super) fn moved(&self) -> Item<VolumeId> {
        Item {
            id: VolumeId::new(self.pool, &"pv".parse().unwrap()),
            bytes: Bytes(1 << 30),
            age: 60,
        }
    }

    pub(super) fn back(&mut self) {
        self.node(HERE, &json!({"topology.rootcellar.dev/node": HERE}));
        self.page(HERE, |_| {});
    }
}

pub(super) fn pool(id: Option<PoolId>) -> PoolInventory {
    PoolInventory {
        name: "default".parse().unwrap(),
        id,
        found: None,
        unavailable: None,
        reason: None,
        empty: false,
        cordoned: false,
        enforces: true,
        total: Bytes(0),
        available: Bytes(0),
        reserved: Bytes(0),
        quarantined: 0,
        complete: true,
        volumes: vec![],
        snapshots: vec![],
        kept: vec![],
    }
}

pub(super) fn retained() -> Value {
    json!({"metadata": {"resourceVersion": "2", "annotations": {"rootcellar.dev/released-claim": "uid-data-db-0"}},
        "spec": {"persistentVolumeReclaimPolicy": "Retain"}})
}

/// Proves: F9.
#[test]
fn a_claim_of_a_lost_node_is_released_in_three_steps() {
    let mut world = lost();
    assert!(world.wait(29).is_empty());
    assert_eq!(world.wait(2), ["retain pv"]);
    let due = world.after(60).due();
    assert!(due.steps.is_empty() || due.steps[0].confirm.len() == 3);
    world.memory.released(None, world.now);
    world.after(1).read_again();
    world.pv(retained());
    assert_eq!(world.steps(), ["delete data-db-0"]);
    world
        .view
        .claims
        .remove(&("shop".to_owned(), "data-db-0".to_owned()));
    let mut released = retained();
    merge(&mut released, json!({"status": {"phase": "Released"}}));
    world.pv(released.clone());
    assert_eq!(world.wait(6), ["delete pv"]);
    merge(
        &mut released,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    world.pv(released.clone());
    assert_eq!(world.wait(6), ["drop finalizer of pv"]);
    merge(&mut released, json!({"metadata": {"finalizers": []}}));
    world.pv(released);
    assert!(world.wait(6).is_empty());
}

/// Proves: F9.
#[test]
fn a_claim_that_nobody_makes_again_or_wants_released_stays() {
    let cases: [Case; 11] = [
        ("of a class without the annotation", |w| {
            w.class(&json!(null));
        }),
        ("in deletion", |w| {
            w.bound(
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                json!({}),
            );
        }),
        ("with another finalizer", |w| {
            w.bound(
                json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "me/too"]}}),
                json!({}),
            );
        }),
        ("of another uid", |w| {
            w.bound(json!({"metadata": {"uid": "anew"}}), json!({}));
        }),
        ("of another volume", |w| {
            w.bound(json!({"spec": {"volumeName": "pv2"}}), json!({}));
        }),
        ("whose volume is in deletion", |w| {
            w.pv(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        }),
        ("whose volume has another policy", |w| {
            w.pv(json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}}));
        }),
        ("whose node has the place by its label", |w| {
            w.node("renamed", &json!({"topology.rootcellar.dev/node": HERE}));
        }),
        ("without the switch", |w| {
            w.settings.functions.release = false;
        }),
        ("whose node is back", World::back),
        ("whose volume is of another driver's node", |w| {
            w.view.volumes.remove("pv");
        }),
    ];
    for (claim, change) in cases {
        let mut world = lost();
        change(&mut world);
        assert!(world.wait(45).is_empty(), "a claim {claim}");
    }
}

/// Nodes that may have the disk of the lost one.
const MAY_HAVE_IT: [Case; 18] = [
    ("has the volume in a pool to which it was moved", |w| {
        let item = w.moved();
        w.page("node7", |page| page.pools[0].volumes.push(item));
    }),
    ("has the pool", |w| {
        let id = w.pool;
        w.page("node7", |page| page.pools.push(pool(Some(id))));
    }),
    ("has its disk at another pool's path", |w| {
        let id = w.pool;
        w.page("node7", |page| page.pools[0].found = Some(id));
    }),
    ("had the pool, which its configuration lacks now", |w| {
        let id = w.pool;
        w.page("node7", |page| page.unserved = Some(vec![id]));
    }),
    ("cannot read a disk", |w| {
        w.page("node7", |page| {
            page.pools[0] = PoolInventory {
                unavailable: Some("it is broken".into()),
                ..pool(None)
            };
        });
    }),
    ("has not loaded its records", |w| {
        w.page("node7", |page| page.loaded = false);
    }),
    ("does not answer", |w| {
        let silent = Page::new(w.now, Err("does not answer".into()));
        w.view.pages.insert("node7".into(), silent);
    }),
    ("has no page", |w| {
        w.view.pages.remove("node7");
    }),
    ("joined, and the driver is to run there", |w| {
        w.node("node99", &json!({"disks": "yes"}));
    }),
    ("had a driver", |w| {
        w.node("node99", &json!({"topology.rootcellar.dev/node": "node99"}));
    }),
    ("is the lost machine", |w| {
        w.machine("node99", "machine1", "system1");
    }),
    ("is the lost machine, installed again", |w| {
        w.machine("node99", "machine99", "system1");
    }),
    ("has the disks of the lost machine", |w| {
        w.machine("node99", "machine1", "system99");
    }),
    ("is a machine that had the name before", |w| {
        w.machine("node99", "machine0", "system99");
    }),
    ("joined, and nobody knows where the driver is to run", |w| {
        w.view.driver_sets = Some(Vec::new());
        w.machine("node99", "machine99", "system99");
    }),
    ("names no ids", |w| {
        w.node("node99", &json!({}));
    }),
    ("may be the lost machine", |w| {
        w.view.machines.clear();
        w.node("node99", &json!({}));
    }),
    ("nobody can say what runs there", |w| {
        w.view.driver_sets = None;
        w.machine("node99", "machine99", "system99");
    }),
];

/// Proves: F9.
#[test]
fn a_node_that_may_have_the_disk_blocks_a_release() {
    for (node, change) in MAY_HAVE_IT {
        let mut world = lost();
        world.wait(5);
        change(&mut world);
        let day = world.wait(24 * 60);
        assert_eq!(day, ["ReleaseWaits"], "a node that {node}");
    }
    let mut world = lost();
    world.page("node7", |page| {
        page.pools[0] = PoolInventory {
            unavailable: Some("nothing is at its path".into()),
            empty: true,
            ..pool(None)
        };
    });
    assert_eq!(world.wait(31), ["retain pv"], "nothing is there");
}

/// Proves: F9.
#[test]
fn a_node_without_a_driver_that_is_not_the_lost_machine_blocks_nothing() {
    let others: [Case; 3] = [
        ("with other ids", |w| {
            w.machine("node99", "machine99", "system99");
        }),
        ("of the same template", |w| {
            w.machine("node99", "machine1", "system99");
            w.machine("node7", "machine1", "system7");
            let mut node = w.view.nodes.remove("node7").unwrap();
            node.label = Some("node7".into());
            w.view.nodes.insert("node7".into(), node);
        }),
        ("of a group that comes and goes", |w| {
            for minute in 0..30 {
                w.view.nodes.remove(&format!("node1{minute:02}"));
                w.machine(&format!("node1{:02}", minute + 1), "machine99", "system99");
                assert!(w.wait(1).is_empty());
            }
        }),
    ];
    for (node, change) in others {
        let mut world = lost();
        change(&mut world);
        assert_eq!(world.wait(31)[0], "retain pv", "a node {node}");
    }
}

/// Proves: F9.
#[test]
fn nothing_is_released_or_finished_while_many_became_absent_lately() {
    let mut world = lost();
    world.view.nodes.remove("node2");
    assert_eq!(world.wait(31), ["retain pv"], "two of twenty are a tenth");
    world.view.nodes.remove("node3");
    assert_eq!(world.wait(31), ["TooManyNodesAbsent"]);
    let day = world.wait(24 * 60);
    assert!(
        day.contains(&"retain pv".to_owned()),
        "after a day: {day:?}"
    );

    let mut world = lost();
    world.settings.functions.release = false;
    world.view.nodes.remove("node2");
    world.view.nodes.remove("node3");
    world.view.nodes.remove("node4");
    world.pv(json!({"status": {"phase": "Released"}}));
    assert_eq!(world.wait(31), ["TooManyNodesAbsent"]);

    // The nodes of these were lost long ago.
    let mut world = lost();
    for number in 1..=9 {
        let mut left = world.view.volumes["pv"].clone();
        left.place = format!("old{number}");
        left.policy = crate::objects::Policy::Retain;
        left.phase = crate::objects::Phase::Released;
        left.identity.uid = format!("uid-old{number}");
        world.view.volumes.insert(format!("pv-old{number}"), left);
    }
    assert_eq!(world.wait(31), ["retain pv"], "those have no claim");
}

/// Proves: F9.
#[test]
fn a_claim_that_waits_delays_no_other() {
    let mut world = lost();
    for number in 0..20 {
        let name = format!("waits-{number:02}");
        let mut volume = world.view.volumes["pv"].clone();
        volume.identity.name.clone_from(&name);
        volume.identity.uid = format!("uid-{name}");
        volume.claim = serde_json::from_value(
            json!({"namespace": "shop", "name": name, "uid": format!("uid-claim-{name}")}),
        )
        .unwrap();
        // The map has them before `pv`.
        world.view.volumes.insert(format!("a-{name}"), volume);
        world.claim(
            json!({"metadata": {"name": name, "uid": format!("uid-claim-{name}")},
            "spec": {"volumeName": name, "dataSourceRef": null}, "status": {"phase": "Bound"}}),
        );
    }
    world.wait(30);
    let mut tried = std::collections::BTreeSet::new();
    for _ in 0..80 {
        world.now += Duration::from_millis(1300);
        world.read_again();
        for step in world.due().steps {
            let begins = step.begins();
            tried.insert(step.about.object.name.clone());
            let ended = Ended {
                releases: step.releases().map(str::to_owned),
                uid: step.about.object.uid,
                report: false,
                begins,
                outcome: Outcome::Waits,
                waits: None,
            };
            world.memory.ended(&ended, world.now);
        }
    }
    assert!(tried.contains("pv"), "{tried:?}");
}

/// Proves: F11.
#[test]
fn a_deletion_that_waits_for_a_gone_node_is_finished() {
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let mut world = lost();
    world.pv(json!({"status": {"phase": "Released"}}));
    assert!(world.wait(29).is_empty());
    let due = world.after(120).due();
    assert_eq!(
        due.steps[0].confirm,
        [crate::step::Live::NoPlace(HERE.into())]
    );
    world.pv(json!({"metadata": deleting, "status": {"phase": "Released"}}));
    assert_eq!(world.wait(6), ["drop finalizer of pv"]);
    world.pv(json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}, "status": {"phase": "Released"}}));
    let others: [(&str, Value); 3] = [
        ("bound", json!({"metadata": deleting})),
        (
            "retained",
            json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}, "status": {"phase": "Released"}}),
        ),
        (
            "without a finalizer",
            json!({"metadata": {"finalizers": [], "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Released"}}),
        ),
    ];
    for (volume, fields) in others {
        let mut world = lost();
        world.settings.functions.release = false;
        world.pv(fields);
        assert!(world.wait(45).is_empty(), "a volume that is {volume}");
    }

    let mut world = lost();
    world.settings.functions.release = false;
    let held = json!({"finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {"snapshot.storage.kubernetes.io/managed-by": HERE}});
    world.content(json!({ "metadata": held }));
    assert_eq!(world.wait(31), ["drop finalizer of content"]);
    world.back();
    assert!(world.wait(45).is_empty());

    let mut world = lost();
    world.settings.functions.release = false;
    let selected = json!({"annotations": {"volume.kubernetes.io/selected-node": HERE}});
    world.claim(json!({"metadata": selected, "spec": {"dataSourceRef": null}}));
    assert_eq!(world.wait(31), ["forget node1"]);
    world.claim(json!({"metadata": selected}));
    assert!(
        world.wait(45).is_empty(),
        "its source decides about its node"
    );
}

/// Proves: F9, F11.
#[test]
fn a_process_that_could_not_watch_begins_to_watch_again() {
    let mut world = lost();
    assert!(world.wait(29).is_empty());
    world.memory.was_blind();
    assert!(world.wait(29).is_empty());
    world.back();
    world.steps();
    world.view.nodes.remove(HERE);
    assert!(world.wait(29).is_empty(), "the node was there in between");
    assert_eq!(world.wait(2), ["retain pv"]);
}
