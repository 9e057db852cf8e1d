//! Disks that are mounted and unmounted under the running server, and disks that fail. The server
//! sees its mounts as in the driver's pod; the test plays the host.

mod arrival;
mod exchange;
mod failing;
mod forged;
mod full;
mod hammer;
mod hanging;

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use support::disk::FILESYSTEMS;
use support::loops::{LoopMount, run};
use support::messages::{create_with, publish, soon};
use support::page::{free_address, page};
use support::picture::Picture;
use support::pod::PodNode;
use support::server::{Clients, Server};
use support::unavailable::{assert_unavailable, assert_works};
use support::{NODE, eventually, names};

/// The pool whose disk stays undisturbed.
const WELL: &str = "well";

/// A node with pools on their own disks, and the server of these pools.
struct ServedDisks {
    clients: Clients,
    server: Server,
    page: SocketAddr,
    node: PodNode,
    /// The files under the mount points before the server started.
    beneath: Picture,
}

impl ServedDisks {
    /// Starts the server with these `--pool` values.
    async fn serve(node: PodNode, pools: &[String]) -> Self {
        let beneath = node.beneath();
        let page = free_address();
        let server = node.serve(pools, page).await;
        Self {
            clients: server.clients().await,
            server,
            page,
            node,
            beneath,
        }
    }

    /// Starts the server of a node with mounted disks. Each filesystem has a pool of its name, and
    /// each pool of `others` has an ext4 disk. Returns the disks, the rig and the `--pool` values.
    async fn serve_disks(others: &[&str]) -> (Vec<LoopMount>, Self, Vec<String>) {
        let node = PodNode::new();
        let others = others.iter().map(|pool| (*pool, "ext4"));
        let all = FILESYSTEMS.map(|filesystem| (filesystem, filesystem));
        let all: Vec<_> = all.into_iter().chain(others).collect();
        let disks = all.iter().map(|(pool, disk)| place_disk(&node, pool, disk));
        let disks: Vec<LoopMount> = disks.collect();
        mount_all(&disks);
        let pools = all.iter().map(|(pool, _)| node.option(pool, ",init"));
        let pools: Vec<String> = pools.collect();
        (disks, Self::serve(node, &pools).await, pools)
    }

    /// Stops the server and starts another one.
    async fn restart(self, pools: &[String]) -> Self {
        let Self {
            server,
            node,
            beneath,
            ..
        } = self;
        assert_eq!(server.stop(), Some(0));
        let again = Self::serve(node, pools).await;
        assert_eq!(again.beneath, beneath);
        again
    }

    /// The body of an HTTP page.
    fn text(&self, path: &str) -> String {
        page(self.page, path).unwrap().1
    }

