//! Moves of volumes between the members of a set.

mod full;
mod interrupted;
mod nodatacow;
mod writers;

use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linux::filesystem::Filesystem;
use linux::mount::Users;
use linux::os::Os;
use linux::quota::{self, Enforcement, Quota, Quotas};
use objects::{ObjectId, PoolId, PoolName, VolumeId};
use pool::{KnownPools, retire};
use rootcellar::error::{Error, Refusal};
use rootcellar::volume::{Caller, ExpandRequest, Moved, Settings, SourceId, Volume};
use serde_json::Value;

use super::{Bytes, Code, Duration, MIB, MemorySet, Operation, Running, assert_code, create};
use support::disk::Disk;
use support::faults::End;
use support::loops::LoopMount;
use support::mounter::FakeMounter;
use support::quota::{FakeQuota, NoQuotas};
use support::{Fakes, Node, directory_of, eventually, names, publish, require, snapshot};

const SIZE: u64 = 8 * MIB;

/// A node with a set whose member a has the most free space.
fn two_members() -> MemorySet {
    MemorySet::new(&[("a", 64 * MIB), ("b", 48 * MIB)])
}

/// Makes the volume "v" with a file in it, in member a.
fn make(node: &MemorySet, driver: &Running) -> Volume {
    let volume = driver.create(&create("v", SIZE)).unwrap();
    assert_eq!(volume.pool.as_str(), "set/a");
    std::fs::write(file(node, "a"), "content").unwrap();
    volume
}

/// A node with a set on two disks, of which member a has the most free space.
struct TwoDisks {
    node: Node,
    _disks: [LoopMount; 2],
}

impl TwoDisks {
    fn new(disk: &Disk) -> Self {
        Self::of([*disk; 2])
    }

    fn of([a, b]: [Disk; 2]) -> Self {
        let node = Node::new();
        let disks = [("a", a, 400), ("b", b, 320)].map(|(name, disk, mib)| {
            let at = node.path("disks").join(name);
            disk.sized(mib << 20).make(&node.path(name), &at)
        });
        Self {
            node,
            _disks: disks,
        }
    }

    fn driver(&self, fakes: &Fakes) -> Running {
        let set = self.node.path("disks");
        let option = format!("set={},init,reserve=0", set.display());
        let settings = Settings {
            sets: vec![option.parse().unwrap()],
            ..self.node.settings(&[])
        };
        self.node.volumes_with(settings, fakes)
    }

    fn member(&self, name: &str) -> PathBuf {
        self.node.path("disks").join(name)
    }

    /// Makes the volume "v" with a file in it, in member a.
    fn make(&self, driver: &Running) -> Volume {
        let volume = driver.create(&create("v", SIZE)).unwrap();
        assert_eq!(volume.pool.as_str(), "set/a");
        std::fs::write(self.file("a"), "content").unwrap();
        volume
    }

    /// The file in the volume "v" of a member.
    fn file(&self, member: &str) -> PathBuf {
        directory_of(&self.member(member).join("volumes"), "v").join("data/file")
    }
}

/// The file in the volume "v" of a member.
fn file(node: &MemorySet, member: &str) -> PathBuf {
    directory_of(&node.member(member).join("volumes"), "v").join("data/file")
}

fn record_path(node: &MemorySet, member: &str) -> PathBuf {
    directory_of(&node.member(member).join("volumes"), "v").join("volume.json")
}

fn record(node: &MemorySet, member: &str) -> Value {
    serde_json::from_slice(&std::fs::read(record_path(node, member)).unwrap()).unwrap()
}

fn volumes_in(node: &MemorySet, member: &str) -> usize {
    names(&node.member(member).join("volumes")).len()
}

fn pool_id(driver: &Running, member: &str) -> PoolId {
    let pools = driver.pools();
    let mut pools = pools.iter();
    let pool = pools.find(|pool| pool.name().member() == Some(member));
    pool.unwrap().id().unwrap()
}

fn name(pool: &str) -> PoolName {
    let (set, member) = pool.split_once('/').unwrap();
    let set: PoolName = set.parse().unwrap();
    set.of_member(member).unwrap()
}

/// Moves the volume, and asserts that it was in another member before.
pub(super) fn moves(driver: &Running, volume: &Volume, to: &str, from: &str) {
    let moved = driver
        .move_to(&volume.id.to_string(), to, Users::Check, &Caller::default())
        .unwrap();
    let (pool, from) = (name(&format!("set/{to}")), name(&format!("set/{from}")));
    assert_eq!(moved, (pool, Moved::From(from)));
}

