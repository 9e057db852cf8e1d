//! Cordoned pools and members, which get nothing new.

use std::collections::BTreeSet;
use std::path::Path;

use linux::os::Os;
use objects::{ObjectId, PoolId};
use pool::{KnownPools, PoolOptions, Wanted, adopt, find_id, retire};
use rootcellar::volume::{CreateRequest, ExpandRequest, SourceId};

use super::{
    Bytes, Code, MIB, MemorySet, Operation, Running, assert_code, capacity, create, place,
    reservable,
};
use support::memory::MemoryNode;
use support::picture::with_times;
use support::{Fakes, NODE, Node, publish, require, snapshot};

/// The memory as a command opens it.
fn memory(node: &Node) -> KnownPools {
    KnownPools::open(Os::default(), &node.path("state")).unwrap()
}

/// Cordons a member, as `pool cordon` does while the server runs, or ends that; returns its id.
fn cordon(node: &MemorySet, member: &str, cordoned: bool) -> PoolId {
    cordon_at(node, &node.member(member), cordoned)
}

/// As [`cordon`], for the member that is mounted at a path.
pub(super) fn cordon_at(node: &Node, member: &Path, cordoned: bool) -> PoolId {
    let option = format!("p={}", member.display());
    let options: PoolOptions = option.parse().unwrap();
    let memory = memory(node);
    let id = find_id(&memory, &options).unwrap();
    assert_eq!(
        memory.set_cordoned(&[id], cordoned).unwrap(),
        BTreeSet::from([id])
    );
    id
}

fn copy(name: &str, source: SourceId) -> CreateRequest {
    let mut request = create(name, 8 * MIB);
    request.source = Some(source);
    request.class.copies.copy = true;
    request
}

#[track_caller]
fn assert_exhausted(driver: &Running, request: &CreateRequest, pool: &str) {
    let refused = driver.create(request).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    let message = refused.to_string();
    assert!(
        message.starts_with(&format!("pool {pool} is cordoned")),
        "{message}"
    );
    let way_out = format!("`rootcellar pool uncordon {pool}`");
    assert!(message.ends_with(&way_out), "{message}");
}

/// From the next call on, a cordoned member is no part of the capacity, and volumes go to the others.
/// If all are cordoned, a create gives the pod back to the scheduler. All this ends with the cordon.
///
/// Proves: PC1.
#[test]
fn a_cordoned_member_gets_no_volumes() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 32 * MIB)]);
    let driver = node.volumes();
    let first = driver.create(&create("v", 8 * MIB)).unwrap();
    assert_eq!(first.pool.member(), Some("a"));

    cordon(&node, "a", true);
    let rest = capacity(&driver);
    assert_eq!(rest.available, rest.largest);
    assert!(reservable(32) - rest.largest.0 < MIB, "{rest:?}");
    assert_eq!(place(&driver, "w", MIB), "b");
    assert_eq!(driver.create(&create("v", 8 * MIB)).unwrap(), first);

    cordon(&node, "b", true);
    assert_eq!(capacity(&driver).available, Bytes::ZERO);
    assert_exhausted(&driver, &create("x", MIB), "set/a");
    cordon(&node, "a", false);
    assert!(capacity(&driver).available > Bytes(40 * MIB));
    assert_eq!(place(&driver, "x", MIB), "a");
}

/// A cordoned pool gets no volume, snapshot or copy. Its volumes and snapshots are used, grow and are
/// deleted as before.
///
/// Proves: PC1.
#[test]
fn a_cordoned_pool_serves_only_its_volumes() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB)]);
    let driver = node.volumes();
    let volume = driver.create(&create("v", 8 * MIB)).unwrap();
    let id = volume.id.to_string();
    let taken = driver.create_snapshot(&snapshot("s", &id)).unwrap();
    cordon(&node, "a", true);

    let refused = driver.create_snapshot(&snapshot("t", &id)).unwrap_err();
    assert_code(
        &refused,
        Operation::CreateSnapshot,
        Code::FailedPrecondition,
    );
    let of_volume = copy("clone", SourceId::Volume(id.clone()));
    assert_exhausted(&driver, &of_volume, "set/a");
    let of_snapshot = copy("restore", SourceId::Snapshot(taken.id.to_string()));
    assert_exhausted(&driver, &of_snapshot, "set/a");

    assert_eq!(driver.create_snapshot(&snapshot("s", &id)).unwrap(), taken);
    let target = node.target("pod");
    driver.publish(&publish(&id, &target)).unwrap();
    let grown = ExpandRequest {
        id: id.clone(),
        path: target.clone(),
        required: Bytes(16 * MIB),
        limit: None,
    };
    assert_eq!(driver.expand(&grown).unwrap(), Bytes(16 * MIB));
    driver.unpublish(&id, &target).unwrap();
    driver.delete_snapshot(&taken.id.to_string()).unwrap();
    driver.delete(&id).unwrap();
}

/// A pool outside sets is cordoned as a member is, and other pools are not.
///
/// Proves: PC1.
#[test]
fn a_pool_outside_sets_is_cordoned_too() {
    require!(mount_namespace);
    let node = MemoryNode::new(&["fast", "slow"]);
    let driver = node.volumes_of(&node.options(), &Fakes::default());
    let of = |pool: &str, name: &str| {
        let mut request = create(name, MIB);
        request.class.pool = Some(pool.parse().unwrap());
        request
    };
    let volume = driver.create(&of("fast", "v")).unwrap();
    memory(&node)
        .set_cordoned(&[volume.id.pool()], true)
        .unwrap();
    assert_exhausted(&driver, &of("fast", "w"), "fast");
    for (pool, is_empty) in [("fast", true), ("slow", false)] {
        let capacity = driver.capacity(&of(pool, "w").class, &[]).unwrap();
        assert_eq!(capacity.largest == Bytes::ZERO, is_empty, "{pool}");
    }
    driver.create(&of("slow", "w")).unwrap();
}

/// A cordon needs no disk: it holds for a member that is away, after a restart, and when the pool is
/// adopted. It ends when the pool is retired.
///
/// Proves: PC2.
#[test]
fn a_cordon_ends_only_when_it_is_told_to_or_with_the_pool() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 32 * MIB)]);
    drop(node.volumes());
    let disk = node.member("a");
    let content = with_times(&disk);
    node.unmount("a");
    let id = cordon(&node, "a", true);
    node.mount("a");
    assert_eq!(with_times(&disk), content, "nothing is written to the disk");
    assert_eq!(place(&node.volumes(), "v", MIB), "b");

    let this_node = NODE.parse().unwrap();
    let anywhere = Wanted {
        require_mount: true,
        any_filesystem: true,
    };
    let memory = memory(&node);
    let adopted = adopt(&memory, &disk, &this_node, anywhere).unwrap();
    assert_eq!(adopted.id, id);
    assert_eq!(place(&node.volumes(), "w", MIB), "b");

    node.unmount("a");
    retire(&memory, id).unwrap();
    node.mount("a");
    adopt(&memory, &disk, &this_node, anywhere).unwrap();
    assert_eq!(place(&node.volumes(), "x", MIB), "a");
}
