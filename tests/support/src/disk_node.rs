//! A node with one pool on a given kind of disk, its server and its pods.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rootcellar::csi;
use rootcellar::csi::volume_usage::Unit;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::disk::{Disk, ENFORCING};
use crate::kernel::{self, Quota};
use crate::loops::LoopMount;
use crate::messages::{Answer, create, create_with, publish};
use crate::page::{free_address, page};
use crate::server::{Clients, Server};
use crate::{Node, directory_of, eventually, require};

pub const MIB: u64 = 1 << 20;

/// The quota ids that belong to the driver.
pub const OURS: std::ops::Range<u32> = 1 << 30..1 << 31;

/// The node and its disk.
pub struct DiskNode {
    /// The mounted image; `None` if the disk is one of the machine.
    mount: Option<LoopMount>,
    pub disk: Disk,
    node: Node,
    at: PathBuf,
}

/// The inode limit of a volume of this size.
pub fn inodes_of(filesystem: &str, size: u64) -> u64 {
    let bytes_of_one = if filesystem == "xfs" {
        4 << 10
    } else {
        16 << 10
    };
    (size / bytes_of_one).max(1024)
}

impl DiskNode {
    /// Makes and mounts the disk, without a pool.
    pub fn new(disk: Disk) -> Self {
        eprintln!("{}", disk.name);
        let node = Node::new();
        let mount = node.make_disk(disk);
        Self {
            at: mount.path().to_owned(),
            mount: Some(mount),
            disk,
            node,
        }
    }

    /// As [`DiskNode::new`], and starts the server.
    pub async fn served(disk: Disk) -> (Self, Served) {
        let node = Self::new(disk);
        let served = node.serve().await;
        (node, served)
    }

    /// Mounts a disk of the machine, which has such a filesystem.
    pub fn of_device(disk: Disk, device: &Path) -> Self {
        let node = Node::new();
        let at = node.path("disk");
        disk.mount_device(device, &at);
        Self {
            mount: None,
            disk,
            node,
            at,
        }
    }

    /// The mount point of the disk, which is the pool.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Starts the server, and waits until it is ready.
    pub async fn serve(&self) -> Served {
        let page = free_address();
        let option = format!("default={},init,reserve=0", self.at().display());
        let mut command = Server::command(&self.node, &[option]);
        command.arg("--http").arg(page.to_string());
        let server = Server::spawn(&self.node, &mut command);
        server.wait_ready().await;
        Served {
            clients: server.clients().await,
            server,
            page,
        }
    }

    /// Makes and publishes the volumes `pvc` and `neighbour` of these sizes; returns their targets.
    pub async fn make_neighbours(&self, served: &mut Served, sizes: [u64; 2]) -> [PathBuf; 2] {
        let (_, target) = self.make_published(served, sizes[0]).await;
        let neighbour = served.make("neighbour", sizes[1]).await;
        [target, self.publish(served, &neighbour, "beside").await]
    }

    /// Makes the volume `pvc` of this size and publishes it to a pod; returns its id and its
    /// target.
    pub async fn make_published(&self, served: &mut Served, size: u64) -> (String, PathBuf) {
        let id = served.make("pvc", size).await;
        let target = self.publish(served, &id, "pod").await;
        (id, target)
    }

    /// Unmounts the disk and mounts it with the options of another.
    pub fn mount_as(&mut self, disk: Disk) {
        let mount = self.mount.as_ref().unwrap();
        mount.unmount();
        // A driver that has ended may still have it, and a second mount would get the options of the first.
        eventually("the disk has no user", || mount.device().is_empty());
        disk.mount(mount);
        self.disk = disk;
    }

    /// The directory of a volume.
    pub fn directory(&self, volume: &str) -> PathBuf {
        directory_of(&self.at().join("volumes"), volume)
    }

    /// The record of a volume.
    pub fn record(&self, volume: &str) -> serde_json::Value {
        let record = fs::read(self.directory(volume).join("volume.json")).unwrap();
        serde_json::from_slice(&record).unwrap()
    }

    /// Overwrites a field in the record of a volume, as no driver does.
    pub fn rewrite(&self, volume: &str, field: &str, value: impl Into<serde_json::Value>) {
        let mut record = self.record(volume);
        record[field] = value.into();
        let text = serde_json::to_vec_pretty(&record).unwrap();
        fs::write(self.directory(volume).join("volume.json"), text).unwrap();
    }

    /// The quota id of a volume, which its record and its `data/` must agree on.
    pub fn project(&self, volume: &str) -> u32 {
        let (project, inherits) = kernel::project(&self.directory(volume).join("data"));
        let written = self.record(volume)["quota_id"].as_u64();
        assert_eq!(written, Some(project.into()), "{volume}");
        assert!(OURS.contains(&project), "{volume}: {project}");
        assert!(inherits, "{volume}");
        project
    }

    /// The limits and the charge of a volume.
    pub fn quota(&self, volume: &str) -> Quota {
        kernel::quota(self.at(), self.project(volume)).unwrap()
    }

    /// Asserts that a volume is limited to this size, with the inodes that the size allows, and
    /// that its record agrees.
    #[track_caller]
    pub fn assert_limited(&self, volume: &str, size: u64) {
        let quota = self.quota(volume);
        let inodes = inodes_of(self.disk.filesystem, size);
        assert_eq!(
            (quota.bytes, quota.inodes),
            ([size; 2], [inodes; 2]),
            "{volume}"
        );
        assert_eq!(self.record(volume)["size_bytes"], size, "{volume}");
        assert_eq!(self.record(volume)["enforcement"], "project", "{volume}");
    }

