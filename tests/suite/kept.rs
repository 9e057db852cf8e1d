//! Deleted volumes and snapshots that a pool keeps, and how they come back or end.

mod attacks;
mod ends;
mod images;
mod many;
mod meetings;

use std::fs;
use std::path::PathBuf;

use objects::Bytes;
use rootcellar::error::{Code, Operation, Result};
use rootcellar::volume::{Class, UndeleteRequest, Volume};
use support::disk::Disk;
use support::memory::{MemoryNode, MemorySet, SIZE};
use support::{
    Fakes, Node, Running, create, directory_of, eventually, name, names, require, snapshot,
};

const MIB: u64 = 1 << 20;

/// A node with a pool that keeps deleted objects for a time.
struct Keeping {
    node: MemoryNode,
    running: Option<Running>,
}

impl Keeping {
    fn new(keep: &str) -> Self {
        let node = MemoryNode::new(&["default"]);
        let mut keeping = Self {
            node,
            running: None,
        };
        keeping.start(keep);
        keeping
    }

    fn start(&mut self, keep: &str) {
        self.running = None;
        let option = format!("{}{keep}", self.node.options()[0]);
        self.running = Some(self.node.volumes_of(&[option], &Fakes::default()));
    }

    fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn data(&self, volume: &str) -> PathBuf {
        let home = self.node.pool("default").join("volumes");
        directory_of(&home, volume).join("data")
    }

    fn kept(&self) -> Vec<String> {
        names(&self.node.pool("default").join(".rootcellar/kept"))
    }

    fn make(&self, volume: &str, size: u64) -> Volume {
        let made = self.driver().create(&create(volume, size)).unwrap();
        fs::write(self.data(volume).join("file"), volume).unwrap();
        made
    }

    fn capacity(&self) -> Bytes {
        let class = Class::default();
        let capacity = self.driver().capacity(&class, &[]).unwrap();
        capacity.largest
    }

    fn delete(&self, volume: &Volume) {
        self.driver().delete(&volume.id.to_string()).unwrap();
    }
}

/// A set that keeps deleted objects, with members of these names and sizes.
fn keeping_set(members: &[(&str, u64)]) -> (MemorySet, Running) {
    let set = MemorySet::new(members);
    let mut settings = set.settings();
    settings.sets = vec![set.option(",keep=1h").parse().unwrap()];
    let driver = set.volumes_with(settings, &Fakes::default());
    (set, driver)
}

fn undelete(driver: &Running, volume: &Volume, new: Option<&str>) -> Result<String> {
    let undeleted = driver.undelete(&UndeleteRequest {
        id: volume.id.to_string(),
        name: new.map(name),
        entry: None,
    });
    Ok(undeleted?.id)
}

/// A kept volume is deleted for every call, and comes back as it was. Both may be repeated.
///
/// Proves: UD1, UD2.
#[test]
fn a_deleted_volume_comes_back_as_it_was() {
    let keeping = Keeping::new(",keep=1h");
    let before = keeping.capacity();
    let volume = keeping.make("pvc", 16 * MIB);
    let with_it = keeping.capacity();
    let id = volume.id.to_string();
    for _ in 0..2 {
        let deleted = keeping.driver().delete(&id);
        let code = deleted.map_or_else(|error| error.code(Operation::Delete), |()| Code::Ok);
        assert_eq!(code, Code::Ok);
        assert_eq!(keeping.kept().len(), 1);
        let absent = keeping.driver().get(&id).unwrap_err();
        assert_eq!(absent.code(Operation::Volume), Code::NotFound);
        assert!(keeping.driver().list(9, "").unwrap().objects.is_empty());
        assert!(keeping.capacity().0.abs_diff(before.0) < MIB);
    }
    for _ in 0..2 {
        assert_eq!(undelete(keeping.driver(), &volume, None).unwrap(), id);
        assert_eq!(keeping.driver().get(&id).unwrap(), volume);
        assert_eq!(fs::read(keeping.data("pvc").join("file")).unwrap(), b"pvc");
        assert!(keeping.kept().is_empty());
        assert!(keeping.capacity().0.abs_diff(with_it.0) < MIB);
    }
    let other = undelete(keeping.driver(), &volume, Some("other")).unwrap_err();
    assert_eq!(other.code(Operation::Volume), Code::NotFound);
}

/// Proves: SV11.
#[test]
fn the_inventory_lists_each_volume_that_can_come_back_once() {
    let keeping = Keeping::new(",keep=1h");
    let listed = || {
        let mut pools = keeping.driver().inventory().unwrap().pools;
        let pool = pools.remove(0);
        assert!(pool.complete);
        let kept = pool.kept.iter().map(|one| (one.id, one.bytes.0));
        assert!(pool.kept.iter().all(|one| one.age < 3600));
        (pool.volumes.len(), kept.collect::<Vec<_>>())
    };
    let volume = keeping.make("pvc", 16 * MIB);
    assert_eq!(listed(), (1, vec![]));
    for times in 1..=2 {
        keeping.driver().delete(&volume.id.to_string()).unwrap();
        assert_eq!(keeping.kept().len(), times);
        assert_eq!(listed(), (0, vec![(volume.id, 16 * MIB)]));
        keeping.make("pvc", 16 * MIB);
    }
    assert_eq!(listed().0, 1);
}

