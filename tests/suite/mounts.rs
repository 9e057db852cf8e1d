//! The mounts of a published volume that the kernel shows, and the state after unpublishing.

mod isolation;
mod late;
mod options;
mod ownership;
mod unmounting;
mod unpublish;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::Node;
use support::loops::run;
use support::messages::publish;
use support::server::{Clients, Server};

/// The options of every mount at a path, the lowest first, as mountinfo shows them.
fn mounts_at(path: &Path) -> Vec<BTreeSet<String>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| Path::new(fields[4]) == path)
        .map(|fields| fields[5].split(',').map(str::to_owned).collect())
        .collect()
}

/// Mounts a tmpfs, as a pod or an operator might.
fn mount_tmpfs(at: &Path) {
    run(Command::new("mount")
        .args(["-t", "tmpfs", "others"])
        .arg(at));
}

fn umount(at: &Path) {
    run(Command::new("umount").arg(at));
}

/// A served node with one volume.
async fn one_volume() -> (Node, Server, Clients, String) {
    let (node, server, mut clients) = Server::on_new_node().await;
    let id = clients.make("pvc-1", 1 << 20).await;
    (node, server, clients, id)
}

/// A served node with one volume, published at the target `pod`.
async fn one_published() -> (Node, Server, Clients, String, PathBuf) {
    let (node, server, mut clients, id) = one_volume().await;
    let target = node.target("pod");
    clients.publish(publish(&id, &target)).await.unwrap();
    (node, server, clients, id, target)
}
