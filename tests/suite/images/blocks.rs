//! The blocks of images: a thick image keeps them, and is served on a full disk.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, symlink};
use std::process::Command;
use std::sync::{Condvar, Mutex};

use linux::image::Owner;
use linux::os;
use rustix::fs::{FallocateFlags, Mode as FileMode, OFlags, fallocate};

use super::*;
use support::nobody::{as_nobody, ioctl, ioctl_with};

/// The size of a device, and the bytes that each step releases.
const SIZE: u64 = 64 * MIB;
const RELEASED: u64 = MIB;

/// `linux/magic.h`.
const BTRFS_SUPER_MAGIC: rustix::fs::FsWord = 0x9123_683E;

/// The directory that mke2fs makes.
const LOST_AND_FOUND: &str = "lost+found";

const BLKDISCARD: u32 = 0x1277;
const BLKZEROOUT: u32 = 0x127F;

type Step = fn(&OwnedFd) -> Result<(), Errno>;

/// The changes of its device that a pod tries before each release. None of them restores discards.
///
/// Before Linux 6.8 `LOOP_SET_STATUS64` does.
const CHANGES: &[(&str, Step)] = &[
    ("nothing", |_| Ok(())),
    ("LOOP_SET_STATUS64", |device| {
        ioctl_with(device, 0x4C04, &[])
    }),
    ("LOOP_SET_STATUS", |device| ioctl_with(device, 0x4C02, &[])),
    ("LOOP_CHANGE_FD", |device| ioctl(device, 0x4C06, 0)),
    ("LOOP_SET_CAPACITY", |device| ioctl(device, 0x4C07, 0)),
    ("LOOP_SET_DIRECT_IO", |device| ioctl(device, 0x4C08, 0)),
    ("LOOP_SET_BLOCK_SIZE", |device| ioctl(device, 0x4C09, 4096)),
];

/// The ways to release the blocks of a device.
const RELEASES: &[(&str, Step)] = &[
    ("BLKDISCARD", |device| {
        ioctl_with(device, BLKDISCARD, &[(8, RELEASED)])
    }),
    ("BLKSECDISCARD", |device| {
        ioctl_with(device, 0x127D, &[(8, RELEASED)])
    }),
    ("BLKZEROOUT", |device| {
        ioctl_with(device, BLKZEROOUT, &[(8, RELEASED)])
    }),
    ("PUNCH_HOLE", |device| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(device, flags, 0, SIZE)
    }),
    ("NO_HIDE_STALE", |device| {
        let flags =
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE | FallocateFlags::NO_HIDE_STALE;
        fallocate(device, flags, 0, SIZE)
    }),
    ("ZERO_RANGE", |device| {
        fallocate(device, FallocateFlags::ZERO_RANGE, 0, RELEASED)
    }),
];

impl Rig {
    /// The bytes of the blocks that the image of a volume has.
    fn allocated(&self, volume: &str) -> u64 {
        fs::metadata(self.file(volume)).unwrap().blocks() * 512
    }

    fn assert_thick(&self, volume: &str, after: &str) {
        let (allocated, length) = (
            self.allocated(volume),
            self.file(volume).metadata().unwrap().len(),
        );
        assert!(allocated >= length, "{volume}: {allocated} after {after}");
    }

    fn xfs(&self, volume: &str, allocation: Allocation) -> Volume {
        let mut request = image(volume, 300 * MIB);
        request.capabilities[0].fs_type = Some("xfs".to_owned());
        request.class.allocation = Some(allocation);
        self.driver().create(&request).unwrap()
    }

    /// Writes other data until the disk has no free block. On btrfs small files still find one.
    fn fill_disk(&self) {
        let pool = self.node.pool();
        let is_btrfs = rustix::fs::statfs(&pool).unwrap().f_type == BTRFS_SUPER_MAGIC;
        let pieces: &[usize] = if is_btrfs {
            &[1 << 20]
        } else {
            &[1 << 20, 4096]
        };
        let mut other = File::create(pool.join("other")).unwrap();
        for size in pieces {
            let piece = vec![1; *size];
            while other.write_all(&piece).is_ok() {}
            // Delayed writes may find none.
            let _ = other.sync_all();
        }
        let mut small = 0;
        while !is_btrfs && fs::write(pool.join(format!("other-{small}")), [1; 3000]).is_ok() {
            small += 1;
        }
    }

