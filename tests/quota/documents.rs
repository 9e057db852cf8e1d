//! The documents that show how to make and mount a filesystem.

use support::manual::assert_enforced;
use support::require;

/// The documented blocks for XFS and ext4 make filesystems that enforce sizes, even after the node
/// has mounted them again by /etc/fstab.
///
/// Proves: S5.
#[test]
fn the_documented_filesystems_enforce_sizes() {
    require!(project_quota);
    for filesystem in ["xfs", "ext4"] {
        assert_enforced(filesystem, "project");
    }
}
