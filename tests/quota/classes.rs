//! The parameter `enforcement`.

use tonic::Code;

use support::disk::{ENFORCING, EXT4_COUNTING, XFS, XFS_PLAIN};
use support::disk_node::{DiskNode, MIB, append, for_each_served, serve_on};
use support::messages::refused;
use support::require;

const REQUIRED: &[(&str, &str)] = &[("enforcement", "required")];
const NONE: &[(&str, &str)] = &[("enforcement", "none")];
const AUTO: &[(&str, &str)] = &[("enforcement", "auto")];

/// A class with `enforcement: required` is served where sizes are enforced. Elsewhere it has no
/// capacity, and a create is refused with a code that makes the scheduler choose another node.
///
/// Proves: S7.
#[tokio::test]
async fn a_class_that_requires_it_goes_where_sizes_are_enforced() {
    require!(project_quota);
    for disk in ENFORCING.into_iter().chain([XFS_PLAIN, EXT4_COUNTING]) {
        let (node, mut served) = DiskNode::served(disk).await;
        let capacity = served.clients.capacity(REQUIRED).await;
        assert_eq!(capacity > 0, disk.enforces(), "{}", disk.name);
        let answer = served.create("pvc", 4 * MIB, REQUIRED).await;
        if disk.enforces() {
            assert_eq!(answer.unwrap().volume_context["enforcement"], "project");
            node.assert_limited("pvc", 4 * MIB);
        } else {
            refused(disk.name, answer, Code::ResourceExhausted, "default");
        }
        served.stop();
    }
}

/// A class with `enforcement: required` needs a requested size.
///
/// Proves: S7.
#[tokio::test]
async fn what_is_required_needs_a_size() {
    serve_on(XFS, async |_node, served| {
        let answer = served.create("pvc", 0, REQUIRED).await;
        refused("no size", answer, Code::InvalidArgument, "required");
        let answer = served.create("pvc", MIB, &[("enforcement", "maybe")]).await;
        refused("no such word", answer, Code::InvalidArgument, "maybe");
    })
    .await;
}

/// A volume without a size, or of a class with `enforcement: none`, is not limited, but its usage
/// is counted.
///
/// Proves: S7.
#[tokio::test]
async fn a_volume_that_is_not_limited_is_counted() {
    for_each_served(async |node, served| {
        for (name, size, class) in [("none", 4 * MIB, NONE), ("unsized", 0, AUTO)] {
            let volume = served.create(name, size, class).await.unwrap();
            assert_eq!(volume.volume_context["enforcement"], "none", "{name}");
            let target = node.publish(served, &volume.volume_id, name).await;
            assert_eq!(append(&target.join("file"), 8 * MIB), (8 * MIB, None));
            let quota = node.quota(name);
            assert!(!quota.is_limited(), "{name}: {quota:?}");
            assert!(quota.used[0] >= 8 * MIB, "{name}: {quota:?}");
        }
        let volume = served.create("auto", 4 * MIB, AUTO).await.unwrap();
        assert_eq!(volume.volume_context["enforcement"], "project");
    })
    .await;
}
