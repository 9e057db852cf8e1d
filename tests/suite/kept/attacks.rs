//! Sequences by which kept objects could harm others, or come back as others.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linux::os::Step;
use rootcellar::error::Error;
use rootcellar::volume::Caller;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use support::driver_node::DriverNode;
use support::faults::{End, Gate, Opened};

use super::*;

mod copies;

/// Replaces a file, with new blocks for its content.
fn rewrite(path: &Path, mebibytes: u64) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    let content = vec![7; 1 << 20];
    for _ in 0..mebibytes {
        file.write_all(&content)?;
    }
    file.sync_all()
}

/// A pool that keeps deleted objects, on a disk of its own.
struct KeepingDisk {
    base: DriverNode,
}

support::extends!(KeepingDisk, base: DriverNode);

impl KeepingDisk {
    fn new(disk: Disk, fakes: &Fakes) -> Self {
        Self {
            base: DriverNode::keeping(disk, fakes.clone()),
        }
    }

    fn with_simple_quota(fakes: &Fakes) -> Self {
        let disk = Disk::new("btrfs").with_simple_quota().sized(640 << 20);
        Self::new(disk, fakes)
    }

    fn make(&self, volume: &str, size: u64, written: u64) -> Volume {
        let made = self.base.make(volume, size);
        rewrite(&self.file(volume), written).unwrap();
        made
    }

    fn file(&self, volume: &str) -> PathBuf {
        directory_of(&self.node.pool().join("volumes"), volume).join("data/file")
    }

    fn capacity(&self) -> u64 {
        let capacity = self.driver().capacity(&Class::default(), &[]);
        capacity.unwrap().largest.0
    }

    fn delete(&self, volume: &Volume) {
        self.driver().delete(&volume.id.to_string()).unwrap();
    }

