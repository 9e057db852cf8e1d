//! Kept objects of pools that are adopted, cordoned or retired, and of volumes that move or are deleted again.

use std::sync::Arc;

use linux::mount::Users;
use linux::os::Os;
use objects::ObjectId;
use rootcellar::error::Error;
use rootcellar::pool::{Memory, PoolOptions, Wanted, adopt, find_id, retire};
use support::faults::{Gate, Opened};
use support::{NODE, publish, unmount};

use super::*;

const ANYWHERE: Wanted = Wanted {
    require_mount: false,
    any_filesystem: true,
};

fn memory(node: &Node) -> Memory {
    Memory::open(Os::default(), &node.path("state")).unwrap()
}

/// A set with the members a and b, of which a has the most free space, and the volume "pvc" with a file on a.
fn two_members() -> (MemorySet, Running, Volume) {
    let (set, driver) = keeping_set(&[("a", SIZE), ("b", SIZE / 2)]);
    let volume = driver.create(&create("pvc", 8 * MIB)).unwrap();
    fs::write(file(&set, "a"), "kept").unwrap();
    (set, driver, volume)
}

/// The file in the volume "pvc" of a member.
fn file(set: &MemorySet, member: &str) -> PathBuf {
    directory_of(&set.member(member).join("volumes"), "pvc").join("data/file")
}

/// The provisioner may repeat a deletion after the volume came back. Then it is kept again.
///
/// Proves: UD2.
#[test]
fn a_late_second_deletion_is_kept_again() {
    let keeping = Keeping::new(",keep=1h");
    let volume = keeping.make("pvc", 4 * MIB);
    for _ in 0..3 {
        keeping.delete(&volume);
        assert_eq!(keeping.kept().len(), 1);
        undelete(keeping.driver(), &volume, None).unwrap();
    }
    assert_eq!(fs::read(keeping.data("pvc").join("file")).unwrap(), b"pvc");
    let (id, target) = (volume.id.to_string(), keeping.node.target("pod"));
    keeping.driver().publish(&publish(&id, &target)).unwrap();
    let used = keeping.driver().delete(&id).unwrap_err();
    assert_eq!(used.code(Operation::Delete), Code::FailedPrecondition);
    keeping.driver().unpublish(&id, &target).unwrap();
}

/// A kept exclusive volume and a new one cannot both get the disk, because each sees the other while it is made.
///
/// Proves: UD10.
#[test]
fn an_exclusive_volume_comes_back_alone() {
    require!(simple_quota);
    let (node, gate) = (Node::new(), Arc::new(Gate::default()));
    let member = node.path("disks/a");
    let _mount = Disk::new("btrfs")
        .with_simple_quota()
        .make(&node.path("image"), &member);
    let mut settings = node.settings(&[]);
    let disks = node.path("disks");
    let set = format!("set={},init,reserve=0,keep=1h", disks.display());
    settings.sets = vec![set.parse().unwrap()];
    let driver = node.volumes_with(settings, &gate.fakes());
    let mut request = create("whole", 64 * MIB);
    request.class.exclusive = true;
    let whole = driver.create(&request).unwrap();
    driver.delete(&whole.id.to_string()).unwrap();
    let exhausted = |refused: Error| {
        assert_eq!(
            refused.code(Operation::CreateVolume),
            Code::ResourceExhausted,
            "{refused}"
        );
    };
    std::thread::scope(|scope| {
        let _opened = Opened(&gate);
        gate.shut("volume.json");
        let part = scope.spawn(|| driver.create(&create("part", 4 * MIB)));
        eventually("a volume is being made", || gate.holds("volume.json"));
        exhausted(undelete(&driver, &whole, None).unwrap_err());
        gate.open(|_| true);
        let part = part.join().unwrap().unwrap();
        driver.delete_now(&part.id.to_string()).unwrap();
        // The reclaimer removes a record of this name.
        driver.wait_for_trash();
        gate.shut("volume.json");
        let back = scope.spawn(|| undelete(&driver, &whole, Some("other")));
        eventually("the volume is coming back", || gate.holds("volume.json"));
        exhausted(driver.create(&create("part", 4 * MIB)).unwrap_err());
        gate.open(|_| true);
        back.join().unwrap().unwrap();
        exhausted(driver.create(&create("part", 4 * MIB)).unwrap_err());
    });
}

