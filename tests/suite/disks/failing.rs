//! Disks that fail, or turn read-only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ServedDisks, WELL, eventually, mount_all, place_disk, soon};
use support::disk::{Disk, FILESYSTEMS};
use support::loops::{LoopMount, run};
use support::messages::create_with;
use support::pod::PodNode;
use support::require;

/// A pool whose disk is unmounted and mounted again, to wait until the other pools had a health
/// check.
const CLOCK: &str = "clock";

/// How a disk fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Failure {
    /// The filesystem shuts itself down, as it does when it cannot write its log.
    Shutdown,
    /// All but the first blocks of the device are missing. The page cache still has the blocks that
    /// were read.
    Cut,
    /// The device accepts no new block, as a thin pool that is full.
    Thin,
}

/// A disk that is to fail.
struct Victim {
    pool: &'static str,
    failure: Failure,
    disk: LoopMount,
}

impl Victim {
    fn new(
        node: &PodNode,
        (pool, filesystem, failure): (&'static str, &'static str, Failure),
    ) -> Self {
        let mut disk = place_disk(node, pool, filesystem);
        if failure == Failure::Thin {
            let store = node.path("thin");
            fs::create_dir(&store).unwrap();
            run(Command::new("mount")
                .args(["-t", "tmpfs", "thin"])
                .arg(&store));
            disk = Disk::new(filesystem).format(&store.join("image"), &node.place(pool));
        }
        Self {
            pool,
            failure,
            disk,
        }
    }

    fn spare_image(&self) -> PathBuf {
        self.disk.image().with_extension("spare")
    }

    /// The filesystem under the image of a thin disk.
    fn store(&self) -> &Path {
        self.disk.image().parent().unwrap()
    }

    fn resize_store(&self, size: u64) {
        run(Command::new("mount")
            .args(["-o", &format!("remount,size={size}")])
            .arg(self.store()));
    }

    fn fail(&self) {
        let place = self.disk.path();
        match self.failure {
            Failure::Shutdown => {
                run(Command::new("xfs_io")
                    .args(["-x", "-c", "shutdown"])
                    .arg(place));
            }
            Failure::Cut => {
                run(Command::new("sync").arg("-f").arg(place));
                let copy = self.spare_image();
                run(Command::new("cp")
                    .arg("--sparse=always")
                    .args([self.disk.image(), &copy]));
                let image = fs::File::options().write(true).open(self.disk.image());
                image.unwrap().set_len(1 << 20).unwrap();
                run(Command::new("losetup").arg("-c").arg(self.disk.device()));
            }
            Failure::Thin => {
                run(Command::new("fstrim").arg(place));
                run(Command::new("sync").arg("-f").arg(place));
                let store = rustix::fs::statvfs(self.store()).unwrap();
                self.resize_store((store.f_blocks - store.f_bfree) * store.f_frsize);
            }
        }
    }

    /// Repairs the disk as an operator would.
    fn repair(&self) {
        if self.failure == Failure::Thin {
            self.resize_store(1 << 30);
            return;
        }
        self.disk.unmount();
        eventually("nothing holds the disk", || self.disk.device().is_empty());
        if self.failure == Failure::Cut {
            fs::rename(self.spare_image(), self.disk.image()).unwrap();
        }
        self.disk.mount(&[]);
    }
}

/// Waits until every pool had more than one health check.
async fn let_time_pass(rig: &mut ServedDisks, clock: &LoopMount) {
    for _ in 0..2 {
        clock.unmount();
        rig.wait(&[(CLOCK, "unavailable")]).await;
        clock.mount(&[]);
        rig.wait(&[(CLOCK, "healthy")]).await;
    }
}

/// The number of times that a pool was opened, from the log.
fn times_opened(rig: &ServedDisks, pool: &str) -> usize {
    let log = rig.server.log();
    let opened = log.lines().filter(|line| line.contains("pool is open"));
    opened
        .filter(|line| line.contains(&format!("pool={pool} ")))
        .count()
}

