//! `docs/semantics.md`, "Sizes", on btrfs with simple quota. XFS and ext4 are in `tests/quota`.

mod new_pools;
mod nodatacow;
mod reservations;
mod shared;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linux::filesystem::Filesystem;
use linux::os::Os;
use linux::quota::{Enforcement, KernelQuotas, OURS, Quotas};
use objects::Bytes;
use pool::{Enforced, enable_quota};
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{Class, EnforcementPolicy, ExpandRequest, Volume};

use support::disk::Disk;
use support::driver_node::DriverNode;
use support::faults::End;
use support::loops::run;
use support::quota::FakeQuota;
use support::{Fakes, Node, Running, create, eventually, names, publish};
use support::{assert_pool_error, require};

pub const SIZE: Bytes = Bytes(32 << 20);
/// The part of a volume's size that metadata may take, and that the kernel may charge early for
/// writes in flight.
const LEEWAY: u64 = 2 << 20;

/// A pool on a btrfs with simple quota.
pub struct QuotaRig {
    base: DriverNode,
}

impl QuotaRig {
    pub fn new() -> Self {
        let disk = Disk::new("btrfs").with_simple_quota();
        Self {
            base: DriverNode::with(disk, Fakes::default()),
        }
    }

    pub fn make(&self, volume: &str, size: Bytes) -> Volume {
        self.base.make(volume, size.0)
    }

    pub fn directory(&self, volume: &str) -> PathBuf {
        let directories = names(&self.node.pool().join("volumes"));
        let found = directories.iter().find(|name| name.contains(volume));
        self.node.pool().join("volumes").join(found.unwrap())
    }

    pub fn data(&self, volume: &str) -> PathBuf {
        self.directory(volume).join("data")
    }

    pub fn published(&self, volume: &Volume) -> PathBuf {
        let target = self.node.target(volume.name.as_str());
        self.driver()
            .publish(&publish(&volume.id.to_string(), &target))
            .unwrap();
        target
    }

    pub fn expand(&self, volume: &Volume, size: Bytes) -> Result<Bytes, Error> {
        let path = self.node.target(volume.name.as_str());
        self.driver().expand(&ExpandRequest {
            id: volume.id.to_string(),
            path,
            required: size,
            limit: None,
        })
    }

    /// The qgroups of level 1 in the kernel, with their limits.
    fn qgroups(&self) -> Vec<(u64, String)> {
        let qgroups = self.base.qgroups().into_iter();
        qgroups.map(|found| (found.id, found.limit)).collect()
    }

    pub fn qgroup(&self, command: &[&str], qgroup: u64) {
        run(Command::new("btrfs")
            .arg("qgroup")
            .args(command)
            .arg(format!("1/{qgroup}"))
            .arg(self.disk.path()));
    }

