//! Expansion of volumes in use.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tonic::Code;

use support::disk::XFS_PLAIN;
use support::disk_node::{
    MIB, append, for_each_filesystem, for_each_served, inodes_of, serve_on, size_shown,
};
use support::messages::refused;

/// A full volume grows while it is published, by exactly the requested size. A repeated request or
/// a smaller size changes nothing.
///
/// Proves: S8.
#[tokio::test]
async fn a_published_volume_grows_and_never_shrinks() {
    for_each_served(async |node, served| {
        let (id, target) = node.make_published(served, 4 * MIB).await;
        let (before, error) = append(&target.join("file"), 64 * MIB);
        assert_eq!(error, Some(node.full()));
        for asked in [12 * MIB, 12 * MIB, 6 * MIB] {
            let size = served.expand(&id, &target, asked).await.unwrap();
            assert_eq!(size, 12 * MIB, "asked for {asked}");
            node.assert_limited("pvc", 12 * MIB);
        }
        let shown = (12 * MIB, inodes_of(node.disk.filesystem, 12 * MIB));
        assert_eq!(size_shown(&target), shown);
        let (more, error) = append(&target.join("file"), 64 * MIB);
        assert_eq!(error, Some(node.full()));
        assert!(
            (11 * MIB..=12 * MIB).contains(&(before + more)),
            "{before} {more}"
        );
        let kept = served.clients.get(&id).await.unwrap().capacity_bytes;
        assert_eq!(kept, 12 << 20);
    })
    .await;
}

/// A pod that retries a write succeeds once its volume has grown.
///
/// Proves: S8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_grows_under_its_writer() {
    for_each_served(async |node, served| {
        let (id, target) = node.make_published(served, 2 * MIB).await;
        let (file, full) = (target.join("file"), node.full());
        let is_full = std::sync::Arc::new(AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&is_full);
        let writer = tokio::task::spawn_blocking(move || {
            let mut written = 0;
            support::eventually("all is written", || {
                let (more, error) = append(&file, 6 * MIB - written);
                written += more;
                assert!(error.is_none_or(|errno: Errno| errno == full), "{error:?}");
                seen.fetch_or(error.is_some(), Ordering::SeqCst);
                written >= 6 * MIB
            });
        });
        support::messages::soon("the volume is full", async || {
            is_full.load(Ordering::SeqCst)
        })
        .await;
        served.expand(&id, &target, 8 * MIB).await.unwrap();
        writer.await.unwrap();
    })
    .await;
}

/// An expansion beyond the free space of the pool is refused with `OUT_OF_RANGE`.
///
/// Proves: S8.
#[tokio::test]
async fn a_growth_that_does_not_fit_changes_nothing() {
    for_each_served(async |node, served| {
        let (id, target) = node.make_published(served, 4 * MIB).await;
        let free = u64::try_from(served.clients.capacity(&[]).await).unwrap();
        let answer = served.expand(&id, &target, 4 * MIB + free + MIB).await;
        refused(node.disk.name, answer, Code::OutOfRange, "free space");
        node.assert_limited("pvc", 4 * MIB);
        assert_eq!(
            served.clients.get(&id).await.unwrap().capacity_bytes,
            4 << 20
        );
        let left = u64::try_from(served.clients.capacity(&[]).await).unwrap();
        assert_eq!(left, free);

        let grown = served.expand(&id, &target, 4 * MIB + free / 2).await;
        assert_eq!(grown.unwrap(), 4 * MIB + free / 2);
        let left = u64::try_from(served.clients.capacity(&[]).await).unwrap();
        assert!(left.abs_diff(free - free / 2) < MIB, "{left} of {free}");
    })
    .await;
}

/// An expanded size survives a restart and another mount, and the volume can grow further.
///
/// Proves: S8.
#[tokio::test]
async fn a_grown_volume_stays_grown() {
    for_each_filesystem(async |mut node| {
        let mut served = node.serve().await;
        let (id, target) = node.make_published(&mut served, 4 * MIB).await;
        served.expand(&id, &target, 8 * MIB).await.unwrap();
        served.clients.unpublish_soon(&id, &target).await;
        served.stop();
        node.mount_as(node.disk);
        let mut served = node.serve().await;
        node.assert_limited("pvc", 8 * MIB);
        assert_eq!(
            served.clients.get(&id).await.unwrap().capacity_bytes,
            8 << 20
        );
        let target = node.publish(&mut served, &id, "pod").await;
        served.expand(&id, &target, 16 * MIB).await.unwrap();
        node.assert_limited("pvc", 16 * MIB);
        served.stop();
    })
    .await;
}

/// A volume whose size is not enforced grows too: in its record and in the bytes that the pool
/// reserves.
///
/// Proves: S8.
#[tokio::test]
async fn a_volume_that_is_not_enforced_grows_in_its_record() {
    serve_on(XFS_PLAIN, async |node, served| {
        let (id, target) = node.make_published(served, 4 * MIB).await;
        let free = served.clients.capacity(&[]).await;
        served.expand(&id, &target, 8 * MIB).await.unwrap();
        assert_eq!(node.record("pvc")["size_bytes"], 8 * MIB);
        assert_eq!(served.clients.capacity(&[]).await, free - (4 << 20));
    })
    .await;
}
