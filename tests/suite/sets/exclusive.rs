//! Volumes that take a whole disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linux::os::Step;
use rustix::io::Errno;

use rootcellar::error::Result;
use rootcellar::volume::{
    Caller, Class, CreateRequest, ExpandRequest, SnapshotRequest, SourceId, Volume, Volumes,
};

use super::{
    Bytes, Code, MIB, MemorySet, Operation, assert_code, at_once, capacity, create, reservable,
};
use support::faults::{Gate, Opened};
use support::{Fakes, Node, directory_of, eventually, names, publish, require};

fn exclusive() -> Class {
    Class {
        exclusive: true,
        ..Class::default()
    }
}

fn request(name: &str, size: u64) -> CreateRequest {
    CreateRequest {
        class: exclusive(),
        ..create(name, size)
    }
}

fn take(driver: &Volumes, name: &str, size: u64) -> Result<Volume> {
    driver.create(&request(name, size))
}

fn assert_size(volume: &Volume, mebibytes: u64) {
    let expected = reservable(mebibytes);
    assert!(expected - volume.size.0 < MIB, "{:?}", volume.size);
}

/// The volume gets the smallest empty disk that is large enough, all of it, and no other volume joins
/// it. A restart changes nothing, and deletion returns the disk.
///
/// Proves: PS6.
#[test]
fn a_volume_takes_the_whole_disk() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 16 * MIB), ("c", 32 * MIB)]);
    let mut driver = node.volumes();
    let free = driver.capacity(&exclusive(), &[]).unwrap();
    assert!(reservable(64) - free.largest.0 < MIB, "{free:?}");
    let volume = take(&driver, "v", 20 * MIB).unwrap();
    assert_eq!(volume.pool.as_str(), "set/c");
    assert_size(&volume, 32);
    drop(driver);
    driver = node.volumes();
    assert_eq!(take(&driver, "v", 20 * MIB).unwrap(), volume);

    let free = capacity(&driver);
    let others = reservable(64) + reservable(16);
    assert!(others - free.available.0 < MIB, "{free:?}");
    for n in 0..6 {
        let other = driver.create(&create(&format!("w{n}"), 0)).unwrap();
        assert_eq!(other.pool.as_str(), "set/a", "the most free space");
    }
    let refused = take(&driver, "x", 20 * MIB).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    let message = refused.to_string();
    assert!(
        message.starts_with("pool set has no empty disk of"),
        "{message}"
    );
    assert_eq!(take(&driver, "x", 8 * MIB).unwrap().pool.as_str(), "set/b");

    driver.delete(&volume.id.to_string()).unwrap();
    eventually("the disk is empty again", || {
        driver.capacity(&exclusive(), &[]).unwrap().largest > Bytes(20 * MIB)
    });
    assert_eq!(take(&driver, "y", 20 * MIB).unwrap().pool.as_str(), "set/c");
}

/// A claim's limit holds for the disk that it gets, too.
///
/// Proves: PS6.
#[test]
fn a_disk_above_the_limit_is_not_taken() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB)]);
    let driver = node.volumes();
    let mut limited = request("v", 8 * MIB);
    limited.limit = Some(Bytes(32 * MIB));
    let refused = driver.create(&limited).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    limited.limit = Some(Bytes(64 * MIB));
    assert_size(&driver.create(&limited).unwrap(), 64);
}

/// Of creations that race for the same disks, as many succeed as there are disks.
///
/// Proves: PS6.
#[test]
fn every_disk_is_given_once() {
    require!(mount_namespace);
    let members = [("a", 32 * MIB), ("b", 32 * MIB), ("c", 32 * MIB)];
    let node = MemorySet::new(&members);
    let driver = node.volumes();
    let taken = at_once(6, |n| take(&driver, &format!("disk{n}"), MIB).is_ok());
    let taken = taken.into_iter().filter(|taken| *taken).count();
    assert_eq!(taken, 3);
}

