//! The operations of pools that keep deleted objects.

use super::operations::{
    Operation, has_device, has_source, with_device, with_kept, with_snapshot, with_source,
};
use super::scene::Scene;
use crate::eventually;

const KEEPS: Operation = Operation {
    options: ",keep=1h",
    ..Operation::NOTHING
};

/// All deletions and their ends.
pub(super) const KEPT: &[Operation] = &[
    Operation {
        name: "make a pool that keeps",
        act: Scene::start,
        ..KEEPS
    },
    Operation {
        name: "delete and keep",
        prepare: with_source,
        act: |scene| scene.delete("pvc"),
        before: has_source,
        after: |scene| scene.holds(&["kept"]),
        replied: |scene| scene.deleted() == ["pvc"],
        ..KEEPS
    },
    Operation {
        name: "delete and keep a block volume",
        prepare: with_device,
        act: |scene| scene.delete("device"),
        before: has_device,
        after: |scene| scene.holds(&["kept"]),
        replied: |scene| scene.deleted() == ["device"],
        ..KEEPS
    },
    Operation {
        name: "delete and keep a snapshot",
        prepare: with_snapshot,
        act: |scene| scene.delete_snapshot("taken"),
        before: |scene| has_source(scene) && scene.holds_snapshots(&["taken"]),
        after: |scene| has_source(scene) && scene.holds_snapshots(&[]),
        replied: |scene| scene.deleted() == ["taken"],
        ..KEEPS
    },
    Operation {
        name: "undelete",
        prepare: with_deleted,
        act: |scene| scene.undelete("pvc", None),
        before: has_deleted_pvc,
        after: has_source,
        replied: |scene| scene.deleted().is_empty(),
        ..KEEPS
    },
    Operation {
        name: "undelete under another name",
        prepare: with_deleted,
        act: |scene| scene.undelete("pvc", Some("again")),
        // The record may have the new name before its directory is back.
        before: has_deleted_pvc,
        after: |scene| scene.holds(&["again", "kept"]),
        replied: |scene| scene.deleted().is_empty(),
        ..KEEPS
    },
    Operation {
        name: "undelete a block volume",
        prepare: |scene| {
            with_device(scene);
            scene.delete("device");
        },
        act: |scene| scene.undelete("device", None),
        before: |scene| has_deleted(scene, "device"),
        after: has_device,
        replied: |scene| scene.deleted().is_empty(),
        ..KEEPS
    },
    Operation {
        name: "undelete a snapshot",
        prepare: |scene| {
            with_snapshot(scene);
            scene.delete_snapshot("taken");
        },
        act: |scene| scene.undelete_snapshot("taken"),
        before: |scene| scene.holds_snapshots(&[]) && scene.deleted() == ["taken"],
        after: |scene| scene.holds_snapshots(&["taken"]),
        replied: |scene| scene.deleted().is_empty(),
        ..KEEPS
    },
    Operation {
        name: "purge",
        prepare: with_deleted,
        act: |scene| {
            scene.driver().purge(None).unwrap();
        },
        before: has_deleted_pvc,
        after: |scene| scene.holds(&["kept"]) && scene.deleted().is_empty(),
        ..KEEPS
    },
    Operation {
        name: "end after its time",
        prepare: with_deleted,
        act: |scene| {
            scene.end();
            scene.options = ",keep=1s";
            scene.start();
            scene.reclaim();
            eventually("its time is over", || scene.deleted().is_empty());
            // There is no reply, and a visible change need not be durable yet.
            scene.end();
        },
        before: has_deleted_pvc,
        after: |scene| scene.holds(&["kept"]) && scene.deleted().is_empty(),
        ..KEEPS
    },
];

fn with_deleted(scene: &mut Scene) {
    with_kept(scene);
    scene.fill("pvc");
    scene.delete("pvc");
}

/// Whether only "kept" is there, and an object with this name was deleted. Before the reply, it may have its old and
/// its new place, and the repeated deletion then keeps both.
fn has_deleted(scene: &Scene, name: &str) -> bool {
    let deleted = scene.deleted();
    scene.holds(&["kept"]) && !deleted.is_empty() && deleted.iter().all(|deleted| deleted == name)
}

fn has_deleted_pvc(scene: &Scene) -> bool {
    has_deleted(scene, "pvc")
}