    /// Removes the other data.
    fn empty_disk(&self) {
        for entry in fs::read_dir(self.node.pool()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_str().unwrap().starts_with("other") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        rustix::fs::syncfs(File::open(self.node.pool()).unwrap()).unwrap();
    }

    /// Publishes an image read-only.
    fn publish_to_read(&self, volume: &Volume, pod: &str) -> PathBuf {
        let target = self.node.target(pod);
        let mut request = publish(&volume.id.to_string(), &target);
        request.read_only = true;
        self.driver().publish(&request).unwrap();
        target
    }

    /// Whether the record of a volume says that its image was never mounted for writing.
    fn is_unused(&self, volume: &str) -> bool {
        let volumes = self.node.pool().join("volumes");
        let record = directory_of(&volumes, volume).join("volume.json");
        fs::read_to_string(record).unwrap().contains("unused")
    }
}

/// Runs a program on a path, which must succeed, or fail.
#[track_caller]
fn run(program: &[&str], path: &Path, succeeds: bool) {
    let (name, arguments) = program.split_first().unwrap();
    let output = Command::new(name).args(arguments).arg(path).output();
    let output = output.unwrap();
    assert_eq!(output.status.success(), succeeds, "{program:?}: {output:?}");
}

/// A pod without any privilege releases no block of a thick image, even if it changes its device before.
///
/// Proves: I1.
#[test]
fn a_pod_releases_no_block_of_a_thick_device() {
    require!(loop_devices);
    let rig = Rig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", SIZE);
    let target = rig.publish_device(&volume, "pod");
    let node = rig.node_of_pod(&target);
    let path = CString::new(node.as_os_str().as_bytes()).unwrap();
    for (change, before) in CHANGES {
        for (release, step) in RELEASES {
            let path = path.clone();
            let outcome = as_nobody(move || {
                let device = rustix::fs::open(&*path, OFlags::RDWR, FileMode::empty())?;
                let _ = before(&device);
                step(&device)
            });
            eprintln!("{change}, {release}: {outcome:?}");
            rig.assert_thick("pvc", &format!("{change} and {release}"));
        }
    }
}

/// The programs of a pod release none either. Afterwards it can write the whole device on a full disk.
///
/// Proves: I1, DK5.
#[test]
fn a_thick_device_is_written_on_a_full_disk_after_mkfs() {
    require!(loop_devices);
    for disk in disks() {
        let rig = Rig::sized(disk, 512 << 20);
        let volume = rig.device("pvc", SIZE);
        let target = rig.publish_device(&volume, "pod");
        for (program, succeeds) in [
            (&["mkfs.ext4", "-q", "-F"][..], true),
            (&["blkdiscard", "--force"], false),
            (&["fallocate", "--punch-hole", "--length=16MiB"], false),
        ] {
            run(program, &target, succeeds);
            rig.assert_thick("pvc", program[0]);
        }
        rig.fill_disk();
        let mut device = open(&target);
        let piece = vec![7; 1 << 20];
        for _ in 0..SIZE / MIB {
            device.write_all(&piece).unwrap();
        }
        device.sync_all().unwrap();
    }
}

/// The host's fstrim releases no block of a mounted thick image. The next thin image, which may get the
/// number of its device, releases its unused blocks.
///
/// Proves: I1.
#[test]
fn fstrim_releases_blocks_of_thin_images_only() {
    require!(loop_devices);
    for disk in disks() {
        let rig = Rig::sized(disk, 2 << 30);
        let thick = rig.xfs("thick", Allocation::Thick);
        let small = rig.image("small", 64 * MIB);
        for volume in [&thick, &small] {
            let target = rig.publish(volume, volume.name.as_str());
            fs::write(target.join("file"), vec![1; 16 << 20]).unwrap();
            File::open(target.join("file")).unwrap().sync_all().unwrap();
            fs::remove_file(target.join("file")).unwrap();
            run(&["fstrim", "--verbose"], &target, false);
        }
        rig.assert_thick("thick", "fstrim");
        rig.assert_thick("small", "fstrim");
        for volume in [&thick, &small] {
            rig.unpublish(volume, &rig.node.target(volume.name.as_str()));
        }

        let thin = rig.xfs("thin", Allocation::Thin);
        let target = rig.publish(&thin, "thin");
        let before = rig.allocated("thin");
        fs::write(target.join("file"), vec![1; 32 << 20]).unwrap();
        File::open(target.join("file")).unwrap().sync_all().unwrap();
        assert!(rig.allocated("thin") > before + 24 * MIB);
        fs::remove_file(target.join("file")).unwrap();
        eventually("the blocks are released", || {
            rustix::fs::syncfs(File::open(&target).unwrap()).unwrap();
            run(&["fstrim", "--verbose"], &target, true);
            rig.allocated("thin") < before + 8 * MIB
        });
    }
}

/// A thick image has its blocks already, so a full disk lets it be published, and it grows into the rest.
///
/// Proves: I1, I4, DK5.
#[test]
fn a_thick_image_is_published_on_a_full_disk() {
    require!(loop_devices);
    for disk in disks() {
        let rig = Rig::new(disk);
        let volume = rig.xfs("pvc", Allocation::Thick);
        let target = rig.publish(&volume, "pod");
        rig.expand(&volume, &target, 340 * MIB).unwrap();
        rig.unpublish(&volume, &target);
        rig.fill_disk();
        let target = rig.publish(&volume, "pod");
        rig.unpublish(&volume, &target);
    }
}

/// A thick image that lost blocks, as on a host that discards, is served on a full disk, and gets them
/// again as soon as there is space.
///
/// Proves: I1, DK5.
#[test]
fn a_thick_image_with_holes_is_published_on_a_full_disk() {
    require!(loop_devices);
    for disk in disks() {
        let rig = Rig::sized(disk, 512 << 20);
        let volume = rig.device("pvc", SIZE);
        let image = File::options().write(true).open(rig.file("pvc")).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&image, flags, 0, SIZE / 2).unwrap();
        rig.fill_disk();
        for read_only in [true, false] {
            let target = rig.try_publishing(&volume, "pod", read_only).unwrap();
            assert_eq!(content(&target, 1 << 20), vec![0; 1 << 20]);
            rig.unpublish(&volume, &target);
        }
        assert!(rig.allocated("pvc") < SIZE, "{}", disk.name);
        rig.empty_disk();
        let target = rig.publish_device(&volume, "pod");
        rig.assert_thick("pvc", "the publication");
        rig.unpublish(&volume, &target);
    }
}

