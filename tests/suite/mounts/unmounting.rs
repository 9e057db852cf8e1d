//! Disks that the host unmounts while the driver serves them, and mounts again.

use std::fs;
use std::process::Command;

use tonic::Code;

use super::mounts_at;
use support::disk::{Disk, FILESYSTEMS};
use support::loops::{LoopMount, run};
use support::messages::{publish, refused};
use support::require;
use support::server::{Clients, Server};
use support::unavailable::assert_unavailable;
use support::{Node, eventually, names};

/// The host can unmount a pool's disk while the driver serves it, with a plain umount and with a
/// volume published. The pool becomes unavailable, its volume is `UNAVAILABLE`, and new volumes are
/// refused with `RESOURCE_EXHAUSTED`. Nothing is written under the mount point, and unpublishing
/// works. When the disk is mounted again, it is served without a restart and has its former
/// contents.
///
/// Proves: DK1.
#[tokio::test]
async fn the_host_may_take_a_disk_away_and_bring_it_back() {
    require!(loop_devices);
    let disks = FILESYSTEMS.map(|filesystem| (filesystem, ""));
    for (filesystem, extra) in disks.into_iter().chain([("ext4", ",require-mount")]) {
        let case = format!("{filesystem}{extra}");
        let node = Node::new();
        let disk = node.make_disk(Disk::new(filesystem));
        let server = Server::start_with(&node, &[disk.option() + extra]).await;
        let mut clients = server.clients().await;
        let capacity = clients.capacity(&[]).await;
        let id = clients.make("kept", 64 << 20).await;
        let target = node.target("pod");
        clients.publish(publish(&id, &target)).await.unwrap();
        fs::write(target.join("file"), "kept").unwrap();

        disk.unmount();
        let late = clients.publish(publish(&id, &node.target("late"))).await;
        refused(&case, late, Code::Unavailable, "pool default");
        clients.wait_unavailable().await;
        assert_unavailable(&case, &mut clients, "default", ("kept", &id), &node).await;
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
        clients.unpublish_soon(&id, &target).await;
        assert_eq!(mounts_at(&target), []);
        // A loop device is removed only with its last user.
        eventually("nothing holds the disk", || disk.device().is_empty());
        assert_eq!(names(disk.path()), Vec::<String>::new(), "{case}");

        disk.mount(&[]);
        clients.wait_back(&id).await;
        // The recorded amount of other data is only as exact as the changes of the disk's metadata.
        let lost = capacity - clients.capacity(&[]).await;
        assert!(lost.abs_diff(64 << 20) < 16 << 20, "{case}: {lost}");
        clients.publish(publish(&id, &target)).await.unwrap();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
        clients.unpublish_soon(&id, &target).await;
        clients.delete(&id).await.unwrap();
    }
}

/// A served node with the volume `kept` on a disk of its own.
async fn kept_on_disk() -> (Node, LoopMount, Server, Clients, String) {
    let (node, disk, server, mut clients) = Server::on_new_disk(Disk::new("ext4")).await;
    let id = clients.make("kept", 1 << 20).await;
    (node, disk, server, clients, id)
}

/// Unpublishing works when the disk was removed from under the pool: before and after the driver
/// notices, and in a driver that has never seen the disk.
///
/// Proves: U2.
#[tokio::test]
async fn unpublish_needs_no_healthy_pool() {
    require!(loop_devices);
    let (node, disk, server, mut clients, id) = kept_on_disk().await;
    let targets = ["at once", "when unavailable", "after a restart"].map(|pod| node.target(pod));
    for target in &targets {
        clients.publish(publish(&id, target)).await.unwrap();
    }
    run(Command::new("umount").arg("-l").arg(disk.path()));
    clients.unpublish_soon(&id, &targets[0]).await;
    clients.wait_unavailable().await;
    clients.unpublish_soon(&id, &targets[1]).await;
    refused(
        "unavailable",
        clients.delete(&id).await,
        Code::Unavailable,
        "is unavailable",
    );
    let (_server, mut clients) = server.restart(&node, &[disk.option()]).await;
    clients.unpublish_soon(&id, &targets[2]).await;
    for target in &targets {
        assert_eq!(mounts_at(target), []);
        assert!(names(target.parent().unwrap()).is_empty());
    }
    refused(
        "known",
        clients.delete(&id).await,
        Code::Unavailable,
        "held pool",
    );
    assert_eq!(names(disk.path()), Vec::<String>::new());
}

/// When a disk comes back with a volume still published, the driver knows the publication and does
/// not delete the volume.
///
/// Proves: U5.
#[tokio::test]
async fn publications_are_known_again_when_a_disk_is_back() {
    require!(loop_devices);
    let (node, disk, server, mut clients, id) = kept_on_disk().await;
    let target = node.target("pod");
    clients.publish(publish(&id, &target)).await.unwrap();
    disk.unmount();
    // The server that starts without the disk cannot know to which volume the mount belongs.
    let (_server, mut clients) = server.restart(&node, &[disk.option()]).await;
    disk.mount(&[]);
    clients.wait_back(&id).await;
    clients
        .assert_in_use("published", &id, "is published at")
        .await;
    clients.unpublish_soon(&id, &target).await;
    clients.delete(&id).await.unwrap();
}

/// A pool that becomes read-only is unavailable, and is available again when it is writable.
///
/// Proves: DK4.
#[tokio::test]
async fn a_read_only_disk_is_unavailable_until_it_is_writable() {
    require!(loop_devices);
    let (node, disk, _server, mut clients, id) = kept_on_disk().await;
    let remount = |option: &str| {
        let option = format!("remount,{option}");
        run(Command::new("mount").args(["-o", &option]).arg(disk.path()));
    };
    remount("ro");
    clients.wait_unavailable().await;
    assert_unavailable("read-only", &mut clients, "default", ("kept", &id), &node).await;
    remount("rw");
    clients.wait_back(&id).await;
    clients.delete(&id).await.unwrap();
}
