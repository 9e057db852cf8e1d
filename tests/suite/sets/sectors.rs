//! Images and block volumes that move, or are copied, to disks with sectors of other sizes. A block volume has the same sectors
//! on all of them, and one of an earlier version those of its disk.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use linux::mount::{KernelMounter, Users};
use pool::Image;
use rootcellar::error::Error;
use rootcellar::volume::{Allocation, Caller, CreateRequest, Settings, SourceId, Volume};

use super::cordon::cordon_at;
use super::moving::moves;
use super::{Bytes, Code, MIB, Operation, Running, assert_code};
use crate::images::{device, formatted};
use support::loops::run;
use support::{Fakes, Node, directory_of, eventually, names, publish, require, snapshot};

/// The first bytes of a GPT, which is in the second sector of a device.
const GPT: &[u8] = b"EFI PART";

/// The content of a block volume.
const BLOCK: u64 = 16 * MIB;

/// A node with a set of three disks with sectors of these sizes. The first one has the most free space.
struct Disks {
    node: Node,
    members: Vec<PathBuf>,
}

impl Disks {
    fn new(filesystem: &str, sectors: [u32; 3]) -> Self {
        let node = Node::new();
        let members = ["a", "b", "c"]
            .into_iter()
            .zip(sectors)
            .zip([1000, 900, 800]);
        let members = members.map(|((name, sector), mib)| {
            let (image, at) = (node.path(name), node.path("disks").join(name));
            File::create(&image).unwrap().set_len(mib << 20).unwrap();
            std::fs::create_dir_all(&at).unwrap();
            let mut attach = Command::new("losetup");
            attach.args(["--find", "--show", "--direct-io=on", "--sector-size"]);
            let attached = attach.arg(sector.to_string()).arg(&image).output().unwrap();
            assert!(attached.status.success(), "{attached:?}");
            let device = String::from_utf8(attached.stdout).unwrap();
            let device = device.trim();
            run(Command::new(format!("mkfs.{filesystem}")).args(["-q", device]));
            run(Command::new("mount").arg(device).arg(&at));
            // It is detached with its mount.
            run(Command::new("losetup").args(["--detach", device]));
            at
        });
        let members = members.collect();
        Self { node, members }
    }

    fn driver(&self) -> Running {
        let set = self.node.path("disks");
        let option = format!("set={},init,reserve=0", set.display());
        let settings = Settings {
            sets: vec![option.parse().unwrap()],
            ..self.node.settings(&[])
        };
        let fakes = Fakes {
            mounter: Arc::new(KernelMounter),
            ..Fakes::default()
        };
        self.node.volumes_with(settings, &fakes)
    }

    /// Makes a block volume with a partition table for sectors of this size, in the member a.
    fn device(&self, driver: &Running, sector: u32) -> (Volume, Vec<u8>) {
        let volume = driver.create(&device("pvc", BLOCK)).unwrap();
        self.write_table(driver, volume, sector)
    }

