//! Real filesystems in images, which are copied after each step that changes a disk and after each
//! reply.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use linux::os::{Object, Observer, Step};
use pool::enable_quota;
use rustix::mount::{MountFlags, UnmountFlags};

use super::image::Image;
use super::limits;
use super::operations::Operation;
use super::scene::{Disks, Moments, Pools, Scene, play};
use crate::disk::Disk;
use crate::loops::LoopMount;
use crate::{Node, eventually};

/// The size of the last disk in memory, in bytes.
const MEMORY_SIZE: u64 = 256 << 20;

/// All disks at one moment.
pub(super) type Shot = Vec<Arc<Image>>;

/// While it is armed, copies the images after every step that changed them.
#[derive(Debug)]
struct Camera {
    images: Vec<PathBuf>,
    mounts: Vec<PathBuf>,
    /// Whether the filesystems commit by themselves after every step, as they may at any time.
    commits: bool,
    shots: Mutex<Option<Vec<Shot>>>,
}

impl Camera {
    fn shoot(&self, shots: &mut Vec<Shot>) {
        let read = |(disk, path): (usize, &PathBuf)| {
            let image = Image::read(path);
            match shots.last() {
                Some(last) if *last[disk] == image => Arc::clone(&last[disk]),
                _ => Arc::new(image),
            }
        };
        let shot: Shot = self.images.iter().enumerate().map(read).collect();
        let is_same = |last: &Shot| {
            last.iter()
                .zip(&shot)
                .all(|(last, now)| Arc::ptr_eq(last, now))
        };
        if !shots.last().is_some_and(is_same) {
            shots.push(shot);
        }
    }
}

impl Observer for Camera {
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

/// The filesystems that lose power.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub filesystem: &'static str,
    /// Options of mkfs.
    pub make: &'static [&'static str],
    /// Options of mount.
    pub mount: &'static [&'static str],
    /// Whether simple quota is enabled on the disk of the first pool.
    pub simple_quota: bool,
    /// Inspects the served state after a power-off, in addition to the checks of every scene.
    pub inspect: fn(&Scene, bool),
}

impl Kind {
    /// A filesystem made and mounted without options.
    pub const fn plain(filesystem: &'static str) -> Self {
        Self {
            filesystem,
            make: &[],
            mount: &[],
            simple_quota: false,
            inspect: |_, _| {},
        }
    }

    /// A disk with project quota, whose limits are inspected.
    pub const fn limited(disk: Disk) -> Self {
        Self {
            filesystem: disk.filesystem,
            make: disk.make,
            mount: disk.mount,
            simple_quota: false,
            inspect: limits::are_as_recorded,
        }
    }
}

/// Filesystems in images, which are stored in memory, one for each place of the pools.
pub(super) struct Filesystems {
    pub(super) kind: Kind,
    pub(super) pools: Pools,
    pub(super) disks: Vec<LoopMount>,
    pub(super) images: Vec<PathBuf>,
    empty: Vec<Image>,
    pub(super) node: Arc<Node>,
}

impl Filesystems {
    pub(super) fn new(kind: Kind, pools: Pools) -> Self {
        let node = Arc::new(Node::new());
        let images = node.path("images");
        std::fs::create_dir(&images).unwrap();
        mount_empty(&images);
        let places = pools.places();
        let images: Vec<PathBuf> = (0..places.len())
            .map(|n| images.join(n.to_string()))
            .collect();
        let disk = |(disk, image): (usize, &PathBuf)| {
            let at = node.path(places[disk]);
            std::fs::create_dir_all(&at).unwrap();
            Disk::new(kind.filesystem)
                .larger_by(Pools::more(disk))
                .made_with(kind.make)
                .format(image, &at)
        };
        let disks: Vec<LoopMount> = images.iter().enumerate().map(disk).collect();
        if kind.simple_quota {
            disks[0].mount(kind.mount);
            assert!(enable_quota(disks[0].path()).unwrap());
            disks[0].unmount();
        }
        Self {
            kind,
            pools,
            empty: images.iter().map(|image| Image::read(image)).collect(),
            disks,
            images,
            node,
        }
    }

    /// Writes the image of a disk; mounts nothing.
    pub(super) fn reset(&self, disk: usize) -> &Image {
        self.empty[disk].write(&self.images[disk]);
        &self.empty[disk]
    }

    /// Mounts the disks with these contents, without the first one if that is missing.
    pub(super) fn mount(&self, shot: &Shot, first_is_missing: bool) {
        for (disk, image) in shot.iter().enumerate() {
            if disk == 0 && first_is_missing {
                mount_empty(self.disks[disk].path());
            } else {
                image.write(&self.images[disk]);
                self.mount_image(disk);
            }
        }
    }

