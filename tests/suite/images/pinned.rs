//! Trims that keep a filesystem mounted after its last unpublish.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};

use linux::mount::{MountOptions, Mountable, Mounter, Prepared, Result as Mounted, Target};
use linux::os::FileId;
use rustix::fs::StatVfsMountFlags;

use super::*;

/// The mounts of the kernel, with trims that wait while they have a filesystem open.
#[derive(Debug)]
struct Waiting {
    begun: Sender<()>,
    may_end: Mutex<Receiver<()>>,
}

impl Mounter for Waiting {
    fn prepare(
        &self,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Mounted<Prepared> {
        KernelMounter.prepare(source, target, options)
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Mounted<()> {
        KernelMounter.attach(prepared, target)
    }

    fn flags(&self, target: &Target) -> Mounted<StatVfsMountFlags> {
        KernelMounter.flags(target)
    }

    fn unmount(&self, target: &Target) -> Mounted<()> {
        KernelMounter.unmount(target)
    }

    fn trim(&self, target: &Target, image: FileId, range: std::ops::Range<u64>) -> Mounted<bool> {
        let root = target.open_root().unwrap();
        let pinned = linux::mount::open_guarded(root).unwrap();
        self.begun.send(()).unwrap();
        let wait = self.may_end.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = wait.recv();
        drop(wait);
        let trimmed = KernelMounter.trim(target, image, range);
        drop(pinned);
        trimmed
    }
}

/// A rig whose trims wait, the end of whose waits is sent.
fn rig(disk: Disk) -> (ImageRig, Receiver<()>, Sender<()>) {
    let (begun, has_begun) = mpsc::channel();
    let (end, may_end) = mpsc::channel();
    let mounter = Waiting {
        begun,
        may_end: Mutex::new(may_end),
    };
    let fakes = Fakes {
        mounter: Arc::new(mounter),
        ..Fakes::default()
    };
    let base = DriverNode::with(disk.sized(2 << 30), fakes);
    (ImageRig { base }, has_begun, end)
}

fn cannot_be_copied_or_deleted(rig: &ImageRig, volume: &Volume, format: &str) {
    let mut clone = image("clone", 320 * MIB);
    clone.capabilities[0].fs_type = Some(format.to_owned());
    clone.source = Some(SourceId::Volume(volume.id.to_string()));
    let taken = snapshot("snap", volume.id);
    for refused in [
        rig.driver().delete(&volume.id.to_string()).unwrap_err(),
        rig.driver().create_snapshot(&taken).unwrap_err(),
        rig.driver().create(&clone).unwrap_err(),
    ] {
        let code = refused.code(Operation::Volume);
        assert_eq!(code, Code::FailedPrecondition, "{refused}");
    }
}

/// While a trim keeps a filesystem mounted after its last unpublish, nothing copies its image, which may lack the last
/// writes, and nothing deletes it. The next publication has the same device, and all that was written.
///
/// Proves: I2, I3, I6.
#[test]
fn a_trim_that_outlives_its_publication_loses_nothing() {
    require!(loop_devices);
    for (disk, format) in disks().into_iter().zip(["ext4", "xfs"].into_iter().cycle()) {
        let (rig, has_begun, end) = rig(disk);
        let name = disk.name;
        let request = formatted("thin", 320 * MIB, format, Allocation::Thin);
        let volume = rig.driver().create(&request).unwrap();
        let id = volume.id.to_string();
        let target = rig.publish(&volume, "pod");
        let file = File::open(rig.file("thin")).unwrap();
        // It must not stay open.
        let device = loops::of(&file).unwrap()[0].path.clone();
        std::thread::scope(|scope| {
            let trim = scope.spawn(|| {
                for pool in rig.driver().pools().iter() {
                    rig.driver().trim_images(pool);
                }
            });
            has_begun.recv().unwrap();
            fs::write(target.join("late"), vec![7; 8 << 20]).unwrap();
            rig.unpublish(&volume, &target);
            assert_eq!(rig.loops("thin"), 1, "{name}: the trim has the filesystem");

            cannot_be_copied_or_deleted(&rig, &volume, format);

            let reader = rig.node.target("reader");
            let mut reading = publish(&id, &reader);
            reading.read_only = true;
            rig.driver().publish(&reading).unwrap();
            assert!(fs::read(reader.join("late")).unwrap() == vec![7; 8 << 20]);
            assert_eq!(rig.loops("thin"), 1, "{name}");
            fs::write(reader.join("x"), "").unwrap_err();
            let again = rig.publish(&volume, "again");
            fs::write(again.join("later"), vec![6; 8 << 20]).unwrap();
            assert_eq!(rig.loops("thin"), 1, "{name}");
            // ext4 grows only with CAP_SYS_RESOURCE.
            if format == "xfs" {
                rig.expand(&volume, &again, 400 * MIB).unwrap();
            }
            rig.unpublish(&volume, &reader);
            rig.unpublish(&volume, &again);
            assert_eq!(rig.loops("thin"), 1, "{name}");
            drop(end);
            trim.join().unwrap();
        });
        rig.has_no_loop("thin");
        eventually("the device is removed", || {
            device.symlink_metadata().is_err()
        });
        let target = rig.publish(&volume, "pod");
        assert!(fs::read(target.join("late")).unwrap() == vec![7; 8 << 20]);
        assert!(fs::read(target.join("later")).unwrap() == vec![6; 8 << 20]);
        rig.unpublish(&volume, &target);
        rig.delete(&volume);
    }
}
