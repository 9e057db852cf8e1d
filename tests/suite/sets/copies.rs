//! Copies of volumes in a set.

use std::path::PathBuf;

use objects::ObjectId;
use rootcellar::error::Result;
use rootcellar::volume::{
    Caller, Class, CopyPolicy, CreateRequest, SnapshotClass, SnapshotRequest, SourceId, Volume,
    Volumes,
};

use super::{Code, MIB, MemorySet, Operation, assert_code, create};
use support::require;

static CONTENT: [u8; 1 << 20] = [7; 1 << 20];

const ALLOWED: CopyPolicy = CopyPolicy {
    copy: true,
    max_stall: None,
};

fn copy_of(driver: &Volumes, name: &str, source: SourceId, copy: bool) -> Result<Volume> {
    let class = Class {
        copies: CopyPolicy { copy, ..ALLOWED },
        ..Class::default()
    };
    driver.create(&CreateRequest {
        class,
        source: Some(source),
        ..create(name, 24 * MIB)
    })
}

/// A copy goes to the member of its source. If that is full, and the class allows it, the copy is made
/// byte by byte on another member, also from a snapshot, and both can be deleted in any order.
///
/// Proves: PS7.
#[test]
fn a_copy_goes_to_another_member_if_its_sources_is_full() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 48 * MIB)]);
    let driver = node.volumes();
    let source = driver.create(&create("v", 24 * MIB)).unwrap();
    assert_eq!(source.pool.as_str(), "set/a");
    std::fs::write(file(&node, &source), CONTENT).unwrap();
    let copy_of_source = |name| {
        let source = SourceId::Volume(source.id.to_string());
        copy_of(&driver, name, source, true)
    };
    let near = copy_of_source("near").unwrap();
    assert_eq!(near.pool.as_str(), "set/a");
    let far = copy_of_source("far").unwrap();
    assert_eq!(far.pool.as_str(), "set/b");
    assert_eq!(far.source, near.source);
    assert_eq!(copy_of_source("far").unwrap(), far, "again");
    let refused = copy_of_source("third").unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);

    driver.delete(&source.id.to_string()).unwrap();
    assert_eq!(std::fs::read(file(&node, &far)).unwrap(), CONTENT);
    driver.delete(&far.id.to_string()).unwrap();
    driver.wait_for_trash();
    driver.check_pools();

    let request = SnapshotRequest {
        name: "s".parse().unwrap(),
        source: near.id.to_string(),
        class: SnapshotClass {
            copies: ALLOWED,
            ..SnapshotClass::default()
        },
        excludes_node: false,
        caller: Caller::default(),
    };
    let snapshot = driver.create_snapshot(&request).unwrap().id.to_string();
    let beside = SourceId::Volume(near.id.to_string());
    let beside = copy_of(&driver, "beside", beside, true).unwrap();
    assert_eq!(beside.pool.as_str(), "set/a");
    let restore = |copy| copy_of(&driver, "r", SourceId::Snapshot(snapshot.clone()), copy);
    let refused = restore(false).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    let restored = restore(true).unwrap();
    assert_eq!(restored.pool.as_str(), "set/b");
    assert_eq!(std::fs::read(file(&node, &restored)).unwrap(), CONTENT);
}

/// A file of a volume, on its member's disk.
fn file(node: &MemorySet, volume: &Volume) -> PathBuf {
    let member = node.member(volume.pool.member().unwrap());
    let directory = format!("{}-{}", volume.name, volume.id.hash());
    member.join("volumes").join(directory).join("data/file")
}