/// Requests volumes until the pool is unavailable. No request may succeed.
async fn provoke(rig: &mut ServedDisks, pool: &str) {
    let mut attempts = 0;
    soon(&format!("{pool} is unavailable"), async || {
        attempts += 1;
        let request = create_with(&format!("lost-{attempts}"), 0, &[("pool", pool)]);
        let made = rig.clients.create(request).await;
        assert!(made.is_err(), "{pool}: {made:?}");
        rig.readyz_has(pool, "unavailable")
    })
    .await;
}

/// A pool whose disk fails is unavailable at the next health check or call, and stays unavailable
/// while the disk accepts no writes. Unpublishing works, and so do the other pools. Once the disk
/// is repaired and mounted again, its pool is served with every acknowledged change.
///
/// Proves: DK4.
#[tokio::test]
async fn a_pool_whose_disk_fails_is_unavailable_until_the_disk_is_well() {
    require!(loop_devices);
    let cases = [
        ("shut-ext4", "ext4", Failure::Shutdown),
        ("shut-xfs", "xfs", Failure::Shutdown),
        ("cut-ext4", "ext4", Failure::Cut),
        ("cut-xfs", "xfs", Failure::Cut),
        ("cut-btrfs", "btrfs", Failure::Cut),
        ("thin-xfs", "xfs", Failure::Thin),
    ];
    let node = PodNode::new();
    let victims = cases.map(|case| Victim::new(&node, case));
    let others = [WELL, CLOCK].map(|pool| place_disk(&node, pool, "ext4"));
    let disks = victims.iter().map(|victim| &victim.disk).chain(&others);
    mount_all(disks);
    let names = cases.iter().map(|case| case.0).chain([WELL, CLOCK]);
    let pools: Vec<String> = names.map(|name| node.option(name, ",init")).collect();
    let mut rig = ServedDisks::serve(node, &pools).await;
    let kept = rig.keep_in(&cases.map(|case| case.0)).await;

    for (victim, volume) in victims.iter().zip(&kept) {
        let pool = victim.pool;
        victim.fail();
        provoke(&mut rig, pool).await;
        rig.assert_unavailable(pool, volume).await;
        rig.wait(&[(pool, "unavailable")]).await;
        volume.unpublish(&mut rig.clients).await;
    }
    rig.assert_work(&[WELL]).await;
    let_time_pass(&mut rig, &others[1]).await;
    for (pool, ..) in cases {
        assert_eq!(times_opened(&rig, pool), 1, "{pool}: {}", rig.server.log());
    }

    for victim in &victims {
        victim.repair();
    }
    rig.wait(&cases.map(|(pool, ..)| (pool, "healthy"))).await;
    for ((pool, ..), volume) in cases.iter().zip(&kept) {
        volume.assert_kept(&mut rig.clients).await;
        volume.unpublish(&mut rig.clients).await;
        rig.clients.delete(&volume.id).await.unwrap();
        rig.assert_work(&[pool]).await;
    }
    assert_eq!(rig.clients.list(0, "").await.unwrap().0, [""; 0]);
    rig.assert_beneath();
}

/// A disk that the host remounts read-only makes its pool unavailable until it is writable again.
/// Its pods can still read, and their volumes can be unpublished.
///
/// Proves: DK4.
#[tokio::test]
async fn a_disk_remounted_read_only_is_served_when_it_is_writable() {
    require!(loop_devices);
    let (disks, mut rig, _) = ServedDisks::serve_disks(&[WELL]).await;
    let kept = rig.keep_in(&FILESYSTEMS).await;
    let remount = |option: &str| {
        for disk in &disks[..3] {
            let option = format!("remount,{option}");
            run(Command::new("mount").args(["-o", &option]).arg(disk.path()));
        }
    };
    remount("ro");
    rig.wait_all(&FILESYSTEMS, "read-only").await;
    for (pool, volume) in FILESYSTEMS.iter().zip(&kept) {
        rig.assert_unavailable(pool, volume).await;
        assert_eq!(volume.read(), volume.name);
        volume.unpublish(&mut rig.clients).await;
    }
    rig.assert_work(&[WELL]).await;
    remount("rw");
    rig.wait_all(&FILESYSTEMS, "healthy").await;
    for (pool, volume) in FILESYSTEMS.iter().zip(&kept) {
        volume.assert_kept(&mut rig.clients).await;
        rig.assert_work(&[pool]).await;
    }
}
