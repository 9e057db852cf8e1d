//! The steps that no request waits for: those of the reclaimer, and the clearing at a start.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use linux::os::{Observer, Os, Step};
use rustix::io::Errno;

use rootcellar::error::{Code, Operation};
use rootcellar::volume::{Seams, Volumes};

use super::fixture::{SIZE, StepFixture, Trouble};
use super::{Call, ERRORS, is_a_good_pool, visible};
use support::memory::MemoryNode;
use support::mounter::FakeMounter;
use support::quota::NoQuotas;
use support::{at_once, create, eventually};

/// The size of the other data at first: large enough that the marker is rewritten when it is
/// removed.
const FOREIGN_BYTES: usize = 32 << 20;

/// A volume with a few files in it, and one that is not deleted.
fn stage_to_reclaim() -> StepFixture {
    let mut fixture = StepFixture::new(Arc::new(NoQuotas));
    fixture.start();
    fixture.make("kept");
    fixture.make("pvc");
    let data = fixture.directory("pvc").unwrap().join("data");
    std::fs::create_dir(data.join("dir")).unwrap();
    std::fs::write(data.join("dir/file"), "file").unwrap();
    fixture
}

fn reclaim_steps() -> Vec<Step> {
    let fixture = stage_to_reclaim();
    fixture.script.start_reclaiming(None);
    fixture.driver().delete(&fixture.id("pvc")).unwrap();
    fixture.assert_ends_with(&["kept"]);
    let steps = fixture.script.end();
    assert!(steps.len() >= 6, "{steps:?}");
    steps
}

/// Deletes the volume and waits until the reclaimer reached its trouble.
fn delete_into_trouble(fixture: &StepFixture, at: usize, trouble: Trouble) {
    fixture.script.start_reclaiming(Some(trouble));
    let deleted = fixture.driver().delete(&fixture.id("pvc"));
    // The reclaimer may halt the driver before the deletion has synced the directory.
    assert!(
        deleted.is_ok() || matches!(trouble, Trouble::Halt(_)),
        "{deleted:?}"
    );
    eventually("the reclaimer is in trouble", || {
        fixture.script.count_so_far() > at
    });
}

/// When any step of reclaiming fails, nothing else is lost, and the rest is reclaimed later.
///
/// Proves: D5.
#[test]
fn a_reclaim_survives_the_failure_of_every_step() {
    let steps = reclaim_steps().len();
    let cases = (0..steps).flat_map(|at| [Errno::IO, Errno::NOSPC].map(|errno| (at, errno)));
    at_once(cases, |(at, errno)| {
        eprintln!("step {at}: {errno}");
        let fixture = stage_to_reclaim();
        delete_into_trouble(&fixture, at, Trouble::Once(at, errno));
        fixture.recovers();
        fixture.assert_ends_with(&["kept"]);
        eventually("nothing resists", || {
            fixture.driver().pools()[0].measured_view().resisting == 0
        });
    });
}

/// Wherever the driver ends while it reclaims, the next driver continues.
///
/// Proves: D5.
#[test]
fn a_reclaim_may_end_before_any_step() {
    at_once(0..reclaim_steps().len(), |at| {
        eprintln!("halted before step {at}");
        let mut fixture = stage_to_reclaim();
        delete_into_trouble(&fixture, at, Trouble::Halt(at));
        fixture.restart_after_halt();
        fixture.assert_ends_with(&["kept"]);
    });
}

fn other_bytes(pool: &Path) -> usize {
    let marker = pool.join(".rootcellar/pool.json");
    let marker: serde_json::Value =
        serde_json::from_slice(&std::fs::read(marker).unwrap()).unwrap();
    usize::try_from(marker["other_bytes"].as_u64().unwrap()).unwrap()
}

fn stage_to_rewrite_the_marker() -> StepFixture {
    let mut fixture = StepFixture::new(Arc::new(NoQuotas));
    let foreign = fixture.node.path("default/foreign");
    std::fs::write(&foreign, vec![1; FOREIGN_BYTES]).unwrap();
    fixture.start();
    fixture.make("pvc");
    assert!(other_bytes(&fixture.node.pool("default")) >= FOREIGN_BYTES);
    // A process that another test begins has the file open for a moment, and a removed file has its
    // blocks as long as it is open.
    std::fs::File::create(&foreign).unwrap();
    std::fs::remove_file(&foreign).unwrap();
    fixture
}

fn marker_is_written_anew(fixture: &StepFixture) {
    eventually("the marker is written again", || {
        other_bytes(&fixture.node.pool("default")) < FOREIGN_BYTES
    });
}

/// The steps up to the last one of the marker, and the index of the sync before the marker's first.
/// The number of later inspections by the reclaimer depends on the time.
fn rewrite_steps() -> (Vec<Step>, usize) {
    let fixture = stage_to_rewrite_the_marker();
    fixture.script.start_reclaiming(None);
    fixture.driver().delete(&fixture.id("pvc")).unwrap();
    marker_is_written_anew(&fixture);
    fixture.assert_ends_with(&[]);
    let mut steps = fixture.script.end();
    let sync = steps.iter().position(|step| *step == Step::Syncfs).unwrap();
    let rename = steps.iter().rposition(|step| *step == Step::Rename);
    steps.truncate(rename.unwrap() + 2);
    (steps, sync)
}

