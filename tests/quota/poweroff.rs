//! The power-off tests of tests/suite/poweroff.rs on filesystems that enforce sizes. Afterwards
//! each volume is limited as its record says, and no other limit exists.

use std::fs;

use support::disk::{Disk, EXT4, XFS};
use support::disk_node::{OURS, inodes_of};
use support::poweroff::loops::{Kind, lose_power};
use support::poweroff::operations::OPERATIONS;
use support::poweroff::scene::{Pools, Scene};
use support::{eventually, kernel, names, require};

/// The operations that set or free limits.
const ABOUT_LIMITS: [&str; 13] = [
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
    "delete a snapshot",
    "reclaim a snapshot",
];

/// Asserts that every volume is limited as its record says, and that quota ids other than those of
/// the volumes and snapshots have neither limits nor charges.
fn limits_are_as_recorded(scene: &Scene) {
    let disk = scene.node.path("disk");
    let mut known = Vec::new();
    for (home, file) in [("volumes", "volume.json"), ("snapshots", "snapshot.json")] {
        let home = scene.pool().join(home);
        for directory in names(&home) {
            let directory = home.join(directory);
            let record = fs::read(directory.join(file)).unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            let (project, inherits) = kernel::project(&directory.join("data"));
            assert_eq!(record["quota_id"], project, "{}", directory.display());
            assert!(inherits, "{}", directory.display());
            let quota = kernel::quota(&disk, project).unwrap();
            // Nobody writes into a snapshot. Both filesystems give such small volumes the minimum
            // number of inodes.
            let (size, inodes) = match file {
                "snapshot.json" => (0, 0),
                _ => {
                    let size = record["size_bytes"].as_u64().unwrap();
                    (size, inodes_of("xfs", size))
                }
            };
            let limits = (quota.bytes, quota.inodes);
            assert_eq!(limits, ([size; 2], [inodes; 2]), "{}", directory.display());
            known.push(project);
        }
    }
    known.sort_unstable();
    eventually("nothing else is limited", || {
        let quotas = kernel::quotas(&disk, OURS.start);
        quotas
            .iter()
            .map(|quota| quota.id)
            .eq(known.iter().copied())
    });
}

fn lose_power_on(disk: Disk) {
    let kind = Kind {
        filesystem: disk.filesystem,
        make: disk.make,
        mount: disk.mount,
        simple_quota: false,
        inspect: limits_are_as_recorded,
    };
    let operations = OPERATIONS.iter();
    let operations = { operations }.filter(|operation| ABOUT_LIMITS.contains(&operation.name));
    lose_power(kind, false, Pools::One, operations);
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