/// A pool without the option deletes at once, and the objects that it kept before stay until they are purged.
///
/// Proves: UD1, UD8.
#[test]
fn a_pool_without_the_option_keeps_nothing_new() {
    let mut keeping = Keeping::new(",keep=1h");
    let first = keeping.make("first", 4 * MIB);
    keeping.delete(&first);
    keeping.start("");
    let second = keeping.make("second", 4 * MIB);
    keeping.delete(&second);
    assert_eq!(keeping.kept().len(), 1);
    let lost = undelete(keeping.driver(), &second, None).unwrap_err();
    assert_eq!(lost.code(Operation::Volume), Code::NotFound);
    undelete(keeping.driver(), &first, None).unwrap();
}

/// A volume with the name of a kept one is new and empty. The kept one then comes back under another name, and the
/// newest of several with one id is the first.
///
/// Proves: UD2, UD3.
#[test]
fn a_name_can_be_used_again_meanwhile() {
    let keeping = Keeping::new(",keep=1h");
    let volume = keeping.make("pvc", 4 * MIB);
    keeping.delete(&volume);
    let again = keeping.driver().create(&create("pvc", 8 * MIB)).unwrap();
    assert_eq!(again.id, volume.id);
    assert!(names(&keeping.data("pvc")).is_empty());
    let refused = undelete(keeping.driver(), &volume, None).unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
    assert!(refused.to_string().contains("--as"), "{refused}");
    fs::write(keeping.data("pvc").join("file"), "newer").unwrap();
    keeping.delete(&again);
    assert_eq!(keeping.kept().len(), 2);
    let newest = undelete(keeping.driver(), &volume, Some("copy")).unwrap();
    assert_ne!(newest, volume.id.to_string());
    assert_eq!(
        fs::read(keeping.data("copy").join("file")).unwrap(),
        b"newer"
    );
    assert_eq!(keeping.driver().get(&newest).unwrap().size, again.size);
    undelete(keeping.driver(), &volume, None).unwrap();
    assert_eq!(fs::read(keeping.data("pvc").join("file")).unwrap(), b"pvc");
    assert!(keeping.kept().is_empty());
}

/// Kept objects end when their time is over, or by a purge.
///
/// Proves: UD4, UD5.
#[test]
fn kept_objects_end_after_their_time_or_by_a_purge() {
    let mut keeping = Keeping::new(",keep=1h");
    let volumes = ["a", "b", "c"].map(|volume| keeping.make(volume, 4 * MIB));
    for volume in &volumes {
        keeping.delete(volume);
    }
    let [a, ..] = volumes.each_ref().map(|volume| volume.id.to_string());
    assert_eq!(keeping.driver().purge(Some(&a)).unwrap(), 1);
    let again = keeping.driver().purge(Some(&a)).unwrap_err();
    assert_eq!(again.code(Operation::Volume), Code::NotFound);
    assert_eq!(keeping.kept().len(), 2);
    keeping.start(",keep=1s");
    eventually("their time is over", || keeping.kept().is_empty());
    keeping.driver().wait_for_trash();
    let ended = undelete(keeping.driver(), &volumes[1], None).unwrap_err();
    assert_eq!(ended.code(Operation::Volume), Code::NotFound);
    keeping.start(",keep=1h");
    let last = keeping.make("d", 4 * MIB);
    keeping.delete(&last);
    assert_eq!(keeping.driver().purge(None).unwrap(), 1);
    assert_eq!(keeping.driver().purge(None).unwrap(), 0);
}

/// A creation that needs the space of kept objects gets it, and the capacity says so before.
///
/// Proves: UD6.
#[test]
fn the_space_of_kept_objects_serves_new_ones() {
    let keeping = Keeping::new(",keep=1h");
    let size = SIZE / 4;
    let volumes = ["a", "b", "c"].map(|volume| keeping.make(volume, size));
    let before = keeping.capacity();
    assert!(before.0 < size, "{before}");
    keeping.delete(&volumes[0]);
    keeping.delete(&volumes[1]);
    let accepted = keeping.capacity();
    assert!(accepted.0 > 2 * size, "{accepted}");
    // Only the older one has to go.
    let request = create("new", size + before.0 / 2);
    let waits = keeping.driver().create(&request).unwrap_err();
    assert_eq!(waits.code(Operation::CreateVolume), Code::Unavailable);
    assert!(waits.to_string().contains("kept"), "{waits}");
    eventually("the space is free", || {
        keeping.driver().create(&request).is_ok()
    });
    let kept = keeping.kept();
    assert!(
        matches!(&kept[..], [one] if one.starts_with("b-")),
        "{kept:?}"
    );
    // More than all of them have is refused.
    let too_large = keeping.driver().create(&create("large", SIZE)).unwrap_err();
    assert_eq!(
        too_large.code(Operation::CreateVolume),
        Code::ResourceExhausted
    );
    assert_eq!(keeping.kept().len(), 1);
    undelete(keeping.driver(), &volumes[1], None).unwrap();
}

