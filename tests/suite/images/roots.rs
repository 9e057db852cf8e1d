//! The roots of images: the first publication for writing gives them their owner and mode, and empties them.

use std::os::unix::fs::{chown, symlink};
use std::sync::{Condvar, Mutex};

use linux::image::Owner;
use linux::os;

use super::*;

const SIZE: u64 = 64 * MIB;

/// The directory that mke2fs makes.
const LOST_AND_FOUND: &str = "lost+found";

impl ImageRig {
    /// Publishes an image read-only.
    fn publish_to_read(&self, volume: &Volume, pod: &str) -> PathBuf {
        let target = self.node.target(pod);
        let mut request = publish(&volume.id.to_string(), &target);
        request.read_only = true;
        self.driver().publish(&request).unwrap();
        target
    }
}

/// The first publication of a thick image on a full disk sets owner and mode of its root. No later one
/// does, although the record cannot be written: not after a restart, and not that of a copy.
///
/// Proves: I1, I2, DK5.
#[test]
fn a_first_publication_on_a_full_disk_is_the_only_one_that_sets_the_owner() {
    require!(loop_devices);
    for disk in disks().into_iter().take(2) {
        let mut rig = ImageRig::new(disk);
        let request = owned("pvc");
        let volume = rig.driver().create(&request).unwrap();
        rig.fill_disk();
        let target = rig.publish(&volume, "pod");
        assert_eq!(owner(&target), (1000, 2000, 0o2770), "{}", disk.name);
        change_owner(&target);
        for _ in 0..2 {
            rig.unpublish(&volume, &target);
            rig.start();
            rig.publish(&volume, "pod");
            assert_eq!(owner(&target), CHANGED, "{}", disk.name);
        }
        rig.unpublish(&volume, &target);
        assert!(rig.is_unused("pvc"), "{}: the record is old", disk.name);
        rig.empty_disk();
        let mut clone = owned("clone");
        clone.source = Some(SourceId::Volume(volume.id.to_string()));
        clone.class.copies.copy = true;
        let clone = rig.driver().create(&clone).unwrap();
        for volume in [&volume, &clone] {
            let name = volume.name.as_str();
            let target = rig.publish(volume, name);
            assert_eq!(owner(&target), CHANGED, "{}: {name}", disk.name);
            assert!(!rig.is_unused(name), "{}: {name}", disk.name);
        }
    }
}

/// A clone and a snapshot that begin before the first publication of their source, and take its content
/// later, have the owner and the mode that a pod set in between.
///
/// Proves: I2, I3.
#[test]
fn a_copy_that_begins_before_the_first_publication_keeps_the_owner() {
    require!(loop_devices);
    let held = Arc::new(Held::default());
    let rig = ImageRig::with(Disk::new("xfs").sized(1 << 30), held.fakes());
    let volume = rig.driver().create(&owned("pvc")).unwrap();
    let mut clone = owned("clone");
    clone.source = Some(SourceId::Volume(volume.id.to_string()));
    held.hold(true);
    let target = std::thread::scope(|scope| {
        let _end = End(&held);
        let cloned = scope.spawn(|| rig.driver().create(&clone).unwrap());
        let taken = scope.spawn(|| {
            let taken = snapshot("snap", volume.id);
            rig.driver().create_snapshot(&taken).unwrap()
        });
        eventually("the copies wait", || held.waiting() == 2);
        let target = rig.publish(&volume, "pod");
        change_owner(&target);
        held.hold(false);
        let (cloned, taken) = (cloned.join().unwrap(), taken.join().unwrap());
        let mut restore = owned("restore");
        restore.source = Some(SourceId::Snapshot(taken.id.to_string()));
        let restored = rig.driver().create(&restore).unwrap();
        for copy in [cloned, restored] {
            let name = copy.name.as_str();
            assert_eq!(owner(&rig.publish(&copy, name)), CHANGED, "{name}");
        }
        target
    });
    assert_eq!(owner(&target), CHANGED);
}

/// The first publication that can write leaves an empty root with owner and mode of the class. One that is
/// read-only changes nothing, whether it is the first or a later one.
///
/// Proves: I2.
#[test]
fn the_first_writer_finds_an_empty_root() {
    require!(loop_devices);
    for disk in disks().into_iter().take(2) {
        let rig = ImageRig::new(disk);
        let volume = rig.driver().create(&owned("pvc")).unwrap();
        for _ in 0..2 {
            let reader = rig.publish_to_read(&volume, "reader");
            assert_eq!(support::names(&reader), [LOST_AND_FOUND], "{}", disk.name);
            assert_eq!(owner(&reader), (0, 0, 0o755), "{}", disk.name);
            rig.unpublish(&volume, &reader);
            assert!(rig.is_unused("pvc"), "{}", disk.name);
        }
        // Both show one filesystem.
        let reader = rig.publish_to_read(&volume, "reader");
        let target = rig.publish(&volume, "pod");
        for at in [&reader, &target] {
            assert!(support::names(at).is_empty(), "{}", disk.name);
            assert_eq!(owner(at), (1000, 2000, 0o2770), "{}", disk.name);
        }
        assert!(!rig.is_unused("pvc"), "{}", disk.name);
    }
}

