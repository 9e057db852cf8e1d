//! Limits that somebody changed, and a disk that is mounted without them for a while.

use support::cellar::{Cellar, MIB, Served, append};
use support::kernel;
use support::require;
use support::variant::{ENFORCING, EXT4, EXT4_COUNTING, Variant, XFS, XFS_PLAIN};

const RESTORED: &str = "rootcellar_pool_limits_restored_total";

/// Asserts what the driver tells of limits it has restored.
fn assert_told(served: &Served, restored: u64) {
    assert_eq!(served.metric(RESTORED), restored);
    let log = served.server.log();
    let has = log
        .lines()
        .any(|line| line.contains("WARN") && line.contains("limit"));
    assert!(has, "{log}");
}

/// A limit that is lower, higher or gone is as the record says after the next start, and that is
/// told.
#[tokio::test]
async fn a_changed_limit_is_restored_at_start() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        for name in ["lower", "higher", "gone", "inodes", "right"] {
            served.make(name, 8 * MIB).await;
        }
        assert_eq!(served.metric(RESTORED), 0);
        served.stop();
        let right = cellar.quota("right");
        for (name, bytes, inodes) in [
            ("lower", MIB, right.inodes[0]),
            ("higher", 64 * MIB, right.inodes[0]),
            ("gone", 0, 0),
            ("inodes", 8 * MIB, 10),
        ] {
            kernel::limit(cellar.at(), cellar.project(name), bytes, inodes);
        }
        let served = cellar.serve().await;
        for name in ["lower", "higher", "gone", "inodes", "right"] {
            cellar.assert_limited(name, 8 * MIB);
        }
        assert_told(&served, 4);
        served.stop();
    }
}

/// A limit below what is used already is restored as well.
#[tokio::test]
async fn a_limit_is_restored_whatever_is_used() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        let id = served.make("pvc", 4 * MIB).await;
        let target = cellar.publish(&mut served, &id, "pod").await;
        served.stop();
        kernel::limit(cellar.at(), cellar.project("pvc"), 0, 0);
        assert_eq!(append(&target.join("file"), 8 * MIB), (8 * MIB, None));
        let served = cellar.serve().await;
        cellar.assert_limited("pvc", 4 * MIB);
        assert_eq!(append(&target.join("file"), MIB).1, Some(cellar.full()));
        served.stop();
    }
}

/// A pool mounted without limits for a while serves its volumes all the same and says of new ones
/// that nothing holds them; mounted as before, it holds what it held.
#[tokio::test]
async fn a_pool_may_lose_its_limits_and_get_them_back() {
    require!(project_quota);
    let ways: [(&'static Variant, &'static Variant); 2] =
        [(&XFS, &XFS_PLAIN), (&EXT4, &EXT4_COUNTING)];
    for (holding, other) in ways {
        let mut cellar = Cellar::new(holding);
        let mut served = cellar.serve().await;
        let id = served.make("pvc", 4 * MIB).await;
        served.stop();

        cellar.mount_as(other);
        let mut served = cellar.serve().await;
        let target = cellar.publish(&mut served, &id, "pod").await;
        assert_eq!(append(&target.join("file"), MIB), (MIB, None));
        assert_eq!(served.enforcement("new", 4 * MIB).await, "none");
        served.clients.unpublish(&id, &target).await.unwrap();
        served.stop();

        cellar.mount_as(holding);
        let mut served = cellar.serve().await;
        cellar.assert_limited("pvc", 4 * MIB);
        let target = cellar.publish(&mut served, &id, "pod").await;
        assert_eq!(append(&target.join("file"), 8 * MIB).1, Some(cellar.full()));
        assert_eq!(served.enforcement("newer", 4 * MIB).await, "project");
        served.stop();
    }
}
