//! Power-off: the images of two loop mounts, of the pool's disk and of the state directory's, are
//! copied after each step that changes a disk and after each reply; what the copies hold is what
//! the disks would hold had the power failed there.

mod image;
pub(crate) mod operations;
pub(crate) mod scene;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rootcellar::os::{Object, Observer, Step};
use rootcellar::pool::enable_quota;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::common::loops::{LoopMount, obstacle};
use crate::common::{NodeDir, eventually};
use crate::skip;
use image::Image;
use operations::OPERATIONS;
use scene::{Disks, Moments, play};

/// Where the two disks are mounted.
pub(crate) const PLACES: [&str; 2] = ["disk", "state"];

/// Both disks at one moment.
type Shot = [Arc<Image>; 2];

/// Copies the images after every step while it is armed, if anything changed.
#[derive(Debug)]
struct Camera {
    images: [PathBuf; 2],
    mounts: [PathBuf; 2],
    /// Whether the filesystems commit by themselves after every step, as they may at any time.
    commits: bool,
    shots: Mutex<Option<Vec<Shot>>>,
}

impl Camera {
    fn shoot(&self, shots: &mut Vec<Shot>) {
        let [pool, state] = [0, 1].map(|disk| {
            let image = Image::read(&self.images[disk]);
            match shots.last() {
                Some(last) if *last[disk] == image => Arc::clone(&last[disk]),
                _ => Arc::new(image),
            }
        });
        let is_news = shots.last().is_none_or(|[last_pool, last_state]| {
            !Arc::ptr_eq(last_pool, &pool) || !Arc::ptr_eq(last_state, &state)
        });
        if is_news {
            shots.push([pool, state]);
        }
    }
}

impl Observer for Camera {
    fn before(&self, _step: Step, _name: &OsStr) -> Result<(), Errno> {
        Ok(())
    }

    fn after(&self, _step: Step, _name: &OsStr) {}

    fn changed(&self, _step: Step, _object: Object<'_>) {
        if let Some(shots) = self.shots.lock().unwrap().as_mut() {
            if self.commits {
                for mount in &self.mounts {
                    rustix::fs::syncfs(std::fs::File::open(mount).unwrap()).unwrap();
                }
            }
            self.shoot(shots);
        }
    }
}

/// Two filesystems in images, which are kept in memory.
struct Loops {
    disks: [LoopMount; 2],
    empty: [Image; 2],
    camera: Arc<Camera>,
    node: Arc<NodeDir>,
}

impl Loops {
    fn new(filesystem: &str, quota: bool, commits: bool) -> Self {
        let node = Arc::new(NodeDir::new());
        let images = node.path("images");
        std::fs::create_dir(&images).unwrap();
        mount_empty(&images);
        let images = PLACES.map(|place| images.join(place));
        let mounts = PLACES.map(|place| node.path(place));
        let disks = [0, 1].map(|disk| LoopMount::make(filesystem, &images[disk], &mounts[disk]));
        if quota {
            assert!(enable_quota(disks[0].path()).unwrap());
        }
        disks.iter().for_each(LoopMount::unmount);
        Self {
            empty: [0, 1].map(|disk| Image::read(&images[disk])),
            disks,
            camera: Arc::new(Camera {
                images,
                mounts,
                commits,
                shots: Mutex::new(None),
            }),
            node,
        }
    }

    fn insert(&self, disk: usize, image: &Image) {
        let path = &self.camera.images[disk];
        image.write(path);
        self.disks[disk].mount_image(path);
    }
}

impl Disks for Loops {
    type Moment = Shot;

    fn format(&mut self) {
        for (disk, image) in self.empty.iter().enumerate() {
            self.insert(disk, image);
        }
    }

    fn witness(&self) -> Arc<dyn Observer> {
        self.camera.clone()
    }

    fn watch(&mut self) {
        *self.camera.shots.lock().unwrap() = Some(Vec::new());
    }

    fn stop_watching(&mut self) -> Moments<Shot> {
        let during = self.camera.shots.lock().unwrap().take().unwrap();
        let mut replied = Vec::new();
        self.camera.shoot(&mut replied);
        Moments { during, replied }
    }

    fn unmount(&mut self) {
        unmount_all(&self.node);
    }

    fn mount(&mut self, shot: &Shot, pool_is_missing: bool) {
        for (disk, image) in shot.iter().enumerate() {
            if disk == 0 && pool_is_missing {
                mount_empty(self.disks[disk].path());
            } else {
                self.insert(disk, image);
            }
        }
    }
}

/// Unmounts both disks as an operator would. The thread that opened a pool may be the last to let
/// go of it.
pub(crate) fn unmount_all(node: &NodeDir) {
    for place in PLACES {
        let at = node.path(place);
        eventually("nothing holds the disk", || {
            rustix::mount::unmount(&at, UnmountFlags::empty()).is_ok()
        });
    }
}

/// Mounts an empty filesystem in memory.
pub(crate) fn mount_empty(at: &Path) {
    let flags = MountFlags::empty();
    rustix::mount::mount("rootcellar-test", at, "tmpfs", flags, None).unwrap();
}

fn lose_power(filesystem: &str, quota: bool) {
    for commits in [false, true] {
        let mut loops = Loops::new(filesystem, quota, commits);
        let node = Arc::clone(&loops.node);
        for operation in OPERATIONS {
            play(&mut loops, &node, operation);
        }
    }
}

/// Whatever is done when the power fails, on ext4: what was acknowledged is there whole, and
/// nothing else is left.
#[test]
fn nothing_acknowledged_is_lost_on_ext4() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    lose_power("ext4", false);
}

/// As above, on XFS.
#[test]
fn nothing_acknowledged_is_lost_on_xfs() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    lose_power("xfs", false);
}

/// As above, on btrfs.
#[test]
fn nothing_acknowledged_is_lost_on_btrfs() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    lose_power("btrfs", false);
}

/// As above, on btrfs with simple quota: there the limits are as recorded besides.
#[test]
fn nothing_acknowledged_is_lost_on_btrfs_with_quota() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    lose_power("btrfs", true);
}
