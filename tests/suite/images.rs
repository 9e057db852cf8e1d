//! `docs/semantics.md`, "Images".

mod blocks;
mod capacity;
mod devices;
mod ioctls;
mod kills;
mod pinned;
mod restarts;
mod roots;
mod strangers;
mod trims;
mod waiting;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::image::loops;
use linux::mount::KernelMounter;
use objects::Bytes;
use pool::Mode;
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{Allocation, CreateRequest, ExpandRequest, InUse, Kind, SourceId, Volume};
use rustix::io::Errno;

use support::disk::Disk;
use support::driver_node::DriverNode;
use support::{Fakes, create, directory_of, eventually, publish, require, snapshot};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A driver that mounts images, over one pool on a disk of its own.
pub struct ImageRig {
    base: DriverNode,
}

support::extends!(ImageRig, base: DriverNode);

impl ImageRig {
    pub fn new(disk: Disk) -> Self {
        Self::sized(disk, 1 << 30)
    }

    /// As [`ImageRig::new`], with a pool that keeps deleted objects.
    pub fn keeping(disk: Disk) -> Self {
        let fakes = Fakes {
            mounter: Arc::new(KernelMounter),
            ..Fakes::default()
        };
        Self {
            base: DriverNode::keeping(disk.sized(1 << 30), fakes),
        }
    }

    fn sized(disk: Disk, size: u64) -> Self {
        Self::with(disk.sized(size), Fakes::default())
    }

    /// With these fakes, but the mounts of the kernel.
    fn with(disk: Disk, fakes: Fakes) -> Self {
        let fakes = Fakes {
            mounter: Arc::new(KernelMounter),
            ..fakes
        };
        Self {
            base: DriverNode::with(disk, fakes),
        }
    }

    pub fn image(&self, volume: &str, size: u64) -> Volume {
        self.driver().create(&image(volume, size)).unwrap()
    }

    pub fn file(&self, volume: &str) -> PathBuf {
        let volumes = self.node.pool().join("volumes");
        directory_of(&volumes, volume).join("data/disk.img")
    }

    pub fn publish(&self, volume: &Volume, pod: &str) -> PathBuf {
        let target = self.node.target(pod);
        let request = publish(&volume.id.to_string(), &target);
        self.driver().publish(&request).unwrap();
        target
    }

    pub fn unpublish(&self, volume: &Volume, target: &Path) {
        let id = volume.id.to_string();
        // The child of another test has this one's descriptors until it runs its program.
        eventually("the target is unpublished", || {
            self.driver().unpublish(&id, target).is_ok()
        });
    }

    fn expand(&self, volume: &Volume, target: &Path, size: u64) -> Result<Bytes, Error> {
        self.driver().expand(&ExpandRequest {
            id: volume.id.to_string(),
            path: target.to_owned(),
            required: Bytes(size),
            limit: None,
        })
    }

    /// Waits until no loop device shows the image of a volume: while another test lists all devices, each is
    /// open for a moment, and stays attached.
    #[track_caller]
    pub fn has_no_loop(&self, volume: &str) {
        eventually("the image is detached", || self.loops(volume) == 0);
    }

    /// Deletes a volume as soon as nothing shows its image.
    pub fn delete(&self, volume: &Volume) {
        let id = volume.id.to_string();
        eventually("the volume is deleted", || {
            self.driver().delete(&id).is_ok()
        });
    }

    /// The number of loop devices that show the image of a volume.
    fn loops(&self, volume: &str) -> usize {
        let file = File::open(self.file(volume)).unwrap();
        loops::of(&file).unwrap().len()
    }
}

impl Drop for ImageRig {
    /// Unpublishes what the test left, because the device of a block volume outlives this process.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for volume in self.driver().list(usize::MAX, "").unwrap().objects {
            let pods = self.node.path("kubelet/pods");
            for pod in fs::read_dir(pods).into_iter().flatten() {
                let (id, target) = (volume.id.to_string(), pod.unwrap().path().join("mount"));
                eventually("no pod has the volume", || {
                    let unpublished = self.driver().unpublish(&id, &target);
                    unpublished.map_err(|error| error.code(Operation::Volume))
                        != Err(Code::Unavailable)
                });
            }
        }
    }
}

pub fn image(volume: &str, size: u64) -> CreateRequest {
    let mut request = create(volume, size);
    request.class.kind = Kind::Image;
    request
}

