//! Copies that take long: the calls that are possible meanwhile, the calls that are refused, and
//! how the copies end.

mod turns;

use std::ffi::OsStr;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use linux::os::Step;
use objects::{Bytes, ObjectId, SnapshotId, VolumeId};
use rustix::io::Errno;

use pool::{Pool, Unit};
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{ExpandRequest, Snapshot, SourceId, Volume};

use crate::snapshots::{CopyRig, Kind, SIZE};
use support::faults::{Gate, Opened};
use support::require;
use support::{Fakes, eventually, names, publish};

const FILES: usize = 40;

/// The name of the gate that a copy passes at each file.
const A_FILE: &str = "a file";

/// A disk whose files share no blocks, with a volume of many files and a snapshot of it.
struct ManyFiles {
    gate: Arc<Gate>,
    /// Whether a directory cannot be made.
    broken: Arc<AtomicBool>,
    rig: CopyRig,
    source: Volume,
    taken: Snapshot,
}

impl ManyFiles {
    fn new() -> Self {
        let gate = Arc::new(Gate::default());
        let at_a_file = gate.clone();
        let broken = Arc::new(AtomicBool::default());
        let is_broken = broken.clone();
        let fakes = Fakes::planned(move |step, _| {
            if step == Step::CopyRange {
                at_a_file.pass(OsStr::new(A_FILE));
            }
            let fails = step == Step::Mkdir && is_broken.load(Ordering::Relaxed);
            if fails { Err(Errno::IO) } else { Ok(()) }
        });
        let rig = CopyRig::with(Kind::Ext4, fakes);
        let source = rig.make("source", SIZE);
        let data = rig.volume_data("source");
        for file in 0..FILES {
            fs::write(data.join(file.to_string()), [7; 8 << 10]).unwrap();
        }
        let taken = rig.snapshot("taken", &source).unwrap();
        Self {
            gate,
            broken,
            rig,
            source,
            taken,
        }
    }

    /// Begins a copy, stops it at its first file, runs `meanwhile`, and lets the copy go on.
    /// Returns the result of the copy.
    fn during<T: Send>(
        &self,
        begin: impl FnOnce() -> Result<T, Error> + Send,
        meanwhile: impl FnOnce(),
    ) -> Result<T, Error> {
        self.gate.shut(A_FILE);
        std::thread::scope(|scope| {
            let thread = scope.spawn(begin);
            let opened = Opened(&self.gate);
            eventually("a file is being copied", || self.gate.holds(A_FILE));
            meanwhile();
            drop(opened);
            thread.join().unwrap()
        })
    }

    fn restore(&self) -> Result<Volume, Error> {
        self.rig.restore("restored", SIZE, &self.taken)
    }

    fn delete_snapshot(&self) -> Result<(), Error> {
        self.rig
            .driver()
            .delete_snapshot(&self.taken.id.to_string())
    }

    fn assert_complete(&self, home: &str, name: &str) {
        assert_eq!(names(&self.rig.data(home, name)).len(), FILES, "{name}");
    }
}

#[track_caller]
fn aborted<T: std::fmt::Debug>(answer: Result<T, Error>, operation: Operation) {
    assert_eq!(answer.unwrap_err().code(operation), Code::Aborted);
}

/// The server knows how far a copy has come that becomes a volume or a snapshot.
///
/// Proves: T11.
#[test]
fn a_copy_has_an_advance_until_it_ends() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let pool = scene.source.id.pool();
    let volume = VolumeId::new(pool, &"restored".parse().unwrap()).to_string();
    let snapshot = SnapshotId::new(pool, &"again".parse().unwrap()).to_string();
    let advance = |id: &str| scene.rig.driver().advance(id).unwrap();
    let is_counted = |id: &str| {
        let unit = advance(id).map(|advance| advance.unit);
        assert_eq!(unit, Some(Unit::Bytes), "{id}");
    };
    let restored = scene.during(|| scene.restore(), || is_counted(&volume));
    restored.unwrap();
    let again = || scene.rig.snapshot("again", &scene.source);
    scene.during(again, || is_counted(&snapshot)).unwrap();
    assert_eq!([advance(&volume), advance(&snapshot)], [None, None]);
}

/// A request for a copy that is being made is `ABORTED`. A later request gets the same copy.
///
/// Proves: V1.
#[test]
fn a_copy_is_made_once_however_often_it_is_asked_for() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let rig = &scene.rig;
    let take = || rig.snapshot("again", &scene.source);
    let made = scene.during(take, || aborted(take(), Operation::CreateSnapshot));
    assert_eq!(take().unwrap(), made.unwrap());
    scene.assert_complete("snapshots", "again");
    let restore = || scene.restore();
    let made = scene.during(restore, || aborted(restore(), Operation::CreateVolume));
    assert_eq!(restore().unwrap(), made.unwrap());
    scene.assert_complete("volumes", "restored");
    assert_eq!(names(&rig.node.pool().join("snapshots")).len(), 2);
    assert_eq!(names(&rig.node.pool().join("volumes")).len(), 2);
}

/// The source of a running copy cannot be deleted: `ABORTED`. After the copy it can be deleted, and
/// the copy stays.
///
/// Proves: SN16.
#[test]
fn what_is_being_copied_is_not_deleted() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let rig = &scene.rig;
    let delete = || rig.driver().delete(&scene.source.id.to_string());
    let again = || rig.snapshot("again", &scene.source);
    let made = scene.during(again, || aborted(delete(), Operation::Delete));
    made.unwrap();
    let restore = || scene.restore();
    let delete_snapshot = || scene.delete_snapshot();
    let made = scene.during(restore, || {
        aborted(delete_snapshot(), Operation::Delete);
        // That volume is not being copied.
        delete().unwrap();
    });
    made.unwrap();
    delete_snapshot().unwrap();
    scene.assert_complete("snapshots", "again");
    scene.assert_complete("volumes", "restored");
}

