//! Disks that are mounted late, unmounted, and mounted again.

use std::fs;

use tonic::Code;

use super::{
    KeptVolume, NODE, ServedDisks, WELL, eventually, init_pool, mount_all, place_disks, unmount_all,
};
use support::disk::FILESYSTEMS;
use support::messages::{create_with, refused};
use support::pod::{PodNode, propagation};
use support::require;

/// The server of these tests has the mounts that the `DaemonSet` requests. The directory above the
/// pools receives mounts from the host, the kubelet's directory is shared with the host, and all
/// other mounts are private.
///
/// Proves: DK1.
#[tokio::test]
async fn the_server_sees_mounts_as_in_its_pod() {
    require!(loop_devices);
    let rig = ServedDisks::serve(PodNode::new(), &[]).await;
    let seen = |at| propagation(rig.server.process(), &rig.node.path(at));
    assert_eq!(seen("pools"), ["master"]);
    assert_eq!(seen("kubelet"), ["shared"]);
    assert_eq!(seen("beneath"), [""; 0]);
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    let own = namespace(&rig.server.process().to_string());
    assert_ne!(own, namespace("self"));
}

/// Pools whose disks are not mounted at first. Each row has the options after the path and the two
/// reasons why the pool is unavailable: in a server that has never seen the pool, and in one that
/// has.
const LATE: [(&str, &str, [&str; 2]); 3] = [
    ("ext4", ",require-mount", [NOT_MOUNTED, NOT_MOUNTED]),
    ("xfs", "", ["holds no pool", GONE]),
    ("btrfs", ",init,require-mount", [NOT_MOUNTED, NOT_MOUNTED]),
];
const NOT_MOUNTED: &str = "nothing is mounted";
const GONE: &str = "before and holds none now";

/// A disk that was not mounted when the server started is served without a restart once it is
/// mounted, regardless of why its pool was unavailable. Nothing is written under the mount point
/// meanwhile.
///
/// Proves: DK1.
#[tokio::test]
async fn a_disk_mounted_late_is_served() {
    require!(loop_devices);
    let node = PodNode::new();
    let disks = place_disks(&node);
    for (disk, (_, options, _)) in disks.iter().zip(LATE) {
        if !options.contains("init") {
            init_pool(disk, NODE);
        }
    }
    let pools = LATE.map(|(pool, options, _)| node.option(pool, options));
    let mut rig = ServedDisks::serve(node, &pools).await;
    rig.wait(&LATE.map(|(pool, _, [reason, _])| (pool, reason)))
        .await;
    for pool in FILESYSTEMS {
        let request = create_with("early", 1 << 20, &[("pool", pool)]);
        let new = rig.clients.create(request).await;
        refused(pool, new, Code::ResourceExhausted, "is unavailable");
    }
    mount_all(&disks);
    rig.wait(&FILESYSTEMS.map(|pool| (pool, "healthy"))).await;
    rig.assert_work(&FILESYSTEMS).await;
    let kept = rig.keep_in(&FILESYSTEMS).await;
    for volume in &kept {
        volume.unpublish(&mut rig.clients).await;
    }
    rig.assert_beneath();

    unmount_all(&disks);
    let mut rig = rig.restart(&pools).await;
    rig.wait(&LATE.map(|(pool, _, [_, reason])| (pool, reason)))
        .await;
    for volume in &kept {
        let deleted = rig.clients.delete(&volume.id).await;
        refused(&volume.name, deleted, Code::Unavailable, "is unavailable");
    }
    mount_all(&disks);
    rig.wait_all(&FILESYSTEMS, "healthy").await;
    for volume in &kept {
        volume.assert_kept(&mut rig.clients).await;
    }
    rig.assert_beneath();
}

/// Asserts that a volume on a remounted disk has the files that its pod wrote, and that the server
/// knows that it is published.
async fn assert_back(rig: &mut ServedDisks, volume: &KeptVolume) {
    volume.assert_kept(&mut rig.clients).await;
    let written = fs::read_to_string(volume.target.join("while away"));
    assert_eq!(written.unwrap(), "written");
    let deleted = rig.clients.delete(&volume.id).await;
    let published = Code::FailedPrecondition;
    refused(&volume.name, deleted, published, "is published at");
    volume.unpublish(&mut rig.clients).await;
    rig.clients.delete(&volume.id).await.unwrap();
}

/// A plain `umount` on the host succeeds although volumes are published, and their pods continue.
/// Only the pool of that disk becomes unavailable. The loop device is detached when the last user
/// of the disk ends. After a new mount the pool is served as before, without a restart.
///
/// Proves: DK1.
#[tokio::test]
async fn a_disk_taken_away_is_let_go_and_served_again() {
    require!(loop_devices);
    let names = ["ext4", "xfs", "btrfs", "unused", WELL];
    let (disks, mut rig, _) = ServedDisks::serve_disks(&names[3..]).await;
    let kept = rig.keep_in(&FILESYSTEMS).await;

    unmount_all(&disks[..4]);
    rig.wait_all(&names[..4], GONE).await;
    eventually("nothing holds the disk", || disks[3].device().is_empty());
    for (pool, volume) in FILESYSTEMS.iter().zip(&kept) {
        rig.assert_unavailable(pool, volume).await;
        assert_eq!(volume.read(), volume.name);
        fs::write(volume.target.join("while away"), "written").unwrap();
    }
    rig.assert_work(&[WELL]).await;
    // The XFS disk is mounted again while its pod runs, the others after their pods ended.
    for index in [0, 2] {
        let (disk, volume) = (&disks[index], &kept[index]);
        volume.unpublish(&mut rig.clients).await;
        eventually("nothing holds the disk", || disk.device().is_empty());
    }
    rig.assert_beneath();

    mount_all(&disks[..4]);
    rig.wait_all(&names, "healthy").await;
    for volume in &kept {
        assert_back(&mut rig, volume).await;
    }
    rig.assert_work(&names).await;
    rig.assert_beneath();
}