/// A published thick image that loses blocks, as by discards on older kernels, gets them again, on a full disk
/// as soon as there is space.
///
/// Proves: I1.
#[test]
fn a_published_thick_image_gets_lost_blocks_again() {
    require!(loop_devices);
    for disk in disks() {
        let rig = Rig::sized(disk, 512 << 20);
        let thick = rig.device("thick", SIZE);
        let target = rig.publish_device(&thick, "pod");
        let image = File::options().write(true).open(rig.file("thick")).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&image, flags, 0, SIZE / 2).unwrap();
        rig.fill_disk();
        rig.driver().check_pools();
        assert!(rig.allocated("thick") < SIZE, "{}", disk.name);
        rig.empty_disk();
        eventually("the image is thick", || {
            rig.driver().check_pools();
            rig.allocated("thick") >= SIZE
        });
        assert_eq!(content(&target, 1 << 20), vec![0; 1 << 20]);
        rig.unpublish(&thick, &target);
    }
}

/// The first publication of a thick image on a full disk sets owner and mode of its root. No later one
/// does, although the record cannot be written: not after a restart, and not that of a copy.
///
/// Proves: I1, I2, DK5.
#[test]
fn a_first_publication_on_a_full_disk_is_the_only_one_that_sets_the_owner() {
    require!(loop_devices);
    for disk in disks().into_iter().take(2) {
        let mut rig = Rig::new(disk);
        let request = owned("pvc");
        let volume = rig.driver().create(&request).unwrap();
        rig.fill_disk();
        let target = rig.publish(&volume, "pod");
        assert_eq!(owner(&target), (1000, 2000, 0o2770), "{}", disk.name);
        change_owner(&target);
        for _ in 0..2 {
            rig.unpublish(&volume, &target);
            rig.start();
            rig.publish(&volume, "pod");
            assert_eq!(owner(&target), CHANGED, "{}", disk.name);
        }
        rig.unpublish(&volume, &target);
        assert!(rig.is_unused("pvc"), "{}: the record is old", disk.name);
        rig.empty_disk();
        let mut clone = owned("clone");
        clone.source = Some(SourceId::Volume(volume.id.to_string()));
        clone.class.copies.copy = true;
        let clone = rig.driver().create(&clone).unwrap();
        for volume in [&volume, &clone] {
            let name = volume.name.as_str();
            let target = rig.publish(volume, name);
            assert_eq!(owner(&target), CHANGED, "{}: {name}", disk.name);
            assert!(!rig.is_unused(name), "{}: {name}", disk.name);
        }
    }
}