/// Data that nobody counts is measured, so that kept objects free a disk that their data has filled. The oldest end
/// before it is full.
///
/// Proves: UD6, UD7.
#[test]
fn a_nearly_full_disk_frees_the_oldest_kept_objects() {
    let keeping = Keeping::new(",keep=1h");
    let blocks = |mib: u64| vec![1; usize::try_from(mib * MIB).unwrap()];
    let old = keeping.make("old", 64 * MIB);
    fs::write(keeping.data("old").join("blocks"), blocks(60)).unwrap();
    let young = keeping.make("young", 64 * MIB);
    fs::write(keeping.data("young").join("blocks"), blocks(60)).unwrap();
    let writer = keeping.make("writer", 64 * MIB);
    keeping.delete(&old);
    keeping.delete(&young);
    assert_eq!(keeping.kept().len(), 2);
    // Nothing enforces its size.
    fs::write(keeping.data("writer").join("blocks"), blocks(133)).unwrap();
    eventually("the oldest ends", || keeping.kept().len() == 1);
    keeping.driver().wait_for_trash();
    assert!(keeping.kept()[0].starts_with("young-"));
    keeping.delete(&writer);
}

/// A kept snapshot comes back, and so does a volume whose snapshot has stayed.
///
/// Proves: UD1, UD2.
#[test]
fn snapshots_and_their_volumes_come_back() {
    let keeping = Keeping::new(",keep=1h");
    let volume = keeping.make("pvc", 4 * MIB);
    let made = keeping
        .driver()
        .create_snapshot(&snapshot("s", volume.id))
        .unwrap();
    let id = made.id.to_string();
    keeping.driver().delete_snapshot(&id).unwrap();
    keeping.delete(&volume);
    let absent = keeping.driver().get_snapshot(&id).unwrap_err();
    assert_eq!(absent.code(Operation::Volume), Code::NotFound);
    let request = UndeleteRequest {
        id: id.clone(),
        ..UndeleteRequest::default()
    };
    assert_eq!(keeping.driver().undelete(&request).unwrap().id, id);
    assert_eq!(keeping.driver().get_snapshot(&id).unwrap(), made);
    let named = UndeleteRequest {
        name: Some(name("other")),
        ..request
    };
    let refused = keeping.driver().undelete(&named).unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::InvalidArgument);
    undelete(keeping.driver(), &volume, None).unwrap();
    assert_eq!(fs::read(keeping.data("pvc").join("file")).unwrap(), b"pvc");
}

/// On btrfs the limit of a kept volume stays, its own blocks can be reclaimed, and it is enforced when it is back.
///
/// Proves: UD6, UD9.
#[test]
fn limits_and_charges_of_kept_volumes_stay() {
    require!(simple_quota);
    let node = Node::new();
    let _mount = node.make_pool_disk(Disk::new("btrfs").with_simple_quota());
    let option = format!("{},keep=1h", node.own_pool_option());
    let driver = node.volumes_of(&[option], &Fakes::default());
    let volume = driver.create(&create("pvc", 64 * MIB)).unwrap();
    let data = || directory_of(&node.pool().join("volumes"), "pvc").join("data");
    fs::write(data().join("file"), vec![1; 32 << 20]).unwrap();
    let made = driver.create_snapshot(&snapshot("s", volume.id)).unwrap();
    driver.delete(&volume.id.to_string()).unwrap();
    driver.delete_snapshot(&made.id.to_string()).unwrap();
    undelete(&driver, &volume, None).unwrap();
    let full = fs::write(data().join("more"), vec![1; 64 << 20]);
    full.unwrap_err();
}

/// An empty disk of a set counts as empty while it has only kept objects, and takes an exclusive volume after they
/// are reclaimed. A kept exclusive volume comes back only to a disk without others.
///
/// Proves: UD6, UD10.
#[test]
fn a_disk_with_kept_objects_takes_an_exclusive_volume() {
    let (_set, driver) = keeping_set(&[("a", SIZE)]);
    let mut request = create("whole", 64 * MIB);
    request.class.exclusive = true;
    let whole = driver.create(&request).unwrap();
    driver.delete(&whole.id.to_string()).unwrap();
    let part = driver.create(&create("part", 4 * MIB));
    let part = part.or_else(|_| {
        eventually("there is free space", || {
            driver.create(&create("part", 4 * MIB)).is_ok()
        });
        driver.create(&create("part", 4 * MIB))
    });
    let part = part.unwrap();
    let refused = undelete(&driver, &whole, None).unwrap_err();
    let code = refused.code(Operation::Volume);
    assert!(
        matches!(code, Code::ResourceExhausted | Code::NotFound),
        "{refused}"
    );
    driver.delete(&part.id.to_string()).unwrap();
    request.name = name("other");
    eventually("the disk is empty", || driver.create(&request).is_ok());
}
