//! Devices that a driver finds at its start, or that others change meanwhile.

use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Mutex;

use linux::image::loops::Loop;
use linux::mount::{
    Error as MountError, MountOptions, Mountable, Mounter, Prepared, Target, Tidied,
};
use linux::os::FileId;
use linux::sys;
use rootcellar::volume::{Seams, Volumes};
use rustix::fs::StatVfsMountFlags;
use support::{Running, loops::run};

use super::devices::{device_of, is_removed, number_in_sysfs};
use super::*;

/// A loop device with a number that is not the driver's, which nobody else gets. It is removed on drop.
struct ForeignDevice {
    path: PathBuf,
    number: u32,
}

impl ForeignDevice {
    fn new() -> Self {
        let control = File::open("/dev/loop-control").unwrap();
        let number = (6000..7000).find(|number| sys::add_loop(control.as_fd(), *number).is_ok());
        let number = number.unwrap();
        let path = PathBuf::from(format!("/dev/loop{number}"));
        Self { path, number }
    }

    fn attach(file: &Path) -> Self {
        let made = Self::new();
        let sectors = ["--sector-size", "4096"];
        run(Command::new("losetup")
            .args(sectors)
            .args([&made.path, file]));
        made
    }

    fn detach(&self) {
        run(Command::new("losetup").arg("--detach").arg(&self.path));
        eventually("the device is detached", || self.status().is_err());
    }

    fn status(&self) -> Result<sys::LoopStatus, Errno> {
        sys::loop_status(File::open(&self.path).unwrap().as_fd())
    }

    /// The setting of sysfs that limits its discards.
    fn discards(&self) -> String {
        let limit = format!("/sys/block/loop{}/queue/discard_max_bytes", self.number);
        fs::read_to_string(limit).unwrap().trim().to_owned()
    }
}

impl Drop for ForeignDevice {
    fn drop(&mut self) {
        if let Ok(device) = File::open(&self.path) {
            let _ = sys::detach_loop(device.as_fd());
        }
        if std::thread::panicking() {
            return;
        }
        let control = File::open("/dev/loop-control").unwrap();
        eventually("the device is removed", || {
            let removed = sys::remove_loop(control.as_fd(), self.number);
            matches!(removed, Ok(()) | Err(Errno::NODEV))
        });
    }
}

/// Images that an earlier version published, whose devices have any numbers, are published still. The driver
/// holds the devices until the last unpublish, and thick images keep their blocks.
///
/// Proves: B1, B3, I1, I2, K20.
#[test]
fn the_devices_of_an_earlier_version_are_known() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let (image, device) = (rig.image("image", 16 * MIB), rig.device("device", 16 * MIB));
    let (mounted, node) = (rig.node.target("mounted"), rig.node.target("node"));
    let (below, shown) = (
        ForeignDevice::new(),
        ForeignDevice::attach(&rig.file("device")),
    );
    fs::create_dir(&mounted).unwrap();
    let option = format!("nodev,nosuid,loop={}", below.path.display());
    run(Command::new("mount")
        .args(["-o", &option])
        .args([rig.file("image"), mounted.clone()]));
    File::create(&node).unwrap();
    rustix::mount::mount_bind(&shown.path, &node).unwrap();
    let permitted = [&below, &shown].map(ForeignDevice::discards);
    assert!(!permitted.contains(&"0".to_owned()), "{permitted:?}");
    rig.start();
    assert_eq!([&below, &shown].map(ForeignDevice::discards), ["0", "0"]);
    sys::detach_loop(File::open(&node).unwrap().as_fd()).unwrap();
    assert!(shown.status().is_ok(), "the driver has it open");
    // The kubelet repeats a call after it was started again.
    rig.publish(&image, "mounted");
    rig.publish_device(&device, "node");
    // A new pod starts before the old one ends.
    rig.publish(&image, "second");
    let second = rig.publish_device(&device, "second-node");
    assert_eq!(
        fs::metadata(&second).unwrap().rdev(),
        fs::metadata(&node).unwrap().rdev()
    );
    rig.unpublish(&image, &rig.node.target("second"));
    rig.unpublish(&device, &second);
    for volume in [&image, &device] {
        let refused = rig.driver().delete(&volume.id.to_string()).unwrap_err();
        assert!(refused.to_string().contains("is published at"), "{refused}");
    }
    rig.unpublish(&image, &mounted);
    rig.unpublish(&device, &node);
    for device in [&below, &shown] {
        eventually("the device is detached", || {
            device.status() == Err(Errno::NXIO)
        });
    }
    rig.delete(&image);
    rig.delete(&device);
}

