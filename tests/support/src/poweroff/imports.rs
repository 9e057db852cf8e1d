//! Imports of a directory on the pool's disk or on another one, and exports.

use std::path::{Path, PathBuf};

use linux::os;

use super::operations::{Operation, with_kept};
use super::scene::{self, Scene};
use crate::imports::{export_back, import, import_of};
use crate::names;

/// Their exchange of a directory and a file is one change only on a real filesystem.
pub const IMPORTS: [Operation; 4] = [
    Operation {
        name: "import",
        prepare: |scene| with_old(scene, BESIDE),
        act: |scene| scene.import(BESIDE),
        before: |scene| scene.holds(&["kept"]) && scene.has_tree(),
        after: |scene| scene.holds(&["kept", "pvc"]) && scene.has_tree(),
        ..Operation::NOTHING
    },
    Operation {
        name: "export",
        prepare: |scene| {
            with_old(scene, BESIDE);
            scene.import(BESIDE);
        },
        act: |scene| scene.export(BESIDE),
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.has_tree(),
        after: |scene| scene.holds(&["kept"]) && scene.has_tree(),
        replied: |scene| has_file(&scene.node.path(BESIDE)),
        ..Operation::NOTHING
    },
    Operation {
        name: "import by copy",
        prepare: |scene| with_old(scene, ELSEWHERE),
        act: |scene| scene.import(ELSEWHERE),
        before: |scene| scene.holds(&["kept"]) && scene.has_original(),
        after: |scene| scene.holds(&["kept", "pvc"]) && scene.has_tree() && scene.has_original(),
        ..Operation::NOTHING
    },
    Operation {
        name: "export by copy",
        prepare: |scene| {
            with_old(scene, ELSEWHERE);
            scene.import(ELSEWHERE);
        },
        act: |scene| scene.export(ELSEWHERE),
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.has_tree(),
        after: |scene| {
            let is_back = has_file(&scene.node.path(ELSEWHERE));
            scene.holds(&["kept"]) && (is_back || scene.has_tree())
        },
        replied: |scene| has_file(&scene.node.path(ELSEWHERE)),
        ..Operation::NOTHING
    },
];

/// The directory on the pool's disk, and the one on another disk.
const BESIDE: &str = "disk/old";
const ELSEWHERE: &str = "state/old";

/// Makes a directory with the attributes and the content of a volume, durably.
fn with_old(scene: &mut Scene, old: &str) {
    let path = scene.node.path(old);
    let parent = os::open_path(path.parent().unwrap());
    let parent = os::open_dir(parent.unwrap(), ".").unwrap();
    if old == ELSEWHERE {
        // No import takes a directory in the state directory.
        scene.os().mkdir(&parent, scene::OWN_STATE, 0o700).unwrap();
        scene.os().syncfs(&parent).unwrap();
    }
    with_kept(scene);
    let os = scene.os();
    os.mkdir(&parent, "old", 0o700).unwrap();
    let old = os::open_dir(&parent, "old").unwrap();
    os.chown(&old, scene::OWNER, scene::OWNER).unwrap();
    os.chmod(&old, scene::MODE).unwrap();
    let file = os.create(&old, "file").unwrap();
    os.write_all(&file, b"pvc").unwrap();
    os.syncfs(&old).unwrap();
}

impl Scene {
    /// Makes the directory a volume, or finds it.
    fn import(&self, old: &str) {
        let request = import_of(self.os(), self.node.path(old), "pvc", scene::SIZE);
        import(self.driver(), &request).unwrap();
    }

    /// Makes the volume the directory, or finds that.
    fn export(&self, old: &str) {
        let id = objects::ObjectId::parse(&self.id_of("pvc")).unwrap();
        let exported = export_back(self.driver(), self.os(), id);
        let is_there = self.node.path(old).is_dir();
        assert!(exported.is_ok() || is_there, "{exported:?}");
    }

    /// Whether the original of a copy is complete, at its path or beside it.
    fn has_original(&self) -> bool {
        let old = self.node.path(ELSEWHERE);
        let beside = names(old.parent().unwrap()).into_iter();
        let mut beside = beside.filter(|name| name.starts_with(".rootcellar-"));
        has_file(&old) || beside.any(|name| has_file(&old.with_file_name(name)))
    }

    /// Whether the tree is complete, and in one place: at its path, in the pool, or on the way.
    fn has_tree(&self) -> bool {
        let incoming = self.pool().join(".rootcellar/incoming");
        let mut places = vec![self.node.path(BESIDE)];
        for home in [self.pool().join("volumes"), incoming] {
            let entries = std::fs::read_dir(&home).into_iter().flatten();
            places.extend(entries.map(|entry| entry.unwrap().path().join("data")));
        }
        let is_it = |place: &&PathBuf| has_file(place);
        places.iter().filter(is_it).count() == 1
    }
}

fn has_file(tree: &Path) -> bool {
    std::fs::read(tree.join("file")).is_ok_and(|content| content == b"pvc")
}