    /// A driver with a block volume of an earlier version, as [`Disks::device`] makes it.
    fn earlier_device(&self, sector: u32) -> (Running, Volume, Vec<u8>) {
        let driver = self.driver();
        let volume = driver.create(&device("pvc", BLOCK)).unwrap();
        drop(driver);
        let volumes = self.members[0].join("volumes");
        let record = directory_of(&volumes, "pvc").join("volume.json");
        let written = std::fs::read(&record).unwrap();
        let mut written: serde_json::Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written["format"], 3);
        written["format"] = 2.into();
        let image = written["image"].as_object_mut().unwrap();
        assert_eq!(image.remove("sector").unwrap(), 4096);
        std::fs::write(&record, written.to_string()).unwrap();
        let driver = self.driver();
        let (volume, content) = self.write_table(&driver, volume, sector);
        (driver, volume, content)
    }

    fn write_table(&self, driver: &Running, volume: Volume, sector: u32) -> (Volume, Vec<u8>) {
        assert_eq!(volume.pool.as_str(), "set/a");
        let mut content = vec![7; usize::try_from(BLOCK).unwrap()];
        content[usize::try_from(sector).unwrap()..][..GPT.len()].copy_from_slice(GPT);
        self.with(driver, &volume, |target| {
            let device = File::options().write(true).open(target).unwrap();
            device.write_all_at(&content, 0).unwrap();
        });
        (volume, content)
    }

    /// Asserts that a block volume has this content, sectors of this size and direct I/O.
    #[track_caller]
    fn assert_device(&self, driver: &Running, volume: &Volume, content: &[u8], sector: u32) {
        self.with(driver, volume, |target| {
            let has = ["queue/logical_block_size", "loop/dio"].map(|file| in_sysfs(target, file));
            assert_eq!(has, [u64::from(sector), 1], "{}", volume.pool);
            let is_same = std::fs::read(target).unwrap() == content;
            assert!(is_same, "{}", volume.pool);
        });
    }

    /// Makes an image with a filesystem, and a file with the name of the filesystem.
    fn image(&self, driver: &Running, format: &str, size: u64) -> Volume {
        let request = formatted("pvc", size, format, Allocation::Thin);
        let volume = driver.create(&request).unwrap();
        self.with(driver, &volume, |target| {
            std::fs::write(target.join("file"), format).unwrap();
        });
        volume
    }

    /// Asserts that an image has this file.
    #[track_caller]
    fn assert_image(&self, driver: &Running, volume: &Volume, format: &str) {
        let read = |target: &Path| std::fs::read(target.join("file")).unwrap();
        let content = self.with(driver, volume, read);
        assert_eq!(content, format.as_bytes(), "{}", volume.pool);
    }

    /// Reserves the free space of the member a but for a MiB. Returns the id of the volume that has it.
    fn fill_first(&self, driver: &Running) -> String {
        let cordon_others = |cordoned| {
            for member in &self.members[1..] {
                cordon_at(&self.node, member, cordoned);
            }
        };
        cordon_others(true);
        let mut request = device("filler", 0);
        request.class.allocation = Some(Allocation::Thin);
        let capacity = driver.capacity(&request.class, &request.capabilities);
        // The disk may have less than at its last inspection.
        request.required = Bytes(capacity.unwrap().largest.0 - MIB);
        let filler = driver.create(&request).unwrap();
        assert_eq!(filler.pool.as_str(), "set/a");
        cordon_others(false);
        filler.id.to_string()
    }

    /// The number of volumes in a member, with what a copy may have left.
    fn volumes_in(&self, member: &str) -> usize {
        let at = self.node.path("disks").join(member);
        for place in ["staging", "trash"] {
            let place = at.join(".rootcellar").join(place);
            eventually("no copy is left", || names(&place).is_empty());
        }
        names(&at.join("volumes")).len()
    }

    /// Publishes a volume, uses it and unpublishes it.
    fn with<T>(&self, driver: &Running, volume: &Volume, act: impl FnOnce(&Path) -> T) -> T {
        let (id, target) = (volume.id.to_string(), self.node.target("pod"));
        let mut request = publish(&id, &target);
        request.capability.block = is_device(volume);
        driver.publish(&request).unwrap();
        let done = act(&target);
        eventually("it is unpublished", || {
            driver.unpublish(&id, &target).is_ok()
        });
        done
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for member in &self.members {
            let _ = Command::new("umount").arg("--lazy").arg(member).output();
        }
    }
}

/// Takes a snapshot of a volume, to copy it.
fn taken(driver: &Running, volume: &Volume) -> SourceId {
    let request = snapshot("snap", volume.id);
    let taken = driver.create_snapshot(&request).unwrap();
    SourceId::Snapshot(taken.id.to_string())
}

/// The request for a copy, which may be made byte by byte.
fn copy(source: SourceId, mut of: CreateRequest) -> CreateRequest {
    of.class.copies.copy = true;
    of.source = Some(source);
    of
}

