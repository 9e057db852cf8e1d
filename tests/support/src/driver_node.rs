//! A node with one pool on its own disk, and a driver in the process of the test.

use std::process::Command;

use pool::PoolView;
use rootcellar::volume::Volume;

use crate::disk::Disk;
use crate::loops::LoopMount;
use crate::{Fakes, Node, Running, create, eventually, names};

/// A qgroup as btrfs(8) shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qgroup {
    pub id: u64,
    pub charged: u64,
    /// The limit in bytes, or `none`.
    pub limit: String,
}

/// The node, its disk and the driver.
pub struct DriverNode {
    pub running: Option<Running>,
    pub fakes: Fakes,
    /// The options of the pool, each after a comma, from the next start on.
    pub options: &'static str,
    pub node: Node,
    pub disk: LoopMount,
}

impl DriverNode {
    /// Makes the disk and the pool, and starts the driver.
    pub fn with(disk: Disk, fakes: Fakes) -> Self {
        let node = Node::new();
        let disk = node.make_pool_disk(disk);
        let mut made = Self {
            running: None,
            fakes,
            options: "",
            node,
            disk,
        };
        made.start();
        made
    }

    /// As [`DriverNode::with`], with a pool that keeps deleted objects.
    pub fn keeping(disk: Disk, fakes: Fakes) -> Self {
        let mut made = Self::with(disk, fakes);
        made.options = ",keep=1h";
        made.start();
        made
    }

    /// Starts the driver again.
    pub fn start(&mut self) {
        self.running = None;
        let option = self.node.own_pool_option() + self.options;
        self.running = Some(self.node.volumes_of(&[option], &self.fakes));
    }

    pub fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn measured_view(&self) -> PoolView {
        self.driver().pools()[0].measured_view()
    }

    pub fn make(&self, volume: &str, size: u64) -> Volume {
        self.driver().create(&create(volume, size)).unwrap()
    }

    /// The qgroups of level 1 that the kernel knows.
    pub fn qgroups(&self) -> Vec<Qgroup> {
        let output = Command::new("btrfs")
            .args(["qgroup", "show", "-r", "--raw"])
            .arg(self.disk.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let row = |line: &str| {
            let mut words = line.split_whitespace();
            Some(Qgroup {
                id: words.next()?.strip_prefix("1/")?.parse().ok()?,
                charged: words.next()?.parse().ok()?,
                limit: words.nth(1)?.to_owned(),
            })
        };
        text.lines().filter_map(row).collect()
    }

    /// The number of entries in the trash.
    pub fn trash(&self) -> usize {
        names(&self.node.pool().join(".rootcellar/trash")).len()
    }

    pub fn wait_for_trash(&self) {
        eventually("all is reclaimed", || self.trash() == 0);
    }
}
