//! Thin images that give space back, and thick ones that do not.

mod ends;

use std::process::Command;

use rustix::fs::{statvfs, syncfs};

use super::*;
use support::loops::{Frozen, in_flight, mount_loop, run};

/// The bytes of the files that a pod deletes.
const DELETED: usize = 64 << 20;

/// What a trim gives back at least of these files.
const GIVEN_BACK: u64 = 56 * MIB;

/// A published image in whose filesystem a pod has written files.
struct Published {
    volume: Volume,
    name: &'static str,
    target: PathBuf,
}

impl Published {
    fn new(rig: &ImageRig, format: &str, name: &'static str, allocation: Allocation) -> Self {
        Self::of(rig, name, &formatted(name, 320 * MIB, format, allocation))
    }

    fn of(rig: &ImageRig, name: &'static str, request: &CreateRequest) -> Self {
        let volume = rig.driver().create(request).unwrap();
        let target = rig.publish(&volume, name);
        fs::write(target.join("kept"), vec![7; 1 << 20]).unwrap();
        fs::write(target.join("deleted"), vec![8; DELETED]).unwrap();
        sync(&target);
        Self {
            volume,
            name,
            target,
        }
    }

    fn delete(&self) {
        fs::remove_file(self.target.join("deleted")).unwrap();
        // XFS frees the blocks of deleted files later.
        sync(&self.target);
    }

    fn allocated(&self, rig: &ImageRig) -> u64 {
        fs::metadata(rig.file(self.name)).unwrap().blocks() * 512
    }
}

fn sync(target: &Path) {
    syncfs(File::open(target).unwrap()).unwrap();
}

fn trim(rig: &ImageRig) {
    for pool in rig.driver().pools().iter() {
        rig.driver().trim_images(pool);
    }
}

/// The free bytes of the pool's filesystem.
fn free(rig: &ImageRig) -> u64 {
    let pool = File::open(rig.node.pool()).unwrap();
    // btrfs frees the blocks with its next commit.
    syncfs(&pool).unwrap();
    let space = statvfs(rig.node.pool()).unwrap();
    space.f_bfree * space.f_frsize
}

/// A trim gives the pool the blocks of files that pods deleted in a thin image, also if it is published for reading too. The
/// other files are as they were, thick images and block volumes keep their blocks, and the volume can be unpublished and
/// deleted.
///
/// Proves: I1, I6.
#[test]
fn thin_images_give_the_space_of_deleted_files_back() {
    require!(loop_devices);
    for (disk, format) in disks().into_iter().zip(["ext4", "xfs"].into_iter().cycle()) {
        let rig = ImageRig::sized(disk, 2 << 30);
        let thin = Published::new(&rig, format, "thin", Allocation::Thin);
        let thick = Published::new(&rig, format, "thick", Allocation::Thick);
        let block = rig.device("block", 16 * MIB);
        let of_block = rig.publish_device(&block, "block");
        open(&of_block).write_all(&vec![9; 8 << 20]).unwrap();
        let reader = rig.node.target("reader");
        let mut request = publish(&thin.volume.id.to_string(), &reader);
        request.read_only = true;
        rig.driver().publish(&request).unwrap();
        for image in [&thin, &thick] {
            image.delete();
        }
        let (before, name) = (free(&rig), disk.name);
        let allocated = thin.allocated(&rig);

        trim(&rig);
        let less = allocated - thin.allocated(&rig);
        assert!(less >= GIVEN_BACK, "{name}: {less}");
        assert!(thick.allocated(&rig) >= 320 * MIB, "{name}");
        eventually(format_args!("the pool on {name} has the space"), || {
            free(&rig) >= before + GIVEN_BACK
        });
        assert_eq!(
            fs::read(thin.target.join("kept")).unwrap(),
            vec![7; 1 << 20]
        );
        assert!(content(&of_block, 8 << 20) == vec![9; 8 << 20], "{name}");
        fs::write(thin.target.join("again"), vec![6; 8 << 20]).unwrap();
        sync(&thin.target);

        for target in [&thin.target, &reader] {
            rig.unpublish(&thin.volume, target);
        }
        let target = rig.publish(&thin.volume, "pod");
        assert_eq!(fs::read(target.join("again")).unwrap(), vec![6; 8 << 20]);
        rig.unpublish(&thin.volume, &target);
        rig.delete(&thin.volume);
    }
}

/// A snapshot keeps what a trim takes from its source.
///
/// Proves: I3, I6.
#[test]
fn a_snapshot_keeps_what_a_trim_takes_from_its_source() {
    require!(loop_devices);
    for disk in [Disk::new("xfs"), Disk::new("btrfs").with_simple_quota()] {
        let rig = ImageRig::sized(disk, 2 << 30);
        let thin = Published::new(&rig, "ext4", "thin", Allocation::Thin);
        std::thread::scope(|scope| {
            // At the same time as trims.
            let trims = scope.spawn(|| (0..20).for_each(|_| trim(&rig)));
            let taken = snapshot("snap", thin.volume.id);
            let taken = rig.driver().create_snapshot(&taken).unwrap();
            let allocated = thin.allocated(&rig);
            thin.delete();
            trims.join().unwrap();
            trim(&rig);
            assert!(
                thin.allocated(&rig) + GIVEN_BACK <= allocated,
                "{}",
                disk.name
            );
            let mut restored = formatted("restored", 320 * MIB, "ext4", Allocation::Thin);
            restored.source = Some(SourceId::Snapshot(taken.id.to_string()));
            let restored = rig.driver().create(&restored).unwrap();
            let target = rig.publish(&restored, "restored");
            let content = fs::read(target.join("deleted")).unwrap();
            assert!(content == vec![8; DELETED], "{}", disk.name);
        });
    }
}

