//! Imports of a directory on the pool's disk, and exports.

use std::path::PathBuf;

use rootcellar::os;

use super::operations::{Operation, with_kept};
use super::scene::{self, Scene};
use crate::imports::{export_back, import, import_of};

/// Their exchange of a directory and a file is one change only on a real filesystem.
pub const IMPORTS: [Operation; 2] = [
    Operation {
        name: "import",
        prepare: with_old,
        act: |scene| scene.import(),
        before: |scene| scene.holds(&["kept"]) && scene.has_tree(),
        after: |scene| scene.holds(&["kept", "pvc"]) && scene.has_tree(),
        ..Operation::NOTHING
    },
    Operation {
        name: "export",
        prepare: |scene| {
            with_old(scene);
            scene.import();
        },
        act: |scene| scene.export(),
        before: |scene| scene.holds(&["kept", "pvc"]) && scene.has_tree(),
        after: |scene| scene.holds(&["kept"]) && scene.has_tree(),
        ..Operation::NOTHING
    },
];

/// Makes a directory beside the pool with the attributes and the content of a volume, durably.
fn with_old(scene: &mut Scene) {
    with_kept(scene);
    let parent = os::open_path(&scene.node.path("disk"));
    let parent = os::open_dir(parent.unwrap(), ".").unwrap();
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
    fn old(&self) -> PathBuf {
        self.node.path("disk/old")
    }

    /// Makes the directory a volume, or finds it.
    fn import(&self) {
        let request = import_of(self.os(), self.old(), "pvc", scene::SIZE);
        import(self.driver(), &request).unwrap();
    }

    /// Makes the volume the directory, or finds that.
    fn export(&self) {
        let id = rootcellar::types::ObjectId::parse(&self.id_of("pvc")).unwrap();
        let exported = export_back(self.driver(), self.os(), id);
        assert!(exported.is_ok() || self.old().is_dir(), "{exported:?}");
    }

    /// Whether the tree is complete, and in one place: at its path, in the pool, or on the way.
    fn has_tree(&self) -> bool {
        let incoming = self.pool().join(".rootcellar/incoming");
        let mut places = vec![self.old()];
        for home in [self.pool().join("volumes"), incoming] {
            let entries = std::fs::read_dir(&home).into_iter().flatten();
            places.extend(entries.map(|entry| entry.unwrap().path().join("data")));
        }
        let is_it = |place: &&PathBuf| {
            std::fs::read(place.join("file")).is_ok_and(|content| content == b"pvc")
        };
        places.iter().filter(is_it).count() == 1
    }
}