/// An image with this filesystem.
pub fn formatted(volume: &str, size: u64, format: &str, allocation: Allocation) -> CreateRequest {
    let mut request = image(volume, size);
    request.capabilities[0].fs_type = Some(format.to_owned());
    request.class.allocation = Some(allocation);
    request
}

pub fn device(volume: &str, size: u64) -> CreateRequest {
    let mut request = create(volume, size);
    request.capabilities[0].block = true;
    request
}

impl ImageRig {
    pub fn device(&self, volume: &str, size: u64) -> Volume {
        self.driver().create(&device(volume, size)).unwrap()
    }

    fn try_publishing(
        &self,
        volume: &Volume,
        pod: &str,
        read_only: bool,
    ) -> Result<PathBuf, Error> {
        let target = self.node.target(pod);
        let mut request = publish(&volume.id.to_string(), &target);
        request.capability.block = true;
        request.read_only = read_only;
        self.driver().publish(&request)?;
        Ok(target)
    }

    pub fn publish_device(&self, volume: &Volume, pod: &str) -> PathBuf {
        self.try_publishing(volume, pod, false).unwrap()
    }

    /// Makes a node of a device that any user may open, as a container runtime does.
    fn node_of_pod(&self, target: &Path) -> PathBuf {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.node.path("."), all).unwrap();
        let node = self.node.path("node");
        let _ = fs::remove_file(&node);
        let number = fs::metadata(target).unwrap().rdev();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &node, FileType::BlockDevice, mode, number).unwrap();
        fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
        node
    }
}

pub fn open(target: &Path) -> File {
    File::options().read(true).write(true).open(target).unwrap()
}

pub fn content(target: &Path, length: usize) -> Vec<u8> {
    let mut content = vec![0; length];
    let mut file = File::open(target).unwrap();
    file.read_exact(&mut content).unwrap();
    content
}

pub fn disks() -> [Disk; 4] {
    [
        Disk::new("ext4"),
        Disk::new("xfs"),
        Disk::new("btrfs").with_other_data(),
        Disk::new("btrfs").with_simple_quota(),
    ]
}

/// A new image has its blocks, a filesystem of its own with the owner and the mode of the class, and no
/// loop device. Publishing attaches one, and the last unpublish detaches it.
///
/// Proves: I1, I2.
#[test]
fn an_image_is_published_with_its_own_filesystem() {
    require!(loop_devices);
    for disk in disks() {
        let rig = ImageRig::new(disk);
        let mut request = image("pvc", 64 * MIB);
        request.class.parameters.mode = Mode::parse("2770").unwrap();
        (request.class.parameters.uid, request.class.parameters.gid) = (1000, 2000);
        let volume = rig.driver().create(&request).unwrap();
        let file = fs::metadata(rig.file("pvc")).unwrap();
        assert_eq!(file.len(), 64 * MIB, "{}", disk.name);
        assert!(
            file.blocks() * 512 >= 64 * MIB,
            "{}: it is thick",
            disk.name
        );
        rig.has_no_loop("pvc");

        let target = rig.publish(&volume, "pod");
        assert_eq!(rig.loops("pvc"), 1);
        let root = fs::metadata(&target).unwrap();
        assert_eq!((root.uid(), root.gid()), (1000, 2000), "{}", disk.name);
        assert_eq!(root.permissions().mode() & 0o7777, 0o2770);
        fs::set_permissions(&target, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(target.join("file"), "content").unwrap();
        let other = rig.publish(&volume, "other");
        assert_eq!(fs::read(other.join("file")).unwrap(), b"content");
        assert_eq!(rig.loops("pvc"), 1, "both pods have one filesystem");

        let refused = rig.driver().delete(&volume.id.to_string()).unwrap_err();
        assert_eq!(refused.code(Operation::Delete), Code::FailedPrecondition);
        rig.unpublish(&volume, &target);
        rig.unpublish(&volume, &other);
        rig.has_no_loop("pvc");

        let target = rig.publish(&volume, "pod");
        let mode = fs::metadata(&target).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "only the first publication sets it");
        rig.unpublish(&volume, &target);
        rig.delete(&volume);
        rig.wait_for_trash();
    }
}

