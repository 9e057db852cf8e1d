//! Volumes that are block devices.

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use linux::mount::Mounter;
use linux::sys;
use support::faults::End;

use super::*;

/// A pod reads and writes the device, which has the size of the volume; pods that write share one device,
/// and a read-only one refuses writes. Nothing stays attached after the last unpublish.
///
/// Proves: B1.
#[test]
fn a_block_volume_is_a_device_of_its_size() {
    require!(loop_devices);
    for disk in disks() {
        let rig = ImageRig::new(disk);
        let volume = rig.device("pvc", 64 * MIB);
        let (target, other) = (
            rig.publish_device(&volume, "pod"),
            rig.publish_device(&volume, "other"),
        );
        assert!(fs::metadata(&target).unwrap().file_type().is_block_device());
        let mut pod = open(&target);
        assert_eq!(
            pod.seek(SeekFrom::End(0)).unwrap(),
            64 * MIB,
            "{}",
            disk.name
        );
        pod.rewind().unwrap();
        pod.write_all(b"content").unwrap();
        pod.sync_all().unwrap();
        assert_eq!(content(&other, 7), b"content");
        assert_eq!(rig.loops("pvc"), 1);
        // The kubelet repeats a call after it was started again.
        rig.publish_device(&volume, "pod");
        let stats = rig.driver().stats(&volume.id.to_string(), &target).unwrap();
        assert_eq!((stats.bytes.total, stats.inodes), (64 * MIB, None));

        let reader = rig.try_publishing(&volume, "reader", true).unwrap();
        assert_eq!(content(&reader, 7), b"content");
        let refused = open(&reader).write_all(b"changed").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));

        drop(pod);
        for target in [&target, &other, &reader] {
            rig.unpublish(&volume, target);
            fs::symlink_metadata(target).unwrap_err();
        }
        rig.has_no_loop("pvc");
        rig.delete(&volume);
        rig.wait_for_trash();
    }
}

/// The volume has all that a pod wrote before the unpublish, also without an fsync, because the driver has the device open,
/// so that the kernel does not write back when the pod closes it.
///
/// Proves: B1.
#[test]
fn an_unpublished_device_has_what_its_pod_wrote() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("xfs"));
    for (name, reader, restart) in [
        ("last", false, false),
        ("not-last", true, false),
        ("restarted", false, true),
    ] {
        let volume = rig.device(name, 64 * MIB);
        let target = rig.publish_device(&volume, name);
        let reader = reader.then(|| rig.try_publishing(&volume, "reader", true).unwrap());
        if restart {
            rig.start();
        }
        let written = vec![7; 8 << 20];
        open(&target).write_all(&written).unwrap();
        rig.unpublish(&volume, &target);
        reader.inspect(|reader| rig.unpublish(&volume, reader));
        let target = rig.publish_device(&volume, name);
        assert!(content(&target, written.len()) == written, "{name}");
        rig.unpublish(&volume, &target);
    }
}

/// A device that a pod gave other sectors, or no direct I/O for them, is not shown to another pod. Once all pods are gone, the
/// volume gets a new device.
///
/// Proves: I2.
#[test]
fn a_device_with_sectors_of_a_pod_is_not_published_again() {
    const LOOP_SET_BLOCK_SIZE: u32 = 0x4C09;
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 64 * MIB);
    let target = rig.publish_device(&volume, "pod");
    support::nobody::ioctl(open(&target), LOOP_SET_BLOCK_SIZE, 512).unwrap();
    let refused = rig.try_publishing(&volume, "other", false).unwrap_err();
    let code = refused.code(Operation::Volume);
    assert_eq!(code, Code::FailedPrecondition, "{refused}");
    let says = "delete all pods of the volume";
    assert!(refused.to_string().contains(says), "{refused}");
    rig.unpublish(&volume, &target);
    let target = rig.publish_device(&volume, "other");
    rig.unpublish(&volume, &target);
}

