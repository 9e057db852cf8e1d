//! A disk on which every write hangs.

use std::time::Duration;

use tokio::task::JoinSet;
use tonic::Code;

use super::{KeptVolume, ServedDisks, WELL, mount_all, place_disk};
use support::disk::FILESYSTEMS;
use support::loops::Frozen;
use support::messages::{create_with, refused};
use support::pod::PodNode;
use support::require;

/// Longer than any call takes that waits for no disk.
const CALLS_TIMEOUT: Duration = Duration::from_mins(1);

/// Asserts that calls work that do not write to the hanging disks.
async fn others_go_on(rig: &mut ServedDisks, kept: &[KeptVolume]) {
    rig.assert_work(&[WELL]).await;
    for volume in kept {
        assert_eq!(volume.read(), volume.name);
        volume.unpublish(&mut rig.clients).await;
    }
    rig.wait_all(&[WELL], "healthy").await;
    rig.assert_work(&[WELL]).await;
}

/// Calls that wait for a hanging disk delay no other pool and no unpublishing. When the disk
/// recovers, they complete.
///
/// Proves: DK6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_holds_up_nobody_else() {
    require!(loop_devices);
    let (disks, mut rig, _) = ServedDisks::serve_disks(&[WELL]).await;
    let kept = rig.keep_in(&FILESYSTEMS).await;
    let mut doomed = Vec::new();
    for pool in FILESYSTEMS {
        let request = create_with(&format!("doomed-{pool}"), 0, &[("pool", pool)]);
        doomed.push(rig.clients.create(request).await.unwrap().volume_id);
    }

    let frozen: Vec<Frozen> = disks[..3]
        .iter()
        .map(|disk| Frozen::new(disk.path()))
        .collect();
    let (mut creates, mut deletes) = (Vec::new(), Vec::new());
    for (pool, id) in FILESYSTEMS.iter().zip(doomed.clone()) {
        let mut clients = rig.server.clients().await;
        let request = create_with(&format!("made-{pool}"), 0, &[("pool", pool)]);
        creates.push(tokio::spawn(async move { clients.create(request).await }));
        let mut clients = rig.server.clients().await;
        deletes.push(tokio::spawn(async move { clients.delete(&id).await }));
    }
    // Without the timeout, a call that hangs with the disk would keep the test from ever thawing
    // it.
    let others = tokio::time::timeout(CALLS_TIMEOUT, others_go_on(&mut rig, &kept));
    others.await.expect("the other calls end");
    assert!(creates.iter().all(|call| !call.is_finished()));
    assert!(deletes.iter().all(|call| !call.is_finished()));

    drop(frozen);
    let mut there: Vec<String> = kept.iter().map(|volume| volume.id.clone()).collect();
    for call in creates {
        there.push(call.await.unwrap().unwrap().volume_id);
    }
    for call in deletes {
        call.await.unwrap().unwrap();
    }
    there.sort();
    assert_eq!(rig.clients.list(0, "").await.unwrap().0, there);
    for (pool, volume) in FILESYSTEMS.iter().zip(&kept) {
        volume.assert_kept(&mut rig.clients).await;
        rig.assert_work(&[pool]).await;
    }
    rig.assert_beneath();
}

/// The number of volumes requested on a hanging disk: more than its concurrency limit.
const MANY: usize = 300;

/// The concurrency limit of calls on the disk of one pool.
const AT_WORK: usize = 128;

/// Each pool has a concurrency limit for calls on a hanging disk. A further call gets UNAVAILABLE
/// at once, and calls that use another disk or none are answered.
///
/// Proves: DK7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_limit_of_a_pool_are_refused_at_once() {
    require!(loop_devices);
    let node = PodNode::new();
    let disks = ["ext4", WELL].map(|pool| place_disk(&node, pool, "ext4"));
    mount_all(&disks);
    let pools = ["ext4", WELL].map(|pool| node.option(pool, ",init"));
    let mut rig = ServedDisks::serve(node, &pools).await;
    let kept = rig.keep_in(&["ext4", WELL]).await;

    let frozen = Frozen::new(disks[0].path());
    let mut creates = JoinSet::new();
    for number in 0..MANY {
        let mut clients = rig.server.clients().await;
        let request = create_with(&format!("made-{number}"), 0, &[("pool", "ext4")]);
        creates.spawn(async move { clients.create(request).await });
    }
    let says = "pool ext4 has 128 calls at work on its disk";
    let others = async {
        for _ in AT_WORK..MANY {
            let answer = creates.join_next().await.unwrap().unwrap();
            refused("one more", answer, Code::Unavailable, says);
        }
        let answer = rig.clients.delete(&kept[0].id).await;
        refused("delete", answer, Code::Unavailable, says);
        rig.clients.get(&kept[0].id).await.unwrap();
        rig.clients.list(0, "").await.unwrap();
        others_go_on(&mut rig, &kept).await;
        assert!(rig.text("/metrics").contains("pool=\"ext4\""));
    };
    let others = tokio::time::timeout(CALLS_TIMEOUT, others).await;
    others.expect("the other calls end");
    assert_eq!(creates.len(), AT_WORK, "the rest hangs with the disk");

    drop(frozen);
    while let Some(made) = creates.join_next().await {
        made.unwrap().unwrap();
    }
    rig.wait_all(&["ext4", WELL], "healthy").await;
    rig.assert_work(&["ext4"]).await;
}