/// A pod fills its image, and its neighbour and the pool have their space.
///
/// Proves: I1.
#[test]
fn a_full_image_leaves_its_neighbour_space() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let (full, other) = (rig.image("full", 64 * MIB), rig.image("other", 64 * MIB));
    let (full, other) = (rig.publish(&full, "full"), rig.publish(&other, "other"));
    let mut file = File::create(full.join("file")).unwrap();
    let piece = vec![1; 1 << 20];
    let filled = loop {
        if let Err(error) = file.write_all(&piece).and_then(|()| file.sync_data()) {
            break error;
        }
    };
    assert_eq!(filled.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert!(file.metadata().unwrap().len() <= 64 * MIB);
    let mut file = File::create(other.join("file")).unwrap();
    file.write_all(&vec![1; 32 << 20]).unwrap();
    file.sync_all().unwrap();
}

/// A running pod's writes are in its snapshot at once, and the restore and the clone mount next to their
/// source. A restore may be larger.
///
/// Proves: I3.
#[test]
fn copies_of_an_image_are_of_one_instant() {
    require!(loop_devices);
    let formats = [("ext4", 64 * MIB), ("xfs", 300 * MIB)];
    let sharing = disks().into_iter().filter(|disk| disk.filesystem != "ext4");
    for (disk, (format, size)) in sharing.zip(formats.into_iter().cycle()) {
        let rig = ImageRig::sized(disk, 2 << 30);
        let request = |volume: &str, size, source| {
            let mut request = image(volume, size);
            request.capabilities[0].fs_type = Some(format.to_owned());
            request.source = source;
            request
        };
        let source = rig.driver().create(&request("pvc", size, None)).unwrap();
        let target = rig.publish(&source, "pod");
        fs::write(target.join("file"), vec![7; 8 << 20]).unwrap();
        let taken = snapshot("snap", source.id);
        let taken = rig.driver().create_snapshot(&taken).unwrap();
        fs::write(target.join("file"), "later").unwrap();

        let of_snapshot = Some(SourceId::Snapshot(taken.id.to_string()));
        let restored = request("restored", size + 16 * MIB, of_snapshot);
        let restored = rig.driver().create(&restored).unwrap();
        let of_volume = Some(SourceId::Volume(source.id.to_string()));
        let cloned = rig
            .driver()
            .create(&request("cloned", size, of_volume))
            .unwrap();
        assert!(fs::metadata(rig.file("cloned")).unwrap().blocks() * 512 >= size);

        let cloned = rig.publish(&cloned, "cloned");
        assert_eq!(
            fs::read(cloned.join("file")).unwrap(),
            b"later",
            "{}",
            disk.name
        );
        // The machine of a test may not let it grow an ext4.
        if format == "xfs" {
            let restored = rig.publish(&restored, "restored");
            assert_eq!(fs::read(restored.join("file")).unwrap(), vec![7; 8 << 20]);
            let total = |at: &Path| rustix::fs::statvfs(at).unwrap().f_blocks;
            assert!(total(&restored) > total(&target), "it grew");
        }
    }
}

/// On a filesystem whose files share no blocks, the copy of a mounted image would mix several instants.
///
/// Proves: I3.
#[test]
fn a_mounted_image_is_not_copied_byte_by_byte() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.image("pvc", 64 * MIB);
    let target = rig.publish(&volume, "pod");
    fs::write(target.join("file"), "content").unwrap();
    let taken = snapshot("snap", volume.id);
    let refused = rig.driver().create_snapshot(&taken).unwrap_err();
    let code = refused.code(Operation::CreateSnapshot);
    assert_eq!(code, Code::FailedPrecondition, "{refused}");
    let mut clone = image("cloned", 64 * MIB);
    clone.source = Some(SourceId::Volume(volume.id.to_string()));
    clone.class.copies.copy = true;
    let refused = rig.driver().create(&clone).unwrap_err();
    assert_eq!(
        refused.code(Operation::CreateVolume),
        Code::FailedPrecondition
    );

    rig.unpublish(&volume, &target);
    rig.driver().create_snapshot(&taken).unwrap();
    let cloned = rig.driver().create(&clone).unwrap();
    let cloned = rig.publish(&cloned, "cloned");
    assert_eq!(fs::read(cloned.join("file")).unwrap(), b"content");
}