/// A trim that waits for a frozen disk delays no unpublish, and no second trim begins.
///
/// Proves: I6.
#[test]
fn a_trim_of_a_frozen_disk_delays_nobody() {
    require!(loop_devices);
    let rig = ImageRig::sized(Disk::new("xfs"), 1 << 30);
    let thin = Published::new(&rig, "ext4", "thin", Allocation::Thin);
    thin.delete();
    let file = File::open(rig.file("thin")).unwrap();
    let device = loops::of(&file).unwrap()[0].path.clone();
    let id = thin.volume.id.to_string();
    std::thread::scope(|scope| {
        // Thawed also if this panics, because the scope waits for its threads.
        let frozen = Frozen::new(&rig.node.pool());
        let waiting = scope.spawn(|| trim(&rig));
        // Before, an unpublish would be the last to have the filesystem, and wait for the disk itself.
        eventually("a discard waits for the disk", || in_flight(&device) > 0);
        let second = scope.spawn(|| trim(&rig));
        eventually("the second trim ends", || second.is_finished());
        let unpublish = scope.spawn(|| rig.driver().unpublish(&id, &thin.target).unwrap());
        eventually("the unpublish ends", || unpublish.is_finished());
        assert!(!waiting.is_finished(), "the trim waits for the disk");
        drop(frozen);
    });
    rig.has_no_loop("thin");
    rig.delete(&thin.volume);
}

/// A trim leaves a filesystem alone that somebody has mounted over a target, or to which a link in its place leads.
///
/// Proves: I6.
#[test]
fn a_foreign_filesystem_at_a_target_is_not_trimmed() {
    require!(loop_devices);
    let rig = ImageRig::sized(Disk::new("xfs"), 1 << 30);
    let thin = Published::new(&rig, "ext4", "thin", Allocation::Thin);
    thin.delete();
    let (image, foreign) = (rig.node.path("foreign.img"), rig.node.path("foreign"));
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    run(Command::new("mkfs.ext4")
        .args(["-q", "-E", "nodiscard"])
        .arg(&image));
    fs::create_dir(&foreign).unwrap();
    mount_loop(&image, &foreign, &[]);
    fs::write(foreign.join("deleted"), vec![8; DELETED]).unwrap();
    sync(&foreign);
    fs::remove_file(foreign.join("deleted")).unwrap();
    sync(&foreign);
    let allocated = || {
        File::open(&image).unwrap().sync_all().unwrap();
        fs::metadata(&image).unwrap().blocks()
    };
    let of_thin = thin.allocated(&rig);
    let of_foreign = allocated();

    run(Command::new("mount")
        .arg("--bind")
        .args([&foreign, &thin.target]));
    trim(&rig);
    assert_eq!((allocated(), thin.allocated(&rig)), (of_foreign, of_thin));
    run(Command::new("umount").arg(&thin.target));
    let aside = rig.node.path("aside");
    fs::create_dir(&aside).unwrap();
    run(Command::new("mount")
        .arg("--bind")
        .args([&thin.target, &aside]));
    run(Command::new("umount").arg(&thin.target));
    fs::remove_dir(&thin.target).unwrap();
    for place in [&foreign, &aside] {
        std::os::unix::fs::symlink(place, &thin.target).unwrap();
        trim(&rig);
        assert_eq!((allocated(), thin.allocated(&rig)), (of_foreign, of_thin));
        fs::remove_file(&thin.target).unwrap();
    }
    for place in [&foreign, &aside] {
        run(Command::new("umount").arg(place));
    }
}

/// A thick restore of a thin image keeps its blocks, and a thin restore takes none from its thick source.
///
/// Proves: I1, I6.
#[test]
fn a_trim_takes_no_blocks_from_thick_copies() {
    require!(loop_devices);
    for disk in [Disk::new("xfs"), Disk::new("btrfs").with_simple_quota()] {
        for (of_source, of_copy) in [
            (Allocation::Thin, Allocation::Thick),
            (Allocation::Thick, Allocation::Thin),
        ] {
            let name = disk.name;
            let rig = ImageRig::sized(disk, 2 << 30);
            let source = Published::new(&rig, "ext4", "source", of_source);
            let mut request = formatted("copy", 320 * MIB, "ext4", of_copy);
            request.source = Some(SourceId::Volume(source.volume.id.to_string()));
            let volume = rig.driver().create(&request).unwrap();
            let copy = Published {
                target: rig.publish(&volume, "copy"),
                volume,
                name: "copy",
            };
            let thick = if of_source == Allocation::Thick {
                &source
            } else {
                &copy
            };
            for image in [&source, &copy] {
                image.delete();
            }
            trim(&rig);
            assert!(thick.allocated(&rig) >= 320 * MIB, "{name}");
            for image in [&source, &copy] {
                let kept = fs::read(image.target.join("kept")).unwrap();
                assert_eq!(kept, vec![7; 1 << 20], "{name}");
            }
        }
    }
}