/// A volume can be published, unpublished, expanded and copied again while it is being copied, and
/// other volumes are created and deleted. The snapshot reports that the volume was in use.
///
/// Proves: SN16.
#[test]
fn a_volume_that_is_being_copied_is_used_as_ever() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let (rig, driver) = (&scene.rig, scene.rig.driver());
    let id = scene.source.id.to_string();
    let target = rig.node.target("pod");
    let again = || rig.snapshot("again", &scene.source);
    let made = scene.during(again, || {
        driver.publish(&publish(&id, &target)).unwrap();
        let larger = ExpandRequest {
            id: id.clone(),
            path: target.clone(),
            required: Bytes(SIZE + (4 << 20)),
            limit: None,
        };
        assert_eq!(driver.expand(&larger).unwrap(), larger.required);
        driver.stats(&id, &target).unwrap();
        let other = rig.make("other", 1 << 20);
        rig.delete(&other);
    });
    let made = made.unwrap();
    assert!(made.in_use, "it was published meanwhile");
    assert_eq!(made.size, Bytes(SIZE), "as large as its source was");
    driver.unpublish(&id, &target).unwrap();
    scene.assert_complete("snapshots", "again");
}

/// A driver that stops ends its running copies, `UNAVAILABLE`, and leaves nothing of them. The next
/// driver makes the copy on request.
///
/// Proves: SN16.
#[test]
fn a_driver_that_stops_ends_its_copies() {
    require!(loop_devices);
    let mut scene = ManyFiles::new();
    let restore = || scene.restore();
    let ended = scene.during(restore, || scene.rig.driver().stop_copies());
    let ended = ended.unwrap_err();
    assert_eq!(ended.code(Operation::CreateVolume), Code::Unavailable);
    let text = ended.to_string();
    assert!(text.contains("the driver stops"), "{text}");
    let again = scene.restore().unwrap_err();
    assert_eq!(again.code(Operation::CreateVolume), Code::Unavailable);
    let staging = scene.rig.node.pool().join(".rootcellar/staging");
    assert_eq!(names(&staging), [""; 0]);
    scene.rig.start();
    scene.rig.wait_for_trash();
    assert_eq!(names(&scene.rig.node.pool().join("volumes")).len(), 1);
    let source = SourceId::Snapshot(scene.taken.id.to_string());
    let request = CopyRig::copy("restored", SIZE, source);
    scene.rig.driver().create(&request).unwrap();
    scene.assert_complete("volumes", "restored");
}

/// A disk that takes longer for each file than the time that a disk has to answer.
#[derive(Debug, Default)]
struct Slow {
    pool: OnceLock<Arc<Pool>>,
    /// For how long the pool had not answered when each file was begun.
    silences: Mutex<Vec<Option<Duration>>>,
}

impl Slow {
    fn copy_range(&self, step: Step) {
        if let (Step::CopyRange, Some(pool)) = (step, self.pool.get()) {
            self.silences.lock().unwrap().push(pool.silence());
            eventually("it takes too long", || pool.silence().is_some());
        }
    }
}

/// A slow copy that advances from file to file is not mistaken for a disk that does not answer.
///
/// Proves: DK6.
#[test]
fn a_long_copy_that_advances_is_no_disk_that_does_not_answer() {
    require!(loop_devices);
    let slow = Arc::new(Slow::default());
    let at_a_step = slow.clone();
    let fakes = Fakes {
        timeout: Duration::from_secs(1),
        ..Fakes::planned(move |step, _| {
            at_a_step.copy_range(step);
            Ok(())
        })
    };
    let rig = CopyRig::with(Kind::Ext4, fakes);
    let source = rig.make("source", SIZE);
    let data = rig.volume_data("source");
    for file in ["a", "b", "c"] {
        fs::write(data.join(file), [7; 8 << 10]).unwrap();
    }
    let pool = Arc::clone(&rig.driver().pools()[0]);
    slow.pool.set(Arc::clone(&pool)).unwrap();
    rig.snapshot("taken", &source).unwrap();
    let silences = slow.silences.lock().unwrap();
    assert_eq!(*silences, [None; 3]);
    eventually("the pool is well", || pool.silence().is_none());
}

/// A failed copy that a full disk keeps in staging counts as trash, and is reclaimed without a restart.
///
/// Proves: R3.
#[test]
fn a_failed_copy_that_a_full_disk_keeps_is_reclaimed() {
    require!(loop_devices);
    let full = Arc::new(AtomicBool::default());
    let is_full = full.clone();
    let fakes = Fakes::planned(move |step, _| match step {
        Step::CopyRange | Step::Rename if is_full.load(Ordering::Relaxed) => Err(Errno::NOSPC),
        _ => Ok(()),
    });
    let rig = CopyRig::with(Kind::Ext4, fakes);
    let source = rig.make("source", SIZE);
    fs::write(rig.volume_data("source").join("file"), "content").unwrap();
    full.store(true, Ordering::Relaxed);
    let refused = rig.clone_of("clone", SIZE, &source).unwrap_err();
    assert_eq!(
        refused.code(Operation::CreateVolume),
        Code::ResourceExhausted
    );
    let staging = || rig.node.names(".rootcellar/staging");
    assert_eq!((staging().len(), rig.measured_view().trash), (1, 1));
    full.store(false, Ordering::Relaxed);
    eventually("it is reclaimed", || rig.measured_view().trash == 0);
    assert_eq!((staging(), rig.trash()), (vec![], 0));
    assert_eq!(rig.measured_view().unavailable, None);
    rig.clone_of("clone", SIZE, &source).unwrap();
}