/// A snapshot class with `inUse: refuse` has snapshots of images that nobody uses. A copy has the length
/// of its source, which may be larger than the recorded size.
///
/// Proves: I3.
#[test]
fn an_unused_image_is_copied_in_its_whole_length() {
    require!(loop_devices);
    for filesystem in ["ext4", "xfs"] {
        let rig = ImageRig::new(Disk::new(filesystem));
        let mut request = image("pvc", 64 * MIB);
        request.class.allocation = Some(Allocation::Thin);
        let volume = rig.driver().create(&request).unwrap();
        let file = File::options().write(true).open(rig.file("pvc")).unwrap();
        file.set_len(80 * MIB).unwrap();
        let mut taken = snapshot("snap", volume.id);
        taken.class.in_use = InUse::Refuse;
        let taken = rig.driver().create_snapshot(&taken).unwrap();
        assert_eq!(taken.size, Bytes(80 * MIB), "{filesystem}");
        request.name = support::name("cloned");
        request.source = Some(SourceId::Volume(volume.id.to_string()));
        request.class.copies.copy = true;
        let cloned = rig.driver().create(&request).unwrap();
        assert_eq!(cloned.size, Bytes(80 * MIB), "{filesystem}");
        assert_eq!(fs::metadata(rig.file("cloned")).unwrap().len(), 80 * MIB);
    }
}

/// A mounted image grows with its filesystem, and a repeated call finishes a growth that stopped after
/// the record. Statistics are those of the filesystem.
///
/// Proves: I4.
#[test]
fn an_image_grows_while_it_is_mounted() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let mut request = image("pvc", 300 * MIB);
    request.capabilities[0].fs_type = Some("xfs".to_owned());
    let volume = rig.driver().create(&request).unwrap();
    let target = rig.publish(&volume, "pod");
    let total = || {
        let id = volume.id.to_string();
        rig.driver().stats(&id, &target).unwrap().bytes.total
    };
    let before = total();
    assert!(before < 300 * MIB);
    let grown = rig.expand(&volume, &target, 400 * MIB + 1).unwrap();
    assert_eq!(grown, Bytes(400 * MIB + 4096));
    assert!(total() > before + 90 * MIB);
    assert_eq!(fs::metadata(rig.file("pvc")).unwrap().len(), grown.0);

    let file = File::options().write(true).open(rig.file("pvc")).unwrap();
    file.set_len(450 * MIB).unwrap();
    assert_eq!(rig.expand(&volume, &target, 1).unwrap(), grown);
    assert!(
        total() > before + 140 * MIB,
        "the filesystem has the size of its image"
    );
}

/// An image grows through a target that is read-only, alone or next to one that is not.
///
/// Proves: I4.
#[test]
fn an_image_grows_through_a_read_only_target() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let mut request = image("pvc", 300 * MIB);
    request.capabilities[0].fs_type = Some("xfs".to_owned());
    let volume = rig.driver().create(&request).unwrap();
    let reader = rig.node.target("reader");
    let mut read_only = publish(&volume.id.to_string(), &reader);
    read_only.read_only = true;
    rig.driver().publish(&read_only).unwrap();
    let total = || rustix::fs::statvfs(&reader).unwrap().f_blocks * BLOCK;
    let before = total();
    rig.expand(&volume, &reader, 340 * MIB).unwrap();
    assert!(total() > before + 30 * MIB);
    let refused = fs::write(reader.join("file"), "content").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let pod = rig.publish(&volume, "pod");
    rig.expand(&volume, &reader, 380 * MIB).unwrap();
    assert!(total() > before + 70 * MIB);
    for target in [&pod, &reader] {
        rig.unpublish(&volume, target);
    }
    rig.has_no_loop("pvc");
}

/// A driver that starts again finds the images that are published, and unpublishes them.
///
/// Proves: I2.
#[test]
fn a_new_driver_knows_the_mounted_images() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("xfs"));
    let volume = rig.image("pvc", 64 * MIB);
    let target = rig.publish(&volume, "pod");
    rig.start();
    let id = volume.id.to_string();
    let refused = rig.driver().delete(&id).unwrap_err();
    assert!(refused.to_string().contains("is published at"), "{refused}");
    let request = publish(&id, &target);
    rig.driver().publish(&request).unwrap();
    rig.unpublish(&volume, &target);
    rig.has_no_loop("pvc");
    rig.delete(&volume);
}

/// The size of an image that grew before its record did is the larger one after a start, and an image that
/// is missing puts its volume into quarantine.
///
/// Proves: I4.
#[test]
fn a_start_reads_the_length_of_images() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let (grown, lost) = (rig.image("grown", 64 * MIB), rig.image("lost", 64 * MIB));
    let file = File::options().write(true).open(rig.file("grown")).unwrap();
    file.set_len(80 * MIB).unwrap();
    fs::remove_file(rig.file("lost")).unwrap();
    rig.start();
    let found = rig.driver().get(&grown.id.to_string()).unwrap();
    assert_eq!(found.size, Bytes(80 * MIB));
    let refused = rig.driver().get(&lost.id.to_string()).unwrap_err();
    support::assert_pool_error!(refused, Quarantined);
}

