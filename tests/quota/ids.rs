//! Quota ids: those of volumes, those of reclaimed volumes, and those of others.

use std::fs;

use support::disk_node::{
    MIB, OURS, append, for_each_filesystem, for_each_served, for_each_started,
};
use support::{eventually, kernel, names};

/// Quota ids that are not the driver's: the kubelet's own, and the two next to the range.
const OTHERS: [u32; 4] = [1, 1_048_577, (1 << 30) - 1, 1 << 31];

/// A reclaim clears the limit and the charge of the volume's quota id.
///
/// Proves: S18.
#[tokio::test]
async fn a_reclaimed_volume_leaves_no_limit() {
    for_each_served(async |node, served| {
        let (id, target) = node.make_published(served, 8 * MIB).await;
        append(&target.join("file"), 2 * MIB);
        let project = node.project("pvc");
        served.clients.unpublish_soon(&id, &target).await;
        served.clients.delete(&id).await.unwrap();
        node.wait_free(project);
        assert_eq!(kernel::quotas(node.at(), OURS.start), []);
    })
    .await;
}

/// Creating, deleting and starting neither change nor clear the limits of others.
///
/// Proves: S18.
#[tokio::test]
async fn limits_of_others_are_not_touched() {
    for_each_filesystem(async |node| {
        node.serve().await.stop();
        // One of the quota ids has a file, which is in no volume; the others have limits only.
        let file = node.at().join("file-of-others");
        fs::write(&file, [0x5a; 5000]).unwrap();
        kernel::set_project(&file, OTHERS[1]);
        for (at, id) in (1..).zip(OTHERS) {
            kernel::limit(node.at(), id, at * MIB, at * 10);
        }
        let read = || OTHERS.map(|id| kernel::quota(node.at(), id).unwrap());
        let before = read();
        let mut served = node.serve().await;
        assert_eq!(read(), before);
        let id = served.make("pvc", 8 * MIB).await;
        let project = node.project("pvc");
        served.clients.delete(&id).await.unwrap();
        node.wait_free(project);
        served.stop();
        node.serve().await.stop();
        assert_eq!(read(), before);
    })
    .await;
}

/// A start clears a limit near the beginning of the driver's range that no record names and nothing
/// is charged to. It leaves a limit with a charge alone.
///
/// Proves: S18.
#[tokio::test]
async fn leftovers_are_cleared_at_start() {
    for_each_started(async |node, mut served| {
        served.make("pvc", 8 * MIB).await;
        served.stop();
        let (left, used) = (OURS.start + 7, OURS.start + 8);
        for id in [left, used] {
            kernel::limit(node.at(), id, MIB, 100);
        }
        let file = node.at().join("file-of-others");
        fs::write(&file, [0x5a; 5000]).unwrap();
        kernel::set_project(&file, used);
        let before = kernel::quota(node.at(), used).unwrap();
        node.serve().await.stop();
        node.wait_free(left);
        assert_eq!(kernel::quota(node.at(), used), Some(before));
        node.assert_limited("pvc", 8 * MIB);
    })
    .await;
}

/// A new volume takes the quota id of a deleted one, because XFS never frees the block of a quota
/// id.
///
/// Proves: S18.
#[tokio::test]
async fn quota_ids_are_used_again() {
    for_each_started(async |node, mut served| {
        for _ in 0..3 {
            let id = served.make("pvc", MIB).await;
            assert_eq!(node.project("pvc"), OURS.start);
            served.clients.delete(&id).await.unwrap();
            support::wait_for_trash(node.at());
            // XFS frees space in the background.
            node.wait_free(OURS.start);
        }
        served.stop();
    })
    .await;
}

/// A pod that charges its files to the next free quota ids hinders nothing. The driver passes over
/// these ids, even after a restart, and uses them once the files are removed.
///
/// Proves: S18.
#[tokio::test]
async fn ids_that_others_are_charged_to_are_passed_over() {
    const FILES: u32 = 1000;
    for_each_filesystem(async |node| {
        node.serve().await.stop();
        let squat = node.at().join("squat");
        fs::create_dir(&squat).unwrap();
        for id in 0..FILES {
            let file = squat.join(id.to_string());
            fs::write(&file, [0x5a; 5000]).unwrap();
            kernel::set_project(&file, OURS.start + id);
        }
        for (volume, expected) in [("first", 0), ("second", 1)] {
            let mut served = node.serve().await;
            served.make(volume, MIB).await;
            assert_eq!(node.project(volume), OURS.start + FILES + expected);
            node.assert_limited(volume, MIB);
            served.stop();
        }
        for id in 0..FILES {
            fs::remove_file(squat.join(id.to_string())).unwrap();
        }
        fs::remove_dir(&squat).unwrap();
        node.wait_free(OURS.start);
        let mut served = node.serve().await;
        served.make("third", MIB).await;
        assert_eq!(node.project("third"), OURS.start);
        served.stop();
    })
    .await;
}

/// The pool's own directories have no quota id. An entry moved to the trash therefore stays charged
/// to its volume, and an entry made next to it is charged to nobody.
///
/// Proves: S18.
#[tokio::test]
async fn the_pools_own_directories_have_no_quota_id() {
    for_each_served(async |node, served| {
        served.make("pvc", MIB).await;
        for own in [
            "",
            "volumes",
            ".rootcellar",
            ".rootcellar/staging",
            ".rootcellar/trash",
        ] {
            let (project, inherits) = kernel::project(&node.at().join(own));
            assert_eq!((project, inherits), (0, false), "{own:?}");
        }
        assert_eq!(kernel::project(&node.directory("pvc")), (0, false));
        eventually("staging is empty", || {
            names(&node.at().join(".rootcellar/staging")).is_empty()
        });
    })
    .await;
}
