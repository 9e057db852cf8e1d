//! Copies that wait for their turn, because the pool makes as many as it may.

use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use linux::mount::Users;
use rootcellar::volume::Caller;
use support::memory::MemorySet;
use support::{Running, directory_of};

use super::*;

/// The most copies that a pool makes at once.
const AT_ONCE: usize = 4;

type Copying<'scope> = ScopedJoinHandle<'scope, Result<Volume, Error>>;

impl ManyFiles {
    fn count(&self) -> (usize, usize) {
        let status = self.rig.measured_view();
        (status.copies, status.copies_waiting)
    }

    fn until(&self, running: usize, waiting: usize) {
        let counts = format!("{running} copies and {waiting} that wait");
        eventually(counts, || self.count() == (running, waiting));
    }

    fn begin<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        name: &'static str,
        caller: &Caller,
    ) -> Copying<'scope> {
        let caller = caller.clone();
        scope.spawn(move || self.copy(name, caller))
    }

    fn copy(&self, name: &str, caller: Caller) -> Result<Volume, Error> {
        let source = SourceId::Snapshot(self.taken.id.to_string());
        let mut request = CopyRig::copy(name, SIZE, source);
        request.caller = caller;
        self.rig.driver().create(&request)
    }

    /// Stops as many copies as the pool makes at their first file, runs `meanwhile`, lets them go on, and returns their results.
    fn crowded<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        meanwhile: impl FnOnce(),
    ) -> Vec<Result<Volume, Error>> {
        self.gate.shut(A_FILE);
        let opened = Opened(&self.gate);
        let names = ["a", "b", "c", "d"];
        let running = names.map(|name| self.begin(scope, name, &Caller::default()));
        self.until(AT_ONCE, 0);
        // A copy has its turn before its directory.
        eventually("each copy has a directory", || {
            self.staging().len() == AT_ONCE
        });
        meanwhile();
        drop(opened);
        running.map(|copy| copy.join().unwrap()).into()
    }

    fn staging(&self) -> Vec<String> {
        self.rig.node.names(".rootcellar/staging")
    }
}

#[track_caller]
fn refused(answer: Result<Volume, Error>, code: Code, why: &str) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(Operation::CreateVolume), code, "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

const FULL: &str = "makes 4 copies already";

/// A fifth copy waits, has its space reserved, and is made when its turn comes. Meanwhile its repeated request is
/// `ABORTED`, other calls go on, and the pool answers.
///
/// Proves: SN22, DK6.
#[test]
fn a_fifth_copy_waits_for_its_turn() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let rig = &scene.rig;
    std::thread::scope(|scope| {
        let mut waiting = None;
        let made = scene.crowded(scope, || {
            let before = rig.measured_view().available;
            let restore = scene.begin(scope, "e", &Caller::default());
            scene.until(AT_ONCE, 1);
            let snapshot = scope.spawn(|| rig.snapshot("again", &scene.source));
            scene.until(AT_ONCE, 2);
            let reserved = before.0 - rig.measured_view().available.0;
            assert!(reserved >= SIZE, "the restore has its space");
            aborted(scene.copy("e", Caller::default()), Operation::CreateVolume);
            aborted(scene.delete_snapshot(), Operation::Delete);
            let other = rig.make("other", 1 << 20);
            rig.delete(&other);
            assert_eq!(
                (rig.measured_view().silence, scene.count()),
                (None, (AT_ONCE, 2))
            );
            waiting = Some((restore, snapshot));
        });
        assert!(made.iter().all(Result::is_ok), "{made:?}");
        let (restore, snapshot) = waiting.unwrap();
        restore.join().unwrap().unwrap();
        snapshot.join().unwrap().unwrap();
    });
    for name in ["a", "b", "c", "d", "e"] {
        scene.assert_complete("volumes", name);
    }
    scene.assert_complete("snapshots", "again");
    assert_eq!(scene.count(), (0, 0));
}

/// A copy whose caller has no more time, or has left, is `ABORTED`. It leaves nothing, and the next one gets its turn.
///
/// Proves: SN22.
#[test]
fn a_copy_waits_as_long_as_its_caller() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let rig = &scene.rig;
    std::thread::scope(|scope| {
        let mut last = None;
        scene.crowded(scope, || {
            let (staging, before) = (scene.staging(), rig.measured_view().available);
            let late = Caller::until(Some(Instant::now()));
            refused(scene.copy("late", late), Code::Aborted, FULL);
            let soon = Caller::until(Some(Instant::now() + Duration::from_millis(300)));
            refused(scene.copy("soon", soon), Code::Aborted, FULL);
            let leaving = Caller::default();
            let left = scene.begin(scope, "left", &leaving);
            scene.until(AT_ONCE, 1);
            let next = scene.begin(scope, "next", &Caller::default());
            scene.until(AT_ONCE, 2);
            leaving.leave();
            refused(left.join().unwrap(), Code::Aborted, FULL);
            scene.until(AT_ONCE, 1);
            assert_eq!(scene.staging(), staging);
            assert!(
                rig.measured_view().available.0 + 2 * SIZE > before.0,
                "it is free"
            );
            last = Some(next);
        });
        last.unwrap().join().unwrap().unwrap();
    });
    let made = names(&rig.node.pool().join("volumes"));
    assert_eq!(made.len(), 1 + AT_ONCE + 1, "{made:?}");
}

