//! Every ioctl of a loop device, by a pod without any privilege.

use std::ffi::CString;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use linux::mount::MountTable;
use linux::sys::{self, LoopStatus};
use rustix::fs::OFlags;

use super::*;
use support::nobody::{as_nobody, ioctl, ioctl_with, write_mapped};

const SIZE: u64 = 16 * MIB;

/// A publication of the volume, and how the pod opens its device.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Writable,
    ReadOnly,
    /// A container runtime may let a pod open a read-only device for writing.
    Forced,
}

use Way::{Forced, ReadOnly, Writable};

/// The argument of a step; a descriptor is known only to the pod.
#[derive(Debug, Clone, Copy)]
enum With {
    Nothing,
    Number(u64),
    /// Numbers at offsets of a structure.
    Fields(&'static [(usize, u64)]),
    /// The descriptor of a file of the pod.
    File,
    /// That descriptor, at the start of a structure.
    FileIn,
}

use With::{Fields, File as PodFile, FileIn, Nothing, Number};

/// An attack: the ioctls, and the ways in which the last one succeeds.
struct Attack {
    name: &'static str,
    steps: &'static [(u32, With)],
    succeeds: &'static [Way],
}

const ALL: &[Way] = &[Writable, ReadOnly, Forced];
const FOR_WRITING: &[Way] = &[Writable, Forced];

const fn attack(
    name: &'static str,
    steps: &'static [(u32, With)],
    succeeds: &'static [Way],
) -> Attack {
    Attack {
        name,
        steps,
        succeeds,
    }
}

/// The fields of `struct loop_info64`.
const OFFSET: usize = 24;
const SIZE_LIMIT: usize = 32;
const FLAGS: usize = 52;
const FILE_NAME: usize = 56;

/// The numbers of the ioctls are those of `linux/loop.h` and `linux/fs.h`.
const ATTACKS: &[Attack] = &[
    attack("LOOP_SET_FD", &[(0x4C00, PodFile)], &[]),
    attack("LOOP_CLR_FD", &[(0x4C01, Nothing)], ALL),
    attack(
        "LOOP_SET_FD again",
        &[(0x4C01, Nothing), (0x4C00, PodFile)],
        &[],
    ),
    attack("LOOP_SET_STATUS", &[(0x4C02, Fields(&[]))], FOR_WRITING),
    attack("LOOP_GET_STATUS", &[(0x4C03, Fields(&[]))], ALL),
    attack(
        "the offset",
        &[(0x4C04, Fields(&[(OFFSET, 4096)]))],
        FOR_WRITING,
    ),
    attack(
        "the size",
        &[(0x4C04, Fields(&[(SIZE_LIMIT, 4096)]))],
        FOR_WRITING,
    ),
    attack(
        "the name",
        &[(0x4C04, Fields(&[(FILE_NAME, 0x2f2f_2f2f)]))],
        FOR_WRITING,
    ),
    attack("AUTOCLEAR", &[(0x4C04, Fields(&[(FLAGS, 4)]))], FOR_WRITING),
    attack("PARTSCAN", &[(0x4C04, Fields(&[(FLAGS, 8)]))], FOR_WRITING),
    attack("LOOP_GET_STATUS64", &[(0x4C05, Fields(&[]))], ALL),
    attack("LOOP_CHANGE_FD", &[(0x4C06, PodFile)], &[]),
    attack("LOOP_SET_CAPACITY", &[(0x4C07, Nothing)], FOR_WRITING),
    attack("LOOP_SET_DIRECT_IO", &[(0x4C08, Number(0))], FOR_WRITING),
    attack(
        "LOOP_SET_BLOCK_SIZE",
        &[(0x4C09, Number(4096))],
        FOR_WRITING,
    ),
    attack("LOOP_CONFIGURE", &[(0x4C0A, FileIn)], &[]),
    attack(
        "LOOP_CONFIGURE again",
        &[(0x4C01, Nothing), (0x4C0A, FileIn)],
        &[],
    ),
    // The image is thick.
    attack("BLKDISCARD", &[(0x1277, Fields(&[(8, SIZE)]))], &[]),
    attack("BLKSECDISCARD", &[(0x127D, Fields(&[(8, SIZE)]))], &[]),
    attack("BLKZEROOUT", &[(0x127F, Fields(&[(8, SIZE)]))], &[Writable]),
    attack("BLKRRPART", &[(0x125F, Nothing)], &[]),
    attack("BLKROSET", &[(0x125D, Fields(&[(0, 1)]))], &[]),
    attack("BLKROSET off", &[(0x125D, Fields(&[]))], &[]),
    attack("BLKRASET", &[(0x1262, Number(0))], &[]),
    attack("BLKFLSBUF", &[(0x1261, Nothing)], &[]),
    attack("BLKBSZSET", &[(0x4008_1271, Fields(&[(0, 4096)]))], &[]),
    // A partition of 4096 bytes.
    attack("BLKPG", &[(0x1269, Fields(&[(0, 1)]))], &[]),
];

/// The state of the host that no pod may change.
#[derive(Debug, PartialEq)]
struct Host {
    /// The device of the neighbour: its state, its size and the settings of its queue.
    device: LoopStatus,
    size: u64,
    settings: Vec<(String, String)>,
    content: Vec<u8>,
    file: String,
    mounts: Vec<(PathBuf, PathBuf)>,
}

struct AttackedDevice {
    rig: ImageRig,
    victim: PathBuf,
    mounted: PathBuf,
}

impl AttackedDevice {
    fn new() -> Self {
        let rig = ImageRig::new(Disk::new("ext4"));
        let victim = rig.publish_device(&rig.device("victim", SIZE), "victim");
        fill(&open(&victim), 1);
        let mounted = rig.publish(&rig.image("mounted", SIZE), "mounted");
        fs::write(mounted.join("file"), "content").unwrap();
        Self {
            rig,
            victim,
            mounted,
        }
    }

