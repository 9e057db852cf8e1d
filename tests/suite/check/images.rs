//! The images of volumes, and their loop devices.

use std::sync::Arc;

use linux::mount::KernelMounter;
use rootcellar::volume::Kind;
use rustix::fs::FallocateFlags;
use support::driver_node::DriverNode;
use support::loops::PodDevice;
use support::nobody::{ioctl, ioctl_with};
use support::{directory_of, eventually, publish};

use super::*;

const SIZE: u64 = 16 * MIB;

/// A change of the image or the device of a published volume, and the finding.
struct Case {
    name: &'static str,
    block: bool,
    change: fn(&Path, &Path),
    level: Level,
    what: &'static str,
}

fn open(path: &Path) -> fs::File {
    fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

const LOOP_CLR_FD: u32 = 0x4C01;
const LOOP_SET_STATUS64: u32 = 0x4C04;
const LOOP_SET_DIRECT_IO: u32 = 0x4C08;

/// Releases blocks of the image, as a discard on an older kernel.
fn punch(image: &Path, _: &Path) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(open(image), flags, 0, MIB).unwrap();
}

const CASES: [Case; 6] = [
    Case {
        name: "nothing",
        block: true,
        change: |_, _| {},
        level: Level::Ok,
        what: "every image is as recorded",
    },
    Case {
        name: "a hole",
        block: true,
        change: punch,
        level: Level::Note,
        what: "because discards released the rest",
    },
    Case {
        name: "an offset",
        block: true,
        change: |_, target| ioctl_with(open(target), LOOP_SET_STATUS64, &[(24, 4096)]).unwrap(),
        level: Level::Note,
        what: "does not show all of its image",
    },
    Case {
        name: "no direct I/O",
        block: true,
        change: |_, target| ioctl(open(target), LOOP_SET_DIRECT_IO, 0).unwrap(),
        level: Level::Note,
        what: "has no direct I/O",
    },
    Case {
        name: "a short image",
        block: false,
        change: |image, _| open(image).set_len(SIZE - 4096).unwrap(),
        level: Level::Wrong,
        what: "and its record says 16777216 bytes",
    },
    Case {
        name: "a detached device",
        block: true,
        change: |_, target| ioctl(open(target), LOOP_CLR_FD, 0).unwrap(),
        level: Level::Ok,
        what: "every image is as recorded",
    },
];

/// Every image that is not as recorded is reported, and every published device that shows it differently.
///
/// Proves: T4.
#[test]
fn images_that_are_not_as_recorded_are_reported() {
    require!(loop_devices);
    let fakes = Fakes {
        mounter: Arc::new(KernelMounter),
        ..Fakes::default()
    };
    let node = DriverNode::with(Disk::new("ext4"), fakes);
    for case in CASES {
        let mut request = create("pvc", SIZE);
        request.capabilities[0].block = case.block;
        request.class.kind = Kind::Image;
        let volume = node.driver().create(&request).unwrap();
        let target = node.node.target("pod");
        let id = volume.id.to_string();
        if case.block {
            let mut published = publish(&id, &target);
            published.capability.block = true;
            node.driver().publish(&published).unwrap();
        }
        let directory = directory_of(&node.node.pool().join("volumes"), "pvc");
        (case.change)(&directory.join("data/disk.img"), &target);
        let report = report_on(&node.node.pool());
        eprintln!("{}", case.name);
        let found = the(&report, case.level, About::Images, case.what);
        assert!(found.remedy.is_some() || case.level == Level::Ok);
        assert_eq!(report.is_wrong(), case.level == Level::Wrong);
        eventually("the volume is deleted", || {
            node.driver().unpublish(&id, &target).is_ok() && node.driver().delete(&id).is_ok()
        });
    }
    let report = report_on(&node.node.pool());
    let mut findings = report.findings.iter();
    // Other tests may attach files to devices of the driver meanwhile.
    assert!(findings.all(|found| found.about != About::Images || found.what.contains(ATTACHED)));
}

/// The words about a device of the driver with the file of somebody else.
pub(super) const ATTACHED: &str = "which a pod attached to it";

/// A device with a number of the driver and the file of somebody else is reported, also one with the name of an
/// image, and next to a pool without images. An image of another pool is not.
///
/// Proves: T4.
#[test]
fn a_device_of_the_driver_with_another_file_is_reported() {
    require!(loop_devices);
    let fakes = Fakes {
        mounter: Arc::new(KernelMounter),
        ..Fakes::default()
    };
    let node = DriverNode::with(Disk::new("ext4"), fakes);
    let anothers = format!("pvc-{}/data/disk.img", "0".repeat(32));
    for (file, is_reported) in [
        ("own-file", true),
        ("disk.img", true),
        ("pvc/data/disk.img", true),
        (&anothers, false),
    ] {
        let path = node.node.path("pod").join(file);
        let device = attach(&path);
        let what = format!("{} shows {}", device.path().display(), path.display());
        let report = report_on(&node.node.pool());
        if is_reported {
            let found = the(&report, Level::Note, About::Images, &what);
            assert!(found.what.contains(ATTACHED) && found.remedy.is_some());
        } else {
            let mut findings = report.findings.iter();
            assert!(findings.all(|found| !found.what.contains(&what)), "{what}");
        }
    }

    let mut request = create("pvc", SIZE);
    request.capabilities[0].block = true;
    node.driver().create(&request).unwrap();
    let image = directory_of(&node.node.pool().join("volumes"), "pvc").join("data/disk.img");
    let path = node.node.path("pod").join(
        image
            .strip_prefix(node.node.pool().join("volumes"))
            .unwrap(),
    );
    let device = attach(&path);
    let what = format!("{} shows {}", device.path().display(), path.display());
    the(
        &report_on(&node.node.pool()),
        Level::Note,
        About::Images,
        &what,
    );
    let own = PodDevice::new(&image);
    let report = report_on(&node.node.pool());
    let own = format!("{} shows", own.path().display());
    assert!(
        !report
            .findings
            .iter()
            .any(|found| found.what.contains(&own))
    );
}

/// A file of a pod on a device of the driver.
fn attach(path: &Path) -> PodDevice {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::File::create(path).unwrap().set_len(SIZE).unwrap();
    PodDevice::new(path)
}
