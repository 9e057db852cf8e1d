//! Imports of a directory on the pool's disk, and exports, without the search for users, which changes nothing.

use std::path::{Path, PathBuf};

use linux::mount::Users;
use linux::os;
use rootcellar::host::{ExportTo, Import};

use super::operations::{Operation, with_kept};
use super::scene::{self, Scene};
use crate::imports::{Direct, export_of, import, import_of};

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
        replied: |scene| has_file(&scene.node.path(OLD)),
        ..Operation::NOTHING
    },
];

/// The directory on the pool's disk.
const OLD: &str = "disk/old";

/// Makes a directory with the attributes and the content of a volume, durably.
fn with_old(scene: &mut Scene) {
    let path = scene.node.path(OLD);
    let parent = os::open_path(path.parent().unwrap());
    let parent = os::open_dir(parent.unwrap(), ".").unwrap();
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
    fn import(&self) {
        let request = Import {
            users: Users::Ignore,
            ..import_of(self.os(), self.node.path(OLD), "pvc", scene::SIZE)
        };
        import(self.driver(), &request).unwrap();
    }

    /// Makes the volume the directory, or finds that.
    fn export(&self) {
        let id = objects::ObjectId::parse(&self.id_of("pvc")).unwrap();
        let export = ExportTo {
            users: Users::Ignore,
            ..export_of(self.os(), id)
        };
        let exported = export.run(&Direct(self.driver()));
        let is_there = self.node.path(OLD).is_dir();
        assert!(exported.is_ok() || is_there, "{:?}", exported.err());
    }

    /// Whether the tree is complete, and in one place: at its path, in the pool, or on the way.
    fn has_tree(&self) -> bool {
        let incoming = self.pool().join(".rootcellar/incoming");
        let mut places = vec![self.node.path(OLD)];
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
