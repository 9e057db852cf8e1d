//! Project numbers: those of volumes, those that were, and those of others.

use std::fs;

use crate::cellar::{Cellar, MIB, OURS, append, obstacle};
use crate::skip;
use crate::variant::ENFORCING;
use crate::{common, kernel};

/// Numbers that are not the driver's: the kubelet's own, and the first and last beside the range.
const OTHERS: [u32; 4] = [1, 1_048_577, (1 << 30) - 1, 1 << 31];

/// Once a volume is reclaimed nothing is limited or charged under its number.
#[tokio::test]
async fn a_reclaimed_volume_leaves_no_limit() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
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
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
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

/// A limit in the driver's range that no record names and nothing is charged to is cleared when the
/// driver starts; one that something is charged to is left alone.
#[tokio::test]
async fn leftovers_are_cleared_at_start() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        served.make("pvc", 8 * MIB).await;
        served.stop();
        let (left, used, last) = (OURS.start + 7, OURS.start + 8, OURS.end - 1);
        for id in [left, used, last] {
            kernel::limit(cellar.at(), id, MIB, 100);
        }
        let file = cellar.at().join("file-of-others");
        fs::write(&file, [0x5a; 5000]).unwrap();
        kernel::set_project(&file, used);
        let before = kernel::quota(cellar.at(), used).unwrap();
        cellar.serve().await.stop();
        for id in [left, last] {
            cellar.wait_free(id);
        }
        assert_eq!(kernel::quota(cellar.at(), used), Some(before));
        cellar.assert_limited("pvc", 8 * MIB);
    }
}

/// The directories of the pool itself are charged to nobody, so that what is moved to the trash
/// stays charged to its volume, and what is made beside it is not.
#[tokio::test]
async fn the_pools_own_directories_have_no_number() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
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
        common::eventually("staging is empty", || {
            common::names(&cellar.at().join(".rootcellar/staging")).is_empty()
        });
        served.stop();
    }
}
