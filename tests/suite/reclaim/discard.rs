//! The option `discard` of a pool.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use linux::os::Step;
use objects::Bytes;
use rootcellar::pool::Unavailable;
use rootcellar::volume::{Class, CreateRequest};
use rustix::io::Errno;

use super::fixture::delete;
use support::disk::Disk;
use support::faults::{Gate, Opened};
use support::loops::LoopMount;
use support::memory::MemoryNode;
use support::{Fakes, Node, Running, create, directory_of, eventually, require, wait_for_trash};

const DATA: usize = 64 << 20;

/// A request for a volume that is called as its pool.
fn request(pool: &str) -> CreateRequest {
    CreateRequest {
        class: Class {
            pool: Some(pool.parse().unwrap()),
            ..Class::default()
        },
        ..create(pool, 96 << 20)
    }
}

/// Makes a volume that is called as its pool, and returns the path of its data.
fn make(driver: &Running, pool: &str, at: &Path) -> PathBuf {
    driver.create(&request(pool)).unwrap();
    directory_of(&at.join("volumes"), pool).join("data")
}

/// Makes a volume with data and one that stays, because the driver syncs an empty pool anyway. Returns
/// the bytes that the image of the disk then takes.
fn fill(driver: &Running, pool: &str, disk: &LoopMount) -> u64 {
    let stays = CreateRequest {
        name: support::name(&format!("stays-{pool}")),
        required: Bytes(1 << 20),
        ..request(pool)
    };
    driver.create(&stays).unwrap();
    let data = make(driver, pool, disk.path());
    let mut file = File::create(data.join("file")).unwrap();
    file.write_all(&vec![0x5a; DATA]).unwrap();
    file.sync_all().unwrap();
    disk.allocated()
}

/// The blocks of a deleted volume are discarded, range by range over the complete disk, and only with
/// the option.
///
/// Proves: R10.
#[test]
fn the_disk_drops_the_blocks_of_deleted_volumes() {
    const LARGE: u64 = 5 << 29;
    // Which otherwise commits by itself soon.
    const EXT4: Disk = Disk::new("ext4").mounted_with(&["commit=600"]);
    const XFS: Disk = Disk::new("xfs");
    // By default a btrfs discards by itself.
    const BTRFS: Disk = Disk::new("btrfs").mounted_with(&["nodiscard"]);
    // The least number of calls: a range for each GiB, and one behind the end. A btrfs has three chunks.
    const SAMPLES: [(&str, Disk, Option<u64>); 7] = [
        ("ext4-kept", EXT4, None),
        ("xfs-kept", XFS, None),
        ("ext4", EXT4, Some(2)),
        ("xfs", XFS, Some(2)),
        ("ext4-large", EXT4.sized(LARGE), Some(4)),
        ("xfs-large", XFS.sized(LARGE), Some(4)),
        ("btrfs", BTRFS, Some(3)),
    ];
    require!(loop_devices);
    let node = Node::new();
    fs::create_dir(node.path("images")).unwrap();
    let disks = SAMPLES.map(|(pool, disk, _)| {
        let image = node.path("images").join(pool);
        (pool, disk.make(&image, &node.path(pool)))
    });
    let options = SAMPLES.map(|(pool, _, calls)| {
        let option = calls.map_or("", |_| ",discard");
        let at = node.path(pool);
        format!("{pool}={},init,reserve=0{option}", at.display())
    });
    let attempts = Arc::new(Attempts::default());
    let counted = Arc::clone(&attempts);
    let fakes = Fakes::planned(move |step, _| counted.count(step, |_| Ok(())));
    let driver = node.volumes_of(&options, &fakes);
    let full = disks
        .each_ref()
        .map(|(pool, disk)| fill(&driver, pool, disk));
    for (pool, disk) in &disks {
        delete(&driver, pool);
        wait_for_trash(disk.path());
    }
    // The pools without the option come last, when they would have discarded, too.
    for (((pool, disk), full), (.., calls)) in disks.iter().zip(full).zip(SAMPLES).rev() {
        // An ext4 writes its inode tables in the background.
        let dropped = || full.saturating_sub(disk.allocated()) > DATA as u64 / 8 * 7;
        match calls {
            Some(calls) => eventually(format!("{pool} is discarded"), || {
                dropped() && attempts.of(pool) >= calls
            }),
            None => assert!(!dropped() && attempts.of(pool) == 0, "{pool}"),
        }
    }
}

