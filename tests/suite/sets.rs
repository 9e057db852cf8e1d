//! Pool sets: their members, the placement of volumes, and members that come and go.

mod copies;
mod cordon;
mod discovery;
mod exclusive;
mod model;
mod moving;
mod sectors;
mod server;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Duration;

use objects::Bytes;
use pool::{PartMount, Unavailable};
use rootcellar::error::{Code, Operation};
use rootcellar::volume::{Capacity, Class, Settings, Volumes};

use super::snapshots::assert_code;
use support::memory::MemorySet;
use support::{Fakes, Running, create, require};

const MIB: u64 = 1 << 20;

/// The reservable bytes of a member of this size in MiB: all but the slack for its metadata.
fn reservable(size: u64) -> u64 {
    size * MIB - size * MIB / 100
}

/// The member that a new volume is in.
fn place(driver: &Running, name: &str, size: u64) -> String {
    let volume = driver.create(&create(name, size)).unwrap();
    volume.pool.member().unwrap().to_owned()
}

/// The results of calls that begin together, one for each number below `count`.
fn at_once<T: Send>(count: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let together = Barrier::new(count);
    std::thread::scope(|scope| {
        let begin = |n| {
            let (call, together) = (&call, &together);
            scope.spawn(move || {
                together.wait();
                call(n)
            })
        };
        let threads: Vec<_> = (0..count).map(begin).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

fn capacity(driver: &Volumes) -> Capacity {
    driver.capacity(&Class::default(), &[]).unwrap()
}

fn names_of(driver: &Volumes) -> Vec<String> {
    let pools = driver.pools();
    pools.iter().map(|pool| pool.name().to_string()).collect()
}

/// Why a member is unavailable.
fn why(driver: &Volumes, member: &str) -> Option<Unavailable> {
    let pools = driver.pools();
    let pool = pools
        .iter()
        .find(|pool| pool.name().member() == Some(member));
    pool.unwrap().why_unavailable()
}

/// Only a mount of a complete filesystem directly below the directory is served, and only if its name
/// matches. The disk of the node itself stays untouched.
///
/// Proves: PS1.
#[test]
fn members_are_the_mounts_below_the_directory() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("disk1", 8 * MIB), ("disk2", 8 * MIB), ("other", 8 * MIB)]);
    node.add("disk2/below", 8 * MIB);
    node.add("disk a", 8 * MIB);
    for name in ["disk3", "disk4"] {
        std::fs::create_dir(node.member(name)).unwrap();
    }
    let part = node.member("other").join("part");
    std::fs::create_dir(&part).unwrap();
    rustix::mount::mount_bind(&part, node.member("disk4")).unwrap();
    let settings = Settings {
        sets: vec![node.option(",match=disk*").parse().unwrap()],
        ..node.settings()
    };
    let driver = node.volumes_with(settings, &Fakes::default());
    assert_eq!(names_of(&driver), ["set/disk1", "set/disk2"]);
    driver.discover().unwrap();
    let parts: Vec<_> = driver.part_mounts().iter().cloned().collect();
    let (set, path) = ("set".parse().unwrap(), node.member("disk4"));
    assert_eq!(parts, [PartMount { set, path }]);
    support::unmount(node.member("disk4"));
    driver.discover().unwrap();
    assert!(driver.part_mounts().is_empty());
    assert_eq!(support::names(&node.member("disk3")), [""; 0]);
    assert_eq!(support::names(&part), [""; 0]);
}

