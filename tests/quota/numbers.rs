//! Project numbers: those of volumes, those that were, and those of others.

use std::fs;

use support::cellar::{Cellar, MIB, OURS, append};
use support::require;
use support::variant::ENFORCING;
use support::{eventually, kernel, names};

/// Numbers that are not the driver's: the kubelet's own, and the first and last beside the range.
const OTHERS: [u32; 4] = [1, 1_048_577, (1 << 30) - 1, 1 << 31];

/// Once a volume is reclaimed nothing is limited or charged under its number.
#[tokio::test]
async fn a_reclaimed_volume_leaves_no_limit() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        let id = served.make("pvc", 8 * MIB).await;
        let target = cellar.publish(&mut served, &id, "pod").await;
        append(&target.join("file"), 2 * MIB);
        let project = cellar.project("pvc");
        served.clients.unpublish(&id, &target).await.unwrap();
        served.clients.delete(&id).await.unwrap();
        cellar.wait_free(project);
        assert_eq!(kernel::quotas(cellar.at(), OURS.start), []);
        served.stop();
    }
}

/// Limits of others are neither changed nor cleared by making, deleting and starting.
#[tokio::test]
async fn limits_of_others_are_not_touched() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        cellar.serve().await.stop();
        // One with a file, which is nobody's volume, and others that are limits alone.
        let file = cellar.at().join("file-of-others");
        fs::write(&file, [0x5a; 5000]).unwrap();
        kernel::set_project(&file, OTHERS[1]);
        for (at, id) in (1..).zip(OTHERS) {
            kernel::limit(cellar.at(), id, at * MIB, at * 10);
        }
        let look = || OTHERS.map(|id| kernel::quota(cellar.at(), id).unwrap());
        let before = look();
        let mut served = cellar.serve().await;
        assert_eq!(look(), before);
        let id = served.make("pvc", 8 * MIB).await;
        let project = cellar.project("pvc");
        served.clients.delete(&id).await.unwrap();
        cellar.wait_free(project);
        served.stop();
        cellar.serve().await.stop();
        assert_eq!(look(), before);
    }
}

/// A limit near the start of the driver's range that no record names and nothing is charged to is
/// cleared when the driver starts; one that something is charged to is left alone.
#[tokio::test]
async fn leftovers_are_cleared_at_start() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        served.make("pvc", 8 * MIB).await;
        served.stop();
        let (left, used) = (OURS.start + 7, OURS.start + 8);
        for id in [left, used] {
            kernel::limit(cellar.at(), id, MIB, 100);
        }
        let file = cellar.at().join("file-of-others");
        fs::write(&file, [0x5a; 5000]).unwrap();
        kernel::set_project(&file, used);
        let before = kernel::quota(cellar.at(), used).unwrap();
        cellar.serve().await.stop();
        cellar.wait_free(left);
        assert_eq!(kernel::quota(cellar.at(), used), Some(before));
        cellar.assert_limited("pvc", 8 * MIB);
    }
}

/// Volumes that come and go use the same few quota ids, because XFS never gives the block of one
/// back.
#[tokio::test]
async fn quota_ids_are_used_again() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        for _ in 0..3 {
            let id = served.make("pvc", MIB).await;
            assert_eq!(cellar.project("pvc"), OURS.start);
            served.clients.delete(&id).await.unwrap();
            eventually("the trash is empty", || {
                names(&cellar.at().join(".rootcellar/trash")).is_empty()
            });
            // XFS gives space back in the background.
            cellar.wait_free(OURS.start);
        }
        served.stop();
    }
}

/// A pod that charges its files to quota ids the driver would take next hinders nothing: those ids
/// are passed over, also after a restart, and used once the files are gone.
#[tokio::test]
async fn ids_that_others_are_charged_to_are_passed_over() {
    const FILES: u32 = 1000;
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        cellar.serve().await.stop();
        let squat = cellar.at().join("squat");
        fs::create_dir(&squat).unwrap();
        for id in 0..FILES {
            let file = squat.join(id.to_string());
            fs::write(&file, [0x5a; 5000]).unwrap();
            kernel::set_project(&file, OURS.start + id);
        }
        for (volume, expected) in [("first", 0), ("second", 1)] {
            let mut served = cellar.serve().await;
            served.make(volume, MIB).await;
            assert_eq!(cellar.project(volume), OURS.start + FILES + expected);
            cellar.assert_limited(volume, MIB);
            served.stop();
        }
        fs::remove_dir_all(&squat).unwrap();
        cellar.wait_free(OURS.start);
        let mut served = cellar.serve().await;
        served.make("third", MIB).await;
        assert_eq!(cellar.project("third"), OURS.start);
        served.stop();
    }
}

/// The directories of the pool itself are charged to nobody, so that what is moved to the trash
/// stays charged to its volume, and what is made beside it is not.
#[tokio::test]
async fn the_pools_own_directories_have_no_number() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        served.make("pvc", MIB).await;
        for own in [
            "",
            "volumes",
            ".rootcellar",
            ".rootcellar/staging",
            ".rootcellar/trash",
        ] {
            let (project, inherits) = kernel::project(&cellar.at().join(own));
            assert_eq!((project, inherits), (0, false), "{own:?}");
        }
        assert_eq!(kernel::project(&cellar.directory("pvc")), (0, false));
        eventually("staging is empty", || {
            names(&cellar.at().join(".rootcellar/staging")).is_empty()
        });
        served.stop();
    }
}