/// The attempts of each pool to discard.
#[derive(Default)]
struct Attempts(Mutex<BTreeMap<String, u64>>);

impl Attempts {
    fn of(&self, pool: &str) -> u64 {
        self.0.lock().unwrap().get(pool).copied().unwrap_or(0)
    }

    /// Counts an attempt, and then returns the result for its pool.
    fn count(&self, step: Step, result: impl Fn(&str) -> Result<(), Errno>) -> Result<(), Errno> {
        if step != Step::Trim {
            return Ok(());
        }
        let thread = std::thread::current();
        let pool = thread.name().unwrap().strip_prefix("reclaim-").unwrap();
        let mut attempts = self.0.lock().unwrap();
        *attempts.entry(pool.to_owned()).or_default() += 1;
        result(pool)
    }

    /// Fakes that count the attempts and fail them with the error of the pool.
    fn fakes(self: &Arc<Self>, errno: impl Fn(&str) -> Errno + Send + Sync + 'static) -> Fakes {
        let attempts = Arc::clone(self);
        Fakes::planned(move |step, _| attempts.count(step, |pool| Err(errno(pool))))
    }

    /// Waits until a pool has tried whose reclaim ends only now. Other pools would have tried before.
    fn let_time_pass(&self, node: &MemoryNode, driver: &Running) {
        let before = self.of(CLOCK);
        reclaims(node, driver, CLOCK);
        eventually("time has passed", || self.of(CLOCK) > before);
    }

    /// Waits until a pool has tried as often as expected.
    fn wait(&self, pool: &str, expected: u64) {
        eventually(format!("pool {pool} has tried"), || {
            self.of(pool) >= expected
        });
        assert_eq!(self.of(pool), expected, "{pool}");
    }
}

const CLOCK: &str = "clock";

/// Makes a volume in a pool, deletes it, and waits until it is reclaimed.
fn reclaims(node: &MemoryNode, driver: &Running, pool: &str) {
    make(driver, pool, &node.pool(pool));
    delete(driver, pool);
    wait_for_trash(&node.pool(pool));
}

/// `--pool` for every pool, with the option.
fn discarding(node: &MemoryNode) -> Vec<String> {
    let options = node.options();
    let options = options.iter().map(|text| format!("{text},discard"));
    options.collect()
}

/// A pool discards only after a reclaim and with the option, and a failure changes nothing else.
///
/// Proves: R10.
#[test]
fn only_a_reclaim_makes_a_pool_discard() {
    let node = require!(
        mount_namespace,
        MemoryNode::new(&["without", "idle", "reclaims", CLOCK])
    );
    let mut options = discarding(&node);
    options[0].clone_from(&node.options()[0]);
    let attempts = Arc::new(Attempts::default());
    let driver = node.volumes_of(&options, &attempts.fakes(|_| Errno::PERM));
    make(&driver, "idle", &node.pool("idle"));
    for round in 1..=2 {
        for pool in ["without", "reclaims"] {
            reclaims(&node, &driver, pool);
        }
        attempts.let_time_pass(&node, &driver);
        attempts.wait("reclaims", round);
        assert_eq!(["without", "idle"].map(|pool| attempts.of(pool)), [0, 0]);
    }
    for pool in driver.pools().iter() {
        assert_eq!(pool.status().unavailable, None);
    }
}

