//! A node whose driver sees its mounts as in the driver's pod. The test plays the host. The server
//! has a mount namespace of its own, with the mount propagation that the `DaemonSet` sets for each
//! hostPath.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Node;
use super::disk::Disk;
use super::loops::{LoopMount, run};
use super::picture::{self, Picture};
use super::server::{Server, run_by};

/// Runs a command in the pod of the node whose pools are in `$1`. The directory above the pools
/// follows the host (`HostToContainer`), and the kubelet's directory is the host's own
/// (`Bidirectional`). The mounts of other tests, which a container would not have, are removed so
/// that they keep no disk busy.
const ENTER: &str = r#"
set -eu
node=${1%/*} pools=$1
shift
others() {
    while read -r _ at _; do
        case $at in
            "$node"/*) ;;
            */rootcellar-test-*) echo "$at" ;;
        esac
    done </proc/self/mounts
}
for at in $(others); do mount --make-private "$at" 2>/dev/null || :; done
for at in $(others); do umount --lazy "$at" 2>/dev/null || :; done
mount --make-rslave "$pools"
exec "$@"
"#;

/// The host's side of the node.
pub struct PodNode {
    dir: Node,
}

impl PodNode {
    /// Makes the directories. Those that are hostPath volumes of the pod are on shared mounts, as
    /// all directories are where systemd runs.
    pub fn new() -> Self {
        let node = Self { dir: Node::new() };
        for name in ["pools", "beneath"] {
            std::fs::create_dir(node.dir.path(name)).unwrap();
        }
        for name in ["pools", "kubelet"] {
            let at = node.dir.path(name);
            run(Command::new("mount")
                .args(["--bind", "--make-shared"])
                .args([&at, &at]));
        }
        run(Command::new("mount")
            .args(["--bind", "--make-private"])
            .args([node.dir.path("pools"), node.dir.path("beneath")]));
        node
    }

    /// The mount point of a pool's disk.
    pub fn place(&self, pool: &str) -> PathBuf {
        self.dir.path("pools").join(pool)
    }

    /// `--pool` with these options, each after a comma.
    pub fn option(&self, pool: &str, options: &str) -> String {
        format!("{pool}={}{options}", self.place(pool).display())
    }

    /// A disk with an empty filesystem, not mounted yet, for a pool's mount point.
    pub fn disk(&self, pool: &str, filesystem: &'static str) -> LoopMount {
        let image = self.dir.path(&format!("{pool}.image"));
        Disk::new(filesystem).format(&image, &self.place(pool))
    }

    /// A picture of the directories under the disks, mounted or not, with the time of every change.
    pub fn beneath(&self) -> Picture {
        picture::with_times(&self.dir.path("beneath"))
    }

    /// Starts the server in the pod, with the HTTP server at an address, and waits until it is
    /// ready.
    pub async fn serve(&self, pools: &[String], page: SocketAddr) -> Server {
        let mut serve = Server::command(&self.dir, pools);
        serve.arg("--http").arg(page.to_string());
        self.spawn(&serve).await
    }

    /// Starts a command that serves in the pod, and waits until it is ready.
    pub async fn spawn(&self, serve: &Command) -> Server {
        let server = Server::spawn(&self.dir, &mut self.in_pod(serve));
        server.wait_ready().await;
        server
    }

    fn in_pod(&self, command: &Command) -> Command {
        let mut inside = Command::new("unshare");
        inside
            .args(["--mount", "--propagation", "unchanged", "--"])
            .args(["sh", "-c", ENTER, "sh"])
            .arg(self.dir.path("pools"));
        run_by(inside, command)
    }
}

crate::extends!(PodNode, dir: Node);

/// The propagation of a mount of another process, as its mount table shows it: `shared`, `master`
/// or nothing.
pub fn propagation(process: u32, at: &Path) -> Vec<String> {
    let table = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let mut fields = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields
        .rfind(|fields| Path::new(fields[4]) == at)
        .unwrap_or_else(|| panic!("nothing is mounted at {}", at.display()));
    let tags = mount[6..].iter().take_while(|field| **field != "-");
    tags.filter_map(|tag| Some(tag.split_once(':')?.0.to_owned()))
        .collect()
}