/// An image in use by somebody else, such as a mount in another namespace, is not deleted.
///
/// Proves: I2.
#[test]
fn an_attached_image_is_not_deleted() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.image("pvc", 64 * MIB);
    let file = File::open(rig.file("pvc")).unwrap();
    let device = loops::attach(&file, false, None).unwrap();
    let refused = rig.driver().delete(&volume.id.to_string()).unwrap_err();
    assert_eq!(refused.code(Operation::Delete), Code::FailedPrecondition);
    let path = device.path.display().to_string();
    assert!(refused.to_string().contains(&path), "{refused}");
    drop(device);
    rig.delete(&volume);
}

/// udev still inspects the device of an image when kubelet has unpublished it and the volume is deleted.
///
/// Proves: I2.
#[test]
fn an_image_that_is_inspected_after_its_unmount_is_deleted() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.image("pvc", 64 * MIB);
    let file = File::open(rig.file("pvc")).unwrap();
    let inspected = loops::attach(&file, false, None).unwrap();
    let (deletes, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            begun.recv().unwrap();
            drop(inspected);
        });
        deletes.send(()).unwrap();
        rig.delete(&volume);
    });
}

type Change = fn(&mut CreateRequest);

/// The changes of a request for an image that make it impossible, with the code and a part of the message.
const IMPOSSIBLE: [(&str, Change, Code, &str); 7] = [
    (
        "no size",
        |r| r.required = Bytes(0),
        Code::InvalidArgument,
        "ask for one",
    ),
    (
        "a small ext4",
        |r| r.required = Bytes(MIB),
        Code::OutOfRange,
        "at least 16777216 bytes",
    ),
    (
        "a small XFS",
        |r| r.capabilities[0].fs_type = Some("xfs".into()),
        Code::OutOfRange,
        "at least 314572800 bytes",
    ),
    (
        "an unknown filesystem",
        |r| r.capabilities[0].fs_type = Some("vfat".into()),
        Code::InvalidArgument,
        "not one of ext4, xfs",
    ),
    (
        "a limit between two blocks",
        |r| (r.required, r.limit) = (Bytes(64 * MIB + 1), Some(Bytes(64 * MIB + 2))),
        Code::OutOfRange,
        "above the limit",
    ),
    (
        "two filesystems",
        |r| {
            let mut other = r.capabilities[0].clone();
            (r.capabilities[0].fs_type, other.fs_type) = (Some("ext4".into()), Some("xfs".into()));
            r.capabilities.push(other);
        },
        Code::InvalidArgument,
        "one filesystem",
    ),
    (
        "the name of a directory",
        |r| r.name = support::name("directory"),
        Code::AlreadyExists,
        "kind: directory",
    ),
];

/// Requests that no image can satisfy are refused with the number or the choices, and a repeated
/// creation must ask for the same kind.
///
/// Proves: I5.
#[test]
fn requests_for_impossible_images_are_refused() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let directory = rig.make("directory", 64 * MIB);
    for (case, change, code, message) in IMPOSSIBLE {
        let mut request = image("pvc", 64 * MIB);
        change(&mut request);
        let refused = rig.driver().create(&request).unwrap_err();
        assert_eq!(
            refused.code(Operation::CreateVolume),
            code,
            "{case}: {refused}"
        );
        assert!(refused.to_string().contains(message), "{case}: {refused}");
    }
    let mut copy = image("copy", 64 * MIB);
    copy.source = Some(SourceId::Volume(directory.id.to_string()));
    let refused = rig.driver().create(&copy).unwrap_err();
    assert_eq!(refused.code(Operation::CreateVolume), Code::InvalidArgument);
}

/// A thin image occupies the space that was written. A thick one of the same size does not fit next to it.
///
/// Proves: I1.
#[test]
fn a_thin_image_is_sparse_and_reserved() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let mut request = image("thin", 600 * MIB);
    request.class.allocation = Some(Allocation::Thin);
    let volume = rig.driver().create(&request).unwrap();
    assert!(fs::metadata(rig.file("thin")).unwrap().blocks() * 512 < 64 * MIB);
    let target = rig.publish(&volume, "pod");
    fs::write(target.join("file"), "content").unwrap();
    let refused = rig.driver().create(&image("thick", 600 * MIB)).unwrap_err();
    support::assert_pool_error!(refused, NoSpace);
}