/// Asserts that the volume is served from this member alone, with its file.
#[track_caller]
fn assert_in(node: &MemorySet, driver: &Running, volume: &Volume, member: &str) {
    let id = volume.id.to_string();
    let expected = Volume {
        pool: name(&format!("set/{member}")),
        ..volume.clone()
    };
    assert_eq!(driver.get(&id).unwrap(), expected);
    assert_eq!(driver.create(&create("v", SIZE)).unwrap(), expected);
    let listed = driver.list(usize::MAX, "").unwrap().objects;
    assert_eq!(listed, [expected]);
    let target = node.target("pod");
    driver.publish(&publish(&id, &target)).unwrap();
    assert_eq!(std::fs::read(file(node, member)).unwrap(), b"content");
    driver.unpublish(&id, &target).unwrap();
}

/// A driver that does not wait for members which were not read.
fn impatient(node: &MemorySet) -> Running {
    let settings = Settings {
        member_wait: Duration::ZERO,
        ..node.settings()
    };
    node.volumes_with(settings, &Fakes::default())
}

fn memory(node: &MemorySet) -> KnownPools {
    KnownPools::open(Os::default(), &node.path("state")).unwrap()
}

fn code_of(error: &rootcellar::error::Error) -> Code {
    error.code(Operation::Volume)
}

/// A moved volume keeps its id, data and record, leaves nothing in the member before, and is served
/// after a restart. It can be moved on and back, and a repeated move changes nothing.
///
/// Proves: MV1, MV2.
#[test]
fn a_volume_moves_to_another_member_and_back() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 48 * MIB), ("c", 32 * MIB)]);
    let mut driver = node.volumes();
    let volume = make(&node, &driver);
    let before = record(&node, "a");
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "b"), ("b", "a")] {
        moves(&driver, &volume, to, from);
        assert_in(&node, &driver, &volume, to);
        let again = driver.move_to(
            &volume.id.to_string(),
            &format!("set/{to}"),
            Users::Check,
            &Caller::default(),
        );
        assert_eq!(again.unwrap().1, Moved::Before);
        node.wait_for_trash_of(from);
        assert_eq!(volumes_in(&node, from), 0, "{from}");
        drop(driver);
        driver = node.volumes();
        assert_in(&node, &driver, &volume, to);
    }
    assert_eq!(record(&node, "a"), before);
}

/// A moved volume grows, is copied and is deleted as any other. Its new snapshots are in its member.
///
/// Proves: MV2.
#[test]
fn a_moved_volume_is_used_as_any_other() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let old = driver.create_snapshot(&snapshot("old", &id)).unwrap();
    moves(&driver, &volume, "b", "a");
    assert_eq!(old.id.pool(), pool_id(&driver, "a"));
    let new = driver.create_snapshot(&snapshot("new", &id)).unwrap();
    assert_eq!(new.id.pool(), pool_id(&driver, "b"));
    assert_eq!(driver.create_snapshot(&snapshot("new", &id)).unwrap(), new);
    let mut clone = create("clone", SIZE);
    clone.source = Some(SourceId::Volume(id.clone()));
    clone.class.copies.copy = true;
    assert_eq!(driver.create(&clone).unwrap().pool.as_str(), "set/b");

    let target = node.target("pod");
    driver.publish(&publish(&id, &target)).unwrap();
    let grown = ExpandRequest {
        id: id.clone(),
        path: target.clone(),
        required: Bytes(2 * SIZE),
        limit: None,
    };
    assert_eq!(driver.expand(&grown).unwrap(), Bytes(2 * SIZE));
    driver.stats(&id, &target).unwrap();
    let refused = driver.delete(&id).unwrap_err();
    assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
    driver.unpublish(&id, &target).unwrap();
    driver.delete(&id).unwrap();
    assert_eq!(code_of(&driver.get(&id).unwrap_err()), Code::NotFound);
    driver.delete_snapshot(&old.id.to_string()).unwrap();
}