/// `delete --now` keeps nothing, and an older volume with the same id stays kept.
///
/// Proves: UD5.
#[test]
fn a_deletion_for_good_spares_older_ones() {
    let keeping = Keeping::new(",keep=1h");
    let older = keeping.make("pvc", 4 * MIB);
    keeping.delete(&older);
    let newer = keeping.make("pvc", 4 * MIB);
    fs::write(keeping.data("pvc").join("file"), "newer").unwrap();
    let id = newer.id.to_string();
    keeping.driver().delete_now(&id).unwrap();
    assert_eq!(keeping.kept().len(), 1);
    undelete(keeping.driver(), &older, None).unwrap();
    assert_eq!(fs::read(keeping.data("pvc").join("file")).unwrap(), b"pvc");
    let snapshot = keeping
        .driver()
        .create_snapshot(&snapshot("s", &id))
        .unwrap();
    keeping
        .driver()
        .delete_now(&snapshot.id.to_string())
        .unwrap();
    assert!(keeping.kept().is_empty());
}

/// A purge by id spares the volume of the same name that another pool keeps.
///
/// Proves: UD5.
#[test]
fn a_purge_spares_the_same_name_in_another_pool() {
    let node = MemoryNode::new(&["default", "second"]);
    let options: Vec<_> = node
        .options()
        .into_iter()
        .map(|option| option + ",keep=1h")
        .collect();
    let driver = node.volumes_of(&options, &Fakes::default());
    let made = ["default", "second"].map(|pool| {
        let mut request = create("pvc", 4 * MIB);
        request.class.pool = Some(pool.parse().unwrap());
        let volume = driver.create(&request).unwrap();
        driver.delete(&volume.id.to_string()).unwrap();
        volume
    });
    assert_eq!(driver.purge(Some(&made[0].id.to_string())).unwrap(), 1);
    undelete(&driver, &made[1], None).unwrap();
}

/// A node that adopts the disk has its kept volumes, too.
///
/// Proves: UD2.
#[test]
fn kept_volumes_go_with_their_disk() {
    let node = MemoryNode::new(&["default"]);
    let options = [node.options()[0].clone() + ",keep=1h"];
    let mut settings = node.settings(&options);
    settings.node = "other-node".parse().unwrap();
    settings.state_dir = node.path("other-state");
    let other = node.volumes_with(settings, &Fakes::default());
    let volume = other.create(&create("pvc", 4 * MIB)).unwrap();
    other.delete(&volume.id.to_string()).unwrap();
    drop(other);
    let path = node.pool("default");
    eventually("nothing has the lock of the pool", || {
        adopt(&memory(&node), &path, &NODE.parse().unwrap(), ANYWHERE).is_ok()
    });
    let driver = node.volumes_of(&options, &Fakes::default());
    undelete(&driver, &volume, None).unwrap();
    assert_eq!(driver.get(&volume.id.to_string()).unwrap(), volume);
}

/// A cordoned member gets its kept volumes back, so that they can move to another.
///
/// Proves: UD11, UD12.
#[test]
fn a_kept_volume_comes_back_to_a_cordoned_member_and_moves() {
    require!(mount_namespace);
    let (set, driver, volume) = two_members();
    let id = volume.id.to_string();
    driver.delete(&id).unwrap();
    let option = format!("p={}", set.member("a").display());
    let options: PoolOptions = option.parse().unwrap();
    let memory = memory(&set);
    let pool = find_id(&memory, &options).unwrap();
    memory.set_cordoned(&[pool], true).unwrap();
    undelete(&driver, &volume, None).unwrap();
    driver.move_to(&id, "b", Users::Check).unwrap();
    assert_eq!(fs::read(file(&set, "b")).unwrap(), b"kept");
    // The copy that the move left is not kept.
    assert!(names(&set.member("a").join(".rootcellar/kept")).is_empty());

    // After its deletion it comes back where it was last.
    driver.delete(&id).unwrap();
    undelete(&driver, &volume, None).unwrap();
    assert_eq!(fs::read(file(&set, "b")).unwrap(), b"kept");
}

/// The kept volumes of a disk that is away are UNAVAILABLE, and deleted once its pool is retired.
///
/// Proves: UD12.
#[test]
fn kept_volumes_are_lost_with_a_retired_pool() {
    require!(mount_namespace);
    let (set, driver, volume) = two_members();
    driver.delete(&volume.id.to_string()).unwrap();
    unmount(set.member("a"));
    driver.find_members();
    let away = undelete(&driver, &volume, None).unwrap_err();
    assert_eq!(away.code(Operation::Volume), Code::Unavailable, "{away}");
    let purge = driver.purge(Some(&volume.id.to_string())).unwrap_err();
    assert_eq!(purge.code(Operation::Volume), Code::Unavailable, "{purge}");
    drop(driver);
    retire(&memory(&set), volume.id.pool()).unwrap();
    let mut settings = set.settings();
    settings.sets = vec![set.option(",keep=1h").parse().unwrap()];
    let driver = set.volumes_with(settings, &Fakes::default());
    driver.delete(&volume.id.to_string()).unwrap();
    let lost = undelete(&driver, &volume, None).unwrap_err();
    assert_ne!(lost.code(Operation::Volume), Code::Ok);
}
