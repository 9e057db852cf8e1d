use support::disk::{EXT4, XFS};
use support::poweroff::imports::IMPORTS;
use support::poweroff::logs::replay as replay_logs;
use support::poweroff::loops::Kind;
use support::poweroff::operations::{CREATE_IMAGE, OPERATIONS, of_sets};
use support::poweroff::scene::Pools;
use support::require;

fn replay(kind: Kind) {
    let imports = IMPORTS.iter().filter(|_| !kind.simple_quota);
    let operations = OPERATIONS.iter().chain([&CREATE_IMAGE]).chain(imports);
    replay_logs(kind, Pools::One, operations);
}

/// A power failure loses any writes that ext4 had not flushed. Every acknowledged change survives complete, its
/// limits are those of the records, and nothing else is left.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_ext4() {
    require!(log_writes);
    replay(Kind::limited(EXT4));
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
    replay(Kind::plain("btrfs"));
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
        ..Kind::plain("btrfs")
    });
}

/// As above, on a set of two members, where each acknowledged volume is there once.
///
/// Proves: D1, PS5, PS6.
#[test]
fn nothing_acknowledged_is_lost_on_a_set() {
    require!(log_writes);
    replay_logs(Kind::plain("ext4"), Pools::Set, of_sets());
}