/// A publication of a moved volume is known after a restart.
///
/// Proves: MV2.
#[test]
fn a_published_moved_volume_is_known_after_a_restart() {
    require!(mount_namespace);
    let node = two_members();
    let fakes = Fakes {
        mounter: Arc::new(FakeMounter::default()),
        ..Fakes::default()
    };
    let driver = node.volumes_with(node.settings(), &fakes);
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    moves(&driver, &volume, "b", "a");
    let target = node.target("pod");
    driver.publish(&publish(&id, &target)).unwrap();
    drop(driver);
    let driver = node.volumes_with(node.settings(), &fakes);
    let refused = driver
        .move_to(&id, "a", Users::Check, &Caller::default())
        .unwrap_err();
    assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
    assert!(refused.to_string().contains(target.to_str().unwrap()));
    driver.unpublish(&id, &target).unwrap();
    moves(&driver, &volume, "a", "b");
}

/// Every refusal changes nothing.
///
/// Proves: MV3.
#[test]
fn a_move_is_refused() {
    require!(mount_namespace);
    let node = MemorySet::new(&[
        ("a", 64 * MIB),
        ("b", 48 * MIB),
        ("gone", 40 * MIB),
        ("small", 4 * MIB),
        ("whole", 36 * MIB),
    ]);
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let mut exclusive = create("whole", 30 * MIB);
    exclusive.class.exclusive = true;
    let exclusive = driver.create(&exclusive).unwrap();
    assert_eq!(exclusive.pool.member(), Some("whole"));
    node.unmount("gone");
    driver.find_members();
    let cordoned = [pool_id(&driver, "b")];
    memory(&node).set_cordoned(&cordoned, true).unwrap();
    let refused = |id: &str, to: &str, code: Code, says: &str| {
        let refused = driver
            .move_to(id, to, Users::Check, &Caller::default())
            .unwrap_err();
        assert_eq!(code_of(&refused), code, "{refused}");
        assert!(refused.to_string().contains(says), "{refused}");
    };
    refused(&id, "nowhere", Code::InvalidArgument, "which has set/a");
    refused(&id, "gone", Code::Unavailable, "set/gone is unavailable");
    refused(
        &id,
        "small",
        Code::ResourceExhausted,
        "set/small has free space for",
    );
    refused(
        &id,
        "whole",
        Code::FailedPrecondition,
        "set/whole has a volume",
    );
    refused(&id, "b", Code::Unavailable, "set/b is cordoned");
    refused("v1-x", "b", Code::NotFound, "does not exist");
    let whole = exclusive.id.to_string();
    refused(&whole, "b", Code::FailedPrecondition, "has a whole disk");
    driver.delete(&whole).unwrap();
    assert_in(&node, &driver, &volume, "a");
    assert_eq!(names(&node.member("b").join(".rootcellar/trash")), [""; 0]);
}

/// A published volume is not moved. A cordoned member can be emptied.
///
/// Proves: MV1, MV3.
#[test]
fn only_a_volume_without_pods_is_moved() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let target = node.target("pod");
    driver.publish(&publish(&id, &target)).unwrap();
    let refused = driver
        .move_to(&id, "b", Users::Check, &Caller::default())
        .unwrap_err();
    assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
    let target_shown = target.to_str().unwrap();
    assert!(refused.to_string().contains(target_shown), "{refused}");
    driver.unpublish(&id, &target).unwrap();
    let cordoned = [pool_id(&driver, "a")];
    memory(&node).set_cordoned(&cordoned, true).unwrap();
    moves(&driver, &volume, "b", "a");
    assert_in(&node, &driver, &volume, "b");
}

/// A moved volume needs the pool that made it no more, which may be missing or retired.
///
/// Proves: MV2, MV4.
#[test]
fn a_moved_volume_outlives_the_disk_that_made_it() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let source = volume.id.pool();
    moves(&driver, &volume, "b", "a");
    drop(driver);
    node.unmount("a");
    let driver = impatient(&node);
    assert_in(&node, &driver, &volume, "b");
    drop(driver);
    retire(&memory(&node), source).unwrap();
    let driver = impatient(&node);
    assert_in(&node, &driver, &volume, "b");
    driver.delete(&id).unwrap();
    assert_eq!(volumes_in(&node, "b"), 0);
    driver.delete(&id).unwrap();
}

/// While the member that a volume was moved to is missing, the volume is neither deleted nor recreated
/// in the pool that its id names.
///
/// Proves: MV4.
#[test]
fn a_moved_volume_on_a_missing_disk_keeps_its_id() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    moves(&driver, &volume, "b", "a");
    drop(driver);
    node.unmount("b");
    let driver = impatient(&node);
    for refused in [
        driver.delete(&id).map(drop),
        driver.get(&id).map(drop),
        driver
            .move_to(&id, "a", Users::Check, &Caller::default())
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(
            refused.code(Operation::Delete),
            Code::Unavailable,
            "{refused}"
        );
        assert!(refused.to_string().contains("set/b"), "{refused}");
    }
    let refused = driver.create(&create("v", SIZE)).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    assert_eq!(super::capacity(&driver).available, Bytes::ZERO);
    node.mount("b");
    driver.find_members();
    assert_in(&node, &driver, &volume, "b");
}

