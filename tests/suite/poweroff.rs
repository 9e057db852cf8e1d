//! Power-off on loop mounts of the disks of pools and of the state directory's disk. The images are
//! copied after each step that changes a disk and after each reply. The copies hold the data that
//! the disks would hold after a power failure at that moment.

use support::poweroff::imports::IMPORTS;
use support::poweroff::loops::{self, Kind};
pub(crate) use support::poweroff::loops::{mount_empty, mount_empty_disk, unmount_all};
pub(crate) use support::poweroff::{operations, scene};
use support::{at_once, require};

use operations::{CREATE_IMAGE, of_one, of_sets};
use scene::Pools;

pub(crate) const BTRFS_WITH_QUOTA: Kind = Kind {
    simple_quota: true,
    ..Kind::plain("btrfs")
};

fn lose_power(kind: Kind) {
    at_once([false, true], |commits| {
        let imports = IMPORTS.iter().filter(|_| !kind.simple_quota);
        let operations = of_one().chain([&CREATE_IMAGE]).chain(imports);
        loops::lose_power(kind, commits, Pools::One, operations);
    });
}

/// A power failure may interrupt any operation on ext4: every acknowledged change survives
/// complete, and nothing else is left.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_ext4() {
    require!(loop_devices);
    lose_power(Kind::plain("ext4"));
}

/// As above, on XFS.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_xfs() {
    require!(loop_devices);
    lose_power(Kind::plain("xfs"));
}

/// As above, on btrfs.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_btrfs() {
    require!(loop_devices);
    lose_power(Kind::plain("btrfs"));
}

/// As above, on btrfs with simple quota. The limits must also be as recorded.
///
/// Proves: D1.
#[test]
fn nothing_acknowledged_is_lost_on_btrfs_with_quota() {
    require!(simple_quota);
    lose_power(BTRFS_WITH_QUOTA);
}

/// A power failure may interrupt a creation or deletion on a set of two members: each acknowledged
/// volume is there once, and a repeated request finds it instead of making it on the other member.
/// A volume that takes a disk is alone there, whenever the power fails.
///
/// Proves: D1, PS5, PS6.
#[test]
fn a_set_has_every_acknowledged_volume_once() {
    require!(loop_devices);
    at_once([false, true], |commits| {
        loops::lose_power(Kind::plain("ext4"), commits, Pools::Set, of_sets());
    });
}