/// A published device grows, its snapshot has the writes of pods, and a copy of it is never mounted.
///
/// Proves: B1, B2.
#[test]
fn a_device_grows_and_is_copied_and_never_mounted() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("xfs"));
    let volume = rig.device("pvc", 64 * MIB);
    let target = rig.publish_device(&volume, "pod");
    open(&target).write_all(b"content").unwrap();
    let taken = rig
        .driver()
        .create_snapshot(&snapshot("snap", volume.id))
        .unwrap();
    rig.expand(&volume, &target, 80 * MIB).unwrap();
    assert_eq!(open(&target).seek(SeekFrom::End(0)).unwrap(), 80 * MIB);

    let source = Some(SourceId::Snapshot(taken.id.to_string()));
    let mut restored = device("restored", 64 * MIB);
    restored.source.clone_from(&source);
    let restored = rig.driver().create(&restored).unwrap();
    let restored = rig.publish_device(&restored, "restored");
    assert_eq!(content(&restored, 7), b"content");

    let mut mounted = image("mounted", 64 * MIB);
    mounted.source = source;
    let refused = rig.driver().create(&mounted).unwrap_err();
    assert_eq!(
        refused.code(Operation::CreateVolume),
        Code::InvalidArgument,
        "{refused}"
    );
    let request = publish(&volume.id.to_string(), &rig.node.target("mount"));
    let refused = rig.driver().publish(&request).unwrap_err();
    assert_eq!(
        refused.code(Operation::Volume),
        Code::InvalidArgument,
        "{refused}"
    );
    let mut both = device("both", 64 * MIB);
    both.capabilities
        .push(support::capability(objects::AccessMode::SingleNodeWriter));
    let refused = rig.driver().create(&both).unwrap_err();
    assert_eq!(
        refused.code(Operation::CreateVolume),
        Code::InvalidArgument,
        "{refused}"
    );
}

/// The blocks that the writer of a device numbers, in turn.
const NUMBERED: u64 = 256;

/// Writes 0, 1, 2 and so on, each durably into the next block, until `ended`.
fn write_numbers(target: &Path, ended: &AtomicBool) {
    let flags =
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::DSYNC | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(target, flags, rustix::fs::Mode::empty()).unwrap();
    for number in 0_u64.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let block = number.to_le_bytes().repeat(512);
        let at = number % NUMBERED * BLOCK;
        assert_eq!(rustix::io::pwrite(&file, &block, at).unwrap(), block.len());
    }
}

/// Asserts that an image has all numbers up to its largest one, as far as later ones left them. Returns
/// the largest.
fn assert_of_one_instant(image: &Path) -> u64 {
    let mut content = vec![0; usize::try_from(NUMBERED * BLOCK).unwrap()];
    File::open(image).unwrap().read_exact(&mut content).unwrap();
    let (words, _) = content.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let last = *words.iter().max().unwrap();
    for (at, block) in (0..).zip(words.chunks(512)) {
        // The first round may not have reached it.
        let rounds = last.checked_sub(at).map(|after| after / NUMBERED);
        let expected = rounds.map_or(0, |rounds| rounds * NUMBERED + at);
        assert!(
            block.iter().all(|word| *word == expected),
            "block {at} of {last}"
        );
    }
    last
}

/// While a pod writes, each snapshot has all writes up to one instant and none after it.
///
/// Proves: I3, B2.
#[test]
fn no_snapshot_of_a_device_is_torn() {
    require!(loop_devices);
    assert_no_snapshot_is_torn(Disk::new("xfs"), 500);
    assert_no_snapshot_is_torn(Disk::new("btrfs").with_simple_quota(), 100);
}

fn assert_no_snapshot_is_torn(disk: Disk, count: u32) {
    // Deleted snapshots take space until they are reclaimed.
    let rig = ImageRig::sized(disk, 8 << 30);
    let volume = rig.device("pvc", 16 * MIB);
    let target = rig.publish_device(&volume, "pod");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_numbers(&target, &ended));
        let _end = End(&ended);
        let mut last = 0;
        for number in 0..count {
            let name = format!("snap-{number}");
            let taken = rig.driver().create_snapshot(&snapshot(&name, volume.id));
            let id = taken.unwrap().id.to_string();
            let snapshots = rig.node.pool().join("snapshots");
            let image = directory_of(&snapshots, &name).join("data/disk.img");
            last = assert_of_one_instant(&image);
            rig.driver().delete_snapshot(&id).unwrap();
        }
        assert!(last > 2 * NUMBERED, "the writer went on: {last}");
    });
}

