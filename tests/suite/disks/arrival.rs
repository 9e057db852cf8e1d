//! Disks that are mounted late, unmounted, and mounted again.

use std::fs;

use tonic::Code;

use super::{FILESYSTEMS, Kept, NODE, Rig, WELL, eventually, init_pool, place_disk};
use crate::common::loops::{self, LoopMount};
use crate::common::messages::{create_with, refused};
use crate::common::pod::{PodNode, propagation};
use crate::common::sick::{assert_sick, assert_works};
use crate::skip;

/// The server of these tests has its mounts as the DaemonSet asks for them: what is above the
/// pools follows the host, the kubelet's directory is the host's, and all else is its own.
#[tokio::test]
async fn the_server_sees_mounts_as_in_its_pod() {
    if let Some(reason) = loops::obstacle() {
        skip!("{reason}");
    }
    let rig = Rig::serve(PodNode::new(), &[]).await;
    let seen = |at| propagation(rig.server.process(), &rig.node.path(at));
    assert_eq!(seen("pools"), ["master"]);
    assert_eq!(seen("kubelet"), ["shared"]);
    assert_eq!(seen("beneath"), [""; 0]);
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    let own = namespace(&rig.server.process().to_string());
    assert_ne!(own, namespace("self"));
}

/// A disk that was not mounted when the server started is served once it is, without a restart,
/// whatever kept its pool sick until then; nothing is written under the mount point meanwhile.
#[tokio::test]
async fn a_disk_mounted_late_is_served() {
    if let Some(reason) = loops::obstacle() {
        skip!("{reason}");
    }
    // What follows the path, and why the pool is sick: at first, and in a server that knew it.
    let cases = [
        (
            "ext4",
            ",require-mount",
            "nothing is mounted",
            "nothing is mounted",
        ),
        ("xfs", "", "holds no pool", "before and holds none now"),
        (
            "btrfs",
            ",init,require-mount",
            "nothing is mounted",
            "nothing is mounted",
        ),
    ];
    let node = PodNode::new();
    let disks = cases.map(|(filesystem, ..)| place_disk(&node, filesystem, filesystem));
    for (disk, (_, options, ..)) in disks.iter().zip(cases) {
        if !options.contains("init") {
            init_pool(disk, NODE);
        }
    }
    let pools = cases.map(|(pool, options, ..)| node.option(pool, options));
    let mut rig = Rig::serve(node, &pools).await;
    rig.wait(&cases.map(|(pool, _, reason, _)| (pool, reason)))
        .await;
    for (pool, ..) in cases {
        let new = create_with("early", 1 << 20, &[("pool", pool)]);
        refused(
            pool,
            rig.clients.create(new).await,
            Code::ResourceExhausted,
            "is sick",
        );
    }
    disks.iter().for_each(|disk| disk.mount(&[]));
    rig.wait(&cases.map(|(pool, ..)| (pool, "healthy"))).await;
    let mut kept = Vec::new();
    for (pool, ..) in cases {
        assert_works(pool, &mut rig.clients, pool, &rig.node).await;
        let volume = rig.keep(pool).await;
        rig.clients
            .unpublish(&volume.id, &volume.target)
            .await
            .unwrap();
        kept.push(volume);
    }
    rig.assert_beneath();

    disks.iter().for_each(LoopMount::unmount_soon);
    let mut rig = rig.restart(&pools).await;
    rig.wait(&cases.map(|(pool, _, _, reason)| (pool, reason)))
        .await;
    for volume in &kept {
        let deleted = rig.clients.delete(&volume.id).await;
        refused(&volume.name, deleted, Code::Unavailable, "is sick");
    }
    disks.iter().for_each(|disk| disk.mount(&[]));
    rig.wait(&cases.map(|(pool, ..)| (pool, "healthy"))).await;
    for volume in &kept {
        volume.assert_kept(&mut rig.clients).await;
    }
    rig.assert_beneath();
}

/// The host's plain umount succeeds with volumes published, whose pods go on; the pool is sick,
/// the others are not, the loop device goes with the last that uses the disk, and mounted again
/// it is served without a restart, as it was.
#[tokio::test]
async fn a_disk_taken_away_is_let_go_and_served_again() {
    if let Some(reason) = loops::obstacle() {
        skip!("{reason}");
    }
    let node = PodNode::new();
    let disks = FILESYSTEMS.map(|filesystem| place_disk(&node, filesystem, filesystem));
    let unused = place_disk(&node, "unused", "ext4");
    let well = place_disk(&node, WELL, "ext4");
    let all = || disks.iter().chain([&unused]);
    all().chain([&well]).for_each(|disk| disk.mount(&[]));
    let names = ["ext4", "xfs", "btrfs", "unused", WELL];
    let pools = names.map(|name| node.option(name, ",init"));
    let mut rig = Rig::serve(node, &pools).await;
    rig.wait(&names.map(|name| (name, "healthy"))).await;
    let mut kept: Vec<Kept> = Vec::new();
    for pool in FILESYSTEMS {
        kept.push(rig.keep(pool).await);
    }

    all().for_each(LoopMount::unmount_soon);
    let gone = "before and holds none now";
    rig.wait(&["ext4", "xfs", "btrfs", "unused"].map(|pool| (pool, gone)))
        .await;
    eventually("nothing holds the disk without pods", || {
        unused.device().is_empty()
    });
    for (pool, volume) in FILESYSTEMS.iter().zip(&kept) {
        let known = (volume.name.as_str(), volume.id.as_str());
        assert_sick(pool, &mut rig.clients, pool, known, &rig.node).await;
        assert_eq!(volume.read(), volume.name);
        fs::write(volume.target.join("while away"), "written").unwrap();
    }
    assert_works("others", &mut rig.clients, WELL, &rig.node).await;
    // XFS is mounted again while its pod goes on, the others when theirs are gone.
    for (disk, volume) in disks
        .iter()
        .zip(&kept)
        .filter(|(_, kept)| kept.name != "kept-xfs")
    {
        rig.clients
            .unpublish(&volume.id, &volume.target)
            .await
            .unwrap();
        assert!(!volume.target.exists());
        eventually("nothing holds the disk", || disk.device().is_empty());
    }
    rig.assert_beneath();

    all().for_each(|disk| disk.mount(&[]));
    rig.wait(&names.map(|name| (name, "healthy"))).await;
    for volume in &kept {
        volume.assert_kept(&mut rig.clients).await;
        let written = fs::read_to_string(volume.target.join("while away"));
        assert_eq!(written.unwrap(), "written");
        let deleted = rig.clients.delete(&volume.id).await;
        refused(
            &volume.name,
            deleted,
            Code::FailedPrecondition,
            "is published at",
        );
        rig.clients
            .unpublish(&volume.id, &volume.target)
            .await
            .unwrap();
        rig.clients.delete(&volume.id).await.unwrap();
    }
    for pool in names {
        assert_works(pool, &mut rig.clients, pool, &rig.node).await;
    }
    rig.assert_beneath();
}