/// The record of a moved volume has a format of its own, so that a driver which does not know moves
/// quarantines it.
///
/// Proves: MV6.
#[test]
fn an_older_driver_quarantines_a_moved_volume() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    moves(&driver, &volume, "b", "a");
    let moved = record(&node, "b");
    assert_eq!(moved["format"], 2);
    assert_eq!(moved["moved"]["state"], "settled");
    assert_eq!(moved["moved"]["pool"], volume.id.pool().to_string());
    assert_eq!(
        VolumeId::parse(moved["id"].as_str().unwrap()),
        Some(volume.id)
    );
    drop(driver);
    // Without the field, or with the format of other records, it contradicts itself.
    for (field, value) in [("format", 1.into()), ("moved", Value::Null)] {
        let mut record = moved.clone();
        record[field] = value;
        std::fs::write(record_path(&node, "b"), record.to_string()).unwrap();
        let driver = node.volumes();
        let refused = driver.get(&volume.id.to_string()).unwrap_err();
        assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
        assert!(refused.to_string().contains("quarantined"), "{refused}");
    }
}

/// Enforces sizes on one disk.
#[derive(Debug)]
struct EnforcedOn(u64, FakeQuota);

impl Quotas for EnforcedOn {
    fn find(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> quota::Result<Arc<dyn Quota>> {
        if rustix::fs::fstat(root)?.st_dev == self.0 {
            self.1.find(filesystem, root)
        } else {
            NoQuotas.find(filesystem, root)
        }
    }
}

/// A volume whose size is enforced moves to no member that enforces none. One whose size was not
/// enforced gets its limit in the other member.
///
/// Proves: MV1, MV3.
#[test]
fn a_move_loses_no_limit() {
    require!(mount_namespace);
    for enforced in ["a", "b"] {
        let node = two_members();
        let device = std::fs::metadata(node.member(enforced)).unwrap().dev();
        let quota = FakeQuota::default();
        let fakes = Fakes {
            quotas: Arc::new(EnforcedOn(device, quota.clone())),
            ..Fakes::default()
        };
        let driver = node.volumes_with(node.settings(), &fakes);
        let volume = make(&node, &driver);
        let id = volume.id.to_string();
        let limits = || quota.limits().into_values().collect::<Vec<_>>();
        if enforced == "a" {
            let refused = driver
                .move_to(&id, "b", Users::Check, &Caller::default())
                .unwrap_err();
            assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
            assert!(
                refused.to_string().contains("set/b enforces none"),
                "{refused}"
            );
            assert_eq!(driver.get(&id).unwrap(), volume);
        } else {
            moves(&driver, &volume, "b", "a");
            let enforcement = driver.get(&id).unwrap().enforcement;
            assert_eq!(enforcement, Enforcement::Project);
        }
        assert_eq!(limits(), [Bytes(SIZE)]);
    }
}

/// While a volume moves, every list has it once, and no other call denies it.
///
/// Proves: MV2.
#[test]
fn a_volume_that_is_being_moved_is_never_missed() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let listed = driver.list(usize::MAX, "").unwrap().objects;
                    assert_eq!(listed.len(), 1, "{listed:?}");
                    let found = [
                        driver.get(&id).map(|volume| volume.id),
                        driver.create(&create("v", SIZE)).map(|volume| volume.id),
                    ];
                    for found in found {
                        match found {
                            Ok(found) => assert_eq!(found, volume.id),
                            Err(error) => assert_eq!(code_of(&error), Code::Aborted, "{error}"),
                        }
                    }
                }
            });
        }
        let _end = End(&ends);
        for _ in 0..10 {
            for to in ["b", "a"] {
                eventually("the volume is moved", || {
                    match driver.move_to(&id, to, Users::Check, &Caller::default()) {
                        Ok(_) => true,
                        // A process that another test starts has these files open until the end of its exec.
                        Err(Error::Precondition(Refusal::InUse { .. })) => false,
                        Err(error) => {
                            assert_eq!(code_of(&error), Code::Aborted, "{error}");
                            false
                        }
                    }
                });
            }
        }
    });
    assert_in(&node, &driver, &volume, "a");
}
