//! Every sync is needed: an operation that skips one does not survive a power-off. The syncs of
//! `volume enforce` are missing here, because no power-off test runs it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use super::lose_power;
use crate::poweroff::BTRFS_WITH_QUOTA;
use crate::poweroff::operations::{Operation, of_one};
use crate::poweroff::scene::Pools;
use linux::os::Step::{self, Fsync, Syncfs};
use support::poweroff::loops;
use support::poweroff::moves::MOVES;
use support::require;

/// An operation, the kind and the path of the sync that it skips (see [`Operation::skips`]), and
/// the message of the check that must fail.
type Row = (&'static str, Step, &'static str, &'static str);

/// After the reply, a file or directory has no name.
const LOST: &str = "lost: ";
/// The driver serves neither the old state nor the new one.
const NEITHER: &str = "neither before nor after";
/// A record is damaged.
const QUARANTINED: &str = "quarantined";
/// A file in a copy differs from the original.
const CONTENT: &str = "content";

/// A log keeps the order of metadata, as on ext4 and XFS.
#[rustfmt::skip]
const LOGGED: &[Row] = &[
    ("pool init", Fsync, "/", LOST),
    ("start where a killed driver remembered the pool", Fsync, "/state", LOST),
    ("create", Fsync, "/volume.json", QUARANTINED),
    ("create", Fsync, "/volumes", LOST),
    ("create what a killed driver left in sight", Syncfs, "/", LOST),
    ("expand", Fsync, "/staging/*", NEITHER),
    ("expand", Fsync, "/volumes/pvc-*", LOST),
    ("label", Fsync, "/staging/*", NEITHER),
    ("label", Fsync, "/volumes/pvc-*", LOST),
    ("limit a block volume", Fsync, "/staging/*", NEITHER),
    ("limit a block volume", Fsync, "/volumes/device-*", LOST),
    ("delete", Fsync, "/trash", LOST),
    ("delete", Fsync, "/volumes", NEITHER),
    ("delete and keep", Fsync, "/kept", LOST),
    ("delete and keep", Fsync, "/volumes", NEITHER),
    ("snapshot", Syncfs, "/", CONTENT),
    ("snapshot", Fsync, "/snapshot.json", QUARANTINED),
    ("snapshot", Fsync, "/snapshots", LOST),
    ("adopt another node's pool", Fsync, "/.rootcellar", LOST),
    ("adopt a pool that a killed driver left in sight", Syncfs, "/", LOST),
    ("retire a pool that is gone", Fsync, "/pools.json.tmp", "pools.json is damaged"),
    ("retire a pool that is gone", Fsync, "/state", LOST),
];

/// On the members of a set, whose logs keep the order of metadata.
#[rustfmt::skip]
const MOVED: &[Row] = &[
    ("move", Fsync, "/state", LOST),
    ("move", Syncfs, "/", CONTENT),
    ("move", Fsync, "/volume.json", QUARANTINED),
    ("move", Fsync, "/volumes", LOST),
    ("move", Fsync, "/volumes/kept-*", "is not moved"),
];

/// No order of metadata is assumed, as on btrfs.
const UNORDERED: &[Row] = &[
    ("pool init", Syncfs, "/", LOST),
    ("create", Syncfs, "/", LOST),
];

/// The kernel stores limits.
const LIMITED: &[Row] = &[("expand", Syncfs, "/", "limits were not durable")];

fn are_missed(rows: &[Row], lose_power: impl Fn(&Operation)) {
    for (name, sync, path, complaint) in rows {
        eprintln!("{name}, which skips {sync:?} of {path}");
        let mut operations = of_one().chain(MOVES);
        let operation = operations.find(|operation| operation.name == *name);
        let operation = Operation {
            skips: Some((*sync, path)),
            ..*operation.unwrap()
        };
        let failure = catch_unwind(AssertUnwindSafe(|| lose_power(&operation)));
        let failure = failure.expect_err("no check misses the sync");
        let failure = failure.downcast::<String>().unwrap();
        assert!(failure.contains(complaint), "{failure}");
    }
}

/// Proves: D3.
#[test]
fn a_skipped_sync_is_missed_on_a_disk_that_logs_metadata() {
    require!(loop_devices);
    are_missed(LOGGED, |operation| {
        lose_power(true, Pools::One, slice::from_ref(operation));
    });
}

/// Proves: D3.
#[test]
fn a_skipped_sync_of_a_move_is_missed() {
    require!(loop_devices);
    are_missed(MOVED, |operation| {
        lose_power(true, Pools::Set, slice::from_ref(operation));
    });
}

/// Proves: D3.
#[test]
fn a_skipped_sync_is_missed_on_a_disk_that_keeps_no_order() {
    require!(loop_devices);
    are_missed(UNORDERED, |operation| {
        lose_power(false, Pools::One, slice::from_ref(operation));
    });
}

/// Proves: D3.
#[test]
fn a_skipped_sync_is_missed_on_btrfs_with_quota() {
    require!(loop_devices);
    are_missed(LIMITED, |operation| {
        loops::lose_power(BTRFS_WITH_QUOTA, false, Pools::One, [operation]);
    });
}