/// When the driver stops, the copies that wait end at once, `UNAVAILABLE`.
///
/// Proves: SN16.
#[test]
fn a_driver_that_stops_ends_the_copies_that_wait() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    std::thread::scope(|scope| {
        scene.crowded(scope, || {
            let waiting = ["e", "f"].map(|name| scene.begin(scope, name, &Caller::default()));
            scene.until(AT_ONCE, 2);
            scene.rig.driver().stop_copies();
            for copy in waiting {
                refused(copy.join().unwrap(), Code::Unavailable, "the driver stops");
            }
        });
    });
    let made = names(&scene.rig.node.pool().join("volumes"));
    assert_eq!(made.len(), 1, "{made:?}");
}

/// When the pool becomes unavailable, the copies that wait end.
///
/// Proves: SN22.
#[test]
fn an_unavailable_pool_ends_the_copies_that_wait() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let rig = &scene.rig;
    std::thread::scope(|scope| {
        let ended = scene.crowded(scope, || {
            let copy = scene.begin(scope, "e", &Caller::default());
            scene.until(AT_ONCE, 1);
            scene.broken.store(true, Ordering::Relaxed);
            let failed = rig.driver().create(&support::create("v", 1 << 20));
            refused(failed, Code::ResourceExhausted, "unavailable");
            scene.broken.store(false, Ordering::Relaxed);
            refused(copy.join().unwrap(), Code::Unavailable, "unavailable");
        });
        assert!(ended.iter().all(Result::is_err), "{ended:?}");
    });
    eventually("the pool is open again", || {
        rig.driver().check_pools();
        rig.measured_view().unavailable.is_none()
    });
    scene.copy("e", Caller::default()).unwrap();
    scene.assert_complete("volumes", "e");
}

/// An original that is replaced while its copy waits is not copied: `ABORTED`, and the repeated request copies the data that
/// is there then.
///
/// Proves: SN22.
#[test]
fn an_original_that_is_replaced_meanwhile_is_not_copied() {
    require!(loop_devices);
    let scene = ManyFiles::new();
    let data = scene.rig.data("snapshots", "taken");
    std::thread::scope(|scope| {
        let mut waiting = None;
        scene.crowded(scope, || {
            waiting = Some(scene.begin(scope, "e", &Caller::default()));
            scene.until(AT_ONCE, 1);
            fs::rename(&data, data.with_file_name("old")).unwrap();
            fs::create_dir(&data).unwrap();
        });
        let copy = waiting.unwrap().join().unwrap();
        refused(copy, Code::Aborted, "changed meanwhile");
    });
    scene.copy("e", Caller::default()).unwrap();
    assert_eq!(names(&scene.rig.data("volumes", "e")), [""; 0]);
}

/// A move waits for its turn in its target.
///
/// Proves: SN22, MV1.
#[test]
fn a_move_waits_for_its_turn() {
    require!(mount_namespace);
    let gate = Arc::new(Gate::default());
    let at_a_file = gate.clone();
    let fakes = Fakes::planned(move |step, _| {
        if step == Step::CopyRange {
            at_a_file.pass(OsStr::new(A_FILE));
        }
        Ok(())
    });
    let node = MemorySet::new(&[("a", 64 << 20), ("b", 48 << 20)]);
    let driver: Running = node.volumes_with(node.settings(), &fakes);
    let moved = driver.create(&support::create("moved", 24 << 20)).unwrap();
    let source = driver.create(&support::create("source", 1 << 20)).unwrap();
    let homes = ["a", "b"].map(|member| node.member(member).join("volumes"));
    let pools = [&moved, &source].map(|volume| volume.pool.as_str());
    assert_eq!(pools, ["set/a", "set/b"], "each on a disk of its own");
    for (home, name) in homes.iter().zip(["moved", "source"]) {
        let file = directory_of(home, name).join("data/file");
        fs::write(file, "content").unwrap();
    }
    let count = || {
        let pools = driver.pools();
        let target = pools.iter().find(|pool| pool.name().member() == Some("b"));
        let status = target.unwrap().measured_view();
        (status.copies, status.copies_waiting)
    };
    let clone = |name| {
        let source = SourceId::Volume(source.id.to_string());
        driver.create(&CopyRig::copy(name, 1 << 20, source))
    };
    let take = || {
        let id = moved.id.to_string();
        driver.move_to(&id, "b", Users::Ignore, &Caller::default())
    };
    gate.shut(A_FILE);
    std::thread::scope(|scope| {
        let opened = Opened(&gate);
        let clones = ["e", "f", "g", "h"].map(|name| scope.spawn(move || clone(name)));
        eventually("as many as allowed", || count() == (AT_ONCE, 0));
        let moving = scope.spawn(take);
        eventually("the move waits", || count() == (AT_ONCE, 1));
        assert_eq!(names(&homes[0]).len(), 1);
        drop(opened);
        moving.join().unwrap().unwrap();
        for clone in clones {
            clone.join().unwrap().unwrap();
        }
    });
    let file = directory_of(&homes[1], "moved").join("data/file");
    assert_eq!(fs::read(file).unwrap(), b"content");
    assert_eq!(names(&homes[0]), [""; 0]);
}
