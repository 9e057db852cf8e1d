//! Moves off a member whose disk is full.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use support::disk::Disk;
use support::loops::run;

use super::writers::{COMMITTED, Changes};
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

/// A volume leaves a disk without a free block or inode, also after a move that was undone, and returns to it
/// later.
///
/// Proves: MV8, MV9.
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
        let on = TwoDisks::new(&disk);
        let driver = on.driver(&Fakes::default());
        let volume = on.make(&driver);
        let other = on.member("a").join("other");
        std::fs::create_dir(&other).unwrap();
        fill(&other);
        drop(driver);

        let id = volume.id.to_string();
        let changes = Arc::new(Changes::new(COMMITTED, on.file("a"), |file| {
            let readable = std::fs::Permissions::from_mode(0o444);
            std::fs::set_permissions(file, readable).unwrap();
        }));
        let driver = on.driver(&changes.fakes());
        let refused = driver
            .move_to(&id, "b", Users::Ignore, &Caller::default())
            .unwrap_err();
        changes.assert_done();
        assert!(
            refused.to_string().contains("changed meanwhile; stop"),
            "{}: {refused}",
            disk.name
        );
        assert_eq!(driver.get(&id).unwrap(), volume, "{}", disk.name);

        let moved = driver.move_to(&id, "b", Users::Check, &Caller::default());
        let moved = moved.unwrap_or_else(|refused| panic!("{}: {refused}", disk.name));
        assert_eq!(moved.1, Moved::From(name("set/a")), "{}", disk.name);
        let content = std::fs::read(on.file("b")).unwrap();
        assert_eq!(content, b"content", "{}", disk.name);
        run(Command::new("rm").arg("-r").arg(&other));
        eventually("the volume returns", || {
            driver.check_pools();
            driver
                .move_to(&id, "a", Users::Check, &Caller::default())
                .is_ok()
        });
        let content = std::fs::read(on.file("a")).unwrap();
        assert_eq!(content, b"content", "{}", disk.name);
    }
}

/// A volume whose files share blocks may not fit into its size on the other disk. The refusal says why, and nothing changes.
///
/// Proves: MV3, SN4.
#[test]
fn a_move_that_shared_blocks_make_too_large_says_so() {
    require!(loop_devices);
    let on = TwoDisks::new(&Disk::new("btrfs"));
    let driver = on.driver(&Fakes::default());
    let volume = driver.create(&create("v", 64 * MIB)).unwrap();
    let file = on.file("a");
    std::fs::write(&file, vec![7; 40 << 20]).unwrap();
    let id = volume.id.to_string();
    let again = file.with_file_name("again");
    run(Command::new("cp")
        .arg("--reflink=always")
        .arg(&file)
        .arg(&again));
    let refused = driver
        .move_to(&id, "b", Users::Check, &Caller::default())
        .unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("does not fit into its size"), "{text}");
    assert!(
        text.contains("files that share blocks, as by `cp --reflink`"),
        "{text}"
    );
    assert_eq!(driver.get(&id).unwrap(), volume);

    std::fs::remove_file(again).unwrap();
    driver
        .move_to(&id, "b", Users::Check, &Caller::default())
        .unwrap();
}