    fn readyz_has(&self, pool: &str, says: &str) -> bool {
        let text = self.text("/readyz");
        let start = format!("pool {pool}: ");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(&start));
        lines.any(|line| line.contains(says))
    }

    /// Waits until `/readyz` reports this text about a pool, without a check of the capacity.
    fn wait_only(&self, pool: &str, says: &str) {
        eventually(format!("pool {pool}: {says}"), || {
            self.readyz_has(pool, says)
        });
    }

    /// Waits until `/readyz` reports the given text about each pool, and checks that capacity and
    /// metrics agree.
    async fn wait(&mut self, pools: &[(&str, &str)]) {
        for &(pool, says) in pools {
            let what = format!("pool {pool}: {says}");
            self.wait_only(pool, says);
            let is_well = says == "healthy";
            let line = format!(
                "rootcellar_pool_healthy{{pool={pool:?}}} {}",
                u8::from(is_well)
            );
            assert!(
                self.text("/metrics").lines().any(|found| found == line),
                "{line}"
            );
            let capacity = self.clients.capacity(&[("pool", pool)]).await;
            assert_eq!(capacity > 0, is_well, "{what}: {capacity}");
        }
    }

    /// Waits until `/readyz` reports the same text about all these pools.
    async fn wait_all(&mut self, pools: &[&str], says: &str) {
        for pool in pools {
            self.wait(&[(*pool, says)]).await;
        }
    }

    /// As [`ServedDisks::keep`], in every one of these pools.
    async fn keep_in(&mut self, pools: &[&str]) -> Vec<KeptVolume> {
        let mut kept = Vec::new();
        for pool in pools {
            kept.push(self.keep(pool).await);
        }
        kept
    }

    /// Asserts that every function of these pools works.
    async fn assert_work(&mut self, pools: &[&str]) {
        for pool in pools {
            assert_works(pool, &mut self.clients, pool, &self.node).await;
        }
    }

    /// Asserts the answer of every call while the pool of a volume is unavailable.
    async fn assert_unavailable(&mut self, pool: &str, kept: &KeptVolume) {
        let volume = (kept.name.as_str(), kept.id.as_str());
        assert_unavailable(pool, &mut self.clients, pool, volume, &self.node).await;
    }

    /// Creates a volume called `kept-<pool>`, publishes it and writes to it, as its pod would.
    async fn keep(&mut self, pool: &str) -> KeptVolume {
        let name = format!("kept-{pool}");
        let request = create_with(&name, 1 << 20, &[("pool", pool)]);
        let id = self.clients.create(request).await.unwrap().volume_id;
        let target = self.node.target(&name);
        self.clients.publish(publish(&id, &target)).await.unwrap();
        let mut file = File::create(target.join("file")).unwrap();
        file.write_all(name.as_bytes()).unwrap();
        file.sync_all().unwrap();
        KeptVolume { name, id, target }
    }

    /// Asserts that nothing was written below the mount points of the disks.
    fn assert_beneath(&self) {
        assert_eq!(self.node.beneath(), self.beneath);
    }
}

/// A volume with a file that must never be lost.
struct KeptVolume {
    name: String,
    id: String,
    target: PathBuf,
}

impl KeptVolume {
    /// The content of its file, as the pod reads it.
    fn read(&self) -> String {
        std::fs::read_to_string(self.target.join("file")).unwrap()
    }

    /// Ends its pod: unpublishes the volume and asserts that nothing is left at its target.
    async fn unpublish(&self, clients: &mut Clients) {
        clients.unpublish_soon(&self.id, &self.target).await;
        assert_eq!(names(self.target.parent().unwrap()), [""; 0]);
    }

    /// Publishes the volume if it is not published, and asserts that the volume and its file exist.
    /// The server may notice a disk that was just mounted only during the call.
    async fn assert_kept(&self, clients: &mut Clients) {
        soon("the volume is published", async || {
            let published = publish(&self.id, &self.target);
            clients.get(&self.id).await.is_ok() && clients.publish(published).await.is_ok()
        })
        .await;
        assert_eq!(self.read(), self.name);
    }
}

fn mount_all<'a>(disks: impl IntoIterator<Item = &'a LoopMount>) {
    for disk in disks {
        disk.mount(&[]);
    }
}

fn unmount_all<'a>(disks: impl IntoIterator<Item = &'a LoopMount>) {
    for disk in disks {
        disk.unmount();
    }
}

/// Initializes a pool on a disk, as an operator would, and unmounts the disk.
fn init_pool(disk: &LoopMount, node: &str) {
    disk.mount(&[]);
    run(Command::new(env!("CARGO_BIN_EXE_rootcellar"))
        .args(["pool", "init", "--node", node])
        .arg(disk.path()));
    disk.unmount();
}

/// A disk of each filesystem, for a pool of the same name.
fn place_disks(node: &PodNode) -> [LoopMount; 3] {
    FILESYSTEMS.map(|filesystem| place_disk(node, filesystem, filesystem))
}

/// A disk whose mount point already contains a file that does not belong to the driver.
fn place_disk(node: &PodNode, pool: &str, filesystem: &'static str) -> LoopMount {
    let place = node.place(pool);
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("note"), "the disk is not mounted").unwrap();
    node.disk(pool, filesystem)
}