    fn free(&self) -> u64 {
        let disk = statvfs(self.node.pool()).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    fn kept(&self) -> usize {
        names(&self.node.pool().join(".rootcellar/kept")).len()
    }

    /// Creates a volume as soon as its space is free, and expects no other refusal until then.
    fn create_after_waiting(&self, volume: &str, size: u64) -> Volume {
        let mut made = None;
        eventually("there is free space", || {
            match self.driver().create(&create(volume, size)) {
                Ok(volume) => made = Some(volume),
                Err(refused) => assert_eq!(code(&refused), Code::Unavailable, "{refused}"),
            }
            made.is_some()
        });
        made.unwrap()
    }
}

fn code(refused: &Error) -> Code {
    refused.code(Operation::CreateVolume)
}

/// A kept copy and a new one with its name are of two instants, so their volume can be written still.
///
/// Proves: UD9.
#[test]
fn a_copy_with_the_name_of_a_kept_one_has_its_own_charge() {
    require!(simple_quota);
    let pool = KeepingDisk::with_simple_quota(&Fakes::default());
    let volume = pool.make("pvc", 64 * MIB, 62);
    for _ in 0..2 {
        let copy = pool.driver().create_snapshot(&snapshot("s", volume.id));
        let copy = copy.unwrap().id.to_string();
        rewrite(&pool.file("pvc"), 62).unwrap();
        pool.driver().delete_snapshot(&copy).unwrap();
    }
    pool.driver()
        .create_snapshot(&snapshot("s", volume.id))
        .unwrap();
    rewrite(&pool.file("pvc"), 62).unwrap();
}

/// After an interrupted undeletion its repetition limits the volume.
///
/// Proves: UD2, UD9.
#[test]
fn a_repeated_undeletion_limits_the_volume() {
    require!(simple_quota);
    let fails = Arc::new(AtomicBool::new(false));
    let plan = Arc::clone(&fails);
    let fakes = Fakes::planned(move |step, _| match step {
        Step::Limit if plan.load(Ordering::SeqCst) => Err(Errno::NOSPC),
        _ => Ok(()),
    });
    let pool = KeepingDisk::with_simple_quota(&fakes);
    let volume = pool.make("pvc", 64 * MIB, 60);
    let copy = pool.driver().create_snapshot(&snapshot("s", volume.id));
    pool.delete(&volume);
    pool.driver()
        .delete_now(&copy.unwrap().id.to_string())
        .unwrap();
    pool.driver().wait_for_trash();
    fails.store(true, Ordering::SeqCst);
    undelete(pool.driver(), &volume, None).unwrap_err();
    fails.store(false, Ordering::SeqCst);
    undelete(pool.driver(), &volume, None).unwrap();
    rewrite(&pool.file("pvc").with_file_name("more"), 40).unwrap_err();
}

/// The own name of a moved volume is no reason to change its id, which the charges of its copies name.
///
/// Proves: UD3.
#[test]
fn a_moved_volume_with_copies_keeps_its_id() {
    require!(simple_quota);
    let node = Node::new();
    let disk = Disk::new("btrfs").with_simple_quota().sized(400 << 20);
    let _a = disk.make(&node.path("image-a"), &node.path("disks/a"));
    let _b = disk.make(&node.path("image-b"), &node.path("disks/b"));
    let mut settings = node.settings(&[]);
    let set = node.path("disks").display().to_string();
    settings.sets = vec![format!("set={set},init,reserve=0,keep=1h").parse().unwrap()];
    let driver = node.volumes_with(settings, &Fakes::default());
    let volume = driver.create(&create("pvc", 64 * MIB)).unwrap();
    let to = match volume.pool.member() {
        Some("a") => "b",
        _ => "a",
    };
    let id = volume.id.to_string();
    driver
        .move_to(&id, to, linux::mount::Users::Check, &Caller::default())
        .unwrap();
    let home = node.path("disks").join(to).join("volumes");
    rewrite(&directory_of(&home, "pvc").join("data/file"), 40).unwrap();
    driver.create_snapshot(&snapshot("s", volume.id)).unwrap();
    driver.delete(&id).unwrap();
    let refused = undelete(&driver, &volume, Some("pvc")).unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
    assert_eq!(undelete(&driver, &volume, None).unwrap(), id);
}

/// While the disk with the newest object is away, an older one with its id does not come back in its place.
///
/// Proves: UD3.
#[test]
fn a_disk_that_is_away_may_have_a_newer_object() {
    require!(mount_namespace);
    for has_older in [false, true] {
        let (set, driver) = keeping_set(&[("a", SIZE), ("b", SIZE / 2)]);
        if has_older {
            let older = driver.create(&create("pvc", 8 * MIB)).unwrap();
            driver.delete(&older.id.to_string()).unwrap();
        }
        let volume = driver.create(&create("pvc", 8 * MIB)).unwrap();
        let id = volume.id.to_string();
        driver
            .move_to(&id, "b", linux::mount::Users::Check, &Caller::default())
            .unwrap();
        driver.delete(&id).unwrap();
        set.unmount("b");
        driver.find_members();
        let refused = undelete(&driver, &volume, None).unwrap_err();
        assert_eq!(
            refused.code(Operation::Volume),
            Code::Unavailable,
            "{refused}"
        );
        set.mount("b");
        driver.find_members();
        if !has_older {
            eventually("the volume comes back", || {
                undelete(&driver, &volume, None).is_ok()
            });
        }
    }
}

/// A volume that is coming back is not deleted for good, and `purge` does not say so.
///
/// Proves: UD5.
#[test]
fn a_purge_spares_what_is_coming_back() {
    let (node, gate) = (MemoryNode::new(&["default"]), Arc::new(Gate::default()));
    let option = node.options()[0].clone() + ",keep=1h";
    let driver = node.volumes_of(&[option], &gate.fakes());
    let volume = driver.create(&create("pvc", 4 * MIB)).unwrap();
    driver.delete(&volume.id.to_string()).unwrap();
    std::thread::scope(|scope| {
        let _opened = Opened(&gate);
        gate.shut("volume.json");
        let back = scope.spawn(|| undelete(&driver, &volume, Some("other")));
        eventually("the volume is coming back", || gate.holds("volume.json"));
        let purged = driver.purge(Some(&volume.id.to_string()));
        assert_eq!(purged.unwrap_err().code(Operation::Volume), Code::NotFound);
        gate.open(|_| true);
        back.join().unwrap().unwrap();
    });
}

/// An undeletion under a new name that failed leaves the object under its own one.
///
/// Proves: UD2.
#[test]
fn a_failed_undeletion_changes_no_name() {
    let fails = Arc::new(AtomicBool::new(true));
    let plan = Arc::clone(&fails);
    let fakes = Fakes::planned(move |step, name| {
        let is_return = step == Step::Rename && name.to_string_lossy().starts_with("other");
        if is_return && plan.load(Ordering::SeqCst) {
            return Err(Errno::NOSPC);
        }
        Ok(())
    });
    let node = MemoryNode::new(&["default"]);
    let option = node.options()[0].clone() + ",keep=1h";
    let driver = node.volumes_of(&[option], &fakes);
    let volume = driver.create(&create("pvc", 4 * MIB)).unwrap();
    driver.delete(&volume.id.to_string()).unwrap();
    undelete(&driver, &volume, Some("other")).unwrap_err();
    assert_eq!(
        undelete(&driver, &volume, None).unwrap(),
        volume.id.to_string()
    );
}

/// Blocks that a kept copy shares with an existing volume count as space until the copy has ended for a creation in vain. A
/// request above the capacity ends nothing, and a kept volume and its kept copy end one after the other.
///
/// Proves: UD6, G3.
#[test]
fn shared_blocks_count_until_their_object_has_ended() {
    require!(loop_devices);
    let pool = KeepingDisk::new(Disk::new("xfs").sized(400 << 20), &Fakes::default());
    // It leaves less space than the sizes do.
    pool.make("other", 0, 100);
    let volume = pool.make("pvc", 80 * MIB, 78);
    let before = pool.capacity();
    let keep_copy = || {
        let copy = pool.driver().create_snapshot(&snapshot("s", volume.id));
        let id = copy.unwrap().id.to_string();
        pool.driver().delete_snapshot(&id).unwrap();
        eventually("the kept copy is measured", || {
            pool.capacity() >= before + 60 * MIB
        });
    };
    keep_copy();
    let large = create("large", pool.capacity() + 8 * MIB);
    let refused = pool.driver().create(&large).unwrap_err();
    assert_eq!(code(&refused), Code::ResourceExhausted, "{refused}");
    assert_eq!(pool.kept(), 1);
    let mut last = Code::Unavailable;
    eventually("the copy has ended in vain", || {
        let refused = pool.driver().create(&create("new", before + 40 * MIB));
        last = code(&refused.unwrap_err());
        last != Code::Unavailable
    });
    assert_eq!((last, pool.kept()), (Code::ResourceExhausted, 0));
    assert!(pool.capacity() < before + 8 * MIB);

    keep_copy();
    pool.delete(&volume);
    pool.create_after_waiting("new", before + 60 * MIB);
    assert_eq!(pool.kept(), 0);
}

/// A volume counts once while it is being deleted: a creation needs no other kept volume's space then.
///
/// Proves: UD6.
#[test]
fn a_volume_counts_once_while_it_is_deleted() {
    require!(mount_namespace);
    let moving = Arc::new(AtomicBool::new(false));
    let deleted = Arc::new(AtomicBool::new(false));
    let (is_moving, goes_on) = (Arc::clone(&moving), Arc::clone(&deleted));
    let fakes = Fakes::planned(move |step, name| {
        if step == Step::Rename && name.to_string_lossy().starts_with("second-") {
            is_moving.store(true, Ordering::SeqCst);
            eventually("the creation has ended", || goes_on.load(Ordering::SeqCst));
        }
        Ok(())
    });
    let node = MemoryNode::new(&["default"]);
    let option = node.options()[0].clone() + ",keep=1h";
    let driver = node.volumes_of(&[option], &fakes);
    deleted.store(true, Ordering::SeqCst);
    for (volume, size) in [("first", SIZE / 10), ("second", SIZE / 2)] {
        driver.create(&create(volume, size)).unwrap();
    }
    let [first, second] = ["first", "second"].map(|volume| {
        let all = driver.list(usize::MAX, "").unwrap().objects;
        let found = all.iter().find(|found| found.name.as_str() == volume);
        found.unwrap().id.to_string()
    });
    driver.delete(&first).unwrap();
    moving.store(false, Ordering::SeqCst);
    deleted.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let _end = End(&deleted);
        scope.spawn(|| driver.delete(&second).unwrap());
        eventually("it is being moved", || moving.load(Ordering::SeqCst));
        driver.create(&create("new", SIZE / 5)).unwrap();
    });
    assert_eq!(driver.pools()[0].measured_view().kept, 2);
    assert_eq!(driver.pools()[0].measured_view().reserved, Bytes(SIZE / 5));
}

