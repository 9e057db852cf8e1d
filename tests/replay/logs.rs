use std::panic::{AssertUnwindSafe, catch_unwind};

use linux::os::Step;
use support::disk::{EXT4, XFS};
use support::poweroff::imports::IMPORTS;
use support::poweroff::logs::replay as replay_logs;
use support::poweroff::loops::Kind;
use support::poweroff::operations::{CREATE_IMAGE, Operation, of_one, of_sets};
use support::poweroff::scene::Pools;
use support::require;

/// Keeps the filesystem from committing by itself, which would hide a missing sync.
const LATE: &str = "commit=600";
const PLAIN_EXT4: Kind = Kind {
    mount: &[LATE],
    ..Kind::plain("ext4")
};
const BTRFS: Kind = Kind {
    mount: &[LATE],
    ..Kind::plain("btrfs")
};

fn replay(kind: Kind) {
    let imports = IMPORTS.iter().filter(|_| !kind.simple_quota);
    let operations = of_one().chain([&CREATE_IMAGE]).chain(imports);
    replay_logs(kind, Pools::One, operations);
}

/// A power failure loses any writes that ext4 had not flushed. Every acknowledged change survives complete, its
/// limits are those of the records, and nothing else is left.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_ext4() {
    require!(log_writes);
    replay(Kind {
        mount: &["prjquota", LATE],
        ..Kind::limited(EXT4)
    });
}

/// As above, on XFS.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_xfs() {
    require!(log_writes);
    replay(Kind::limited(XFS));
}

/// As above, on btrfs.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_btrfs() {
    require!(log_writes);
    replay(BTRFS);
}

/// As above, on btrfs with simple quota.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_simple_quota() {
    require!(log_writes);
    require!(simple_quota);
    replay(Kind {
        simple_quota: true,
        ..BTRFS
    });
}

/// As above, on a set of two members, where each acknowledged volume is there once.
///
/// Proves: D1, PS5, PS6.
#[test]
fn nothing_acknowledged_is_lost_on_a_set() {
    require!(log_writes);
    replay_logs(PLAIN_EXT4, Pools::Set, of_sets());
}

/// The replay notices a sync that is missing.
///
/// Proves: D3.
#[test]
fn a_skipped_sync_is_noticed() {
    require!(log_writes);
    for (name, path) in [
        ("create", "/volumes"),
        ("expand", "/volumes/pvc-*"),
        ("snapshot", "/snapshots"),
    ] {
        let mut all = of_one();
        let operation = Operation {
            skips: Some((Step::Fsync, path)),
            ..*all.find(|operation| operation.name == name).unwrap()
        };
        let replayed = || replay_logs(PLAIN_EXT4, Pools::One, [&operation]);
        let noticed = catch_unwind(AssertUnwindSafe(replayed));
        assert!(noticed.is_err(), "{name} without the fsync of {path}");
    }
}