    pub fn quota_id(&self, volume: &str) -> u64 {
        let record = std::fs::read(self.directory(volume).join("volume.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["quota_id"].as_u64().unwrap()
    }
}

support::extends!(QuotaRig, base: DriverNode);

/// Writes until a write fails, and returns the number of bytes written before.
pub fn fill(path: &Path) -> u64 {
    let is_full = |error: std::io::Error| {
        let full = [nix::libc::EDQUOT, nix::libc::ENOSPC];
        let errno = error.raw_os_error();
        assert!(full.map(Some).contains(&errno), "{error}");
    };
    let mut file = match File::create(path) {
        Ok(file) => file,
        // A full btrfs has no free space for a name either.
        Err(error) => {
            is_full(error);
            return 0;
        }
    };
    let block = vec![7; 256 << 10];
    let mut written = 0;
    loop {
        match file.write_all(&block).and_then(|()| file.sync_data()) {
            Ok(()) => written += block.len() as u64,
            Err(error) => {
                is_full(error);
                return written;
            }
        }
    }
}

pub fn assert_about(what: &str, bytes: u64, expected: Bytes) {
    let off = bytes.abs_diff(expected.0);
    assert!(off <= LEEWAY, "{what}: {bytes}, not about {expected}");
}

/// Proves: S2.
#[test]
fn a_volume_on_btrfs_holds_its_size_and_no_more_with_all_subvolumes_made_in_it() {
    let rig = require!(loop_devices, QuotaRig::new());
    let (full, neighbour) = (rig.make("full", SIZE), rig.make("neighbour", SIZE));
    assert_eq!(full.enforcement, Enforcement::Squota);
    let target = rig.published(&full);
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(rig.data("full").join("nested")));
    let first = fill(&rig.data("full").join("nested/file"));
    let rest = fill(&rig.data("full").join("file"));
    assert_about("what was written", first + rest, SIZE);
    std::fs::write(rig.data("neighbour").join("file"), vec![1; 8 << 20]).unwrap();

    let stats = rig.driver().stats(&full.id.to_string(), &target).unwrap();
    assert_eq!(stats.bytes.total, SIZE.0);
    assert_about("used", stats.bytes.used, SIZE);
    assert!(stats.bytes.available <= LEEWAY, "{stats:?}");

    rig.driver()
        .unpublish(&full.id.to_string(), &target)
        .unwrap();
    rig.driver().delete(&full.id.to_string()).unwrap();
    rig.wait_for_trash();
    assert_eq!(rig.qgroups().len(), 1, "only the neighbour's is left");
    assert_eq!(
        rig.driver().get(&neighbour.id.to_string()).unwrap().size,
        SIZE
    );
}

/// Proves: R8.
#[test]
fn subvolumes_go_however_deep_they_lie_and_whatever_protects_them() {
    let rig = require!(loop_devices, QuotaRig::new());
    let volume = rig.make("pvc", SIZE);
    let subvolume = |path: &Path| {
        run(Command::new("btrfs")
            .args(["-q", "subvolume", "create"])
            .arg(path));
    };
    let mut nested = rig.data("pvc");
    for level in 0..70 {
        nested = nested.join(if level % 2 == 0 { "s" } else { "d" });
        match level % 2 {
            0 => subvolume(&nested),
            _ => std::fs::create_dir(&nested).unwrap(),
        }
    }
    std::fs::write(nested.join("file"), "x").unwrap();
    let mut deep = rig.data("pvc");
    deep.extend(["d"; 60]);
    std::fs::create_dir_all(&deep).unwrap();
    let protected = deep.join("protected");
    subvolume(&protected);
    subvolume(&protected.join("inner"));
    let chain = protected.join(["d"; 60].join("/"));
    std::fs::create_dir_all(&chain).unwrap();
    std::fs::write(chain.join("file"), "x").unwrap();
    run(Command::new("btrfs")
        .args(["property", "set"])
        .arg(&protected)
        .args(["ro", "true"]));
    rig.driver().delete(&volume.id.to_string()).unwrap();
    rig.wait_for_trash();
    assert!(rig.qgroups().is_empty());
}

/// Proves: S2.
#[test]
fn the_smallest_volume_on_btrfs_has_space_for_a_file() {
    let rig = require!(loop_devices, QuotaRig::new());
    rig.make("tiny", Bytes(1));
    std::fs::write(rig.data("tiny").join("file"), "x").unwrap();
}

/// Proves: S8.
#[test]
fn a_volume_on_btrfs_grows_while_it_is_written_to_and_never_shrinks() {
    let mut rig = require!(loop_devices, QuotaRig::new());
    let volume = rig.make("pvc", SIZE);
    assert_eq!(
        rig.expand(&volume, Bytes(2 * SIZE.0))
            .unwrap_err()
            .code(Operation::Expand),
        Code::NotFound,
        "it is not published"
    );
    rig.published(&volume);
    fill(&rig.data("pvc").join("before"));
    let twice = Bytes(2 * SIZE.0);
    for (asked, has) in [
        (twice, twice),
        (twice, twice),
        (SIZE, twice),
        (Bytes::ZERO, twice),
    ] {
        assert_eq!(rig.expand(&volume, asked).unwrap(), has, "{asked}");
    }
    assert_about("the rest", fill(&rig.data("pvc").join("after")), SIZE);
    let refused = rig.expand(&volume, Bytes(1 << 40)).unwrap_err();
    assert_eq!(refused.code(Operation::Expand), Code::OutOfRange);
    assert_pool_error!(refused, NoSpace);
    rig.start();
    assert_eq!(
        rig.driver().get(&volume.id.to_string()).unwrap().size,
        twice
    );
    assert_eq!(
        rig.measured_view().limits_restored,
        0,
        "limit and record agreed"
    );
    let below = ExpandRequest {
        id: volume.id.to_string(),
        path: rig.node.target("pvc"),
        required: Bytes::ZERO,
        limit: Some(SIZE),
    };
    let refused = rig.driver().expand(&below).unwrap_err();
    assert_eq!(
        refused.code(Operation::Expand),
        Code::OutOfRange,
        "{refused}"
    );
}

/// Proves: S10.
#[test]
fn limits_on_btrfs_are_what_the_records_say_after_a_start_and_others_are_left_alone() {
    let mut rig = require!(loop_devices, QuotaRig::new());
    for volume in ["lowered", "lifted", "kept"] {
        rig.make(volume, SIZE);
    }
    let unlimited = rig.make("unlimited", Bytes::ZERO);
    assert_eq!(unlimited.enforcement, Enforcement::None);
    let (lowered, lifted) = (rig.quota_id("lowered"), rig.quota_id("lifted"));
    rig.running = None;
    rig.qgroup(&["limit", "1M"], lowered);
    rig.qgroup(&["limit", "none"], lifted);
    let (left, theirs) = ((1 << 30) + 7, 5);
    for (qgroup, limit) in [(left, "3M"), (theirs, "4M")] {
        rig.qgroup(&["create"], qgroup);
        rig.qgroup(&["limit", limit], qgroup);
    }
    rig.start();
    assert_eq!(rig.measured_view().limits_restored, 2);
    let mut expected: Vec<(u64, String)> = ["lowered", "lifted", "kept"]
        .map(|volume| (rig.quota_id(volume), SIZE.0.to_string()))
        .into();
    expected.push((rig.quota_id("unlimited"), "none".into()));
    expected.push((theirs, (4 << 20).to_string()));
    expected.sort();
    let mut found = rig.qgroups();
    found.sort();
    assert_eq!(found, expected);
    rig.start();
    assert_eq!(rig.measured_view().limits_restored, 0);
}

/// Proves: S18.
#[test]
fn a_quota_id_that_may_be_anothers_is_left_alone_and_its_volume_quarantined() {
    let mut rig = require!(loop_devices, QuotaRig::new());
    for volume in ["first", "second", "third"] {
        rig.make(volume, SIZE);
    }
    let before = rig.qgroups();
    // The record of the second volume names the quota id of the first.
    let quota_id = |volume| rig.quota_id(volume).to_string();
    let (first, second) = (quota_id("first"), quota_id("second"));
    let path = rig.directory("second").join("volume.json");
    let record = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, record.replace(&second, &first)).unwrap();
    rig.start();
    let status = rig.measured_view();
    assert_eq!((status.volumes, status.quarantined), (1, 2));
    assert!(status.reserved >= Bytes(3 * SIZE.0), "{}", status.reserved);
    assert_eq!(rig.qgroups(), before, "no limit was touched");