/// A new driver finds the devices of the one before, and a reboot leaves an empty file at the target.
///
/// Proves: B1.
#[test]
fn a_new_driver_knows_the_devices() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 64 * MIB);
    let target = rig.publish_device(&volume, "pod");
    rig.start();
    let refused = rig.driver().delete(&volume.id.to_string()).unwrap_err();
    assert!(refused.to_string().contains("is published at"), "{refused}");
    rig.unpublish(&volume, &target);
    rig.has_no_loop("pvc");
    File::create(&target).unwrap();
    rig.publish_device(&volume, "pod");
    rig.unpublish(&volume, &target);
    fs::create_dir(&target).unwrap();
    let refused = rig.try_publishing(&volume, "pod", false).unwrap_err();
    assert!(refused.to_string().contains("a directory"), "{refused}");
}

/// A device whose node was unmounted before it was detached, as by a driver that was killed in between, is
/// detached by the repeated call, or by the next driver.
///
/// Proves: B1.
#[test]
fn a_device_that_is_mounted_nowhere_is_detached() {
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 64 * MIB);
    let target = rig.publish_device(&volume, "pod");
    support::unmount(&target);
    rig.unpublish(&volume, &target);
    rig.has_no_loop("pvc");
    let target = rig.publish_device(&volume, "pod");
    support::unmount(&target);
    rig.start();
    rig.has_no_loop("pvc");
    rig.delete(&volume);
}

/// A device whose target another mount hides stays attached when the driver is started again.
///
/// Proves: B1, U5.
#[test]
fn a_device_at_a_hidden_target_is_not_detached() {
    require!(mount_namespace);
    require!(loop_devices);
    let mut rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let target = rig.publish_device(&volume, "pod");
    let above = target.parent().unwrap();
    rustix::mount::mount_bind(rig.node.path("kubelet"), above).unwrap();
    rig.start();
    let loops = rig.loops("pvc");
    let deleted = rig.driver().delete(&volume.id.to_string());
    support::unmount(above);
    assert_eq!(loops, 1);
    let refused = deleted.unwrap_err();
    assert_eq!(refused.code(Operation::Delete), Code::FailedPrecondition);
    rig.unpublish(&volume, &target);
    rig.delete(&volume);
}

/// The path in sysfs of the only device that shows the image of a volume.
pub(super) fn device_of(rig: &ImageRig, volume: &str) -> PathBuf {
    let file = File::open(rig.file(volume)).unwrap();
    let found = loops::of(&file).unwrap();
    let [device] = &found[..] else {
        panic!("{found:?}")
    };
    Path::new("/sys/block").join(device.path.file_name().unwrap())
}

