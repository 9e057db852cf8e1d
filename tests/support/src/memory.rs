//! Pools on filesystems in memory. Only the test changes them, so it knows the used bytes exactly,
//! and no step waits for a disk.

use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::{Node, machine};

/// The size of each filesystem in bytes.
pub const SIZE: u64 = 256 << 20;

/// A node with pools of these names, each on a filesystem of its own. If the test has no mount
/// namespace of its own, they are plain directories of one filesystem.
pub struct MemoryNode {
    mounts: Vec<PathBuf>,
    pools: Vec<String>,
    dir: Node,
}

impl MemoryNode {
    /// Makes the node; the pools' directories do not exist yet.
    pub fn new(pools: &[&str]) -> Self {
        let mut node = Self {
            mounts: Vec::new(),
            pools: pools.iter().map(|&name| name.to_owned()).collect(),
            dir: Node::new(),
        };
        for name in pools {
            let at = node.dir.path(name);
            std::fs::create_dir(&at).unwrap();
            if machine::mount_namespace().is_none() {
                let size = std::ffi::CString::new(format!("size={SIZE}")).unwrap();
                let flags = MountFlags::empty();
                rustix::mount::mount("rootcellar-test", &at, "tmpfs", flags, size.as_c_str())
                    .unwrap();
                node.mounts.push(at);
            }
        }
        node
    }

    /// Whether the pools are in memory.
    pub fn is_in_memory(&self) -> bool {
        !self.mounts.is_empty()
    }

    /// The path of a pool.
    pub fn pool(&self, name: &str) -> PathBuf {
        self.dir.path(name).join("pool")
    }

    /// `--pool` for every pool.
    pub fn options(&self) -> Vec<String> {
        let option = |name: &String| {
            let path = self.pool(name);
            format!("{name}={},init,any-filesystem,reserve=0", path.display())
        };
        self.pools.iter().map(option).collect()
    }
}

crate::extends!(MemoryNode, dir: Node);

impl Drop for MemoryNode {
    fn drop(&mut self) {
        for at in &self.mounts {
            // A lazy unmount, because files that a failed test has open must not prevent the
            // removal of the directory.
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}