/// A `lost+found` that is not an empty directory is somebody's, and stays.
///
/// Proves: I2.
#[test]
fn a_first_publication_removes_only_an_empty_directory() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("ext4"));
    let others: [fn(&Path); 4] = [
        |at| fs::create_dir_all(at.join("directory")).unwrap(),
        |at| {
            fs::create_dir(at).unwrap();
            fs::write(at.join("file"), "").unwrap();
        },
        |at| fs::write(at, "a file").unwrap(),
        |at| symlink("/tmp", at).unwrap(),
    ];
    for (number, make) in others.into_iter().enumerate() {
        let root = rig.node.pool().join(format!("root-{number}"));
        fs::create_dir(&root).unwrap();
        make(&root.join(LOST_AND_FOUND));
        let (uid, gid, mode) = CHANGED;
        linux::image::give_root(File::open(&root).unwrap(), Owner { uid, gid, mode }).unwrap();
        assert_eq!(support::names(&root), [LOST_AND_FOUND], "{number}");
        assert_eq!(owner(&root), CHANGED, "{number}");
    }
}

/// Copies have the `lost+found` of a source that was written, and none of one that never was.
///
/// Proves: I2, I3.
#[test]
fn a_copy_keeps_the_lost_and_found_of_its_source() {
    require!(loop_devices);
    let rig = ImageRig::new(Disk::new("xfs"));
    let unused = rig.image("unused", SIZE);
    let volume = rig.image("pvc", SIZE);
    let target = rig.publish(&volume, "pod");
    fs::create_dir(target.join(LOST_AND_FOUND)).unwrap();
    let taken = snapshot("snap", volume.id);
    let taken = rig.driver().create_snapshot(&taken).unwrap();
    for (name, source, has) in [
        ("restore", SourceId::Snapshot(taken.id.to_string()), true),
        ("clone", SourceId::Volume(volume.id.to_string()), true),
        ("new", SourceId::Volume(unused.id.to_string()), false),
    ] {
        let mut request = image(name, SIZE);
        request.source = Some(source);
        let copy = rig.driver().create(&request).unwrap();
        let target = rig.publish(&copy, name);
        assert_eq!(target.join(LOST_AND_FOUND).is_dir(), has, "{name}");
    }
    rig.unpublish(&volume, &target);
    rig.publish(&volume, "pod");
    assert_eq!(support::names(&target), [LOST_AND_FOUND], "the pod's own");
}

/// A request for an image whose root gets an owner and a mode.
fn owned(volume: &str) -> CreateRequest {
    let mut request = image(volume, SIZE);
    request.class.parameters.mode = Mode::parse("2770").unwrap();
    (request.class.parameters.uid, request.class.parameters.gid) = (1000, 2000);
    request
}

/// The owner, the group and the mode of the root of an image.
fn owner(target: &Path) -> (u32, u32, u32) {
    let root = fs::metadata(target).unwrap();
    (root.uid(), root.gid(), root.mode() & 0o7777)
}

/// Those that a pod sets.
const CHANGED: (u32, u32, u32) = (7, 8, 0o711);

fn change_owner(target: &Path) {
    chown(target, Some(CHANGED.0), Some(CHANGED.1)).unwrap();
    fs::set_permissions(target, fs::Permissions::from_mode(CHANGED.2)).unwrap();
    rustix::fs::syncfs(File::open(target).unwrap()).unwrap();
}

/// Makes each copy wait before it shares the blocks of an image.
#[derive(Default)]
struct Held {
    /// Whether copies wait, and how many do.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Held {
    fn hold(&self, hold: bool) {
        self.state.lock().unwrap().0 = hold;
        self.changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().1
    }

    fn fakes(self: &Arc<Self>) -> Fakes {
        let held = Arc::clone(self);
        Fakes::planned(move |step, _| {
            if step == os::Step::Share {
                let mut state = held.state.lock().unwrap();
                state.1 += 1;
                drop(held.changed.wait_while(state, |(hold, _)| *hold).unwrap());
            }
            Ok(())
        })
    }
}

/// Lets the copies go on, also after a failed assertion.
struct End<'a>(&'a Held);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}
