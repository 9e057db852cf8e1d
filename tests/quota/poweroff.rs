//! Power-off at every step, as tests/suite/poweroff.rs has it, on filesystems that hold sizes: what
//! is there afterwards is limited as its record says, and nothing else is.

use std::fs;

use support::disk::{Disk, EXT4, XFS};
use support::disk_node::{OURS, inodes_of};
use support::poweroff::loops::{Kind, lose_power};
use support::poweroff::operations::OPERATIONS;
use support::poweroff::scene::Scene;
use support::{eventually, kernel, names, require};

/// The operations in which limits are set or freed.
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

/// Asserts that exactly the volumes there are are limited, each as its record says, and that no
/// more is charged than to them and to the snapshots.
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
            // Nobody writes into a snapshot. Both filesystems give so small a volume the least.
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
        look: limits_are_as_recorded,
    };
    let operations = OPERATIONS.iter();
    let operations = { operations }.filter(|operation| ABOUT_LIMITS.contains(&operation.name));
    lose_power(kind, false, operations);
}

/// Whatever is done when the power fails, on XFS: a volume that is there is limited to the size in
/// its record, and no limit is left of what is not.
///
/// Proves: D1.
#[test]
fn limits_are_those_of_the_records_on_xfs() {
    require!(project_quota);
    lose_power_on(XFS);
}

/// As above, on ext4.
///
/// Proves: D1.
#[test]
fn limits_are_those_of_the_records_on_ext4() {
    require!(project_quota);
    lose_power_on(EXT4);
}