/// The number of the device at a target, as sysfs shows it.
pub(super) fn number_in_sysfs(target: &Path) -> String {
    let number = fs::metadata(target).unwrap().rdev();
    format!(
        "{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    )
}

/// Waits until a device is removed. A device that another test has open for a moment is removed later, and
/// its number may be another's by then.
pub(super) fn is_removed(device: &Path) {
    eventually("the device is removed", || {
        KernelMounter.tidy_loops().unwrap();
        let is_bound = fs::symlink_metadata(device.join("loop")).is_ok();
        fs::symlink_metadata(device).is_err() || is_bound
    });
}

/// Volumes that are published at once get devices of their own, whose numbers no other program gets, and
/// give them back.
///
/// Proves: I2, B1.
#[test]
fn devices_have_numbers_of_the_driver() {
    require!(loop_devices);
    let rig = ImageRig::sized(Disk::new("ext4"), 2 << 30);
    let is_block = |at: &u32| at.is_multiple_of(2);
    let volumes: Vec<(u32, Volume)> = (0..16)
        .map(|at| {
            let name = format!("pvc-{at}");
            let of_kind = if is_block(&at) {
                ImageRig::device
            } else {
                ImageRig::image
            };
            (at, of_kind(&rig, &name, 16 * MIB))
        })
        .collect();
    for _ in 0..3 {
        let rig = &rig;
        std::thread::scope(|scope| {
            for (at, volume) in &volumes {
                scope.spawn(move || {
                    let (name, pod) = (volume.name.as_str(), format!("pod-{at}"));
                    let target = if is_block(at) {
                        rig.publish_device(volume, &pod)
                    } else {
                        rig.publish(volume, &pod)
                    };
                    let device = device_of(rig, name);
                    let number = device.file_name().unwrap().to_str().unwrap();
                    let number: u32 = number.strip_prefix("loop").unwrap().parse().unwrap();
                    assert!((2048..4096).contains(&number), "{number}");
                    rig.unpublish(volume, &target);
                    rig.has_no_loop(name);
                    is_removed(&device);
                });
            }
        });
    }
}

/// A driver that is killed leaves a device without a file, which the next unpublish removes. A device with
/// the file of somebody else stays, and is reported.
///
/// Proves: B3.
#[test]
fn unused_devices_are_removed_and_those_of_others_are_not() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let volume = rig.device("pvc", 16 * MIB);
    let control = File::open("/dev/loop-control").unwrap();
    let add = |number: u32| {
        // Another test may have removed it meanwhile.
        let added = sys::add_loop(control.as_fd(), number);
        assert!(matches!(added, Ok(()) | Err(Errno::EXIST)), "{added:?}");
        PathBuf::from(format!("/dev/loop{number}"))
    };
    // Another run of the tests takes others.
    let number = 3072 + std::process::id() % 512 * 2;
    let unused = add(number + 1);
    let file = File::create_new(rig.node.path("own")).unwrap();
    file.set_len(MIB).unwrap();
    let mut attached = None;
    eventually("the number is free", || {
        let strange = add(number);
        let device = File::open(&strange).ok().filter(|device| {
            sys::attach_loop(device.as_fd(), file.as_fd(), sys::READ_ONLY, 0).is_ok()
        });
        attached = device.map(|device| (strange, device));
        attached.is_some()
    });
    let (strange, device) = attached.unwrap();
    let before = sys::loop_status(device.as_fd()).unwrap();
    eventually("an unpublish removes the unused device", || {
        let target = rig.publish_device(&volume, "pod");
        rig.unpublish(&volume, &target);
        // Another test may have had it open meanwhile.
        fs::symlink_metadata(&unused).is_err()
    });
    assert_eq!(sys::loop_status(device.as_fd()).unwrap(), before);
    let strangers = loops::foreign_loops().unwrap();
    let own = strangers.iter().find(|stranger| stranger.path == strange);
    assert_eq!(own.unwrap().file, rig.node.path("own"));
    sys::detach_loop(device.as_fd()).unwrap();
    drop(device);
    is_removed(&Path::new("/sys/block").join(strange.file_name().unwrap()));
}

/// A process that outlives its pod and has the node of its device does not see the next volumes.
///
/// Proves: B3.
#[test]
fn a_number_is_not_used_again_at_once() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let (hostile, victim) = (
        rig.device("hostile", 16 * MIB),
        rig.device("victim", 16 * MIB),
    );
    let target = rig.publish_device(&hostile, "hostile");
    let device = device_of(&rig, "hostile");
    let number = fs::metadata(&target).unwrap().rdev();
    rig.unpublish(&hostile, &target);
    is_removed(&device);
    for _ in 0..4 {
        let next = rig.publish_device(&victim, "next");
        assert_ne!(fs::metadata(&next).unwrap().rdev(), number);
        rig.unpublish(&victim, &next);
    }
}

/// Runs a program as a pod without any capability.
fn as_pod(arguments: &[&str], node: &Path) {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
    ]);
    let output = command.args(arguments).arg(node).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// A pod without any capability can discard and detach its device, which keeps its file and its number until
/// the unpublish. The volume can then be published again and deleted.
///
/// Proves: B3.
#[test]
fn a_pod_with_a_device_harms_only_itself() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let (hostile, victim) = (
        rig.device("hostile", 64 * MIB),
        rig.device("victim", 64 * MIB),
    );
    let target = rig.publish_device(&hostile, "hostile");
    let node = rig.node_of_pod(&target);
    let number = fs::metadata(&target).unwrap().rdev();
    as_pod(&["losetup", "--detach"], &node);
    for _ in 0..2 {
        let next = rig.publish_device(&victim, "next");
        assert_ne!(fs::metadata(&next).unwrap().rdev(), number);
        rig.unpublish(&victim, &next);
    }
    let image = open(&rig.file("victim"));
    let taken = sys::attach_loop(open(&node).as_fd(), image.as_fd(), 0, 0);
    assert_eq!(
        taken,
        Err(Errno::BUSY),
        "another program may get the number"
    );
    rig.unpublish(&hostile, &target);
    rig.has_no_loop("hostile");

    let target = rig.publish_device(&hostile, "hostile");
    rig.unpublish(&hostile, &target);
    for volume in [&hostile, &victim] {
        rig.delete(volume);
    }
}