/// Where no usage is counted, the size of a kept volume counts as space, even if its blocks may be shared.
///
/// Proves: UD6, G3.
#[test]
fn sizes_are_space_where_blocks_may_be_shared() {
    require!(loop_devices);
    let pool = KeepingDisk::new(Disk::new("xfs").sized(400 << 20), &Fakes::default());
    let source = pool.make("source", 40 * MIB, 1);
    let copy = pool.driver().create_snapshot(&snapshot("s", source.id));
    copy.unwrap();
    let before = pool.capacity();
    let old = pool.make("old", 150 * MIB, 1);
    pool.delete(&old);
    assert_eq!((pool.kept(), pool.capacity()), (1, before));
    pool.create_after_waiting("new", before);
    assert_eq!(pool.kept(), 0);
}

/// Between UNAVAILABLE and the new volume there is no other refusal, although XFS frees blocks late, above all
/// those of a file in many parts.
///
/// Proves: UD6.
#[test]
fn a_creation_waits_until_freed_space_is_counted() {
    const PART: u64 = 8 << 10;
    require!(loop_devices);
    let pool = KeepingDisk::new(Disk::new("xfs").sized(400 << 20), &Fakes::default());
    let old = pool.make("old", 250 * MIB, 200);
    let mut options = fs::File::options();
    let file = options.write(true).open(pool.file("old"));
    let file = file.unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for part in 0..200 * MIB / PART {
        fallocate(&file, hole, part * PART, PART / 2).unwrap();
    }
    drop(file);
    pool.delete(&old);
    let mut size = 0;
    eventually("the kept volume is measured", || {
        size = pool.capacity().saturating_sub(8 * MIB);
        size > 250 * MIB
    });
    pool.create_after_waiting("new", size);
}