    // Restored by hand from a copy: the quota id is free, and nothing is charged to it.
    std::fs::write(&path, record).unwrap();
    let data = rig.data("third");
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "delete"])
        .arg(&data));
    std::fs::create_dir(&data).unwrap();
    rig.start();
    let status = rig.measured_view();
    assert_eq!((status.volumes, status.quarantined), (2, 1));
}

/// Proves: S7.
#[test]
fn a_class_may_require_that_sizes_are_enforced_or_that_they_are_not() {
    let rig = require!(loop_devices, QuotaRig::new());
    let plain = Node::new();
    let _disk = plain.make_pool_disk(Disk::new("btrfs").with_other_data());
    let option = plain.own_pool_option();
    let cannot = plain.volumes_of(&[option], &Fakes::default());
    let ask = |driver: &Running, policy: EnforcementPolicy, size: Bytes| {
        let mut request = create(&format!("{policy:?}-{}", size.0), size.0);
        request.class.enforcement = policy;
        let available = driver.capacity(&request.class, &[]).unwrap().largest;
        let made = driver.create(&request);
        (
            available > Bytes::ZERO,
            made.map(|volume| volume.enforcement),
        )
    };
    for (policy, here, there) in [
        (
            EnforcementPolicy::Auto,
            Enforcement::Squota,
            Some(Enforcement::None),
        ),
        (EnforcementPolicy::Required, Enforcement::Squota, None),
        (
            EnforcementPolicy::None,
            Enforcement::None,
            Some(Enforcement::None),
        ),
    ] {
        let (available, made) = ask(rig.driver(), policy, SIZE);
        assert!(available);
        assert_eq!(made.unwrap(), here, "{policy:?}");
        let (available, made) = ask(&cannot, policy, SIZE);
        assert_eq!(available, there.is_some(), "{policy:?}");
        match there {
            Some(enforcement) => assert_eq!(made.unwrap(), enforcement, "{policy:?}"),
            None => assert_eq!(
                made.unwrap_err().code(Operation::CreateVolume),
                Code::ResourceExhausted
            ),
        }
    }
    let (_, made) = ask(rig.driver(), EnforcementPolicy::Required, Bytes::ZERO);
    assert_eq!(
        made.unwrap_err().code(Operation::CreateVolume),
        Code::InvalidArgument
    );
    assert_eq!(
        rig.measured_view().not_enforced,
        1,
        "the one that is not enforced"
    );
    assert_eq!(cannot.pools()[0].measured_view().not_enforced, 2);
}

