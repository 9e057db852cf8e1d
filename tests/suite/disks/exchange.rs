//! A different disk at the mount point of a pool.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    KeptVolume, NODE, ServedDisks, WELL, eventually, init_pool, mount_all, place_disk, unmount_all,
};
use support::disk::Disk;
use support::loops::{LoopMount, mount_loop, run};
use support::picture::{self, Picture};
use support::pod::PodNode;
use support::require;

/// Every file of a disk with its times, read at a mount point outside all pools.
fn read_disk(image: &Path, aside: &Path) -> Picture {
    mount_loop(image, aside, &[]);
    let picture = picture::with_times(aside);
    eventually("the inspected disks are unmounted", || {
        Command::new("umount")
            .arg(aside)
            .status()
            .unwrap()
            .success()
    });
    picture
}

/// The page shows no id.
const SWAPPED: &str = "its path holds pool <id>, and held pool <id> before";

/// A disk that an operator mounted at the wrong mount point.
struct Wrong {
    pool: &'static str,
    reason: &'static str,
    image: PathBuf,
}

/// The wrong disk for every pool of the table.
fn wrong_disks(node: &PodNode, well: &Path) -> Vec<Wrong> {
    let kinds = [
        // Pool, disk mounted there, and the reason for the refusal.
        ("spare", "another pool of this node", SWAPPED),
        ("foreign", "another node's pool", SWAPPED),
        ("blank", "an empty disk", "before and holds none now"),
        ("copied", "a copy of a pool that is served", SWAPPED),
        ("new-foreign", "another node's pool", "of node another-node"),
        (
            "new-copied",
            "a copy of a pool that is served",
            "is a copy of the disk of pool well",
        ),
    ];
    let wrong = kinds.map(|(pool, kind, reason)| {
        let image = node.path(&format!("wrong-{pool}.image"));
        match kind {
            "a copy of a pool that is served" => copy(well, &image),
            "an empty disk" => drop(Disk::new("ext4").format(&image, &node.path("aside"))),
            _ => {
                let owner = if kind == "another node's pool" {
                    "another-node"
                } else {
                    NODE
                };
                let disk = Disk::new("ext4").format(&image, &node.path("aside"));
                init_pool(&disk, owner);
            }
        }
        Wrong {
            pool,
            reason,
            image,
        }
    });
    wrong.into()
}

fn copy(image: &Path, to: &Path) {
    run(Command::new("cp").arg("--sparse=always").args([image, to]));
}

/// Pools that are served at first. A copy of the last pool's disk later replaces the original.
const KNOWN: [&str; 8] = [
    WELL, "spare", "foreign", "blank", "copied", "left", "right", "itself",
];
/// Pools that were never served.
const NEW: [&str; 2] = ["new-foreign", "new-copied"];

/// The node, the disk of every pool, and the disks that are mounted in their place.
struct Exchange {
    rig: ServedDisks,
    disks: Vec<LoopMount>,
    wrong: Vec<Wrong>,
    kept: Vec<KeptVolume>,
}

impl Exchange {
    async fn new() -> Self {
        let node = PodNode::new();
        std::fs::create_dir(node.path("aside")).unwrap();
        let names = KNOWN.iter().chain(&NEW);
        let disks: Vec<LoopMount> = names.map(|pool| place_disk(&node, pool, "ext4")).collect();
        for disk in &disks[..KNOWN.len()] {
            init_pool(disk, NODE);
        }
        let wrong = wrong_disks(&node, disks[0].image());
        mount_all(&disks[..KNOWN.len()]);
        let mut pools = KNOWN.map(|pool| node.option(pool, ",init")).to_vec();
        pools.extend(NEW.map(|pool| node.option(pool, ",init,require-mount")));
        let mut rig = ServedDisks::serve(node, &pools).await;
        let kept = rig.keep_in(&KNOWN).await;
        for volume in &kept {
            volume.unpublish(&mut rig.clients).await;
        }
        Self {
            rig,
            disks,
            wrong,
            kept,
        }
    }

    fn disk(&self, pool: &str) -> &LoopMount {
        let mut disks = self.disks.iter();
        disks.find(|disk| disk.path().ends_with(pool)).unwrap()
    }

    /// The image of a pool's own disk, once nothing holds it.
    fn free_image(&self, pool: &str) -> &Path {
        let disk = self.disk(pool);
        eventually("nothing holds the disk", || disk.device().is_empty());
        disk.image()
    }

    /// Mounts the wrong disks and returns the files of each.
    fn exchange(&mut self) -> Vec<Picture> {
        unmount_all(&self.disks[1..KNOWN.len()]);
        for (pool, other) in [("left", "right"), ("right", "left")] {
            let image = self.free_image(other).to_owned();
            self.wrong.push(Wrong {
                pool,
                reason: SWAPPED,
                image,
            });
        }
        let own_copy = self.rig.node.path("own-copy.image");
        copy(self.free_image("itself"), &own_copy);
        self.disk("itself").mount_image(&own_copy, &[]);
        let before = self.inspect_wrong();
        for wrong in &self.wrong {
            self.disk(wrong.pool).mount_image(&wrong.image, &[]);
        }
        before
    }

    fn inspect_wrong(&self) -> Vec<Picture> {
        let aside = self.rig.node.path("aside");
        let wrong = self.wrong.iter();
        wrong.map(|wrong| read_disk(&wrong.image, &aside)).collect()
    }

    /// Unmounts the wrong disks again.
    fn take_away(&self) {
        for wrong in &self.wrong {
            self.disk(wrong.pool).unmount();
        }
        self.disk("itself").unmount();
    }
}

/// A wrong disk at a pool's mount point is refused by name, and so is a pool's disk at another
/// mount point. Nothing on the disk changes, and the pool is served again when the right disk is
/// back. A copy of a pool's disk that replaces the original counts as that pool.
///
/// Proves: DK3.
#[tokio::test]
async fn another_disk_is_refused_and_left_as_it_is() {
    require!(loop_devices);
    let mut exchange = Exchange::new().await;
    let before = exchange.exchange();
    let Exchange {
        rig, wrong, kept, ..
    } = &mut exchange;
    for Wrong { pool, reason, .. } in wrong {
        rig.wait(&[(*pool, *reason)]).await;
    }
    for (pool, volume) in KNOWN.iter().zip(kept) {
        if [WELL, "itself"].contains(pool) {
            rig.wait(&[(*pool, "healthy")]).await;
            rig.assert_work(&[pool]).await;
        } else {
            rig.assert_unavailable(pool, volume).await;
        }
    }

    exchange.take_away();
    assert_eq!(exchange.inspect_wrong(), before);
    let Exchange {
        rig, disks, kept, ..
    } = &mut exchange;
    mount_all(&disks[1..KNOWN.len()]);
    rig.wait_all(&KNOWN, "healthy").await;
    for volume in kept {
        volume.assert_kept(&mut rig.clients).await;
    }
    rig.assert_work(&KNOWN).await;
    rig.assert_beneath();
}