/// A disk with another volume is not taken, even by creations that race.
///
/// Proves: PS6.
#[test]
fn no_disk_is_given_twice() {
    require!(mount_namespace);
    let members = [("a", 32 * MIB), ("b", 32 * MIB), ("c", 32 * MIB)];
    let node = MemorySet::new(&members);
    let driver = node.volumes();
    at_once(6, |n| {
        let _ = take(&driver, &format!("disk{n}"), MIB);
        let _ = driver.create(&create(&format!("part{n}"), 0));
    });
    let all = driver.list(usize::MAX, "").unwrap().objects;
    let disks = all.iter().filter(|volume| volume.size > Bytes::ZERO);
    for disk in disks {
        let with = all.iter().filter(|volume| volume.pool == disk.pool);
        assert_eq!(with.count(), 1, "{disk:?}");
    }
    assert!(!all.is_empty());
}

/// A disk is not empty while the trash has anything, such as a copy that was given up.
///
/// Proves: PS6.
#[test]
fn a_disk_with_a_discarded_copy_is_not_taken() {
    require!(mount_namespace);
    let (gate, full) = (Arc::new(Gate::default()), Arc::new(AtomicBool::default()));
    let fakes = {
        let (gate, full) = (Arc::clone(&gate), Arc::clone(&full));
        Fakes::planned(move |step, name| match step {
            Step::Create if name == "volume.json" && full.load(Relaxed) => Err(Errno::NOSPC),
            Step::Unlink => {
                gate.pass(name);
                Ok(())
            }
            _ => Ok(()),
        })
    };
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 48 * MIB)]);
    let driver = node.volumes_with(node.settings(), &fakes);
    let _opened = Opened(&gate);
    let source = driver.create(&create("v", 40 * MIB)).unwrap();
    assert_eq!(source.pool.as_str(), "set/a");
    let data = directory_of(&node.member("a").join("volumes"), "v").join("data");
    std::fs::write(data.join("file"), vec![7; 16 << 20]).unwrap();

    full.store(true, Relaxed);
    gate.shut("file");
    let mut copy = create("copy", 40 * MIB);
    copy.source = Some(SourceId::Volume(source.id.to_string()));
    copy.class.copies.copy = true;
    let refused = driver.create(&copy).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    full.store(false, Relaxed);
    let discarded = names(&node.member("b").join(".rootcellar/trash"));
    assert_eq!(discarded.len(), 1, "{discarded:?}");
    assert_eq!(
        driver.capacity(&exclusive(), &[]).unwrap().largest,
        Bytes(0)
    );
    let refused = take(&driver, "disk", MIB).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);

    gate.open(|_| true);
    eventually("the disk is empty again", || {
        driver.capacity(&exclusive(), &[]).unwrap().largest > Bytes(40 * MIB)
    });
    assert_size(&take(&driver, "disk", MIB).unwrap(), 48);
}

/// It cannot be copied, be a copy or grow, and needs a set.
///
/// Proves: PS6.
#[test]
fn a_volume_with_a_whole_disk_has_no_copies() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 32 * MIB), ("b", 32 * MIB)]);
    let driver = node.volumes();
    let volume = take(&driver, "v", MIB).unwrap();
    let id = volume.id.to_string();
    let snapshot = SnapshotRequest {
        name: "s".parse().unwrap(),
        source: id.clone(),
        class: rootcellar::volume::SnapshotClass::default(),
        excludes_node: false,
        caller: Caller::default(),
    };
    let refused = driver.create_snapshot(&snapshot).unwrap_err();
    assert_code(
        &refused,
        Operation::CreateSnapshot,
        Code::FailedPrecondition,
    );
    for class in [exclusive(), Class::default()] {
        let clone = CreateRequest {
            class,
            source: Some(SourceId::Volume(id.clone())),
            ..create("clone", volume.size.0)
        };
        let refused = driver.create(&clone).unwrap_err();
        assert_code(&refused, Operation::CreateVolume, Code::InvalidArgument);
    }
    let different = driver.create(&create("v", MIB)).unwrap_err();
    assert_code(&different, Operation::CreateVolume, Code::AlreadyExists);
    let path = node.target("pod");
    driver.publish(&publish(&id, &path)).unwrap();
    let grow = ExpandRequest {
        id: id.clone(),
        path: path.clone(),
        required: Bytes(volume.size.0 + 1),
        limit: None,
    };
    let refused = driver.expand(&grow).unwrap_err();
    assert_code(&refused, Operation::Expand, Code::OutOfRange);
    driver.unpublish(&id, &path).unwrap();

    let plain = Node::new();
    let driver = plain.volumes(&support::Fakes::default());
    let refused = take(&driver, "v", MIB).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::InvalidArgument);
}