/// A clone and a snapshot that begin before the first publication of their source, and take its content
/// later, have the owner and the mode that a pod set in between.
///
/// Proves: I2, I3.
#[test]
fn a_copy_that_begins_before_the_first_publication_keeps_the_owner() {
    require!(loop_devices);
    let held = Arc::new(Held::default());
    let rig = Rig::with(Disk::new("xfs").sized(1 << 30), held.fakes());
    let volume = rig.driver().create(&owned("pvc")).unwrap();
    let mut clone = owned("clone");
    clone.source = Some(SourceId::Volume(volume.id.to_string()));
    held.hold(true);
    let target = std::thread::scope(|scope| {
        let _end = End(&held);
        let cloned = scope.spawn(|| rig.driver().create(&clone).unwrap());
        let taken = scope.spawn(|| {
            let taken = snapshot("snap", volume.id);
            rig.driver().create_snapshot(&taken).unwrap()
        });
        eventually("the copies wait", || held.waiting() == 2);
        let target = rig.publish(&volume, "pod");
        change_owner(&target);
        held.hold(false);
        let (cloned, taken) = (cloned.join().unwrap(), taken.join().unwrap());
        let mut restore = owned("restore");
        restore.source = Some(SourceId::Snapshot(taken.id.to_string()));
        let restored = rig.driver().create(&restore).unwrap();
        for copy in [cloned, restored] {
            let name = copy.name.as_str();
            assert_eq!(owner(&rig.publish(&copy, name)), CHANGED, "{name}");
        }
        target
    });
    assert_eq!(owner(&target), CHANGED);
}

/// The first publication that can write leaves an empty root with owner and mode of the class. One that is
/// read-only changes nothing, whether it is the first or a later one.
///
/// Proves: I2.
#[test]
fn the_first_writer_finds_an_empty_root() {
    require!(loop_devices);
    for disk in disks().into_iter().take(2) {
        let rig = Rig::new(disk);
        let volume = rig.driver().create(&owned("pvc")).unwrap();
        for _ in 0..2 {
            let reader = rig.publish_to_read(&volume, "reader");
            assert_eq!(support::names(&reader), [LOST_AND_FOUND], "{}", disk.name);
            assert_eq!(owner(&reader), (0, 0, 0o755), "{}", disk.name);
            rig.unpublish(&volume, &reader);
            assert!(rig.is_unused("pvc"), "{}", disk.name);
        }
        // Both show one filesystem.
        let reader = rig.publish_to_read(&volume, "reader");
        let target = rig.publish(&volume, "pod");
        for at in [&reader, &target] {
            assert!(support::names(at).is_empty(), "{}", disk.name);
            assert_eq!(owner(at), (1000, 2000, 0o2770), "{}", disk.name);
        }
        assert!(!rig.is_unused("pvc"), "{}", disk.name);
    }
}