/// Of several kept volumes with one id, the blocks of each count.
///
/// Proves: UD6.
#[test]
fn kept_volumes_with_one_id_count_each() {
    require!(simple_quota);
    let pool = KeepingDisk::with_simple_quota(&Fakes::default());
    let before = pool.capacity();
    let volume = pool.make("pvc", 110 * MIB, 100);
    let copy = pool.driver().create_snapshot(&snapshot("s", volume.id));
    pool.delete(&volume);
    let next = pool.make("pvc", 110 * MIB, 100);
    assert_eq!(next.id, volume.id);
    pool.delete(&next);
    pool.driver()
        .delete_snapshot(&copy.unwrap().id.to_string())
        .unwrap();
    pool.create_after_waiting("new", before - 40 * MIB);
}

/// An exclusive volume that cannot come back because of others is refused at once, and ends nothing.
///
/// Proves: UD10.
#[test]
fn an_exclusive_volume_does_not_wait_for_others() {
    let (_set, driver) = keeping_set(&[("a", SIZE)]);
    let mut request = create("whole", 64 * MIB);
    request.class.exclusive = true;
    let whole = driver.create(&request).unwrap();
    driver.delete(&whole.id.to_string()).unwrap();
    driver.create(&create("part", 0)).unwrap();
    let refused = undelete(&driver, &whole, None).unwrap_err();
    assert_eq!(code(&refused), Code::ResourceExhausted, "{refused}");
}

/// Starts and stops do not lengthen the time.
///
/// Proves: UD4.
#[test]
fn restarts_do_not_prolong_the_time() {
    let mut keeping = Keeping::new(",keep=3s");
    let volume = keeping.make("pvc", 4 * MIB);
    keeping.delete(&volume);
    let since = std::time::Instant::now();
    eventually("the time is over", || {
        let served = std::time::Instant::now();
        while served.elapsed().as_millis() < 300 {
            std::thread::yield_now();
        }
        keeping.start(",keep=3s");
        keeping.kept().is_empty()
    });
    assert!(since.elapsed().as_secs() >= 2);
}

/// An undelete ends no other kept object, although its size is not free.
///
/// Proves: UD6.
#[test]
fn an_undelete_ends_no_others() {
    require!(simple_quota);
    let pool = KeepingDisk::with_simple_quota(&Fakes::default());
    let kept: Vec<Volume> = ["a", "b", "c"]
        .map(|name| {
            let volume = pool.driver().create(&create(name, 100 * MIB)).unwrap();
            pool.driver().delete(&volume.id.to_string()).unwrap();
            volume
        })
        .into();
    let largest = pool
        .driver()
        .capacity(&Class::default(), &[])
        .unwrap()
        .largest;
    let filler = create("filler", largest.0 - 50 * MIB);
    let filler = pool.driver().create(&filler).unwrap();
    let refused = undelete(pool.driver(), &kept[2], None).unwrap_err();
    assert_eq!(
        refused.code(Operation::CreateVolume),
        Code::ResourceExhausted
    );
    pool.driver().delete_now(&filler.id.to_string()).unwrap();
    for volume in &kept {
        eventually("its size is free", || {
            undelete(pool.driver(), volume, None).is_ok()
        });
    }
}