    /// Waits until a quota id has neither a limit nor a charge.
    pub fn wait_free(&self, project: u32) {
        eventually("the quota id is free", || {
            kernel::quota(self.at(), project).is_none_or(|quota| !quota.is_in_use())
        });
    }

    /// The errno of a write into a full volume.
    pub fn full(&self) -> Errno {
        match self.disk.filesystem {
            "xfs" => Errno::NOSPC,
            _ => Errno::DQUOT,
        }
    }

    /// Publishes a volume to a pod of this name; returns the target.
    pub async fn publish(&self, served: &mut Served, id: &str, pod: &str) -> PathBuf {
        let target = self.node.target(pod);
        served.clients.publish(publish(id, &target)).await.unwrap();
        target
    }
}

crate::extends!(DiskNode, node: Node);

/// Runs a test for each filesystem on which project quota enforces sizes, each time on a new node.
pub async fn for_each_filesystem(test: impl AsyncFn(DiskNode)) {
    require!(project_quota);
    for disk in ENFORCING {
        test(DiskNode::new(disk)).await;
    }
}

/// As [`for_each_filesystem`], with a driver that serves the node until the test stops it.
pub async fn for_each_started(test: impl AsyncFn(DiskNode, Served)) {
    for_each_filesystem(async |node| {
        let served = node.serve().await;
        test(node, served).await;
    })
    .await;
}

/// As [`for_each_filesystem`], with a driver that serves the node and must stop cleanly afterwards.
pub async fn for_each_served(test: impl AsyncFn(&DiskNode, &mut Served)) {
    for_each_filesystem(async |node| serve(node, &test).await).await;
}

/// As [`for_each_served`], on this disk alone.
pub async fn serve_on(disk: Disk, test: impl AsyncFn(&DiskNode, &mut Served)) {
    require!(project_quota);
    serve(DiskNode::new(disk), &test).await;
}

async fn serve(node: DiskNode, test: &impl AsyncFn(&DiskNode, &mut Served)) {
    let mut served = node.serve().await;
    test(&node, &mut served).await;
    served.stop();
}

/// A running driver.
pub struct Served {
    pub clients: Clients,
    pub server: Server,
    /// The address of its pages.
    pub page: SocketAddr,
}

impl Served {
    /// Makes a volume and returns its id.
    pub async fn make(&mut self, name: &str, size: u64) -> String {
        self.create(name, size, &[]).await.unwrap().volume_id
    }

    /// Requests a volume of a class with these parameters.
    pub async fn create(
        &mut self,
        name: &str,
        size: u64,
        class: &[(&str, &str)],
    ) -> Answer<csi::Volume> {
        let size = size.try_into().unwrap();
        self.clients.create(create_with(name, size, class)).await
    }

    /// The enforcement of a volume, as its context states it.
    pub async fn enforcement(&mut self, name: &str, size: u64) -> String {
        let request = create(name, size.try_into().unwrap());
        let volume = self.clients.create(request).await.unwrap();
        volume.volume_context["enforcement"].clone()
    }

    /// `NodeExpandVolume`; returns the new size.
    pub async fn expand(&mut self, id: &str, at: &Path, size: u64) -> Answer<u64> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: at.to_str().unwrap().to_owned(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: size.try_into().unwrap(),
                limit_bytes: 0,
            }),
            ..Default::default()
        };
        let answer = self.clients.node.node_expand_volume(request).await?;
        Ok(answer.into_inner().capacity_bytes.try_into().unwrap())
    }

    /// `NodeGetVolumeStats`: total, used and available bytes or inodes.
    pub async fn usage(&mut self, id: &str, at: &Path, unit: Unit) -> [u64; 3] {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: at.to_str().unwrap().to_owned(),
            ..Default::default()
        };
        let answer = self.clients.node.node_get_volume_stats(request).await;
        let usage = answer.unwrap().into_inner().usage;
        let usage = usage.iter().find(|usage| usage.unit() == unit).unwrap();
        [usage.total, usage.used, usage.available].map(|number| number.try_into().unwrap())
    }

    /// The value of a metric of the pool.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = page(self.page, "/metrics").unwrap();
        let start = format!("{name}{{pool=\"default\"}} ");
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&start));
        values
            .next()
            .unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }

    /// Stops the driver as an operator would.
    pub fn stop(self) {
        assert_eq!(self.server.stop(), Some(0));
    }
}

/// Runs a function as a pod does: without the capability that exempts root from the limits of ext4.
pub fn as_pod<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let pod = scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_RESOURCE);
            rustix::thread::set_capabilities(None, sets).unwrap();
            act()
        });
        pod.join().unwrap()
    })
}

/// Appends to a file as a pod does, until an error or until at least `most` bytes are written.
/// Returns the number of written bytes, and the error.
pub fn append(file: &Path, most: u64) -> (u64, Option<Errno>) {
    const CHUNK: [u8; 16 << 10] = [0x5a; 16 << 10];
    as_pod(|| {
        let opened = File::options().append(true).create(true).open(file);
        let mut file = match opened {
            Ok(file) => file,
            // A full volume has no space for a new name. The blocks of a removed file of an XFS are free after a while.
            Err(error) => return (0, Errno::from_io_error(&error)),
        };
        let mut written = 0;
        while written < most {
            match file.write(&CHUNK) {
                Ok(count) => written += u64::try_from(count).unwrap(),
                Err(error) => return (written, Errno::from_io_error(&error)),
            }
        }
        (
            written,
            file.sync_all()
                .err()
                .and_then(|error| Errno::from_io_error(&error)),
        )
    })
}

/// The size in bytes and the number of inodes that df(1) shows for a path.
pub fn size_shown(at: &Path) -> (u64, u64) {
    let shown = rustix::fs::statvfs(at).unwrap();
    (shown.f_blocks * shown.f_frsize, shown.f_files)
}
