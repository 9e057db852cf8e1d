//! Imports into pools that enforce sizes.

use std::fs;
use std::path::Path;
use std::process::Command;

use linux::os::Os;
use support::disk::{Disk, EXT4, XFS};
use support::disk_node::{MIB, append};
use support::imports::{export_back, import, import_of};
use support::tree::{Extent, Walked, nasty};
use support::{Fakes, Node, directory_of, eventually, kernel, require};

const SIZE: u64 = 64 * MIB;

/// The size of an imported directory is enforced, links and special files in it can be renamed, and an
/// export leaves no limit.
///
/// Proves: IM1, IM3.
#[test]
fn an_imported_directory_is_limited_until_its_export() {
    require!(project_quota);
    for disk in [XFS, EXT4] {
        let node = Node::new();
        let mount = node.make_disk(disk);
        let at = mount.path();
        let option = format!("default={},init,reserve=0", at.join("pool").display());
        let driver = node.volumes_of(&[option], &Fakes::default());
        let (old, os) = (at.join("old"), Os::default());
        fs::create_dir(&old).unwrap();
        nasty(&old, Extent::default());
        let tree = Walked::new(&old);
        let refused = import(&driver, &import_of(&os, old.clone(), "pvc", 8 * MIB)).unwrap_err();
        assert!(
            refused.to_string().contains("with a larger --size"),
            "{refused}"
        );
        let id = import(&driver, &import_of(&os, old.clone(), "pvc", SIZE)).unwrap();
        let data = directory_of(&at.join("pool/volumes"), "pvc").join("data");
        assert_same(disk, &tree, &data);
        let (project, inherits) = kernel::project(&data);
        assert!(project > 0 && inherits, "{project}");
        assert_eq!(kernel::quota(at, project).unwrap().bytes, [SIZE; 2]);
        let (written, error) = append(&data.join("too much"), 2 * SIZE);
        assert!(error.is_some() && written < SIZE, "{written}");
        fs::remove_file(data.join("too much")).unwrap();
        assert_renames(&data);
        let tree = Walked::new(&data);
        export_back(&driver, &os, id).unwrap();
        assert_same(disk, &tree, &old);
        assert_eq!(kernel::project(&old), (0, false));
        // XFS removes the former links and nodes in the background.
        eventually("nothing is limited or charged", || {
            kernel::quota(at, project).is_none_or(|quota| !quota.is_in_use())
        });
    }
}

#[track_caller]
fn assert_same(disk: Disk, tree: &Walked, at: &Path) {
    let differences = tree.differences(&Walked::new(at));
    assert_eq!(differences, <Vec<String>>::new(), "{}", disk.name);
}

/// Renames a link and a FIFO that are older than the import, which the kernel refuses for untagged ones.
fn assert_renames(data: &Path) {
    let is_link = |path: &Path| fs::symlink_metadata(path).unwrap().is_symlink();
    let links = fs::read_dir(data.join("nodes")).unwrap();
    let links: Vec<_> = links.map(|entry| entry.unwrap().path()).collect();
    assert!(links.iter().any(|path| is_link(path)), "{links:?}");
    for path in links {
        let name = path.file_name().unwrap();
        let moved = data.join("wide").join(name);
        fs::rename(&path, &moved).unwrap();
        fs::rename(&moved, &path).unwrap();
    }
    let fifo = data.join("fifo");
    support::loops::run(Command::new("mkfifo").arg(&fifo));
    fs::rename(&fifo, data.join("wide/fifo")).unwrap();
}