/// Asserts that the disk of member b was refused because of its sectors.
#[track_caller]
fn assert_of_other_sectors(refused: &Error, operation: Operation, [own, other, _]: [u32; 3]) {
    assert_code(refused, operation, Code::FailedPrecondition);
    let says = format!("sectors of {own} bytes, and the disk of pool set/b has sectors of {other}");
    assert!(refused.to_string().contains(&says), "{refused}");
}

fn is_device(volume: &Volume) -> bool {
    volume.image.is_some_and(Image::is_device)
}

/// A number that sysfs has for the device that a target shows.
fn in_sysfs(target: &Path, file: &str) -> u64 {
    let number = std::fs::metadata(target).unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let file = format!("/sys/dev/block/{major}:{minor}/{file}");
    std::fs::read_to_string(file)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// A pool's filesystem, the sectors of the disks, and the format and size of an image with a filesystem on the first one.
const OF_IMAGES: [(&str, [u32; 3], &str, u64); 2] = [
    ("ext4", [512, 4096, 512], "xfs", 300 * MIB),
    ("xfs", [4096, 512, 4096], "ext4", 64 * MIB),
];

/// An image with a filesystem has its files on a disk with larger or smaller sectors too.
///
/// Proves: MV2.
#[test]
fn an_image_moves_between_disks_with_other_sectors() {
    require!(loop_devices);
    for (filesystem, sectors, format, size) in OF_IMAGES {
        let disks = Disks::new(filesystem, sectors);
        let driver = disks.driver();
        let volume = disks.image(&driver, format, size);
        for (to, from) in [("b", "a"), ("c", "b")] {
            moves(&driver, &volume, to, from);
            disks.assert_image(&driver, &volume, format);
        }
    }
}

/// A block volume has its partition table in the same sector on every disk, also while it shares blocks with a snapshot, and so
/// have its restores.
///
/// Proves: I2, MV3, PS7.
#[test]
fn a_block_volume_has_the_same_sectors_on_every_disk() {
    require!(loop_devices);
    for (filesystem, sectors) in [("xfs", [512, 4096, 512]), ("ext4", [4096, 512, 4096])] {
        let disks = Disks::new(filesystem, sectors);
        let driver = disks.driver();
        let (volume, content) = disks.device(&driver, Image::SECTOR);
        let assert_same =
            |volume: &Volume| disks.assert_device(&driver, volume, &content, Image::SECTOR);
        let taken = taken(&driver, &volume);
        assert_same(&volume);
        let restore = |name| copy(taken.clone(), device(name, BLOCK));
        let restored = driver.create(&restore("restored")).unwrap();
        assert_eq!(restored.pool.as_str(), "set/a");
        assert_same(&restored);
        disks.fill_first(&driver);
        let elsewhere = driver.create(&restore("elsewhere")).unwrap();
        assert_eq!(elsewhere.pool.as_str(), "set/b");
        assert_same(&elsewhere);
        for (to, from) in [("b", "a"), ("c", "b")] {
            moves(&driver, &volume, to, from);
            assert_same(&volume);
        }
    }
}

/// A block volume of an earlier version moves to a disk with sectors of the same size, where its partition table is in the same
/// sector. On another disk nobody would find it, so the move is refused, and the volume stays as it is.
///
/// Proves: MV3.
#[test]
fn a_partition_table_stays_in_its_sector() {
    require!(loop_devices);
    for sectors in [[512, 4096, 512], [4096, 512, 4096]] {
        let disks = Disks::new("xfs", sectors);
        let (driver, volume, content) = disks.earlier_device(sectors[0]);
        let assert_kept = || disks.assert_device(&driver, &volume, &content, sectors[0]);
        let id = volume.id.to_string();
        let to_b = || driver.move_to(&id, "b", Users::Check, &Caller::default());
        assert_of_other_sectors(&to_b().unwrap_err(), Operation::Volume, sectors);
        assert_kept();
        moves(&driver, &volume, "c", "a");
        assert_kept();
        to_b().unwrap_err();
        moves(&driver, &volume, "a", "c");
        assert_kept();
    }
}

/// A restore of an image with a filesystem has its files on a disk with larger or smaller sectors too.
///
/// Proves: PS7.
#[test]
fn an_image_is_copied_between_disks_with_other_sectors() {
    require!(loop_devices);
    for (filesystem, sectors, format, size) in OF_IMAGES {
        let disks = Disks::new(filesystem, sectors);
        let driver = disks.driver();
        let volume = disks.image(&driver, format, size);
        let taken = taken(&driver, &volume);
        disks.fill_first(&driver);
        let restored = formatted("restored", size, format, Allocation::Thin);
        let restored = copy(taken, restored);
        let restored = driver.create(&restored).unwrap();
        assert_eq!(restored.pool.as_str(), "set/b", "{filesystem}");
        for volume in [&volume, &restored] {
            disks.assert_image(&driver, volume, format);
        }
    }
}

/// While the disk of a block volume of an earlier version is full, and the others have sectors of another size, a restore or
/// clone of it is refused and leaves nothing behind. The source stays, and is copied once its disk has space again. On XFS with
/// sectors of 512 bytes, the copies share no blocks, so that its sectors stay the same.
///
/// Proves: I2, PS7.
#[test]
fn a_block_volume_is_not_copied_to_other_sectors() {
    require!(loop_devices);
    for (filesystem, sectors) in [("xfs", [512, 4096, 4096]), ("ext4", [4096, 512, 512])] {
        let disks = Disks::new(filesystem, sectors);
        let (driver, volume, content) = disks.earlier_device(sectors[0]);
        let taken = taken(&driver, &volume);
        let filler = disks.fill_first(&driver);
        let restore = copy(taken, device("restored", BLOCK));
        let clone = SourceId::Volume(volume.id.to_string());
        let clone = copy(clone, device("cloned", BLOCK));
        for _ in 0..2 {
            let refused = driver.create(&restore).unwrap_err();
            assert_of_other_sectors(&refused, Operation::CreateVolume, sectors);
            // A clone of an image is never on another member.
            let refused = driver.create(&clone).unwrap_err();
            assert_code(&refused, Operation::CreateVolume, Code::ResourceExhausted);
        }
        for (member, volumes) in [("a", 2), ("b", 0), ("c", 0)] {
            assert_eq!(disks.volumes_in(member), volumes, "{filesystem}: {member}");
        }
        assert_eq!(driver.list(usize::MAX, "").unwrap().objects.len(), 2);
        disks.assert_device(&driver, &volume, &content, sectors[0]);

        driver.delete(&filler).unwrap();
        driver.wait_for_trash();
        for request in [&restore, &clone] {
            let made = driver.create(request).unwrap();
            assert_eq!(made.pool.as_str(), "set/a", "{filesystem}");
            disks.assert_device(&driver, &made, &content, sectors[0]);
        }
    }
}

/// A restore of a block volume of an earlier version passes over a disk with sectors of another size, although that has more
/// free space.
///
/// Proves: PS7.
#[test]
fn a_copy_passes_over_a_disk_with_other_sectors() {
    require!(loop_devices);
    for sectors in [[512, 4096, 512], [4096, 512, 4096]] {
        let disks = Disks::new("xfs", sectors);
        let (driver, volume, content) = disks.earlier_device(sectors[0]);
        let taken = taken(&driver, &volume);
        disks.fill_first(&driver);
        let restored = driver.create(&copy(taken, device("restored", BLOCK)));
        let restored = restored.unwrap();
        assert_eq!(restored.pool.as_str(), "set/c");
        disks.assert_device(&driver, &restored, &content, sectors[0]);
        assert_eq!(disks.volumes_in("b"), 0);
    }
}