/// Proves: S10.
#[test]
fn a_pool_whose_quota_is_switched_on_is_opened_anew_and_holds_the_sizes_of_new_volumes() {
    require!(loop_devices);
    let node = Node::new();
    let disk = node.make_pool_disk(Disk::new("btrfs").with_other_data());
    let option = node.own_pool_option();
    let driver = node.volumes_of(&[option], &Fakes::default());
    let old = driver.create(&create("old", SIZE.0)).unwrap();
    assert_eq!(old.enforcement, Enforcement::None);
    assert!(enable_quota(disk.path()).unwrap());
    assert!(!enable_quota(disk.path()).unwrap(), "it is on");
    driver.check_pools();
    // A process that another test begins may have the lock for a moment.
    eventually("the pool is open", || {
        driver.check_pools();
        driver.pools()[0].why_unavailable().is_none()
    });
    let new = driver.create(&create("new", SIZE.0)).unwrap();
    assert_eq!(new.enforcement, Enforcement::Squota);
    assert_eq!(driver.get(&old.id.to_string()).unwrap(), old);
    assert_eq!(driver.pools()[0].measured_view().not_enforced, 1);
    let error = driver.enforce(&old.id.to_string()).unwrap_err();
    assert_eq!(error.code(Operation::Volume), Code::FailedPrecondition);
    assert!(error.to_string().contains("create a new claim"), "{error}");
}

/// Proves: S15.
#[test]
fn a_volume_whose_class_asked_for_no_enforcement_stays_without() {
    let rig = require!(loop_devices, QuotaRig::new());
    let mut request = create("pvc", SIZE.0);
    request.class.enforcement = EnforcementPolicy::None;
    let volume = rig.driver().create(&request).unwrap();
    let id = volume.id.to_string();
    assert_eq!(rig.driver().enforce(&id).unwrap(), Enforced::Declined);
    assert_eq!(rig.driver().get(&id).unwrap(), volume);
    let enforced = rig.make("enforced", SIZE).id.to_string();
    assert_eq!(rig.driver().enforce(&enforced).unwrap(), Enforced::Before);
}

/// Reading charges takes time for each volume, so the driver reads them only if the answer needs
/// them.
///
/// Proves: G2.
#[test]
fn charges_are_read_once_a_second_for_the_capacity_and_by_a_create_that_needs_them() {
    let quota = Arc::new(FakeQuota::default());
    let fakes = Fakes {
        quotas: quota.clone(),
        ..Fakes::default()
    };
    let node = Node::new();
    let volumes = node.volumes(&fakes);
    let class = Class::default();
    let made: Vec<Volume> = (0..10)
        .map(|at| volumes.create(&create(&format!("v{at}"), 1 << 20)).unwrap())
        .collect();
    assert_eq!(quota.reads(), 0, "there was enough free space without");
    let reads = || {
        let (before, since) = (quota.reads(), Instant::now());
        volumes.capacity(&class, &[]).unwrap();
        let first = quota.reads() - before;
        volumes.capacity(&class, &[]).unwrap();
        let second = quota.reads() - before - first;
        (first, second, since.elapsed())
    };
    eventually("two calls within a second read once", || {
        let (first, second, elapsed) = reads();
        assert!([0, 10].contains(&first), "{first}");
        assert!(second == 0 || elapsed >= Duration::from_secs(1), "{second}");
        elapsed < Duration::from_secs(1)
    });
    volumes.delete(&made[0].id.to_string()).unwrap();
    let (first, ..) = reads();
    assert_eq!(first, 9, "a deleted volume has no charge");
}

/// The charge of a volume can be asked for at the moment at which its quota id ends. A fault would make the pool
/// unavailable.
///
/// Proves: G2.
#[test]
fn a_charge_can_end_while_it_is_read() {
    require!(simple_quota);
    let rig = QuotaRig::new();
    let root = File::open(rig.node.pool()).unwrap();
    let quota = KernelQuotas.find(Filesystem::Btrfs, root.as_fd()).unwrap();
    let (id, ended) = (OURS.start, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = End(&ended);
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert_eq!(quota.usage(id), Ok(0));
            }
        });
        let (os, qgroup) = (Os::default(), 1 << 48 | u64::from(id));
        for _ in 0..2000 {
            os.create_qgroup(&root, qgroup).unwrap();
            os.remove_qgroup(&root, qgroup).unwrap();
        }
    });
}
