//! Limits that somebody changed, and a disk that is mounted without enforcement for a while.

use support::disk::{Disk, EXT4, EXT4_COUNTING, XFS, XFS_PLAIN};
use support::disk_node::{DiskNode, MIB, Served, append, for_each_started};
use support::kernel;
use support::require;

const RESTORED: &str = "rootcellar_pool_limits_restored_total";

/// Asserts the count of restored limits in the metrics, and the warning in the log.
fn assert_reported(served: &Served, restored: u64) {
    assert_eq!(served.metric(RESTORED), restored);
    let log = served.server.log();
    let has = log
        .lines()
        .any(|line| line.contains("WARN") && line.contains("limit"));
    assert!(has, "{log}");
}

/// A start restores a limit that was lowered, raised or cleared, and reports that.
///
/// Proves: S10.
#[tokio::test]
async fn a_changed_limit_is_restored_at_start() {
    for_each_started(async |node, mut served| {
        for name in ["lower", "higher", "gone", "inodes", "right"] {
            served.make(name, 8 * MIB).await;
        }
        assert_eq!(served.metric(RESTORED), 0);
        served.stop();
        let right = node.quota("right");
        for (name, bytes, inodes) in [
            ("lower", MIB, right.inodes[0]),
            ("higher", 64 * MIB, right.inodes[0]),
            ("gone", 0, 0),
            ("inodes", 8 * MIB, 10),
        ] {
            kernel::limit(node.at(), node.project(name), bytes, inodes);
        }
        let served = node.serve().await;
        for name in ["lower", "higher", "gone", "inodes", "right"] {
            node.assert_limited(name, 8 * MIB);
        }
        assert_reported(&served, 4);
        served.stop();
    })
    .await;
}

/// A start restores a limit even below the bytes already used.
///
/// Proves: S10.
#[tokio::test]
async fn a_limit_is_restored_whatever_is_used() {
    for_each_started(async |node, mut served| {
        let (_, target) = node.make_published(&mut served, 4 * MIB).await;
        served.stop();
        kernel::limit(node.at(), node.project("pvc"), 0, 0);
        assert_eq!(append(&target.join("file"), 8 * MIB), (8 * MIB, None));
        let served = node.serve().await;
        node.assert_limited("pvc", 4 * MIB);
        assert_eq!(append(&target.join("file"), MIB).1, Some(node.full()));
        served.stop();
    })
    .await;
}

/// A pool mounted without enforcement for a while still serves its volumes, and reports new ones as
/// not enforced. Mounted as before, it enforces the sizes again.
///
/// Proves: S10.
#[tokio::test]
async fn a_pool_may_lose_its_limits_and_get_them_back() {
    require!(project_quota);
    let ways: [(Disk, Disk); 2] = [(XFS, XFS_PLAIN), (EXT4, EXT4_COUNTING)];
    for (enforcing, other) in ways {
        let (mut node, mut served) = DiskNode::served(enforcing).await;
        let id = served.make("pvc", 4 * MIB).await;
        served.stop();

        node.mount_as(other);
        let mut served = node.serve().await;
        let target = node.publish(&mut served, &id, "pod").await;
        assert_eq!(append(&target.join("file"), MIB), (MIB, None));
        assert_eq!(served.enforcement("new", 4 * MIB).await, "none");
        served.clients.unpublish_soon(&id, &target).await;
        served.stop();

        node.mount_as(enforcing);
        let mut served = node.serve().await;
        node.assert_limited("pvc", 4 * MIB);
        let target = node.publish(&mut served, &id, "pod").await;
        assert_eq!(append(&target.join("file"), 8 * MIB).1, Some(node.full()));
        assert_eq!(served.enforcement("newer", 4 * MIB).await, "project");
        served.stop();
    }
}
