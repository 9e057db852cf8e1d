//! The pages that say how a filesystem is made and mounted.

use crate::cellar::obstacle;
use crate::common::manual::assert_enforced;
use crate::skip;

/// The documented blocks for XFS and ext4 make filesystems that enforce sizes, also after the node
/// has mounted them again by /etc/fstab.
#[test]
fn the_documented_filesystems_enforce_sizes() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    for filesystem in ["xfs", "ext4"] {
        assert_enforced(filesystem, "project");
    }
}
