//! Every operation that changes the pool's disk or the disk of the state directory. A new operation
//! is a new row.

use std::fs;
use std::os::fd::AsFd;

use linux::os::{self, At, Step};
use pool::{KnownPools, Wanted};
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_setflags, statvfs, syncfs};

use super::control::Kill;
use super::kept::KEPT;
use super::moves::MOVES;
use super::scene::{SIZE, Scene};
use crate::{NODE, eventually};

/// An operation, and the state that a driver started after a power-off must find.
pub struct Operation {
    pub name: &'static str,
    /// The steps before the operation; the power does not fail in them.
    pub prepare: fn(&mut Scene),
    /// The operation, until its reply. The reclaimer is blocked unless `act` starts it.
    pub act: fn(&mut Scene),
    /// The state before the operation, which is allowed as long as there is no reply.
    pub before: fn(&Scene) -> bool,
    /// The state required after the reply.
    pub after: fn(&Scene) -> bool,
    /// More of it, which is not required before the reply, nor after the repeated operation.
    pub replied: fn(&Scene) -> bool,
    /// The options of the pools besides those of every scene.
    pub options: &'static str,
    /// Whether the disk of the first pool is missing when the driver is started again.
    pub disk_is_missing: bool,
    /// Whether a limit may differ from its record until a start corrects it.
    pub leaves_limits: bool,
    /// A sync that is skipped: the first of this kind on a path with this ending, where `*` stands
    /// for any characters. The path of the pool itself is `/`.
    pub skips: Option<(Step, &'static str)>,
}

impl Operation {
    pub(super) const NOTHING: Self = Self {
        name: "",
        prepare: |_| {},
        act: |_| {},
        before: |scene| scene.holds(&[]),
        after: |scene| scene.holds(&[]),
        replied: |_| true,
        options: "",
        disk_is_missing: false,
        leaves_limits: false,
        skips: None,
    };
}

const IN_PLACE: (Step, &str) = (Step::Rename, "pvc-");
const MARKED: (Step, &str) = (Step::Rename, ".rootcellar");
/// The name on its disk of a pool that was moved away.
pub(super) const AWAY: &str = "away";
const ANYWHERE: Wanted = Wanted {
    require_mount: false,
    any_filesystem: true,
};
/// Large enough that the driver rewrites the marker once these bytes are freed.
const FOREIGN_BYTES: u64 = 64 << 20;

pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        name: "make a pool",
        act: Scene::start,
        ..Operation::NOTHING
    },
    Operation {
        name: "make a pool where the driver was killed before it was one",
        prepare: |scene| scene.kill_starting(Kill::Before(MARKED.0, MARKED.1)),
        act: Scene::start,
        ..Operation::NOTHING
    },
    Operation {
        name: "make a pool where the driver was killed when it was one",
        prepare: |scene| scene.kill_starting(Kill::After(MARKED.0, MARKED.1)),
        act: Scene::start,
        ..Operation::NOTHING
    },
    Operation {
        name: "pool init",
        act: |scene| {
            let node = NODE.parse().unwrap();
            // An existing pool counts as made.
            let made = pool::init(scene.os(), &scene.pool(), &node, ANYWHERE);
            scene.id = made.ok().map(|made| made.id).or(scene.id);
            if scene.running.is_some() {
                scene.start();
            }
        },
        ..Operation::NOTHING
    },
    Operation {
        name: "make a pool whose disk is missing then",
        act: Scene::start,
        after: |scene| scene.is_unavailable("nothing is at its path"),
        disk_is_missing: true,
        ..Operation::NOTHING
    },
    Operation {
        name: "start where a killed driver remembered the pool",
        prepare: |scene| scene.kill_starting(Kill::After(Step::Rename, "pools.json")),
        act: Scene::start,
        after: |scene| scene.is_unavailable("nothing is at its path"),
        disk_is_missing: true,
        ..Operation::NOTHING
    },
    Operation {
        name: "create",
        prepare: with_kept,
        act: |scene| scene.make("pvc"),
        before: |scene| scene.holds(&["kept"]),
        after: |scene| scene.holds(&["kept", "pvc"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "create what a killed driver left in staging",
        prepare: |scene| killed_creating(scene, Kill::Before(IN_PLACE.0, IN_PLACE.1)),
        act: start_and_make,
        before: |scene| scene.holds(&["kept"]),
        after: |scene| scene.holds(&["kept", "pvc"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "create what a killed driver left in sight",
        prepare: |scene| killed_creating(scene, Kill::After(IN_PLACE.0, IN_PLACE.1)),
        act: start_and_make,
        before: |scene| scene.holds(&["kept"]),
        after: |scene| scene.holds(&["kept", "pvc"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "start where a killed driver left something in staging",
        prepare: |scene| killed_creating(scene, Kill::Before(IN_PLACE.0, IN_PLACE.1)),
        act: Scene::start,
        before: |scene| scene.holds(&["kept"]),
        after: |scene| scene.holds(&["kept"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "expand",
        prepare: with_source,
        act: |scene| scene.grow("pvc"),
        before: |scene| has_source(scene) && scene.has_size("pvc", SIZE),
        after: |scene| has_source(scene) && scene.has_size("pvc", 2 * SIZE),
        ..Operation::NOTHING
    },
    Operation {
        name: "label",
        prepare: with_source,
        act: |scene| scene.label("pvc"),
        before: |scene| has_source(scene) && !scene.is_labelled("pvc"),
        after: |scene| has_source(scene) && scene.is_labelled("pvc"),
        ..Operation::NOTHING
    },
    Operation {
        name: "delete",
        prepare: with_source,
        act: |scene| scene.delete("pvc"),
        before: |scene| scene.holds(&["kept", "pvc"]),
        after: |scene| scene.holds(&["kept"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "delete what a killed driver took out of sight",
        prepare: |scene| {
            with_kept(scene);
            scene.fill("pvc");
            scene.kill(Kill::After(IN_PLACE.0, IN_PLACE.1), |scene| {
                assert!(!scene.remove("pvc"));
            });
        },
        act: |scene| {
            scene.start();
            scene.delete("pvc");
        },
        before: |scene| scene.holds(&["kept", "pvc"]),
        after: |scene| scene.holds(&["kept"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "reclaim",
        prepare: |scene| {
            with_kept(scene);
            scene.fill("pvc");
            grow_tree(scene);
            scene.delete("pvc");
        },
        act: reclaim_all,
        before: |scene| scene.holds(&["kept"]),
        after: |scene| scene.holds(&["kept"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "snapshot",
        prepare: with_source,
        act: |scene| scene.snapshot("taken", "pvc"),
        before: |scene| has_source(scene) && scene.holds_snapshots(&[]),
        after: |scene| has_source(scene) && scene.holds_snapshots(&["taken"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "start where a killed driver left a copy in staging",
        prepare: |scene| {
            with_source(scene);
            scene.kill(Kill::Before(Step::Create, "snapshot.json"), |scene| {
                assert!(!scene.take("taken", "pvc"));
            });
        },
        act: Scene::start,
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&[]),
        after: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&[]),
        // The limit of the source was raised for the copy.
        leaves_limits: true,
        ..Operation::NOTHING
    },
    Operation {
        name: "restore",
        prepare: with_snapshot,
        act: |scene| scene.restore("restored", "taken"),
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&["taken"]),
        after: |scene| {
            scene.holds(&["kept", "pvc", "restored"]) && scene.holds_snapshots(&["taken"])
        },
        ..Operation::NOTHING
    },
    Operation {
        name: "clone",
        prepare: with_source,
        act: |scene| scene.clone_of("cloned", "pvc"),
        before: has_source,
        after: |scene| scene.holds(&["cloned", "kept", "pvc"]) && scene.has_content("pvc"),
        ..Operation::NOTHING
    },
    Operation {
        name: "create a block volume",
        prepare: with_kept,
        act: |scene| scene.make_device("device"),
        before: |scene| scene.holds(&["kept"]),
        after: |scene| scene.holds(&["device", "kept"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "expand a block volume",
        prepare: with_device,
        act: |scene| scene.grow("device"),
        // An image that is longer than its record raises the size.
        before: |scene| {
            let sizes = [SIZE, 2 * SIZE];
            has_device(scene) && sizes.iter().any(|size| scene.has_size("device", *size))
        },
        after: |scene| has_device(scene) && scene.has_size("device", 2 * SIZE),
        ..Operation::NOTHING
    },
    Operation {
        name: "limit a block volume",
        prepare: with_device,
        act: |scene| scene.limit("device"),
        before: |scene| has_device(scene) && !scene.is_limited("device"),
        after: |scene| has_device(scene) && scene.is_limited("device"),
        ..Operation::NOTHING
    },
    Operation {
        name: "snapshot a block volume",
        prepare: with_device,
        act: |scene| scene.snapshot("taken", "device"),
        before: |scene| has_device(scene) && scene.holds_snapshots(&[]),
        after: |scene| has_device(scene) && scene.holds_snapshots(&["taken"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "restore a block volume",
        prepare: |scene| {
            with_device(scene);
            scene.snapshot("taken", "device");
        },
        act: |scene| scene.restore_device("restored", "taken"),
        before: |scene| scene.holds(&["device", "kept"]),
        after: |scene| scene.holds(&["device", "kept", "restored"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "delete a snapshot",
        prepare: with_snapshot,
        act: |scene| scene.delete_snapshot("taken"),
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&["taken"]),
        after: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&[]),
        ..Operation::NOTHING
    },
    Operation {
        name: "reclaim a snapshot",
        prepare: |scene| {
            with_snapshot(scene);
            scene.delete_snapshot("taken");
        },
        act: reclaim_all,
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&[]),
        after: |scene| scene.holds(&["kept", "pvc"]) && scene.holds_snapshots(&[]),
        ..Operation::NOTHING
    },
    Operation {
        name: "adopt another node's pool",
        prepare: |scene| {
            with_kept(scene);
            scene.end();
            let state = os::open_path(&scene.node.path("state"));
            let state = os::open_dir(state.unwrap(), ".").unwrap();
            scene.os().mkdir(&state, "other", 0o700).unwrap();
            adopt_by(scene, "other-node", "state/other");
        },
        act: |scene| {
            scene.end();
            adopt_by(scene, NODE, "state");
        },
        before: |scene| scene.is_unavailable("of node other-node"),
        after: |scene| scene.holds(&["kept"]),
        ..Operation::NOTHING
    },
    Operation {
        name: "adopt a pool that a killed driver left in sight",
        prepare: |scene| scene.kill_starting(Kill::After(MARKED.0, MARKED.1)),
        act: |scene| {
            scene.end();
            adopt_by(scene, NODE, "state");
        },
        ..Operation::NOTHING
    },
    Operation {
        name: "retire a pool that is gone",
        prepare: |scene| {
            with_kept(scene);
            scene.end();
            let disk = os::open_path(&scene.node.path("disk"));
            let disk = os::open_dir(disk.unwrap(), ".").unwrap();
            let away = At::new(&disk, AWAY);
            scene.os().rename(At::new(&disk, "pool"), away).unwrap();
            scene.os().syncfs(&disk).unwrap();
        },
        act: |scene| {
            scene.end();
            pool::retire(&memory(scene, "state"), scene.id.unwrap()).unwrap();
        },
        before: |scene| scene.is_unavailable("nothing is at its path") && !scene.remove("kept"),
        after: |scene| scene.remove("kept"),
        ..Operation::NOTHING
    },
    Operation {
        name: "write down what else is on the disk",
        prepare: |scene| {
            let foreign = fs::File::create(scene.node.path("disk/foreign")).unwrap();
            fallocate(&foreign, FallocateFlags::empty(), 0, FOREIGN_BYTES).unwrap();
            scene.start();
            scene.make("pvc");
            scene.delete("pvc");
            let used = |scene: &Scene| {
                let vfs = statvfs(scene.node.path("disk").as_path()).unwrap();
                (vfs.f_blocks - vfs.f_bfree) * vfs.f_frsize
            };
            let before = used(scene);
            fs::remove_file(scene.node.path("disk/foreign")).unwrap();
            drop(foreign);
            // XFS frees space in the background, btrfs when it commits.
            eventually("the space is free", || {
                syncfs(fs::File::open(scene.node.path("disk")).unwrap()).unwrap();
                used(scene) + FOREIGN_BYTES / 2 < before
            });
        },
        act: |scene| {
            scene.reclaim();
            eventually("the marker is written again", || {
                other_bytes(scene) < FOREIGN_BYTES
            });
            // There is no reply, and a visible change need not be durable yet.
            scene.end();
        },
        ..Operation::NOTHING
    },
];

/// All for one pool but [`CREATE_IMAGE`].
pub fn of_one() -> impl Iterator<Item = &'static Operation> + Clone {
    OPERATIONS.iter().chain(KEPT)
}

/// Only a real disk has space for the content of a filesystem at every moment.
pub const CREATE_IMAGE: Operation = Operation {
    name: "create an image with a filesystem",
    prepare: with_kept,
    act: |scene| scene.make_image("image"),
    before: |scene| scene.holds(&["kept"]),
    after: |scene| scene.holds(&["image", "kept"]),
    ..Operation::NOTHING
};

/// The operations that are also played on a set, which makes each volume once.
const OF_SETS: [&str; 8] = [
    "make a pool",
    "create",
    "create what a killed driver left in staging",
    "create what a killed driver left in sight",
    "start where a killed driver left something in staging",
    "delete",
    "delete what a killed driver took out of sight",
    "reclaim",
];

/// The volume may be on the member that is missing, so none is made on the other.
const MEMBER_IS_MISSING: Operation = Operation {
    name: "create where the member is missing then",
    prepare: Scene::start,
    act: |scene| {
        scene.make("pvc");
        assert!(scene.directory("pvc").starts_with(scene.pool()));
    },
    before: |scene| scene.waits_for("pvc"),
    after: |scene| scene.waits_for("pvc"),
    disk_is_missing: true,
    ..Operation::NOTHING
};

const CREATE_EXCLUSIVE: Operation = Operation {
    name: "create what takes a disk",
    prepare: with_kept,
    act: |scene| scene.make_exclusive("pvc"),
    before: |scene| scene.holds(&["kept"]),
    after: |scene| scene.holds(&["kept", "pvc"]) && scene.has_disk("pvc"),
    ..Operation::NOTHING
};

/// The operations for a set.
pub fn of_sets() -> impl Iterator<Item = &'static Operation> {
    let operations = OPERATIONS.iter();
    let shared = operations.filter(|operation| OF_SETS.contains(&operation.name));
    shared
        .chain([&MEMBER_IS_MISSING, &CREATE_EXCLUSIVE])
        .chain(MOVES)
}

pub(super) fn with_kept(scene: &mut Scene) {
    scene.start();
    scene.fill("kept");
}

pub(super) fn with_source(scene: &mut Scene) {
    with_kept(scene);
    scene.fill("pvc");
}

pub(super) fn has_source(scene: &Scene) -> bool {
    scene.holds(&["kept", "pvc"]) && scene.has_content("pvc")
}

pub(super) fn has_device(scene: &Scene) -> bool {
    scene.holds(&["device", "kept"]) && scene.has_content("device")
}

pub(super) fn with_device(scene: &mut Scene) {
    with_kept(scene);
    scene.make_device("device");
    scene.write_device("device");
}

pub(super) fn with_snapshot(scene: &mut Scene) {
    with_source(scene);
    scene.snapshot("taken", "pvc");
}

fn start_and_make(scene: &mut Scene) {
    scene.start();
    scene.make("pvc");
}

fn reclaim_all(scene: &mut Scene) {
    scene.reclaim();
    scene.is_reclaimed();
}

fn memory(scene: &Scene, state_dir: &str) -> KnownPools {
    KnownPools::open(scene.os().clone(), &scene.node.path(state_dir)).unwrap()
}

fn adopt_by(scene: &Scene, node: &str, state_dir: &str) {
    let memory = memory(scene, state_dir);
    pool::adopt(&memory, &scene.pool(), &node.parse().unwrap(), ANYWHERE).unwrap();
}

fn killed_creating(scene: &mut Scene, kill: Kill) {
    with_kept(scene);
    scene.kill(kill, |scene| assert!(!scene.create("pvc")));
}

/// Makes directories, files, and a file that a pod protects.
fn grow_tree(scene: &Scene) {
    let data = scene.directory("pvc").join("data");
    let top = os::open_dir(os::open_path(&data).unwrap(), ".").unwrap();
    scene.os().mkdir(&top, "dir", 0o700).unwrap();
    let dir = os::open_dir(&top, "dir").unwrap();
    for name in ["one", "protected"] {
        scene.os().create(&dir, name).unwrap();
    }
    scene.os().syncfs(&dir).unwrap();
    let protected = os::open_protected(&dir, "protected").unwrap().unwrap();
    ioctl_setflags(protected.as_fd(), IFlags::IMMUTABLE).unwrap();
}

/// The bytes of other data on the disk, as the marker records them.
fn other_bytes(scene: &Scene) -> u64 {
    let marker = fs::read(scene.pool().join(".rootcellar/pool.json")).unwrap();
    let marker: serde_json::Value = serde_json::from_slice(&marker).unwrap();
    marker["other_bytes"].as_u64().unwrap()
}
