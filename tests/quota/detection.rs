//! Whether sizes are held is what the kernel says, whatever the mount options say.

use support::disk::{ENFORCING, OTHERS};
use support::disk_node::{DiskNode, MIB, append};
use support::{kernel, require};

/// Every way to make and mount a filesystem has the state that the other tests take it to have.
///
/// Proves: S1.
#[test]
fn each_variant_is_what_it_is_taken_for() {
    require!(project_quota);
    for disk in ENFORCING.into_iter().chain(OTHERS) {
        let node = DiskNode::new(disk);
        let state = kernel::state(node.at());
        // Beside project quota, ext4 tells of nothing, XFS of all kinds.
        assert_eq!(state, disk.state, "{}", disk.name);
    }
}

/// A volume's context and record say that its size is held exactly where the kernel holds it.
///
/// Proves: S1.
#[tokio::test]
async fn a_volume_says_what_holds_its_size() {
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
