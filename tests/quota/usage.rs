//! The statistics of `NodeGetVolumeStats`.

use rootcellar::csi::volume_usage::Unit;

use support::disk::XFS_PLAIN;
use support::disk_node::{MIB, append, for_each_served, inodes_of, serve_on};

/// In the statistics of a volume, the total is its limit, and the used bytes and inodes are those
/// charged to it.
///
/// Proves: S9.
#[tokio::test]
async fn statistics_are_of_the_volume() {
    for_each_served(async |node, served| {
        let id = served.make("pvc", 8 * MIB).await;
        let other = served.make("other", 16 * MIB).await;
        let target = node.publish(served, &id, "pod").await;
        let beside = node.publish(served, &other, "beside").await;
        append(&target.join("file"), 3 * MIB);
        append(&beside.join("file"), 12 * MIB);

        let [total, used, available] = served.usage(&id, &target, Unit::Bytes).await;
        assert_eq!((total, used), (8 * MIB, node.quota("pvc").used[0]));
        assert!((3 * MIB..4 * MIB).contains(&used), "{used}");
        assert_eq!(available, total - used);
        let [total, used, available] = served.usage(&id, &target, Unit::Inodes).await;
        let limit = inodes_of(node.disk.filesystem, 8 * MIB);
        assert_eq!((total, used, available), (limit, 2, limit - 2));
    })
    .await;
}

/// Where the size is not enforced, the statistics are those of the filesystem.
///
/// Proves: S9.
#[tokio::test]
async fn statistics_of_a_volume_that_is_not_enforced_are_the_filesystems() {
    serve_on(XFS_PLAIN, async |node, served| {
        let (id, target) = node.make_published(served, 8 * MIB).await;
        let [total, ..] = served.usage(&id, &target, Unit::Bytes).await;
        assert!(total > 200 * MIB, "{total}");
    })
    .await;
}