    fn host(&self) -> Host {
        let victim = open(&self.victim);
        let mounts = MountTable::read().unwrap().entries.into_iter();
        let kubelet = self.rig.node.path("kubelet");
        let mounts = mounts.filter(|mount| mount.mount_point.starts_with(&kubelet));
        Host {
            device: sys::loop_status(victim.as_fd()).unwrap(),
            size: (&victim).seek(SeekFrom::End(0)).unwrap(),
            settings: settings(&self.victim),
            content: content(&self.victim, 1 << 20),
            file: fs::read_to_string(self.mounted.join("file")).unwrap(),
            mounts: mounts
                .map(|mount| (mount.mount_point, mount.root))
                .collect(),
        }
    }

    /// A node of a device for the pod, and a file of the pod.
    fn prepare_pod(&self, target: &Path) -> [PathBuf; 2] {
        let (node, file) = (self.rig.node_of_pod(target), self.rig.node.path("own"));
        File::create(&file).unwrap().set_len(SIZE).unwrap();
        chown(&file, Some(65534), Some(65534)).unwrap();
        [node, file]
    }

    /// Plays an attack on a publication, and then publishes the volume again.
    fn play(&self, attack: &Attack, way: Way) {
        let before = self.host();
        let read_only = way != Writable;
        let volume = self.rig.device("hostile", SIZE);
        let publish = || {
            self.rig
                .try_publishing(&volume, "hostile", read_only)
                .unwrap()
        };
        let target = publish();
        let as_new = settings(&target);
        let [node, file] = self.prepare_pod(&target);
        let (last, first) = attack.steps.split_last().unwrap();
        let repeat = |step| {
            eventually("the pod succeeds", || {
                step_of_pod(&node, &file, way, step).is_ok()
            });
        };
        for step in first {
            repeat(*step);
        }
        if attack.succeeds.contains(&way) {
            repeat(*last);
        } else {
            step_of_pod(&node, &file, way, *last).unwrap_err();
        }
        self.rig.unpublish(&volume, &target);
        self.rig.has_no_loop("hostile");

        fill(
            &File::options()
                .write(true)
                .open(self.rig.file("hostile"))
                .unwrap(),
            2,
        );
        let target = publish();
        self.assert_whole(&target, read_only);
        assert_eq!(settings(&target), as_new);
        self.rig.unpublish(&volume, &target);
        self.rig.has_no_loop("hostile");
        self.rig.delete(&volume);
        assert_eq!(self.host(), before);
    }