/// A volume is not published while the host has attached its image to a device, and no start detaches that.
///
/// Proves: I2, P13.
#[test]
fn an_image_that_the_host_attached_is_not_published() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let (image, device) = (rig.image("image", 16 * MIB), rig.device("device", 16 * MIB));
    let hosts = ["image", "device"].map(|volume| ForeignDevice::attach(&rig.file(volume)));
    rig.start();
    let (target, id) = (rig.node.target("pod"), image.id.to_string());
    let refused = [
        rig.driver().publish(&publish(&id, &target)).unwrap_err(),
        rig.try_publishing(&device, "pod", false).unwrap_err(),
    ];
    for (host, refused) in hosts.iter().zip(refused) {
        assert!(host.status().is_ok(), "it is the host's");
        assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
        let text = refused.to_string();
        assert!(text.contains(&host.path.display().to_string()), "{text}");
        host.detach();
    }
    for (volume, target) in [
        (&image, rig.publish(&image, "image")),
        (&device, rig.publish_device(&device, "device")),
    ] {
        rig.unpublish(volume, &target);
        rig.delete(volume);
    }
}

/// A moment in which a mount or an unmount may overtake the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// While it takes over a device.
    Adopted,
    /// After it gave an empty file to a device.
    Occupied,
}

type Act = Box<dyn Fn() + Send>;

/// The kernel's mounts, which act once in a moment, or find no device at the start.
struct Overtaken {
    act: Mutex<Option<(Moment, Act)>>,
    is_silent: bool,
}

impl Overtaken {
    fn new(is_silent: bool) -> Arc<Self> {
        let act = Mutex::default();
        Arc::new(Self { act, is_silent })
    }

    fn reach(&self, moment: Moment) {
        let act = self.act.lock().unwrap().take_if(|(at, _)| *at == moment);
        if let Some((_, act)) = act {
            act();
        }
    }

    /// Starts a driver with these mounts.
    fn start(self: &Arc<Self>, rig: &mut ImageRig) -> Arc<Volumes> {
        rig.running = None;
        let seams = Seams {
            mounter: Arc::clone(self) as _,
            ..Seams::default()
        };
        let settings = rig.node.settings(&[rig.node.own_pool_option()]);
        let opening = Arc::new(Volumes::with_seams(settings, seams).unwrap());
        rig.running = Some(Running(Arc::clone(&opening)));
        opening
    }

    /// Starts a driver that an unpublish overtakes in a moment.
    fn unpublish_in(
        self: &Arc<Self>,
        moment: Moment,
        rig: &mut ImageRig,
        volume: &Volume,
        at: &Path,
    ) {
        let opening = self.start(rig);
        let (id, at, weak) = (
            volume.id.to_string(),
            at.to_owned(),
            Arc::downgrade(&opening),
        );
        let unpublish = move || weak.upgrade().unwrap().unpublish(&id, &at).unwrap();
        *self.act.lock().unwrap() = Some((moment, Box::new(unpublish)));
        opening.load().unwrap();
        assert!(self.act.lock().unwrap().is_none(), "it was unpublished");
    }
}

impl std::fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Overtaken")
    }
}

impl Mounter for Overtaken {
    fn prepare(
        &self,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared, MountError> {
        KernelMounter.prepare(source, target, options)
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<(), MountError> {
        KernelMounter.attach(prepared, target)
    }

    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags, MountError> {
        KernelMounter.flags(target)
    }

    fn unmount(&self, target: &Target) -> Result<(), MountError> {
        KernelMounter.unmount(target)
    }

    fn loops(&self) -> std::io::Result<Vec<(loops::Number, FileId)>> {
        if self.is_silent {
            return Ok(Vec::new());
        }
        KernelMounter.loops()
    }

    fn loop_at(&self, device: loops::Number, image: FileId) -> Result<Option<Loop>, MountError> {
        let found = KernelMounter.loop_at(device, image);
        self.reach(Moment::Adopted);
        found
    }

    fn tidy_loops(&self) -> std::io::Result<Tidied> {
        let tidied = KernelMounter.tidy_loops();
        self.reach(Moment::Occupied);
        tidied
    }
}

/// The last unpublish of a device may end while the pool is opened. The volume is deleted nevertheless.
///
/// Proves: B1.
#[test]
fn a_device_that_is_unpublished_while_its_pool_opens_is_detached() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let target = rig.publish_device(&volume, "pod");
    let mounter = Overtaken::new(false);
    mounter.unpublish_in(Moment::Adopted, &mut rig, &volume, &target);
    rig.delete(&volume);
}

/// An unpublish may end while the driver gives an empty file to the device. The number is given back
/// nevertheless.
///
/// Proves: B3.
#[test]
fn a_number_that_is_unpublished_while_it_is_occupied_is_given_back() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let target = rig.publish_device(&volume, "pod");
    let device = device_of(&rig, "pvc");
    rig.running = None;
    sys::detach_loop(File::open(&target).unwrap().as_fd()).unwrap();
    rig.has_no_loop("pvc");
    let mounter = Overtaken::new(false);
    mounter.unpublish_in(Moment::Occupied, &mut rig, &volume, &target);
    eventually("the device has no file", || {
        let file = fs::read_to_string(device.join("loop/backing_file"));
        !file.is_ok_and(|file| file.contains("memfd:"))
    });
    is_removed(&device);
    rig.delete(&volume);
}

