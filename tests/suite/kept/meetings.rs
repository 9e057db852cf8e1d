//! Kept objects of pools that are adopted, cordoned or retired, and of volumes that move or are deleted again.

use std::sync::Arc;

use linux::mount::Users;
use linux::os::Os;
use objects::{ObjectId, VolumeId};
use pool::{KnownPools, PoolOptions, Wanted, adopt, find_id, retire};
use rootcellar::error::Error;
use rootcellar::volume::{Caller, SourceId};
use serde_json::Value;
use support::faults::{Gate, Opened};
use support::{NODE, publish, unmount};

use super::*;

const ANYWHERE: Wanted = Wanted {
    require_mount: false,
    any_filesystem: true,
};

fn memory(node: &Node) -> KnownPools {
    KnownPools::open(Os::default(), &node.path("state")).unwrap()
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
    driver
        .move_to(&id, "b", Users::Check, &Caller::default())
        .unwrap();
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

/// A volume that was moved away from its snapshot comes back once that is deleted, although it is kept. The charge
/// that the snapshot retains must have space, too. A restore from the kept snapshot has its content.
///
/// Proves: G1, MV1, MV3, UD1, UD9.
#[test]
fn a_moved_volume_returns_to_its_kept_snapshot() {
    require!(simple_quota);
    let node = Node::new();
    let disks = node.path("disks");
    let _mounts = ["a", "b"].map(|member| {
        let disk = Disk::new("btrfs").with_simple_quota();
        disk.make(&node.path(member), &disks.join(member))
    });
    let mut settings = node.settings(&[]);
    let set = format!("set={},init,reserve=0,keep=1h", disks.display());
    settings.sets = vec![set.parse().unwrap()];
    let driver = node.volumes_with(settings, &Fakes::default());
    let volume = driver.create(&create("pvc", 16 * MIB)).unwrap();
    let (id, home) = (volume.id.to_string(), volume.pool.member().unwrap());
    let other = if home == "a" { "b" } else { "a" };
    let data = |member: &str, volume: &str| {
        directory_of(&disks.join(member).join("volumes"), volume).join("data/file")
    };
    let before = vec![b'b'; 8 << 20];
    fs::write(data(home, "pvc"), &before).unwrap();
    rustix::fs::sync();
    let taken = driver.create_snapshot(&snapshot("taken", &id)).unwrap();
    let taken = taken.id.to_string();
    driver
        .move_to(&id, other, Users::Check, &Caller::default())
        .unwrap();
    fs::write(data(other, "pvc"), "after").unwrap();
    let refused = driver
        .move_to(&id, home, Users::Check, &Caller::default())
        .unwrap_err();
    assert!(
        refused.to_string().contains("still has snapshots"),
        "{refused}"
    );
    driver.delete_snapshot(&taken).unwrap();
    let largest = driver.capacity(&Class::default(), &[]).unwrap().largest;
    let filler = create("filler", largest.0 - 20 * MIB);
    let filler = driver.create(&filler).unwrap();
    assert_eq!(filler.pool.member(), Some(home));
    let full = driver
        .move_to(&id, home, Users::Check, &Caller::default())
        .unwrap_err();
    assert!(full.to_string().contains("has free space for"), "{full}");
    driver.delete_now(&filler.id.to_string()).unwrap();
    eventually("the volume returns", || {
        let back = driver.move_to(&id, home, Users::Check, &Caller::default());
        back.is_ok()
    });
    assert_eq!(fs::read(data(home, "pvc")).unwrap(), b"after");
    let request = UndeleteRequest {
        id: taken.clone(),
        ..UndeleteRequest::default()
    };
    driver.undelete(&request).unwrap();
    let mut restore = create("restored", 16 * MIB);
    restore.source = Some(SourceId::Snapshot(taken));
    driver.create(&restore).unwrap();
    assert_eq!(fs::read(data(home, "restored")).unwrap(), before);
    assert_eq!(fs::read(data(home, "pvc")).unwrap(), b"after");
}

/// An `undelete --as` that the end of the driver has interrupted before its rename leaves the new name in the record. The
/// former id still leads to the volume, which can get a third name.
///
/// Proves: UD2.
#[test]
fn a_half_renamed_volume_is_found_by_both_ids() {
    let cases = [("pvc", "third"), ("other", "other"), ("pvc", "other")];
    let purged = [("pvc", "purged"), ("other", "purged")];
    for (asked, new) in cases.into_iter().chain(purged) {
        let mut keeping = Keeping::new(",keep=1h");
        let volume = keeping.make("pvc", 4 * MIB);
        keeping.delete(&volume);
        keeping.running = None;
        let id = |name: &str| VolumeId::new(volume.id.pool(), &support::name(name)).to_string();
        let kept = keeping.node.pool("default").join(".rootcellar/kept");
        let record = kept.join(&keeping.kept()[0]).join("volume.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        json["id"] = id("other").into();
        json["name"] = "other".into();
        fs::write(&record, json.to_string()).unwrap();
        keeping.start(",keep=1h");

        let request = |asked: &str, new: Option<&str>| UndeleteRequest {
            id: id(asked),
            name: new.map(name),
            entry: None,
        };
        let refused = keeping.driver().undelete(&request("pvc", None));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("--as other"), "{refused}");
        if new == "purged" {
            assert_eq!(keeping.driver().purge(Some(&id(asked))).unwrap(), 1);
            assert_eq!(keeping.kept(), [""; 0]);
            continue;
        }
        let as_new = (asked != new).then_some(new);
        let back = keeping.driver().undelete(&request(asked, as_new)).unwrap();
        assert_eq!((back.id, back.existed), (id(new), false), "{asked} {new}");
        assert_eq!(fs::read(keeping.data(new).join("file")).unwrap(), b"pvc");
        assert_eq!(keeping.kept(), [""; 0]);
    }
}

/// An undelete says when there was nothing to bring back.
///
/// Proves: UD2.
#[test]
fn an_undelete_of_what_exists_says_so() {
    let keeping = Keeping::new(",keep=1h");
    let volume = keeping.make("pvc", 4 * MIB);
    let request = UndeleteRequest {
        id: volume.id.to_string(),
        ..UndeleteRequest::default()
    };
    let undelete = || keeping.driver().undelete(&request).unwrap().existed;
    assert!(undelete());
    keeping.delete(&volume);
    assert!(!undelete());
    assert!(undelete());
}

/// Two members keep a volume of one id, which was moved before the first deletion. No clock says which is newer, so the
/// request names one.
///
/// Proves: UD3.
#[test]
fn of_two_members_with_one_id_the_entry_chooses() {
    require!(mount_namespace);
    let (set, driver, volume) = two_members();
    let id = volume.id.to_string();
    driver
        .move_to(&id, "b", Users::Check, &Caller::default())
        .unwrap();
    driver.delete(&id).unwrap();
    let again = driver.create(&create("pvc", 8 * MIB)).unwrap();
    assert_eq!(again.id, volume.id);
    driver.delete(&id).unwrap();
    let refused = undelete(&driver, &volume, None).unwrap_err().to_string();
    let kept = names(&set.member("b").join(".rootcellar/kept"));
    let (_, entry) = kept[0].rsplit_once('.').unwrap();
    assert!(refused.contains(&format!("--entry {entry}")), "{refused}");
    let request = UndeleteRequest {
        id,
        entry: Some(entry.parse().unwrap()),
        name: None,
    };
    driver.undelete(&request).unwrap();
    assert_eq!(fs::read(file(&set, "b")).unwrap(), b"kept");
}
