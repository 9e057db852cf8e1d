//! Disks that pods fill to the last block or the last inode.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use tonic::Code;

use super::{KeptVolume, ServedDisks, mount_all, place_disk, soon};
use support::disk::{Disk, FILESYSTEMS};
use support::messages::{create_with, publish, refused};
use support::pod::PodNode;
use support::require;

/// The highest number of small files that a pod writes. On btrfs, which has no inode limit, each
/// file takes long when the disk is almost full.
const FEW: usize = 20;

/// Writes until no block is free.
fn fill_blocks(dir: &Path) {
    let mut file = File::create(dir.join("big")).unwrap();
    for size in [1 << 20, 4096, 512] {
        let chunk = vec![0x5a; size];
        while file.write_all(&chunk).is_ok() {}
    }
    // Delayed allocation: data that was only written to memory may still find no free block.
    let _ = file.sync_all();
    for count in 0..FEW {
        let _ = fs::write(dir.join(format!("small-{count}")), [0x5a; 2000]);
    }
}

/// Creates files until no inode is free.
fn fill_inodes(dir: &Path) {
    let made = (0..).take_while(|count| File::create(dir.join(format!("empty-{count}"))).is_ok());
    assert!(made.count() > 1000);
}

/// A volume that its pod fills.
async fn filled(rig: &mut ServedDisks, pool: &str, fill: fn(&Path)) -> KeptVolume {
    let name = format!("filled-{pool}");
    let request = create_with(&name, 0, &[("pool", pool)]);
    let id = rig.clients.create(request).await.unwrap().volume_id;
    let target = rig.node.target(&name);
    rig.clients.publish(publish(&id, &target)).await.unwrap();
    fill(&target);
    KeptVolume { name, id, target }
}

/// Asserts that a pool without free space reports this, and that the calls that need no space work.
async fn assert_full(rig: &mut ServedDisks, pool: &str, kept: &KeptVolume) {
    let class = [("pool", pool)];
    assert_eq!(rig.clients.capacity(&class).await, 0, "{pool}");
    let sized = rig.clients.create(create_with("sized", 1, &class)).await;
    refused(pool, sized, Code::ResourceExhausted, pool);
    // A directory may still fit, and a volume without a size needs no more.
    match rig.clients.create(create_with("unsized", 0, &class)).await {
        Ok(volume) => rig.clients.delete(&volume.volume_id).await.unwrap(),
        answer => refused(pool, answer, Code::ResourceExhausted, pool),
    }
    let second = rig.node.target(&format!("second-{pool}"));
    rig.clients
        .publish(publish(&kept.id, &second))
        .await
        .unwrap();
    rig.clients.stats(&kept.id, &second).await.unwrap();
    rig.clients.unpublish_soon(&kept.id, &second).await;
    rig.clients.unpublish_soon(&kept.id, &kept.target).await;
    kept.assert_kept(&mut rig.clients).await;
    rig.wait_only(pool, "healthy");
}

/// Deletes the volume that fills a pool and waits for the free space.
async fn empty(rig: &mut ServedDisks, pool: &str, filled: &KeptVolume) {
    rig.clients.unpublish_soon(&filled.id, &filled.target).await;
    rig.clients.delete(&filled.id).await.unwrap();
    soon(&format!("{pool} has free space again"), async || {
        rig.clients.capacity(&[("pool", pool)]).await > 100 << 20
    })
    .await;
    rig.assert_work(&[pool]).await;
}

/// A disk without a free block gets no new volumes, but its existing volumes are served, also by a
/// server that starts then. Deleting a volume frees space. The pool is never unavailable because of
/// it.
///
/// Proves: DK5.
#[tokio::test]
async fn a_disk_without_a_free_block_serves_what_it_has() {
    require!(loop_devices);
    let (disks, mut rig, pools) = ServedDisks::serve_disks(&[]).await;
    let (mut kept, mut full, mut old) = (Vec::new(), Vec::new(), Vec::new());
    for (pool, disk) in FILESYSTEMS.into_iter().zip(&disks) {
        kept.push(rig.keep(pool).await);
        let request = create_with(&format!("old-{pool}"), 0, &[("pool", pool)]);
        old.push(rig.clients.create(request).await.unwrap().volume_id);
        // As left by a driver that was killed while it created a volume.
        fs::create_dir_all(disk.path().join(".rootcellar/staging/left/data")).unwrap();
        full.push(filled(&mut rig, pool, fill_blocks).await);
    }
    for (pool, kept) in FILESYSTEMS.iter().zip(&kept) {
        assert_full(&mut rig, pool, kept).await;
    }
    let mut rig = rig.restart(&pools).await;
    for ((pool, kept), old) in FILESYSTEMS.iter().zip(&kept).zip(&old) {
        rig.wait_only(pool, "healthy");
        assert_full(&mut rig, pool, kept).await;
        rig.clients.delete(old).await.unwrap();
    }
    for (pool, full) in FILESYSTEMS.iter().zip(&full) {
        empty(&mut rig, pool, full).await;
    }
    assert!(
        !rig.server.log().contains("is unavailable"),
        "{}",
        rig.server.log()
    );
    rig.assert_beneath();
}

/// As above, on a disk without a free inode, for the filesystems that limit inodes.
///
/// Proves: DK5.
#[tokio::test]
async fn a_disk_without_a_free_inode_serves_what_it_has() {
    require!(loop_devices);
    let few: [(&str, &[&str]); 2] = [("ext4", &["-N", "2000"]), ("xfs", &["-i", "maxpct=1"])];
    let node = PodNode::new();
    let disks = few.map(|(filesystem, options)| {
        let place = node.place(filesystem);
        fs::create_dir(&place).unwrap();
        let image = node.path(&format!("{filesystem}.image"));
        Disk::new(filesystem)
            .made_with(options)
            .format(&image, &place)
    });
    mount_all(&disks);
    let pools = few.map(|(name, _)| node.option(name, ",init"));
    let mut rig = ServedDisks::serve(node, &pools).await;
    for (pool, _) in few {
        let kept = rig.keep(pool).await;
        let full = filled(&mut rig, pool, fill_inodes).await;
        assert_full(&mut rig, pool, &kept).await;
        empty(&mut rig, pool, &full).await;
    }
    assert!(
        !rig.server.log().contains("is unavailable"),
        "{}",
        rig.server.log()
    );
}

/// An empty pool stays available on a disk that other data filled, although the driver cannot
/// record the space that this data uses.
///
/// Proves: DK5.
#[tokio::test]
async fn an_empty_pool_on_a_disk_that_others_filled_is_well() {
    require!(loop_devices);
    let node = PodNode::new();
    let disk = place_disk(&node, "ext4", "ext4");
    disk.mount(&[]);
    let pools = [node.option("ext4", ",init")];
    let mut rig = ServedDisks::serve(node, &pools).await;
    rig.wait(&[("ext4", "healthy")]).await;
    fill_blocks(disk.path());
    let mut rig = rig.restart(&pools).await;
    soon("there is no free space", async || {
        rig.clients.capacity(&[]).await == 0
    })
    .await;
    rig.wait_only("ext4", "healthy");
    fs::remove_file(disk.path().join("big")).unwrap();
    soon("there is free space", async || {
        rig.clients.capacity(&[]).await > 100 << 20
    })
    .await;
    rig.assert_work(&["ext4"]).await;
    assert!(
        !rig.server.log().contains("is unavailable"),
        "{}",
        rig.server.log()
    );
}