    fn mount_image(&self, disk: usize) {
        self.disks[disk].mount_image(&self.images[disk], self.kind.mount);
    }
}

/// A recorder of the contents of filesystems while an operation is played on them.
pub(super) trait Recorder {
    /// Mounts the empty filesystems in their places.
    fn format(&mut self, filesystems: &Filesystems);
    /// As the functions of [`Disks`].
    fn witness(&self) -> Arc<dyn Observer>;
    fn watch(&mut self);
    fn stop_watching(&mut self);
    fn moments(&mut self) -> Moments<Shot>;
}

/// Filesystems and their recorder.
struct Recorded<R> {
    filesystems: Filesystems,
    recorder: R,
}

impl<R: Recorder> Disks for Recorded<R> {
    type Moment = Shot;

    fn pools(&self) -> Pools {
        self.filesystems.pools
    }

    fn format(&mut self) {
        self.recorder.format(&self.filesystems);
    }

    fn witness(&self) -> Arc<dyn Observer> {
        self.recorder.witness()
    }

    fn watch(&mut self) {
        self.recorder.watch();
    }

    fn stop_watching(&mut self) {
        self.recorder.stop_watching();
    }

    fn moments(&mut self) -> Moments<Shot> {
        self.recorder.moments()
    }

    fn unmount(&mut self) {
        unmount_all(&self.filesystems.node, self.filesystems.pools);
    }

    fn inspect(&self, scene: &Scene, is_settled: bool) {
        (self.filesystems.kind.inspect)(scene, is_settled);
    }

    fn mount(&mut self, shot: &Shot, first_is_missing: bool) {
        self.filesystems.mount(shot, first_is_missing);
    }
}

/// Plays operations and inspects every content that the recorder has after each.
pub(super) fn play_all<'a, R: Recorder>(
    filesystems: Filesystems,
    recorder: R,
    operations: impl IntoIterator<Item = &'a Operation>,
) {
    let node = Arc::clone(&filesystems.node);
    let mut disks = Recorded {
        filesystems,
        recorder,
    };
    for operation in operations {
        play(&mut disks, &node, operation);
    }
}

/// Copies the images while they change.
struct Copies {
    camera: Arc<Camera>,
    /// The recorded moments, until they are taken.
    moments: Option<Moments<Shot>>,
}

impl Recorder for Copies {
    fn format(&mut self, filesystems: &Filesystems) {
        for disk in 0..filesystems.disks.len() {
            filesystems.reset(disk);
            filesystems.mount_image(disk);
        }
    }

    fn witness(&self) -> Arc<dyn Observer> {
        self.camera.clone()
    }

    fn watch(&mut self) {
        *self.camera.shots.lock().unwrap() = Some(Vec::new());
    }

    fn stop_watching(&mut self) {
        let mut replied = Vec::new();
        let during = self.camera.shots.lock().unwrap().take().unwrap();
        self.camera.shoot(&mut replied);
        self.moments = Some(Moments { during, replied });
    }

    fn moments(&mut self) -> Moments<Shot> {
        self.moments.take().unwrap()
    }
}

/// Unmounts all disks as an operator would. It retries, because the thread that opened a pool may be
/// the last to close it.
pub fn unmount_all(node: &Node, pools: Pools) {
    for place in pools.places() {
        let at = node.path(place);
        eventually("nothing holds the disk", || {
            rustix::mount::unmount(&at, UnmountFlags::empty()).is_ok()
        });
    }
}

/// Mounts an empty filesystem in memory, of half the memory.
pub fn mount_empty(at: &Path) {
    mount_in_memory(at, None);
}

/// Mounts an empty filesystem in memory as a disk of this place.
pub fn mount_empty_disk(at: &Path, disk: usize) {
    let size = format!("size={}", MEMORY_SIZE + Pools::more(disk));
    mount_in_memory(at, Some(&CString::new(size).unwrap()));
}

fn mount_in_memory(at: &Path, options: Option<&CStr>) {
    let flags = MountFlags::empty();
    rustix::mount::mount("rootcellar-test", at, "tmpfs", flags, options).unwrap();
}

/// Plays operations with a power-off at every moment of each. With `commits`, the filesystems
/// commit by themselves after every step, as they may at any time.
pub fn lose_power<'a>(
    kind: Kind,
    commits: bool,
    pools: Pools,
    operations: impl IntoIterator<Item = &'a Operation>,
) {
    let filesystems = Filesystems::new(kind, pools);
    let mounts = filesystems.disks.iter().map(|disk| disk.path().to_owned());
    let camera = Camera {
        images: filesystems.images.clone(),
        mounts: mounts.collect(),
        commits,
        shots: Mutex::new(None),
    };
    let copies = Copies {
        camera: Arc::new(camera),
        moments: None,
    };
    play_all(filesystems, copies, operations);
}
