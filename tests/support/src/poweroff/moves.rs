//! Moves of a volume between the members of a set.

use std::path::PathBuf;

use linux::mount::Users;
use linux::os::Step;
use rootcellar::error::{Code, Operation as Call};
use rootcellar::volume::Caller;

use super::control::Kill;
use super::operations::{Operation, with_kept};
use super::scene::Scene;
use crate::names;

/// The moves of the volume "kept" from the first member to the other.
pub const MOVES: &[Operation] = &[
    Operation {
        name: "move",
        prepare: with_kept,
        act: |scene| scene.relocate("kept"),
        ..MOVE
    },
    Operation {
        name: "move what a killed driver left as a copy",
        prepare: |scene| killed_moving(scene, Kill::After(Step::Rename, "kept-")),
        act: |scene| {
            scene.start();
            scene.relocate("kept");
        },
        ..MOVE
    },
    Operation {
        name: "start where a killed driver left a copy",
        prepare: |scene| killed_moving(scene, Kill::After(Step::Rename, "kept-")),
        act: Scene::start,
        after: |scene| scene.holds(&["kept"]) && scene.is_in("kept", 0),
        ..MOVE
    },
    Operation {
        name: "move what a killed driver had moved",
        prepare: |scene| killed_moving(scene, Kill::After(Step::Rename, "volume.json")),
        act: |scene| {
            scene.start();
            scene.relocate("kept");
        },
        ..MOVE
    },
    // Until the reply, the copy may be out of date.
    Operation {
        name: "move from the member that is missing then",
        prepare: with_kept,
        act: |scene| scene.relocate("kept"),
        before: |scene| scene.misses("kept"),
        after: |scene| scene.serves("kept"),
        disk_is_missing: true,
        ..MOVE
    },
];

const MOVE: Operation = Operation {
    before: |scene| scene.holds(&["kept"]),
    after: |scene| scene.holds(&["kept"]) && scene.is_in("kept", 1),
    ..Operation::NOTHING
};

fn killed_moving(scene: &mut Scene, kill: Kill) {
    with_kept(scene);
    scene.kill(kill, |scene| assert!(!scene.moves("kept")));
}

impl Scene {
    /// As [`Scene::relocate`]; returns whether it is there.
    pub fn moves(&self, volume: &str) -> bool {
        self.driver()
            .move_to(&self.id_of(volume), "b", Users::Ignore, &Caller::default())
            .is_ok()
    }

    /// Moves a volume to the second member, or finds it there.
    pub fn relocate(&self, volume: &str) {
        let moved =
            self.driver()
                .move_to(&self.id_of(volume), "b", Users::Ignore, &Caller::default());
        assert!(moved.is_ok(), "{volume} is not moved: {moved:?}");
    }

    /// Whether only this pool has a volume.
    pub fn is_in(&self, volume: &str, pool: usize) -> bool {
        let start = format!("{volume}-");
        let has = |pool: &PathBuf| {
            let names = names(&pool.join("volumes"));
            names.iter().any(|name| name.starts_with(&start))
        };
        let pools = self.pools();
        pools
            .iter()
            .enumerate()
            .all(|(at, path)| has(path) == (at == pool))
    }

    /// Whether a volume is served.
    pub fn serves(&self, volume: &str) -> bool {
        self.driver().get(&self.id_of(volume)).is_ok()
    }

    /// Whether a volume waits for a disk.
    pub fn misses(&self, volume: &str) -> bool {
        let refused = self.driver().get(&self.id_of(volume)).err();
        refused.is_some_and(|refused| refused.code(Call::Volume) == Code::Unavailable)
    }
}