/// A pool whose disk cannot discard tries once after each opening.
///
/// Proves: R10.
#[test]
fn a_disk_without_discard_is_asked_once() {
    const REFUSALS: [(&str, Errno); 3] = [
        ("a", Errno::OPNOTSUPP),
        ("b", Errno::NOTTY),
        ("c", Errno::INVAL),
    ];
    let node = require!(mount_namespace, MemoryNode::new(&["a", "b", "c", CLOCK]));
    let attempts = Arc::new(Attempts::default());
    let fakes = attempts.fakes(|pool| {
        let refusal = REFUSALS.iter().find(|(refused, _)| *refused == pool);
        refusal.map_or(Errno::PERM, |(_, errno)| *errno)
    });
    let driver = node.volumes_of(&discarding(&node), &fakes);
    let reclaim_all = |expected| {
        for (pool, _) in REFUSALS {
            reclaims(&node, &driver, pool);
        }
        attempts.let_time_pass(&node, &driver);
        for (pool, _) in REFUSALS {
            attempts.wait(pool, expected);
        }
    };
    reclaim_all(1);
    reclaim_all(1);
    for (pool, _) in REFUSALS {
        let (path, away) = (node.pool(pool), node.path(pool).join("away"));
        fs::rename(&path, &away).unwrap();
        driver.check_pools();
        fs::rename(&away, &path).unwrap();
    }
    wait_until_served(&driver);
    reclaim_all(2);
}

/// Checks the pools until all are served. The reclaimer may have the lock of a pool for a moment.
fn wait_until_served(driver: &Running) {
    eventually("the pools are served", || {
        driver.check_pools();
        let pools = driver.pools();
        pools.iter().all(|pool| pool.status().unavailable.is_none())
    });
}

/// A call at work on the disk postpones the discard until it ends.
///
/// Proves: R10.
#[test]
fn a_pool_at_work_does_not_discard() {
    let node = require!(mount_namespace, MemoryNode::new(&["busy", CLOCK]));
    let (attempts, gate) = (Arc::new(Attempts::default()), Arc::new(Gate::default()));
    let (attempted, gated) = (Arc::clone(&attempts), Arc::clone(&gate));
    let fakes = Fakes::planned(move |step, name| {
        if name.to_string_lossy().starts_with("held-") {
            gated.pass("held".as_ref());
        }
        attempted.count(step, |_| Err(Errno::PERM))
    });
    let driver = node.volumes_of(&discarding(&node), &fakes);
    let request = CreateRequest {
        name: support::name("held"),
        ..request("busy")
    };
    std::thread::scope(|scope| {
        let _opened = Opened(&gate);
        gate.shut("held");
        scope.spawn(|| driver.create(&request).unwrap());
        eventually("the call is at work", || gate.holds("held"));
        reclaims(&node, &driver, "busy");
        attempts.let_time_pass(&node, &driver);
        assert_eq!(attempts.of("busy"), 0);
    });
    attempts.wait("busy", 1);
}

/// An I/O error makes the pool unavailable as in every other step. Its next opening does not repeat
/// the step.
///
/// Proves: R10.
#[test]
fn an_io_error_makes_the_pool_unavailable() {
    let node = require!(mount_namespace, MemoryNode::new(&["fails", CLOCK]));
    let attempts = Arc::new(Attempts::default());
    let fakes = attempts.fakes(|pool| match pool {
        CLOCK => Errno::PERM,
        _ => Errno::IO,
    });
    let driver = node.volumes_of(&discarding(&node), &fakes);
    let reason = || driver.pools()[0].why_unavailable();
    reclaims(&node, &driver, "fails");
    eventually("the pool is unavailable", || reason().is_some());
    let Some(Unavailable::Io { what, .. }) = reason() else {
        panic!("{:?}", reason());
    };
    assert_eq!(what, "discard free space");
    wait_until_served(&driver);
    attempts.let_time_pass(&node, &driver);
    assert_eq!(attempts.of("fails"), 1);
    assert_eq!(reason(), None);
}
