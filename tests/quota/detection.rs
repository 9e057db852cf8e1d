//! The kernel, not the mount options, determines whether sizes are enforced.

use support::disk::{ENFORCING, OTHERS};
use support::disk_node::{DiskNode, MIB, append};
use support::{kernel, require};

/// Every way to make and mount a filesystem has the quota state that the other tests assume.
///
/// Proves: S1.
#[test]
fn each_variant_is_what_it_is_taken_for() {
    require!(project_quota);
    for disk in ENFORCING.into_iter().chain(OTHERS) {
        let node = DiskNode::new(disk);
        let state = kernel::state(node.at());
        // Besides project quota, ext4 reports nothing, XFS all kinds.
        assert_eq!(state, disk.state, "{}", disk.name);
    }
}

/// The context and the record of a volume say that its size is enforced exactly where the kernel
/// enforces it.
///
/// Proves: S1.
#[tokio::test]
async fn a_volume_reports_how_its_size_is_enforced() {
    require!(project_quota);
    for disk in ENFORCING.into_iter().chain(OTHERS) {
        let (node, mut served) = DiskNode::served(disk).await;
        let expected = if disk.enforces() { "project" } else { "none" };
        let said = served.enforcement("pvc", 4 * MIB).await;
        assert_eq!(said, expected, "{}", disk.name);
        let record = node.record("pvc");
        assert_eq!(record["enforcement"], expected, "{}", disk.name);

        let id = served.make("pvc", 4 * MIB).await;
        let target = node.publish(&mut served, &id, "pod").await;
        let (written, _) = append(&target.join("file"), 8 * MIB);
        assert_eq!(written < 8 * MIB, disk.enforces(), "{}", disk.name);
        served.stop();
    }
}