/// A device that did not answer at the start is held after the next publish, and detached after the unpublish.
///
/// Proves: B1, B3.
#[test]
fn a_device_that_did_not_answer_at_the_start_is_found_later() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    for is_published_again in [false, true] {
        let target = rig.publish_device(&volume, "pod");
        Overtaken::new(true).start(&mut rig).load().unwrap();
        if is_published_again {
            rig.publish_device(&volume, "pod");
            sys::detach_loop(File::open(&target).unwrap().as_fd()).unwrap();
            assert_eq!(rig.loops("pvc"), 1, "the driver has it open");
        }
        rig.unpublish(&volume, &target);
        rig.has_no_loop("pvc");
    }
    rig.delete(&volume);
}

/// A device with two targets, of which another mount hides one, stays attached when the other is unpublished.
///
/// Proves: B1, U5.
#[test]
fn a_device_at_a_hidden_target_outlives_the_other_target() {
    require!(mount_namespace);
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let targets = ["pod", "other"].map(|pod| rig.publish_device(&volume, pod));
    let above = targets[1].parent().unwrap();
    rustix::mount::mount_bind(rig.node.path("kubelet"), above).unwrap();
    rig.unpublish(&volume, &targets[0]);
    let loops = rig.loops("pvc");
    support::unmount(above);
    assert_eq!(loops, 1);
    assert_eq!(content(&targets[1], 7), [0; 7]);
    rig.unpublish(&volume, &targets[1]);
    rig.has_no_loop("pvc");
    rig.delete(&volume);
}

/// A mounted directory that is called like a device keeps no device attached.
///
/// Proves: B1.
#[test]
fn a_directory_with_the_name_of_a_device_is_no_device() {
    require!(mount_namespace);
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let target = rig.publish_device(&volume, "pod");
    let name = device_of(&rig, "pvc");
    let directory = rig.node.path("pod").join(name.file_name().unwrap());
    fs::create_dir_all(&directory).unwrap();
    rustix::mount::mount_bind(&directory, &directory).unwrap();
    rig.unpublish(&volume, &target);
    rig.has_no_loop("pvc");
    support::unmount(&directory);
    rig.delete(&volume);
}

/// A driver that ends leaves devices attached that a pod has detached, and a new one has them open again. A pod
/// that detached its device while no driver ran has an empty one then, so that no other program gets the
/// number, until the unpublish.
///
/// Proves: B3.
#[test]
fn a_detached_device_keeps_its_number_after_a_restart() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let targets = [false, true].map(|read_only| {
        let pod = format!("pod-{read_only}");
        rig.try_publishing(&volume, &pod, read_only).unwrap()
    });
    let file = File::create_new(rig.node.path("own")).unwrap();
    file.set_len(16 * MIB).unwrap();
    let is_taken = |target: &Path| {
        // A driver in another mount namespace may have removed the number.
        File::open(target).is_err_and(|error| error.raw_os_error() == Some(6))
            || sys::attach_loop(File::open(target).unwrap().as_fd(), file.as_fd(), 0, 0)
                == Err(Errno::BUSY)
    };
    let image = fs::metadata(rig.file("pvc")).unwrap().ino();
    rig.start();
    for target in &targets {
        let device = File::open(target).unwrap();
        sys::detach_loop(device.as_fd()).unwrap();
        drop(device);
        let status = sys::loop_status(File::open(target).unwrap().as_fd());
        assert_eq!(status.unwrap().inode, image);
        assert!(is_taken(target));
    }
    rig.running = None;
    for target in &targets {
        // The pod has it open while the next driver starts, and detaches it with a second descriptor.
        let device = File::open(target).unwrap();
        assert_eq!(sys::loop_status(device.as_fd()).unwrap().inode, image);
        sys::detach_loop(File::open(target).unwrap().as_fd()).unwrap();
        rig.start();
        let flags = sys::loop_status(device.as_fd()).unwrap().flags;
        assert_eq!(flags & sys::AUTOCLEAR, 0, "the driver keeps it");
        rig.running = None;
    }
    for target in &targets {
        sys::detach_loop(File::open(target).unwrap().as_fd()).unwrap();
    }
    rig.has_no_loop("pvc");
    rig.start();
    for target in &targets {
        assert!(is_taken(target), "another program may get the number");
        assert_eq!(
            File::open(target).map_or(0, |mut it| it.seek(SeekFrom::End(0)).unwrap()),
            0
        );
    }
    // The kubelet repeats a call after it was started again.
    let again = rig.try_publishing(&volume, "pod-false", false).unwrap();
    assert_eq!(open(&again).seek(SeekFrom::End(0)).unwrap(), 16 * MIB);
    for target in &targets {
        let device = Path::new("/sys/dev/block").join(number_in_sysfs(target));
        rig.unpublish(&volume, target);
        is_removed(&device);
    }
    rig.delete(&volume);
}
