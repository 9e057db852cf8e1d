//! A directory in place of the host's mount of cgroup v2. Its `io.max` records each write; the last one of a device counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use linux::image::loops::Number;
use linux::io::{CgroupPlace, IoLimits, PodsCgroup};

use rustix::fs::statvfs;
use rustix::mount::MountFlags;

use crate::Node;
use crate::memory::SOURCE;

/// The removal of the limits of a device with a number of the driver.
const REMOVAL: &str = "7:3000 rbps=max wbps=max riops=max wiops=max\n";

/// The tree of a node.
#[derive(Debug, Clone)]
pub struct Cgroups {
    root: PathBuf,
}

impl Cgroups {
    /// Makes the tree of a node, with a cgroup of pods that has the controller `io`.
    pub fn new(node: &Node) -> Self {
        let root = node.path("cgroup");
        let pods = root.join("kubepods.slice");
        fs::create_dir_all(&pods).unwrap();
        for dir in [&root, &pods] {
            fs::write(dir.join("cgroup.controllers"), "cpu io memory\n").unwrap();
        }
        let tree = Self { root };
        tree.enable();
        tree
    }

    pub fn place(&self) -> CgroupPlace {
        CgroupPlace::Tree(self.root.clone())
    }

    pub fn pods(&self) -> PathBuf {
        self.root.join("kubepods.slice")
    }

    fn file(&self) -> PathBuf {
        self.pods().join("io.max")
    }

    /// Enables the controller without any limit, as the kernel does.
    pub fn enable(&self) {
        fs::write(self.file(), "").unwrap();
    }

    /// Disables the controller, with all limits.
    pub fn disable(&self) {
        fs::remove_file(self.file()).unwrap();
    }

    /// Sets the limits of a device, as another program does.
    pub fn limit(&self, device: Number, limits: IoLimits) {
        let pods = PodsCgroup::find(&self.place()).unwrap();
        pods.limit(device, limits).unwrap();
    }

    pub fn limits(&self) -> BTreeMap<Number, IoLimits> {
        PodsCgroup::find(&self.place()).unwrap().limits().unwrap()
    }

    /// Lets the removals of the limits of this many devices succeed, and no other change afterwards: the file is on a disk
    /// that is full then.
    pub fn fill(&self, removals: usize) {
        let content = fs::read(self.file()).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount(SOURCE, self.pods(), "tmpfs", flags, c"size=4096").unwrap();
        // A page, of any size.
        let disk = statvfs(self.pods()).unwrap();
        let page = usize::try_from(disk.f_blocks * disk.f_frsize).unwrap();
        // A line without limits, of the length that is left.
        let (foreign, left) = ("8:0", content.len() + removals * REMOVAL.len());
        let padding = page - left - 1;
        let padding = format!("{foreign:padding$}\n");
        fs::write(self.file(), [&content, padding.as_bytes()].concat()).unwrap();
    }

    /// Ends [`Cgroups::fill`], and keeps the limits.
    pub fn make_room(&self) {
        let content = fs::read(self.file()).unwrap();
        crate::unmount(self.pods());
        fs::write(self.file(), content).unwrap();
    }

    /// The number of writes so far.
    pub fn writes(&self) -> usize {
        fs::read_to_string(self.file()).unwrap().lines().count()
    }
}
