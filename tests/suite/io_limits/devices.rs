//! The limits of real loop devices.

use std::fs;
use std::io::Write as _;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use linux::image::loops::Number;
use linux::mount::KernelMounter;
use support::disk::Disk;
use support::driver_node::DriverNode;
use support::{eventually, require, snapshot};

use super::*;

/// A driver that mounts images, on a node that limits I/O.
fn rig(disk: Disk) -> (DriverNode, Cgroups) {
    let fakes = Fakes {
        mounter: Arc::new(KernelMounter),
        ..Fakes::default()
    };
    let rig = DriverNode::with(disk.sized(512 << 20), fakes);
    let cgroups = Cgroups::new(&rig.node);
    (rig, cgroups)
}

fn number(device: u64) -> Number {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// The number of the device that a target shows.
fn device_at(target: &Path, block: bool) -> Number {
    let status = fs::metadata(target).unwrap();
    number(if block {
        status.st_rdev()
    } else {
        status.st_dev()
    })
}

/// The limits are those of the device that the pod sees, of a filesystem and of a block volume, also after a restart. A
/// snapshot lifts them, because it waits for all that pods have written.
///
/// Proves: IO1, IO2, IO4, IO7.
#[test]
fn the_device_of_the_pod_is_limited() {
    require!(loop_devices);
    for block in [false, true] {
        let (mut rig, cgroups) = rig(Disk::new("xfs"));
        let mut request = device("pvc", LIMITS);
        request.capabilities[0].block = block;
        let id = rig.driver().create(&request).unwrap().id.to_string();
        let target = rig.node.target("pod");
        let mut published = publish(&id, &target);
        published.capability.block = block;
        rig.driver().publish(&published).unwrap();
        let number = device_at(&target, block);
        assert_eq!(cgroups.limits(), [(number, LIMITS)].into());
        let writes = cgroups.writes();
        rig.driver()
            .create_snapshot(&snapshot("snapshot", &id))
            .unwrap();
        assert_eq!(cgroups.limits(), [(number, LIMITS)].into());
        assert!(
            cgroups.writes() > writes,
            "block: {block}: it was lifted meanwhile"
        );

        let written = |rig: &DriverNode| {
            let statistics = rig.driver().image_statistics();
            let [done] = *statistics else {
                panic!("{statistics:?}");
            };
            assert!(id.ends_with(&done.volume.to_string()));
            assert_eq!(done.device, number);
            done.done.written.bytes
        };
        let before = written(&rig);
        let content = if block {
            target.clone()
        } else {
            target.join("file")
        };
        let file = fs::File::options()
            .write(true)
            .create(!block)
            .open(content)
            .unwrap();
        (&file).write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert!(written(&rig) >= before + MIB, "block: {block}");

        rig.running = None;
        cgroups.enable();
        rig.start();
        assert_eq!(cgroups.limits(), [(number, LIMITS)].into());
        eventually("the target is unpublished", || {
            rig.driver().unpublish(&id, &target).is_ok()
        });
        assert_eq!(cgroups.limits(), [].into());
        assert_eq!(rig.driver().image_statistics(), []);
    }
}

/// A copy has the limits of its own class, and a read-only device those of its volume.
///
/// Proves: IO1, V10.
#[test]
fn each_device_of_a_volume_is_limited() {
    require!(loop_devices);
    let (rig, cgroups) = rig(Disk::new("xfs"));
    let id = rig
        .driver()
        .create(&device("pvc", LIMITS))
        .unwrap()
        .id
        .to_string();
    let mut targets = Vec::new();
    for (pod, read_only) in [("writer", false), ("reader", true)] {
        let target = rig.node.target(pod);
        let mut request = publish(&id, &target);
        (request.capability.block, request.read_only) = (true, read_only);
        rig.driver().publish(&request).unwrap();
        targets.push(target);
    }
    let devices = targets
        .iter()
        .map(|target| (device_at(target, true), LIMITS));
    assert_eq!(cgroups.limits(), devices.collect());
    assert_eq!(cgroups.limits().len(), 2);

    let other = IoLimits {
        write_operations: Some(10),
        ..IoLimits::NONE
    };
    let clone = CreateRequest {
        source: Some(rootcellar::volume::SourceId::Volume(id.clone())),
        ..device("clone", other)
    };
    let clone = rig.driver().create(&clone).unwrap().id.to_string();
    let target = rig.node.target("clone");
    let mut request = publish(&clone, &target);
    request.capability.block = true;
    rig.driver().publish(&request).unwrap();
    assert_eq!(cgroups.limits()[&device_at(&target, true)], other);
    let reader = device_at(&targets[1], true);
    for (id, target, left) in [
        (&clone, &target, 2),
        (&id, &targets[0], 1),
        (&id, &targets[1], 0),
    ] {
        eventually("the target is unpublished", || {
            rig.driver().unpublish(id, target).is_ok()
        });
        assert_eq!(rig.driver().image_statistics().len(), left);
        if left == 1 {
            assert_eq!(cgroups.limits(), [(reader, LIMITS)].into());
        }
    }
    assert_eq!(cgroups.limits(), [].into());
}