/// If any step of rewriting the marker fails, the pool is unavailable until the next health check,
/// which finishes the rewriting. If the disk is only full, the pool is available, and the rewriting
/// is finished when the pool is empty the next time.
///
/// Proves: D5.
#[test]
fn rewriting_the_marker_survives_the_failure_of_every_step() {
    let (steps, sync) = rewrite_steps();
    assert!(steps.len() - sync >= 6, "{steps:?}");
    let cases = (sync..steps.len()).flat_map(|at| [Errno::IO, Errno::NOSPC].map(|e| (at, e)));
    at_once(cases, |(at, errno)| {
        eprintln!("step {at}: {errno}");
        let fixture = stage_to_rewrite_the_marker();
        delete_into_trouble(&fixture, at, Trouble::Once(at, errno));
        let full = errno == Errno::NOSPC && !matches!(steps[at], Step::Fsync | Step::Syncfs);
        if full {
            fixture.script.end();
            assert!(!fixture.is_unavailable());
            fixture.make("again");
            fixture.driver().delete(&fixture.id("again")).unwrap();
        } else {
            eventually("the pool is unavailable", || fixture.is_unavailable());
            let refused = fixture.driver().create(&create("pvc", SIZE)).unwrap_err();
            let code = refused.code(Operation::CreateVolume);
            assert_eq!(code, Code::ResourceExhausted);
            fixture.script.end();
            fixture.recovers();
        }
        marker_is_written_anew(&fixture);
        is_a_good_pool(&fixture);
    });
}

/// Wherever the driver ends while it rewrites the marker, the next driver finishes the rewriting.
///
/// Proves: D5.
#[test]
fn rewriting_the_marker_may_end_before_any_step() {
    let (steps, sync) = rewrite_steps();
    at_once(sync..steps.len(), |at| {
        eprintln!("halted before step {at}");
        let mut fixture = stage_to_rewrite_the_marker();
        delete_into_trouble(&fixture, at, Trouble::Halt(at));
        fixture.restart_after_halt();
        is_a_good_pool(&fixture);
    });
}

/// A pool with a volume, and with another that a killed driver left in staging.
fn stage_to_clear() -> StepFixture {
    let mut fixture = Call::Create.prepare(Arc::new(NoQuotas));
    let rename = visible(&Call::Create.steps());
    fixture.script.start(Some(Trouble::Halt(rename)));
    Call::Create.make(&fixture).unwrap_err();
    fixture.running = None;
    fixture.script.end();
    assert_eq!(fixture.names(".rootcellar/staging").len(), 1);
    fixture
}

/// If any step of a start fails, the pool is unavailable and refuses volumes, and the next health check
/// finishes the start. If the disk is only full, the pool is available, and the reclaimer clears staging.
///
/// Proves: D5.
#[test]
fn a_start_survives_the_failure_of_every_step() {
    let mut fixture = stage_to_clear();
    fixture.script.start(None);
    fixture.start();
    let steps = fixture.script.end();
    assert_eq!(steps, [Step::Rename, Step::Syncfs, Step::Fsync]);
    for (at, step) in steps.iter().enumerate() {
        for errno in ERRORS {
            eprintln!("step {at}, {step:?}: {errno}");
            let mut fixture = stage_to_clear();
            fixture.script.start(Some(Trouble::Once(at, errno)));
            fixture.start();
            fixture.script.end();
            if *step == Step::Rename && matches!(errno, Errno::NOSPC | Errno::DQUOT) {
                assert!(!fixture.is_unavailable());
                eventually("staging is cleared", || {
                    fixture.names(".rootcellar/staging").is_empty()
                });
                fixture.assert_ends_with(&["kept"]);
                continue;
            }
            assert!(fixture.is_unavailable());
            let refused = fixture.driver().create(&create("pvc", SIZE)).unwrap_err();
            let code = refused.code(Operation::CreateVolume);
            // A shortage of memory is no fault of the disk.
            let expected = match errno {
                Errno::NOMEM if *step != Step::Syncfs => Code::Unavailable,
                _ => Code::ResourceExhausted,
            };
            assert_eq!(code, expected);
            fixture.recovers();
            fixture.assert_ends_with(&["kept"]);
        }
    }
}

/// Records at every step on the state file `pools.json` whether the pool is served.
#[derive(Debug, Default)]
struct Early {
    volumes: OnceLock<Weak<Volumes>>,
    served: Mutex<Vec<bool>>,
}

impl Observer for Early {
    fn before(&self, _step: Step, name: &OsStr) -> Result<(), Errno> {
        if name.to_string_lossy().starts_with("pools.json") {
            let volumes = self.volumes.get().and_then(Weak::upgrade).unwrap();
            let is_served = volumes.pools()[0].why_unavailable().is_none();
            self.served.lock().unwrap().push(is_served);
        }
        Ok(())
    }
}

/// Proves: P2.
#[test]
fn a_pool_is_remembered_before_it_is_served() {
    let node = MemoryNode::new(&["default"]);
    let early = Arc::new(Early::default());
    let seams = Seams {
        os: Os::observed(early.clone()),
        mounter: Arc::new(FakeMounter::default()),
        quotas: Arc::new(NoQuotas),
    };
    let volumes = Volumes::with_seams(node.settings(&node.options()), seams);
    let volumes = Arc::new(volumes.unwrap());
    early.volumes.set(Arc::downgrade(&volumes)).unwrap();
    volumes.load().unwrap();
    assert_eq!(volumes.pools()[0].why_unavailable(), None);
    volumes.stop();
    // The old temporary file is removed, a new one is made, and it is renamed.
    assert_eq!(*early.served.lock().unwrap(), [false; 3]);
}
