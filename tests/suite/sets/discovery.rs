//! Members that are mounted, unmounted, missing at the start, and retired.

use std::process::Command;

use linux::os::Os;
use objects::ObjectId;
use pool::{KnownPools, retire};

use super::{
    Bytes, Code, Duration, MIB, MemorySet, Operation, Settings, Unavailable, assert_code, capacity,
    create, names_of, place, why,
};
use support::disk::Disk;
use support::loops::{Frozen, PodDevice, run};
use support::{Fakes, Node, require};

/// A disk that is mounted later becomes a member, and an unmounted one makes its volumes unavailable and
/// leaves the capacity until it returns.
///
/// Proves: PS4.
#[test]
fn members_come_and_go() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 32 * MIB)]);
    let driver = node.volumes();
    let alone = capacity(&driver);
    node.add("b", 64 * MIB);
    let changed = driver.discover().unwrap();
    assert_eq!(changed.len(), 1);
    driver.check_pools();
    assert_eq!(names_of(&driver), ["set/a", "set/b"]);
    assert!(capacity(&driver).available > Bytes(2 * alone.available.0));
    let volume = driver.create(&create("v", 8 * MIB)).unwrap();
    assert_eq!(volume.pool.as_str(), "set/b");

    node.unmount("b");
    assert_eq!(driver.discover().unwrap()[0].name().as_str(), "set/b");
    driver.check_pools();
    assert_eq!(why(&driver, "b"), Some(Unavailable::NotMounted));
    assert_eq!(capacity(&driver).available, alone.available);
    let id = volume.id.to_string();
    let deleted = driver.delete(&id).unwrap_err();
    assert_code(&deleted, Operation::Delete, Code::Unavailable);
    let again = driver.create(&create("v", 8 * MIB)).unwrap_err();
    assert_code(&again, Operation::CreateVolume, Code::Unavailable);
    assert_eq!(place(&driver, "w", MIB), "a");

    node.mount("b");
    driver.find_members();
    assert_eq!(driver.create(&create("v", 8 * MIB)).unwrap(), volume);
    assert_eq!(driver.discover().unwrap().len(), 0, "nothing has changed");
}

/// A disk that is a pod's block volume becomes no member, and gets no pool.
///
/// Proves: P13, PS1.
#[test]
fn a_pods_device_becomes_no_member() {
    require!(loop_devices);
    let node = MemorySet::new(&[("a", 32 * MIB)]);
    let driver = node.volumes();
    let (image, at) = (node.path("image"), node.member("b"));
    Disk::new("ext4").format(&image, &at);
    std::fs::create_dir(&at).unwrap();
    let device = PodDevice::new(&image);
    run(Command::new("mount").arg(device.path()).arg(&at));
    assert_eq!(driver.discover().unwrap().len(), 1);
    driver.check_pools();
    let reason = why(&driver, "b");
    assert!(
        matches!(reason, Some(Unavailable::OnVolume { .. })),
        "{reason:?}"
    );
    assert_eq!(support::names(&at), ["lost+found"]);
    assert_eq!(place(&driver, "v", 8 * MIB), "a");
    drop(driver);
    run(Command::new("umount").arg(&at));
}

/// A set waits for a member that was not read since the start, because a volume whose creation was not
/// answered may be there. After the time it goes on without the member. Its volumes stay unavailable.
///
/// Proves: PS5.
#[test]
fn a_name_that_may_be_on_an_unread_member_is_not_made_again_at_once() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 32 * MIB), ("b", 64 * MIB)]);
    let volume = node.volumes().create(&create("v", 8 * MIB)).unwrap();
    assert_eq!(volume.pool.as_str(), "set/b");
    node.unmount("b");

    let waiting = node.volumes();
    assert_eq!(names_of(&waiting), ["set/a", "set/b"]);
    let refused = waiting.create(&create("v", 8 * MIB)).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::Unavailable);
    let message = refused.to_string();
    assert!(
        message.starts_with("pool set/b may hold the volume"),
        "{message}"
    );
    node.mount("b");
    waiting.find_members();
    assert_eq!(waiting.create(&create("v", 8 * MIB)).unwrap(), volume);
    drop(waiting);

    node.unmount("b");
    let settings = Settings {
        member_wait: Duration::ZERO,
        ..node.settings()
    };
    let driver = node.volumes_with(settings, &Fakes::default());
    let second = driver.create(&create("v", 8 * MIB)).unwrap();
    assert_eq!(second.pool.as_str(), "set/a");
    let read = driver.get(&volume.id.to_string()).unwrap_err();
    assert_code(&read, Operation::Volume, Code::Unavailable);
}

/// A missing member is listed until it is retired.
///
/// Proves: PS4.
#[test]
fn a_retired_member_leaves_the_set() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 32 * MIB), ("b", 64 * MIB)]);
    let volume = node.volumes().create(&create("v", 8 * MIB)).unwrap();
    node.unmount("b");
    let driver = node.volumes();
    let memory = KnownPools::open(Os::default(), &node.path("state")).unwrap();
    retire(&memory, volume.id.pool()).unwrap();
    driver.check_pools();
    driver.discover().unwrap();
    assert_eq!(names_of(&driver), ["set/a"]);
    driver.delete(&volume.id.to_string()).unwrap();
}

/// A disk that is mounted in the place of another member is that member, and is missing nowhere.
///
/// Proves: PS4.
#[test]
fn a_disk_may_be_mounted_at_another_name() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 32 * MIB), ("b", 64 * MIB)]);
    let driver = node.volumes();
    let volume = driver.create(&create("v", 8 * MIB)).unwrap();
    assert_eq!(volume.pool.as_str(), "set/b");
    node.unmount("b");
    node.mount_at("b", "c");
    for _ in 0..2 {
        driver.find_members();
    }
    assert_eq!(names_of(&driver), ["set/a", "set/c"]);
    let found = driver.create(&create("v", 8 * MIB)).unwrap();
    assert_eq!((found.id, found.pool.as_str()), (volume.id, "set/c"));
    assert_eq!(driver.list(usize::MAX, "").unwrap().objects.len(), 1);
    drop(driver);
    assert_eq!(names_of(&node.volumes()), ["set/a", "set/c"]);
    node.unmount("c");
}

/// A member whose disk does not answer takes no new volume, and delays none: placement and capacity
/// ask no disk.
///
/// Proves: PS2.
#[test]
fn a_hanging_member_delays_no_other() {
    let node = require!(loop_devices, Node::new());
    let disks = ["a", "b"].map(|name| {
        let at = node.path("disks").join(name);
        std::fs::create_dir_all(&at).unwrap();
        Disk::new("ext4").make(&node.path(name), &at)
    });
    let set = format!("set={},init,reserve=0", node.path("disks").display());
    let settings = Settings {
        sets: vec![set.parse().unwrap()],
        ..node.settings(&[])
    };
    let driver = node.volumes_with(settings, &Fakes::default());
    let first = place(&driver, "v", 64 * MIB);
    let (full, other) = if first == "a" { (0, 1) } else { (1, 0) };
    let before = capacity(&driver);
    let frozen = Frozen::new(disks[full].path());
    assert_eq!(place(&driver, "w", MIB), ["a", "b"][other]);
    assert!(capacity(&driver).available < before.available);
    drop(frozen);
}