/// A `lost+found` that is not an empty directory is somebody's, and stays.
///
/// Proves: I2.
#[test]
fn a_first_publication_removes_only_an_empty_directory() {
    require!(loop_devices);
    let rig = Rig::new(Disk::new("ext4"));
    let others: [fn(&Path); 4] = [
        |at| fs::create_dir_all(at.join("directory")).unwrap(),
        |at| {
            fs::create_dir(at)
                .and_then(|()| fs::write(at.join("file"), ""))
                .unwrap()
        },
        |at| fs::write(at, "a file").unwrap(),
        |at| symlink("/tmp", at).unwrap(),
    ];
    for (number, make) in others.into_iter().enumerate() {
        let root = rig.node.pool().join(format!("root-{number}"));
        fs::create_dir(&root).unwrap();
        make(&root.join(LOST_AND_FOUND));
        let (uid, gid, mode) = CHANGED;
        linux::image::give_root(File::open(&root).unwrap(), Owner { uid, gid, mode }).unwrap();
        assert_eq!(support::names(&root), [LOST_AND_FOUND], "{number}");
        assert_eq!(owner(&root), CHANGED, "{number}");
    }
}

/// Copies have the `lost+found` of a source that was written, and none of one that never was.
///
/// Proves: I2, I3.
#[test]
fn a_copy_keeps_the_lost_and_found_of_its_source() {
    require!(loop_devices);
    let rig = Rig::new(Disk::new("xfs"));
    let unused = rig.image("unused", SIZE);
    let volume = rig.image("pvc", SIZE);
    let target = rig.publish(&volume, "pod");
    fs::create_dir(target.join(LOST_AND_FOUND)).unwrap();
    let taken = snapshot("snap", volume.id);
    let taken = rig.driver().create_snapshot(&taken).unwrap();
    for (name, source, has) in [
        ("restore", SourceId::Snapshot(taken.id.to_string()), true),
        ("clone", SourceId::Volume(volume.id.to_string()), true),
        ("new", SourceId::Volume(unused.id.to_string()), false),
    ] {
        let mut request = image(name, SIZE);
        request.source = Some(source);
        let copy = rig.driver().create(&request).unwrap();
        let target = rig.publish(&copy, name);
        assert_eq!(target.join(LOST_AND_FOUND).is_dir(), has, "{name}");
    }
    rig.unpublish(&volume, &target);
    rig.publish(&volume, "pod");
    assert_eq!(support::names(&target), [LOST_AND_FOUND], "the pod's own");
}

/// A request for an image whose root gets an owner and a mode.
fn owned(volume: &str) -> CreateRequest {
    let mut request = image(volume, SIZE);
    request.class.parameters.mode = Mode::parse("2770").unwrap();
    (request.class.parameters.uid, request.class.parameters.gid) = (1000, 2000);
    request
}

/// The owner, the group and the mode of the root of an image.
fn owner(target: &Path) -> (u32, u32, u32) {
    let root = fs::metadata(target).unwrap();
    (root.uid(), root.gid(), root.mode() & 0o7777)
}

/// Those that a pod sets.
const CHANGED: (u32, u32, u32) = (7, 8, 0o711);

fn change_owner(target: &Path) {
    chown(target, Some(CHANGED.0), Some(CHANGED.1)).unwrap();
    fs::set_permissions(target, fs::Permissions::from_mode(CHANGED.2)).unwrap();
    rustix::fs::syncfs(File::open(target).unwrap()).unwrap();
}

/// Makes each copy wait before it shares the blocks of an image.
#[derive(Default)]
struct Held {
    /// Whether copies wait, and how many do.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Held {
    fn hold(&self, hold: bool) {
        self.state.lock().unwrap().0 = hold;
        self.changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().1
    }

    fn fakes(self: &Arc<Self>) -> Fakes {
        let held = Arc::clone(self);
        Fakes::planned(move |step, _| {
            if step == os::Step::Share {
                let mut state = held.state.lock().unwrap();
                state.1 += 1;
                drop(held.changed.wait_while(state, |(hold, _)| *hold).unwrap());
            }
            Ok(())
        })
    }
}

/// Lets the copies go on, also after a failed assertion.
struct End<'a>(&'a Held);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}
