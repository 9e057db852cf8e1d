//! Loop devices of others, whose filesystem does not answer.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use linux::sys;
use support::fuse::HangingFile;

use super::*;

/// A loop device with a file on a filesystem that does not answer. It is detached once the filesystem is
/// dead.
struct ForeignLoop {
    number: u32,
    device: Option<File>,
    file: Option<HangingFile>,
}

impl ForeignLoop {
    /// Attaches a file that is made at this path to a device with at least this number; `None`: FUSE is
    /// missing.
    fn new(first: u32, at: &Path) -> Option<Self> {
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        File::create(at).unwrap();
        let mut file = HangingFile::mount(at, MIB)?;
        let control = File::open("/dev/loop-control").unwrap();
        let attached = (first..).find_map(|number| {
            // Another test may have the number.
            sys::add_loop(control.as_fd(), number).ok()?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(true).open(path).ok()?;
            sys::attach_loop(device.as_fd(), open(at).as_fd(), 0, 0).ok()?;
            Some((number, device))
        });
        let (number, device) = attached.unwrap();
        file.hang(at);
        Some(Self {
            number,
            device: Some(device),
            file: Some(file),
        })
    }
}

impl Drop for ForeignLoop {
    fn drop(&mut self) {
        self.file = None;
        if let Some(device) = self.device.take() {
            sys::detach_loop(device.as_fd()).unwrap();
        }
        let control = File::open("/dev/loop-control").unwrap();
        // Another test may have it open for a moment.
        eventually("the device is removed", || {
            let removed = sys::remove_loop(control.as_fd(), self.number);
            matches!(removed, Ok(()) | Err(Errno::NODEV))
        });
    }
}

/// Waits for a function, but not without end.
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = done.send(act());
    });
    let outcome = outcome.recv_timeout(Duration::from_mins(1));
    outcome.expect("the call waits for a device of somebody else")
}

/// The first numbers of devices: one outside and one inside the driver's range.
const FIRST: [u32; 2] = [5000, 3600];

/// No call waits for a loop device of somebody else, with any number.
///
/// Proves: B4.
#[test]
fn no_call_waits_for_the_device_of_a_stranger() {
    require!(loop_devices);
    for first in FIRST {
        let mut rig = ImageRig::new(Disk::new("xfs"));
        let away = rig.node.path("away/disk.img");
        let Some(_stranger) = ForeignLoop::new(first, &away) else {
            eprintln!("skipped: FUSE is missing");
            return;
        };
        in_time(move || {
            let mut request = image("pvc", 300 * MIB);
            // The growth of an ext4 needs CAP_SYS_RESOURCE.
            request.capabilities[0].fs_type = Some("xfs".into());
            let mounted = rig.driver().create(&request).unwrap();
            let device = rig.device("raw", 16 * MIB);
            let targets = [
                rig.publish(&mounted, "pod"),
                rig.publish_device(&device, "raw"),
                rig.try_publishing(&device, "reader", true).unwrap(),
            ];
            for (volume, target) in [(&mounted, &targets[0]), (&device, &targets[1])] {
                let size = volume.size.0 + 16 * MIB;
                rig.expand(volume, target, size).unwrap();
                let name = format!("snap-{}", volume.name);
                let taken = rig.driver().create_snapshot(&snapshot(&name, volume.id));
                let id = taken.unwrap().id.to_string();
                rig.driver().delete_snapshot(&id).unwrap();
            }
            rig.start();
            for (volume, target) in [&mounted, &device, &device].iter().zip(&targets) {
                rig.unpublish(volume, target);
            }
            rig.delete(&mounted);
            rig.delete(&device);
        });
    }
}

/// Several strangers that do not answer take no longer than one.
///
/// Proves: B4.
#[test]
fn strangers_are_awaited_at_once() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let away = |at: usize| rig.node.path(&format!("away-{at}/disk.img"));
    let strangers = (0..3).map(|at| ForeignLoop::new(FIRST[0], &away(at)));
    let Some(strangers) = strangers.collect::<Option<Vec<_>>>() else {
        eprintln!("skipped: FUSE is missing");
        return;
    };
    let began = Instant::now();
    let target = rig.publish_device(&volume, "pod");
    let took = began.elapsed();
    drop(strangers);
    rig.unpublish(&volume, &target);
    assert!(took < Duration::from_secs(9), "{took:?}");
}

/// If the file of a stranger has the directory and the name of an image, the calls for that volume fail with
/// the number of the device, until the stranger answers or is detached. Other volumes and unpublishes work.
///
/// Proves: B4.
#[test]
fn a_stranger_with_the_path_of_an_image_stops_only_that_volume() {
    require!(loop_devices);
    for first in FIRST {
        let mut rig = ImageRig::new(Disk::new("ext4"));
        let (volume, other) = (rig.device("pvc", 16 * MIB), rig.device("other", 16 * MIB));
        let target = rig.publish_device(&volume, "pod");
        let directory = rig.file("pvc");
        let directory = directory.strip_prefix(rig.node.pool()).unwrap();
        let Some(stranger) = ForeignLoop::new(first, &rig.node.path("away").join(directory)) else {
            eprintln!("skipped: FUSE is missing");
            return;
        };
        let device = format!("/dev/loop{}", stranger.number);
        in_time(move || {
            rig.start();
            let silent = |outcome: Result<(), Error>| {
                let refused = outcome.unwrap_err();
                assert_eq!(refused.code(Operation::Volume), Code::Unavailable);
                let text = refused.to_string();
                assert!(text.contains(&device), "{text}");
                assert!(text.contains("does not answer"), "{text}");
            };
            silent(rig.try_publishing(&volume, "second", false).map(drop));
            let others = rig.publish_device(&other, "other");
            rig.unpublish(&other, &others);
            rig.delete(&other);
            rig.unpublish(&volume, &target);
            silent(rig.driver().delete(&volume.id.to_string()));
            drop(stranger);
            rig.delete(&volume);
        });
    }
}

/// A device that shows an image by the path of a bind mount counts too.
///
/// Proves: I2.
#[test]
fn an_image_that_a_device_shows_by_another_path_is_not_deleted() {
    require!(mount_namespace);
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let bind = rig.node.path("bind");
    fs::create_dir(&bind).unwrap();
    rustix::mount::mount_bind(rig.file("pvc").parent().unwrap(), &bind).unwrap();
    let device = loops::attach(open(&bind.join("disk.img")), false, None).unwrap();
    let delete = || rig.driver().delete(&volume.id.to_string());
    let refused = delete().unwrap_err();
    assert_eq!(refused.code(Operation::Delete), Code::FailedPrecondition);
    drop(device);
    support::unmount(&bind);
    eventually("the volume is deleted", || delete().is_ok());
}
