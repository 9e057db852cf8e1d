//! Moves off a member whose disk is full.

use std::io::Write as _;
use std::process::Command;

use support::Node;
use support::disk::Disk;
use support::loops::{LoopMount, run};

use super::*;

/// The small files that fill a disk. On btrfs each takes long when the disk is almost full.
const FEW: usize = 20;

/// A disk, and the way to fill it.
type Case = (Disk, fn(&Path));

/// Writes until no block is free.
fn fill_blocks(dir: &Path) {
    let mut file = std::fs::File::create(dir.join("big")).unwrap();
    for size in [1 << 20, 4096, 512] {
        let chunk = vec![0x5a; size];
        while file.write_all(&chunk).is_ok() {}
    }
    let _ = file.sync_all();
    for count in 0..FEW {
        let _ = std::fs::write(dir.join(format!("small-{count}")), [0x5a; 2000]);
    }
}

/// Creates files until no inode is free.
fn fill_inodes(dir: &Path) {
    let made =
        (0..).take_while(|count| std::fs::File::create(dir.join(format!("empty-{count}"))).is_ok());
    assert!(made.count() > 1000);
}

/// A volume leaves a disk without a free block or inode, and returns to it later.
///
/// Proves: MV9.
#[test]
fn a_volume_leaves_a_full_disk() {
    require!(loop_devices);
    let few_inodes = Disk::new("ext4").made_with(&["-N", "2000"]);
    let few_in_xfs = Disk::new("xfs").made_with(&["-i", "maxpct=1"]);
    let cases: [Case; 5] = [
        (Disk::new("ext4"), fill_blocks),
        (Disk::new("xfs"), fill_blocks),
        (Disk::new("btrfs"), fill_blocks),
        (few_inodes, fill_inodes),
        (few_in_xfs, fill_inodes),
    ];
    for (disk, fill) in cases {
        let node = Node::new();
        let [_a, _b]: [LoopMount; 2] = ["a", "b"].map(|name| {
            let size = if name == "a" { 400 << 20 } else { 320 << 20 };
            let at = node.path("disks").join(name);
            disk.sized(size).make(&node.path(name), &at)
        });
        let option = format!("set={},init,reserve=0", node.path("disks").display());
        let settings = Settings {
            sets: vec![option.parse().unwrap()],
            ..node.settings(&[])
        };
        let driver = node.volumes_with(settings, &Fakes::default());
        let volume = driver.create(&create("v", SIZE)).unwrap();
        assert_eq!(volume.pool.as_str(), "set/a", "{}", disk.name);
        let data = |member: &str| {
            let home = node.path("disks").join(member).join("volumes");
            directory_of(&home, "v").join("data")
        };
        std::fs::write(data("a").join("file"), "content").unwrap();
        let other = node.path("disks/a/other");
        std::fs::create_dir(&other).unwrap();
        fill(&other);
        let id = volume.id.to_string();
        let moved = driver.move_to(&id, "b", Users::Check);
        let moved = moved.unwrap_or_else(|refused| panic!("{}: {refused}", disk.name));
        assert_eq!(moved.1, Moved::From(name("set/a")), "{}", disk.name);
        let content = std::fs::read(data("b").join("file")).unwrap();
        assert_eq!(content, b"content", "{}", disk.name);
        run(Command::new("rm").arg("-r").arg(&other));
        eventually("the volume returns", || {
            driver.check_pools();
            driver.move_to(&id, "a", Users::Check).is_ok()
        });
        let content = std::fs::read(data("a").join("file")).unwrap();
        assert_eq!(content, b"content", "{}", disk.name);
    }
}
