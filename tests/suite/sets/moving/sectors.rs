//! Images and block volumes on disks with sectors of other sizes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use linux::mount::KernelMounter;
use pool::Image;
use rootcellar::volume::{Allocation, Kind};

use super::*;
use support::loops::run;

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

fn is_device(volume: &Volume) -> bool {
    volume.image.is_some_and(Image::is_device)
}

/// The size of the sectors of the device that a target shows.
fn sector(target: &Path) -> u64 {
    let number = std::fs::metadata(target).unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let size = format!("/sys/dev/block/{major}:{minor}/queue/logical_block_size");
    std::fs::read_to_string(size)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// An image with a filesystem has its files on a disk with larger or smaller sectors too.
///
/// Proves: MV2.
#[test]
fn an_image_moves_between_disks_with_other_sectors() {
    require!(loop_devices);
    let cases = [
        ("ext4", [512, 4096, 512], "xfs", 300 * MIB),
        ("xfs", [4096, 512, 4096], "ext4", 64 * MIB),
    ];
    for (filesystem, sectors, format, size) in cases {
        let disks = Disks::new(filesystem, sectors);
        let driver = disks.driver();
        let mut request = create(format, size);
        request.class.kind = Kind::Image;
        request.class.allocation = Some(Allocation::Thin);
        request.capabilities[0].fs_type = Some(format.to_owned());
        let volume = driver.create(&request).unwrap();
        let write = |target: &Path| std::fs::write(target.join("file"), format).unwrap();
        disks.with(&driver, &volume, write);
        for (to, from) in [("b", "a"), ("c", "b")] {
            moves(&driver, &volume, to, from);
            let read = |target: &Path| std::fs::read(target.join("file")).unwrap();
            let content = disks.with(&driver, &volume, read);
            assert_eq!(content, format.as_bytes(), "{filesystem}: {to}");
        }
    }
}

/// A block volume moves to a disk with sectors of the same size, where its partition table is in the same sector. On another
/// disk nobody would find it, so the move is refused, and the volume stays as it is.
///
/// Proves: MV3.
#[test]
fn a_partition_table_stays_in_its_sector() {
    require!(loop_devices);
    for sectors in [[512, 4096, 512], [4096, 512, 4096]] {
        let disks = Disks::new("xfs", sectors);
        let driver = disks.driver();
        let mut request = create("pvc", BLOCK);
        request.capabilities[0].block = true;
        let volume = driver.create(&request).unwrap();
        let own = u64::from(sectors[0]);
        let mut content = vec![7; usize::try_from(BLOCK).unwrap()];
        content[usize::try_from(own).unwrap()..][..GPT.len()].copy_from_slice(GPT);
        disks.with(&driver, &volume, |target| {
            let device = File::options().write(true).open(target).unwrap();
            device.write_all_at(&content, 0).unwrap();
        });
        let assert_kept = |at: &str| {
            disks.with(&driver, &volume, |target| {
                assert_eq!(sector(target), own, "{at}");
                assert!(std::fs::read(target).unwrap() == content, "{at}");
            });
        };
        let id = volume.id.to_string();
        let to_b = || driver.move_to(&id, "b", Users::Check, &Caller::default());
        let refused = to_b().unwrap_err();
        assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
        let says = format!(
            "sectors of {own} bytes, and the disk of pool set/b has sectors of {}",
            sectors[1]
        );
        assert!(refused.to_string().contains(&says), "{refused}");
        assert_kept("a");
        moves(&driver, &volume, "c", "a");
        assert_kept("c");
        to_b().unwrap_err();
        moves(&driver, &volume, "a", "c");
        assert_kept("a");
    }
}
