//! The class parameter `nodatacow` of volumes that are copied to another member.

use std::fs::File;

use linux::os::is_kept_in_place;

use super::*;

impl TwoDisks {
    /// Makes the volume "v" as [`TwoDisks::make`], of a class with `nodatacow`.
    fn make_in_place(&self, driver: &Running) -> Volume {
        let mut request = create("v", SIZE);
        request.class.nodatacow = true;
        driver.create(&request).unwrap();
        self.make_file(driver)
    }

    fn make_file(&self, driver: &Running) -> Volume {
        std::fs::write(self.file("a"), "content").unwrap();
        driver.list(usize::MAX, "").unwrap().objects.remove(0)
    }
}

/// Asserts that `data/` and its file are rewritten in place, and that the record says so.
#[track_caller]
fn assert_in_place(file: &Path, in_place: bool) {
    let data = file.parent().unwrap();
    for path in [data, file] {
        let found = is_kept_in_place(File::open(path).unwrap()).unwrap();
        assert_eq!(found, in_place, "{}", path.display());
    }
    assert_eq!(std::fs::read(file).unwrap(), b"content");
    let record = std::fs::read(data.with_file_name("volume.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["nodatacow"], true);
}

/// A moved volume is rewritten in place there and back, and so is one that comes from a filesystem without such files.
///
/// Proves: S22, MV2.
#[test]
fn a_moved_volume_is_rewritten_in_place() {
    require!(loop_devices);
    for from in ["btrfs", "xfs"] {
        let on = TwoDisks::of([Disk::new(from), Disk::new("btrfs")]);
        let driver = on.driver(&Fakes::default());
        let volume = on.make_in_place(&driver);
        assert_in_place(&on.file("a"), from == "btrfs");
        moves(&driver, &volume, "b", "a");
        assert_in_place(&on.file("b"), true);
        // An XFS without quota takes no volume whose size is enforced.
        if from == "btrfs" {
            moves(&driver, &volume, "a", "b");
            assert_in_place(&on.file("a"), true);
        }
    }
}

/// A copy that is made byte by byte in another member is rewritten in place.
///
/// Proves: S22, PS7.
#[test]
fn a_copy_in_another_member_is_rewritten_in_place() {
    require!(loop_devices);
    let on = TwoDisks::of([Disk::new("btrfs"), Disk::new("btrfs")]);
    let driver = on.driver(&Fakes::default());
    let source = on.make_in_place(&driver);
    let taken = snapshot("taken", source.id);
    let taken = driver.create_snapshot(&taken).unwrap();
    let pools = driver.pools();
    let a = pools.iter().find(|pool| pool.name().member() == Some("a"));
    let free = a.unwrap().available().unwrap();
    let large = driver.create(&create("large", free.0)).unwrap();
    assert_eq!(large.pool.as_str(), "set/a");
    let sources = [
        ("cloned", SourceId::Volume(source.id.to_string())),
        ("restored", SourceId::Snapshot(taken.id.to_string())),
    ];
    for (name, source) in sources {
        let mut request = create(name, SIZE);
        request.source = Some(source);
        request.class.copies.copy = true;
        let made = driver.create(&request).unwrap();
        assert_eq!(made.pool.as_str(), "set/b", "{name}");
        let directory = directory_of(&on.member("b").join("volumes"), name);
        assert_in_place(&directory.join("data/file"), true);
    }
}