/// A volume goes to the member with the most free space, of several to the one with the fewest volumes.
/// The capacity is the sum, and the largest size is the most that a member has free.
///
/// Proves: PS2.
#[test]
fn a_volume_goes_to_the_member_with_the_most_free_space() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 64 * MIB), ("b", 32 * MIB), ("c", 64 * MIB)]);
    let driver = node.volumes();
    let sum = 2 * reservable(64) + reservable(32);
    let empty = capacity(&driver);
    assert!(sum - empty.available.0 < MIB, "{empty:?}");
    assert!(reservable(64) - empty.largest.0 < MIB, "{empty:?}");
    for pair in 0..2 {
        let mut placed: Vec<String> = (0..2)
            .map(|n| place(&driver, &format!("v{pair}{n}"), 24 * MIB))
            .collect();
        // 64, 32, 64; 40, 32, 64; 40, 32, 40. Of a and c either may be first: a process that another test
        // has just begun keeps the blocks of a removed file until its exec.
        placed.sort_unstable();
        assert_eq!(placed, ["a", "c"]);
    }
    assert_eq!(place(&driver, "w0", 0), "b");
    assert_eq!(
        place(&driver, "w1", 0),
        "b",
        "the most free space counts first"
    );
    let rest = capacity(&driver);
    assert!(reservable(32) - rest.largest.0 < MIB, "{rest:?}");
    let refused = driver.create(&create("x", rest.largest.0 + 1)).unwrap_err();
    assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
    let message = refused.to_string();
    let free = format!("pool set has free space for {}", rest.largest);
    assert!(message.starts_with(&free), "{message}");
    assert_eq!(place(&driver, "x", rest.largest.0), "b");
}

/// Of members with equal free space, the one with the fewest volumes is taken.
///
/// Proves: PS2.
#[test]
fn a_tie_goes_to_the_fewest_volumes() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 16 * MIB), ("b", 16 * MIB)]);
    let driver = node.volumes();
    let mut placed: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..8 {
        *placed
            .entry(place(&driver, &format!("v{n}"), 0))
            .or_default() += 1;
    }
    assert_eq!(placed, BTreeMap::from([("a".into(), 4), ("b".into(), 4)]));
}

/// Each member has the reserve and the overcommit of its set.
///
/// Proves: PS1.
#[test]
fn each_member_has_the_options_of_its_set() {
    require!(mount_namespace);
    // The set's options, and the bytes of each volume, of which every member can reserve two.
    let cases = [
        ("reserve=0", 31 * MIB),
        ("reserve=16Mi", 23 * MIB),
        ("reserve=50%", 15 * MIB),
        ("reserve=0,overcommit=2", 63 * MIB),
    ];
    for (options, size) in cases {
        let node = MemorySet::new(&[("a", 64 * MIB), ("b", 64 * MIB)]);
        let set = node.option("").replace("reserve=0", options);
        let settings = Settings {
            sets: vec![set.parse().unwrap()],
            ..node.settings()
        };
        let driver = node.volumes_with(settings, &Fakes::default());
        let mut placed: Vec<String> = (0..4)
            .map(|n| place(&driver, &format!("v{n}"), size))
            .collect();
        placed.sort_unstable();
        assert_eq!(placed, ["a", "a", "b", "b"], "{options}");
        let refused = driver.create(&create("v4", size)).unwrap_err();
        assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
        assert!(capacity(&driver).largest < Bytes(2 * MIB), "{options}");
    }
}

/// Creations that race for the last free space of a member try the next member before they are
/// refused: as many succeed as fit.
///
/// Proves: PS3.
#[test]
fn a_race_for_the_last_free_space_tries_the_next_member() {
    require!(mount_namespace);
    let members = [("a", 64 * MIB), ("b", 64 * MIB), ("c", 64 * MIB)];
    let node = MemorySet::new(&members);
    let driver = node.volumes();
    let made = at_once(16, |n| {
        driver.create(&create(&format!("v{n}"), 20 * MIB)).is_ok()
    });
    let made = made.into_iter().filter(|made| *made).count();
    assert_eq!(made, 9, "three of 20 MiB in each member");
}

/// Volumes that are created at once spread as if one was created after the other.
///
/// Proves: PS2.
#[test]
fn creations_at_once_spread_over_the_members() {
    require!(mount_namespace);
    let members = [
        ("a", 64 * MIB),
        ("b", 64 * MIB),
        ("c", 64 * MIB),
        ("d", 64 * MIB),
    ];
    let node = MemorySet::new(&members);
    let driver = node.volumes();
    for round in 0..16 {
        let mut placed: BTreeMap<String, usize> = BTreeMap::new();
        for member in at_once(8, |n| place(&driver, &format!("v{round}-{n}"), MIB)) {
            *placed.entry(member).or_default() += 1;
        }
        let even = ["a", "b", "c", "d"].map(|member| (member.to_owned(), 2));
        assert_eq!(placed, BTreeMap::from(even), "round {round}");
    }
}