    /// Asserts that a device of the volume is as new.
    fn assert_whole(&self, target: &Path, read_only: bool) {
        let mut device = File::open(target).unwrap();
        let mut expected = self.host().device;
        let image = fs::metadata(self.rig.file("hostile")).unwrap();
        expected.inode = image.ino();
        assert_eq!(sys::loop_status(device.as_fd()).unwrap(), expected);
        assert_eq!(sys::is_read_only(device.as_fd()), Ok(read_only));
        assert_eq!(device.seek(SeekFrom::End(0)).unwrap(), SIZE);
        assert_eq!(content(target, 1 << 20), vec![2; 1 << 20]);
        assert!(image.blocks() * 512 >= SIZE, "it has its blocks again");
    }
}

/// Issues one ioctl as the pod, with the device open only meanwhile.
fn step_of_pod(
    node: &Path,
    file: &Path,
    way: Way,
    (request, with): (u32, With),
) -> Result<(), Errno> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (node, file) = (path(node), path(file));
    let access = if way == ReadOnly {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    as_nobody(move || {
        let open = |path, access| rustix::fs::open(path, access, rustix::fs::Mode::empty());
        let (device, own) = (open(&*node, access)?, open(&*file, OFlags::RDWR)?);
        let descriptor = u64::try_from(own.as_raw_fd()).map_err(|_| Errno::BADF)?;
        match with {
            Nothing => ioctl(&device, request, 0),
            Number(number) => ioctl(&device, request, number),
            Fields(fields) => ioctl_with(&device, request, fields),
            PodFile => ioctl(&device, request, descriptor),
            FileIn => ioctl_with(&device, request, &[(0, descriptor)]),
        }
    })
}

fn fill(file: &File, byte: u8) {
    file.write_all_at(&vec![byte; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
}

/// The settings of the queue of a device, and its partitions.
fn settings(target: &Path) -> Vec<(String, String)> {
    let number = fs::metadata(target).unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let read = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    let names = [
        "ro",
        "partscan",
        "queue/logical_block_size",
        "queue/physical_block_size",
        "queue/discard_max_bytes",
        "queue/read_ahead_kb",
        "queue/write_cache",
    ];
    let values = names.map(|name| (name.to_owned(), read(name)));
    let entries = support::names(&device).into_iter();
    let partitions = entries.filter(|name| name.starts_with("loop") && name != "loop");
    let partitions = partitions.map(|name| (name, String::new()));
    values.into_iter().chain(partitions).collect()
}

fn play_all(way: Way) {
    require!(loop_devices);
    let scene = AttackedDevice::new();
    for attack in ATTACKS {
        eprintln!("{} ({way:?})", attack.name);
        scene.play(attack, way);
    }
}

/// A pod without any privilege issues every ioctl of loop devices. Its neighbours and the host see nothing
/// of it, and the next publication has a device as new.
///
/// Proves: B1, B3.
#[test]
fn a_pod_that_changes_its_device_harms_only_itself() {
    play_all(Writable);
}

/// As above, with a read-only publication.
///
/// Proves: B1, B3.
#[test]
fn a_pod_that_changes_its_read_only_device_harms_only_itself() {
    play_all(ReadOnly);
}

/// As above, if the pod can open the read-only device for writing.
///
/// Proves: B1, B3.
#[test]
fn a_pod_that_opens_a_read_only_device_for_writing_harms_only_itself() {
    play_all(Forced);
}

type Step = fn(&OwnedFd) -> Result<(), Errno>;

/// A pod that can open a read-only device for writing changes no byte of the image, neither by write(2) nor by a
/// mapping. Before Linux 6.5 it does by a mapping.
///
/// Proves: B1.
#[test]
fn a_read_only_device_is_not_written() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", SIZE);
    let image = open(&rig.file("pvc"));
    fill(&image, 1);
    let target = rig.try_publishing(&volume, "reader", true).unwrap();
    let node = rig.node_of_pod(&target);
    let node = CString::new(node.as_os_str().as_bytes()).unwrap();
    let writes: [(Errno, Step); 2] = [
        (Errno::PERM, |device| {
            rustix::io::pwrite(device, &[2; 4096], 0).map(drop)
        }),
        (Errno::INVAL, |device| write_mapped(device, 2)),
    ];
    for (errno, write) in writes {
        let node = node.clone();
        let refused = as_nobody(move || {
            let empty = rustix::fs::Mode::empty();
            write(&rustix::fs::open(&*node, OFlags::RDWR, empty)?)
        });
        assert_eq!(refused, Err(errno));
        assert_eq!(content(&target, 4096), vec![1; 4096]);
    }
    rig.unpublish(&volume, &target);
    rig.has_no_loop("pvc");
    assert_eq!(content(&rig.file("pvc"), 1 << 20), vec![1; 1 << 20]);
}
