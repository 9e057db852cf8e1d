//! The power-off tests of tests/suite/poweroff.rs on filesystems that enforce sizes. Afterwards
//! each volume is limited as its record says, and no other limit exists.

use support::disk::{Disk, EXT4, XFS};
use support::poweroff::loops::{Kind, lose_power};
use support::poweroff::operations::of_one;
use support::poweroff::scene::Pools;
use support::require;

/// The operations that set or free limits.
const ABOUT_LIMITS: [&str; 16] = [
    "create",
    "create what a killed driver left in staging",
    "create what a killed driver left in sight",
    "start where a killed driver left something in staging",
    "expand",
    "delete",
    "delete what a killed driver took out of sight",
    "reclaim",
    "snapshot",
    "restore",
    "clone",
    "delete and keep",
    "undelete",
    "purge",
    "delete a snapshot",
    "reclaim a snapshot",
];

fn lose_power_on(disk: Disk) {
    let operations = of_one().filter(|operation| ABOUT_LIMITS.contains(&operation.name));
    lose_power(Kind::limited(disk), false, Pools::One, operations);
}

/// Wherever the power fails, each volume on XFS is limited to the size in its record, and no limit
/// outlives its volume.
///
/// Proves: D1.
#[test]
fn limits_are_those_of_the_records_on_xfs() {
    require!(project_quota);
    lose_power_on(XFS);
}

/// The same on ext4.
///
/// Proves: D1.
#[test]
fn limits_are_those_of_the_records_on_ext4() {
    require!(project_quota);
    lose_power_on(EXT4);
}
