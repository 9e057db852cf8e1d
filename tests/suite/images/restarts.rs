//! Devices that a driver finds at its start, or that others change meanwhile.

use std::os::fd::AsFd;
use std::process::Command;

use rootcellar::sys;
use support::loops::run;

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
        run(Command::new("losetup").args([&made.path, file]));
        made
    }

    fn detach(&self) {
        run(Command::new("losetup").arg("--detach").arg(&self.path));
        eventually("the device is detached", || self.status().is_err());
    }

    fn status(&self) -> Result<sys::LoopStatus, Errno> {
        sys::loop_status(File::open(&self.path).unwrap().as_fd())
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

/// A volume is not published while the host has attached its image to a device.
///
/// Proves: I2, P13.
#[test]
fn an_image_that_the_host_attached_is_not_published() {
    require!(loop_devices);
    let rig = Rig::new(Disk::new("ext4"));
    let (image, device) = (rig.image("image", 16 * MIB), rig.device("device", 16 * MIB));
    let hosts = ["image", "device"].map(|volume| ForeignDevice::attach(&rig.file(volume)));
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
