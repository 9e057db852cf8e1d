//! Pools on filesystems in memory. Only the test changes them, so it knows the used bytes exactly,
//! and no step waits for a disk.

use std::cell::RefCell;
use std::path::PathBuf;

use rootcellar::volume::Settings;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::{Fakes, Node, Running, machine, wait_for_trash};

/// The source of their mounts.
pub const SOURCE: &str = "rootcellar-test";

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
                rustix::mount::mount(SOURCE, &at, "tmpfs", flags, size.as_c_str()).unwrap();
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

/// A node with a pool set on filesystems in memory. The test mounts and unmounts its members.
pub struct MemorySet {
    disks: RefCell<Vec<String>>,
    dir: Node,
}

impl MemorySet {
    /// Makes the node, with members of these names and sizes.
    pub fn new(members: &[(&str, u64)]) -> Self {
        let node = Self {
            disks: RefCell::default(),
            dir: Node::new(),
        };
        for name in ["disks", "kept"] {
            std::fs::create_dir(node.dir.path(name)).unwrap();
        }
        for (name, size) in members {
            node.add(name, *size);
        }
        node
    }

    /// The mount point of a member.
    pub fn member(&self, name: &str) -> PathBuf {
        self.dir.path("disks").join(name)
    }

    /// Makes a disk of this size and mounts it as a member.
    pub fn add(&self, name: &str, size: u64) {
        let kept = self.dir.path("kept").join(name);
        for at in [&kept, &self.member(name)] {
            std::fs::create_dir_all(at).unwrap();
        }
        let size = std::ffi::CString::new(format!("size={size}")).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount(SOURCE, &kept, "tmpfs", flags, size.as_c_str()).unwrap();
        self.disks.borrow_mut().push(name.to_owned());
        self.mount(name);
    }

    /// Mounts the disk of a member again.
    pub fn mount(&self, name: &str) {
        let kept = self.dir.path("kept").join(name);
        rustix::mount::mount_bind(kept, self.member(name)).unwrap();
    }

    /// Mounts the disk of a member at another name.
    pub fn mount_at(&self, name: &str, other: &str) {
        std::fs::create_dir_all(self.member(other)).unwrap();
        let kept = self.dir.path("kept").join(name);
        rustix::mount::mount_bind(kept, self.member(other)).unwrap();
    }

    /// Unmounts the disk of a member, which keeps its content.
    pub fn unmount(&self, name: &str) {
        crate::unmount(self.member(name));
    }

    /// Waits until the trash of a member is empty.
    pub fn wait_for_trash_of(&self, name: &str) {
        wait_for_trash(&self.member(name));
    }

    /// `--pool-set` with these options, each after a comma.
    pub fn option(&self, options: &str) -> String {
        let dir = self.dir.path("disks");
        format!(
            "set={},init,any-filesystem,reserve=0{options}",
            dir.display()
        )
    }

    /// The settings of a driver with this one set.
    pub fn settings(&self) -> Settings {
        Settings {
            sets: vec![self.option("").parse().unwrap()],
            ..self.dir.settings(&[])
        }
    }

    /// A driver with the set, loaded.
    pub fn volumes(&self) -> Running {
        self.dir.volumes_with(self.settings(), &Fakes::default())
    }
}

crate::extends!(MemorySet, dir: Node);

impl Drop for MemorySet {
    fn drop(&mut self) {
        for name in self.disks.borrow().iter() {
            for at in [self.member(name), self.dir.path("kept").join(name)] {
                let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
            }
        }
    }
}
