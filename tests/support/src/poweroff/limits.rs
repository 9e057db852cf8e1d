//! The limits of volumes and snapshots after a power-off, on disks with project quota.

use std::fs;

use super::operations::AWAY;
use super::scene::Scene;
use crate::disk_node::{OURS, inodes_of};
use crate::{eventually, kernel, names};

/// Asserts that every volume is limited as its record says, and that quota ids other than those of
/// the volumes and snapshots have neither limits nor charges. Before the reply, the limit of a volume that is imported or
/// exported may be on its way.
pub(super) fn are_as_recorded(scene: &Scene, is_settled: bool) {
    if scene.is_unavailable("") {
        return;
    }
    let disk = scene.node.path("disk");
    let (mut known, mut being_tagged) = (Vec::new(), Vec::new());
    // A pool that was moved away keeps its limits.
    let pools = ["pool", AWAY].map(|pool| disk.join(pool));
    // Kept objects keep theirs.
    let homes = ["volumes", "snapshots", ".rootcellar/kept"];
    let homes = homes.map(|home| pools.each_ref().map(|pool| pool.join(home)));
    for home in homes.into_iter().flatten().filter(|home| home.is_dir()) {
        for name in names(&home) {
            let is_on_its_way = !is_settled && name.starts_with("pvc-");
            let directory = home.join(name);
            let is_snapshot = directory.join("snapshot.json").try_exists().unwrap();
            let file = if is_snapshot {
                "snapshot.json"
            } else {
                "volume.json"
            };
            let record = fs::read(directory.join(file)).unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            // An import sets it last, and the volume is not published before.
            if is_on_its_way && record["enforcing"] == true {
                being_tagged.push(record["quota_id"].clone());
                continue;
            }
            let (project, inherits) = kernel::project(&directory.join("data"));
            // An export frees it first.
            if is_on_its_way && record["quota_id"].is_null() {
                assert!(!OURS.contains(&project), "{}", directory.display());
                continue;
            }
            assert_eq!(record["quota_id"], project, "{}", directory.display());
            assert!(inherits, "{}", directory.display());
            let quota = kernel::quota(&disk, project).unwrap();
            // Nobody writes into a snapshot, and an image has its own size. Both filesystems give such small
            // volumes the minimum number of inodes.
            let (size, inodes) = if is_snapshot || !record["image"].is_null() {
                (0, 0)
            } else {
                let size = record["size_bytes"].as_u64().unwrap();
                (size, inodes_of("xfs", size))
            };
            let limits = (quota.bytes, quota.inodes);
            assert_eq!(limits, ([size; 2], [inodes; 2]), "{}", directory.display());
            known.push(project);
        }
    }
    known.sort_unstable();
    eventually("nothing else is limited", || {
        let quotas = kernel::quotas(&disk, OURS.start).into_iter();
        let ids = quotas.map(|quota| quota.id);
        ids.filter(|id| !being_tagged.contains(&(*id).into()))
            .eq(known.iter().copied())
    });
}
