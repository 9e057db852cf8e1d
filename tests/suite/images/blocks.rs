//! The blocks of images: a thick image keeps them, and is served on a full disk.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FallocateFlags, Mode as FileMode, OFlags, fallocate};

use super::*;
use support::nobody::{as_nobody, ioctl, ioctl_with};

/// The size of a device, and the bytes that each step releases.
const SIZE: u64 = 64 * MIB;
const RELEASED: u64 = MIB;

/// `linux/magic.h`.
const BTRFS_SUPER_MAGIC: rustix::fs::FsWord = 0x9123_683E;

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

impl ImageRig {
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
        let request = formatted(volume, 300 * MIB, "xfs", allocation);
        self.driver().create(&request).unwrap()
    }

    /// Writes other data until the disk has no free block. On btrfs small files still find one.
    pub(super) fn fill_disk(&self) {
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

    /// Waits until nothing is left of deleted copies. Btrfs destroys their subvolumes in the background.
    fn wait_until_destroyed(&self) {
        self.wait_for_trash();
        let pool = self.node.pool();
        if rustix::fs::statfs(&pool).unwrap().f_type == BTRFS_SUPER_MAGIC {
            run(&["btrfs", "subvolume", "sync"], &pool, true);
        }
    }

    /// Removes the other data.
    pub(super) fn empty_disk(&self) {
        for entry in fs::read_dir(self.node.pool()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_str().unwrap().starts_with("other") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        rustix::fs::syncfs(File::open(self.node.pool()).unwrap()).unwrap();
    }

    /// Whether the record of a volume says that its image was never mounted for writing.
    pub(super) fn is_unused(&self, volume: &str) -> bool {
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
    let rig = ImageRig::new(Disk::new("ext4"));
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
        let rig = ImageRig::sized(disk, 512 << 20);
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
        let rig = ImageRig::sized(disk, 2 << 30);
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
        let rig = ImageRig::new(disk);
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
        let rig = ImageRig::sized(disk, 512 << 20);
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
        let rig = ImageRig::sized(disk, 512 << 20);
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

/// While a snapshot shares the blocks of a device, each write to a full disk either fails, or is there afterwards.
///
/// Proves: I2.
#[test]
fn no_write_of_a_device_is_lost_on_a_full_disk() {
    const PIECE: usize = 512 << 10;
    require!(loop_devices);
    for disk in disks().into_iter().skip(1) {
        let rig = ImageRig::sized(disk, 512 << 20);
        let volume = rig.device("pvc", SIZE);
        let target = rig.publish_device(&volume, "pod");
        write_blocks(&target, 1, 1);
        rig.unpublish(&volume, &target);
        let taken = snapshot("snap", volume.id);
        rig.driver().create_snapshot(&taken).unwrap();
        let target = rig.publish_device(&volume, "pod");
        let device = open(&target);
        let write = |at: usize, length: usize| {
            let written = device.write_all_at(&vec![2; length], at as u64);
            written.and_then(|()| device.sync_data())
        };
        // Only the first half of each piece has blocks of its own.
        let pieces = (0..usize::try_from(SIZE).unwrap()).step_by(PIECE);
        for at in pieces.clone() {
            write(at, PIECE / 2).unwrap();
        }
        rig.fill_disk();
        let failed: Vec<_> = pieces.clone().map(|at| write(at, PIECE).is_err()).collect();
        assert!(failed.contains(&true), "the disk was not full");
        drop(device);
        rig.empty_disk();
        rig.unpublish(&volume, &target);
        let target = rig.publish_device(&volume, "pod");
        let has = content(&target, usize::try_from(SIZE).unwrap());
        for (at, failed) in pieces.zip(failed) {
            assert!(
                failed || has[at..at + PIECE] == vec![2; PIECE],
                "{at} is lost"
            );
        }
        rig.unpublish(&volume, &target);
    }
}

/// Once no copy shares the blocks of a thick image, the pod can write all of it on a full disk. A copy of it can be
/// written too.
///
/// Proves: I1, DK5.
#[test]
fn a_thick_device_is_written_on_a_full_disk_after_its_copies() {
    require!(loop_devices);
    for disk in disks().into_iter().skip(1) {
        let rig = ImageRig::new(disk);
        let volume = rig.device("pvc", SIZE);
        let target = rig.publish_device(&volume, "pod");
        write_blocks(&target, 1, 1);
        let taken = snapshot("snap", volume.id);
        let taken = rig.driver().create_snapshot(&taken).unwrap();
        let mut restored = device("restored", SIZE);
        restored.source = Some(SourceId::Snapshot(taken.id.to_string()));
        let restored = rig.driver().create(&restored).unwrap();
        write_blocks(&target, 2, 2);
        rig.driver().delete_snapshot(&taken.id.to_string()).unwrap();
        // The restore has the first content alone then.
        write_blocks(&target, 3, 1);
        rig.wait_until_destroyed();
        rig.fill_disk();
        let copy = rig.publish_device(&restored, "restored");
        for (at, byte) in [(&target, 4), (&copy, 5)] {
            write_blocks(at, byte, 1);
            let length = usize::try_from(SIZE).unwrap();
            assert_eq!(content(at, length), vec![byte; length], "{}", disk.name);
        }
    }
}

/// Pods wait while the blocks of an image with many extents are shared, so `maxStall` refuses its copy.
///
/// Proves: I3.
#[test]
fn an_image_with_many_extents_is_not_copied_in_a_short_time() {
    require!(loop_devices);
    for disk in disks().into_iter().skip(1) {
        let rig = ImageRig::new(disk);
        let volume = rig.device("pvc", SIZE);
        let target = rig.publish_device(&volume, "pod");
        write_blocks(&target, 1, 1);
        let mut taken = snapshot("snap", volume.id);
        taken.class.copies.max_stall = Some(Duration::from_millis(50));
        rig.driver().create_snapshot(&taken).unwrap();
        // Each second piece has blocks of its own now.
        write_blocks(&target, 2, 2);
        taken.name = "late".parse().unwrap();
        let refused = rig.driver().create_snapshot(&taken).unwrap_err();
        let code = refused.code(Operation::CreateSnapshot);
        assert_eq!(code, Code::FailedPrecondition, "{}: {refused}", disk.name);
        taken.class.copies.max_stall = None;
        rig.driver().create_snapshot(&taken).unwrap();
    }
}

/// Writes this byte into every `step`th piece of a device, durably.
#[track_caller]
fn write_blocks(device: &Path, byte: u8, step: usize) {
    const PIECE: u64 = 64 << 10;
    let file = File::options().write(true).open(device).unwrap();
    let piece = vec![byte; usize::try_from(PIECE).unwrap()];
    for at in (0..SIZE)
        .step_by(usize::try_from(PIECE).unwrap())
        .step_by(step)
    {
        file.write_all_at(&piece, at).unwrap();
    }
    file.sync_all().unwrap();
}
