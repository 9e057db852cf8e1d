//! Every step on a disk fails, or is the last one: the answer to the caller, and the state that is
//! left. Only the driver ends here, not the machine: written data stays written.

mod background;
mod call;
mod copies;
mod enforce;
mod fixture;
mod imports;
mod limits;
mod moving;

use std::ffi::OsStr;
use std::sync::{Arc, Mutex};

use linux::os::{Observer, Os, Step};
use objects::Bytes;
use rustix::io::Errno;

use rootcellar::error::{Code, Operation};

use call::{CALLS, Call, LIMITS, visible};
use fixture::{SIZE, StepFixture, Trouble};
use support::quota::{FakeQuota, NoQuotas};
use support::{create, eventually, publish};

/// Whether the pool is unavailable after a failed step, and the answer to the caller. A publication does not
/// fail because its disk is full.
fn verdict(call: Call, steps: &[Step], at: usize, errno: Errno) -> (bool, Result<(), Code>) {
    // After a failed sync with any error, nobody knows the contents of the disk.
    let sync = matches!(steps[at], Step::Fsync | Step::Syncfs);
    let unavailable = sync || matches!(errno, Errno::IO | Errno::ROFS);
    let home = !call.creates() || at > visible(steps);
    let code = match (unavailable, home) {
        (true, true) => Code::Unavailable,
        (false, _) if errno == Errno::NOMEM => Code::Unavailable,
        // A later publication writes the record.
        (false, _) if call == Call::PublishImage => return (false, Ok(())),
        (false, _) if call.expands() => Code::OutOfRange,
        _ => Code::ResourceExhausted,
    };
    (unavailable, Err(code))
}

/// A broken disk, two ways of being full, a disk that became read-only, and a shortage outside the
/// disk.
const ERRORS: [Errno; 5] = [
    Errno::IO,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::ROFS,
    Errno::NOMEM,
];

fn with_every_failure(check: impl Fn(Call, &[Step], usize, Errno)) {
    for call in CALLS {
        let steps = call.steps();
        assert!(steps.len() >= 3, "{steps:?}");
        for at in 0..steps.len() {
            // A full disk deletes the volume that it cannot keep.
            let is_kept = call == Call::Keep && steps[at] == Step::Rename;
            let is_full = |errno: &Errno| matches!(*errno, Errno::NOSPC | Errno::DQUOT);
            for errno in ERRORS
                .into_iter()
                .filter(|errno| !(is_kept && is_full(errno)))
            {
                eprintln!("{call:?}: step {at}, {:?}: {errno}", steps[at]);
                check(call, &steps, at, errno);
            }
        }
    }
}

/// When any step of a call fails, the caller gets a code. The code sends the pod of a create
/// elsewhere while the volume cannot be on this disk, and keeps it here once it can. A retry of the
/// call succeeds, and nothing else is lost.
///
/// Proves: D5.
#[test]
fn a_call_survives_the_failure_of_every_step() {
    with_every_failure(|call, steps, at, errno| {
        let fixture = call.prepare(Arc::new(NoQuotas));
        let (unavailable, outcome) = verdict(call, steps, at, errno);
        fixture.script.start(Some(Trouble::Once(at, errno)));
        assert_eq!(call.make(&fixture), outcome);
        fixture.script.end();
        assert_eq!(fixture.is_unavailable(), unavailable);
        assert_eq!(fixture.names(".rootcellar/staging"), [""; 0]);
        assert_eq!(fixture.directory("pvc").is_some(), call.shows(at, steps));
        if unavailable {
            assert_eq!(
                call.make(&fixture),
                outcome,
                "as long as the pool is unavailable"
            );
            assert_eq!(
                fixture.driver().pools()[0].available().unwrap(),
                Bytes::ZERO
            );
        }
        fixture.recovers();
        assert!(fixture.has("kept"));
        assert_eq!(fixture.has("pvc"), call.shows(at, steps));
        call.assert_record(&fixture, at, steps);
        call.make(&fixture).expect("the retry");
        call.assert_record(&fixture, steps.len(), steps);
        fixture.assert_ends_with(call.leaves());
    });
}

/// A full disk may have no block for the name of a kept volume. The deletion then frees its space.
///
/// Proves: UD11.
#[test]
fn a_volume_that_a_full_disk_cannot_keep_is_deleted() {
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        let fixture = Call::Keep.prepare(Arc::new(NoQuotas));
        let at = visible(&Call::Keep.steps());
        fixture.script.start(Some(Trouble::Once(at, errno)));
        Call::Keep.make(&fixture).unwrap();
        fixture.script.end();
        fixture.assert_ends_with(&["kept"]);
        assert!(fixture.names(".rootcellar/kept").is_empty());
    }
}

/// How a test goes on after a halted driver.
#[derive(Debug, Clone, Copy)]
enum Again {
    /// The disk came back.
    Reopened,
    /// The driver was restarted.
    Restarted,
}

/// When the driver ends anywhere during a call, the next start finds the volume complete or not at
/// all, with its old size or the new. A retry of the call succeeds, and nothing else is left.
///
/// Proves: D5.
#[test]
fn a_call_may_end_before_any_step() {
    for call in CALLS {
        let steps = call.steps();
        for (at, step) in steps.iter().enumerate() {
            for again in [Again::Reopened, Again::Restarted] {
                eprintln!("{call:?}: halted before step {at}, {step:?}; {again:?}");
                let mut fixture = call.prepare(Arc::new(NoQuotas));
                fixture.script.start(Some(Trouble::Halt(at)));
                let (_, outcome) = verdict(call, &steps, at, Errno::IO);
                assert_eq!(call.make(&fixture), outcome);
                match again {
                    Again::Reopened => {
                        fixture.script.end();
                        fixture.recovers();
                    }
                    Again::Restarted => fixture.restart_after_halt(),
                }
                assert_eq!(fixture.names(".rootcellar/staging"), [""; 0]);
                assert!(fixture.has("kept"));
                assert_eq!(fixture.has("pvc"), call.shows(at, &steps));
                call.assert_record(&fixture, at, &steps);
                call.republish(&fixture);
                call.make(&fixture).expect("the retry");
                call.assert_record(&fixture, steps.len(), &steps);
                fixture.assert_ends_with(call.leaves());
            }
        }
    }
}

/// A change that an ended driver left unfinished is made durable before a retry is answered.
///
/// Proves: D4.
#[test]
fn a_retry_is_answered_only_when_what_it_found_is_durable() {
    for call in [Call::Create, Call::Delete, Call::Label, LIMITS[1]] {
        let mut fixture = call.prepare(Arc::new(NoQuotas));
        let at = visible(&call.steps()) + 1;
        fixture.script.start(Some(Trouble::Halt(at)));
        call.make(&fixture).unwrap_err();
        fixture.running = None;
        fixture.script.start(None);
        fixture.start();
        call.make(&fixture).unwrap();
        let steps = fixture.script.end();
        let syncs = steps
            .iter()
            .any(|step| matches!(step, Step::Fsync | Step::Syncfs));
        assert!(syncs, "{call:?}: acknowledged after no more than {steps:?}");
    }
}

fn init_steps() -> Vec<Step> {
    let mut fixture = StepFixture::new(Arc::new(NoQuotas));
    fixture.script.start(None);
    fixture.start();
    assert!(!fixture.is_unavailable());
    fixture.script.end()
}

fn is_a_good_pool(fixture: &StepFixture) {
    fixture.assert_ends_with(&[]);
    fixture.make("pvc");
    fixture.assert_ends_with(&["pvc"]);
}

/// If any step of making a pool fails, the pool is unavailable and refuses volumes. The next health
/// check finishes it.
///
/// Proves: D5.
#[test]
fn making_a_pool_survives_the_failure_of_every_step() {
    let steps = init_steps();
    assert!(steps.len() > 10, "{steps:?}");
    for (at, step) in steps.iter().enumerate() {
        for errno in [Errno::IO, Errno::NOSPC] {
            eprintln!("step {at}, {step:?}: {errno}");
            let mut fixture = StepFixture::new(Arc::new(NoQuotas));
            fixture.script.start(Some(Trouble::Once(at, errno)));
            fixture.start();
            fixture.script.end();
            assert!(fixture.is_unavailable());
            let refused = fixture.driver().create(&create("pvc", SIZE)).unwrap_err();
            assert_eq!(
                refused.code(Operation::CreateVolume),
                Code::ResourceExhausted
            );
            fixture.recovers();
            is_a_good_pool(&fixture);
        }
    }
}

/// Wherever the driver ends while it makes a pool, the next start finishes the pool.
///
/// Proves: D5.
#[test]
fn making_a_pool_may_end_before_any_step() {
    for at in 0..init_steps().len() {
        eprintln!("halted before step {at}");
        let mut fixture = StepFixture::new(Arc::new(NoQuotas));
        fixture.script.start(Some(Trouble::Halt(at)));
        fixture.start();
        fixture.restart_after_halt();
        is_a_good_pool(&fixture);
    }
}

/// Records the limits in force before every step.
#[derive(Debug)]
struct Limits {
    quota: Arc<FakeQuota>,
    seen: Mutex<Vec<(Step, String, Vec<Bytes>)>>,
}

impl Observer for Limits {
    fn before(&self, step: Step, name: &OsStr) -> Result<(), Errno> {
        let name = name.to_str().unwrap().to_owned();
        let limits = self.quota.limits().into_values().collect();
        self.seen.lock().unwrap().push((step, name, limits));
        Ok(())
    }
}

/// A volume's limit is in force before its directory exists and until all its contents are removed.
///
/// Proves: S11.
#[test]
fn a_limit_outlives_the_data_at_both_ends() {
    let quota = Arc::new(FakeQuota::default());
    let limits = Arc::new(Limits {
        quota: quota.clone(),
        seen: Mutex::default(),
    });
    let mut fixture = StepFixture::new(quota.clone());
    fixture.fakes.os = Os::observed(limits.clone());
    fixture.start();
    fixture.make("pvc");
    fixture.driver().delete(&fixture.id("pvc")).unwrap();
    fixture.assert_ends_with(&[]);
    let seen = limits.seen.lock().unwrap();
    for (step, name, in_force) in [
        (Step::Mkdir, "data", true),
        (Step::Unlink, "file", true),
        (Step::Rmdir, "data", true),
        (Step::Unlink, "volume.json", false),
    ] {
        let at = seen
            .iter()
            .find(|(s, n, _)| (*s, n.as_str()) == (step, name))
            .unwrap();
        assert_eq!(at.2.contains(&Bytes(SIZE)), in_force, "{step:?} of {name}");
    }
}

/// Asserts that each volume is limited to its size, and that no other limit exists once the trash is empty.
fn assert_limits(fixture: &StepFixture, quota: &FakeQuota) {
    eventually(
        "each volume, and nothing else, is limited to its size",
        || {
            let volumes = fixture.driver().list(usize::MAX, "").unwrap().objects;
            let mut sizes: Vec<Bytes> = volumes.iter().map(|volume| volume.size).collect();
            let mut limits: Vec<Bytes> = quota.limits().into_values().collect();
            sizes.sort_unstable();
            limits.sort_unstable();
            limits == sizes
        },
    );
}

/// When any step of a call fails, every volume is limited to its present size, and nothing else has a
/// limit.
///
/// Proves: D5.
#[test]
fn a_failed_call_leaves_each_limit_as_recorded() {
    with_every_failure(|call, _, at, errno| {
        // Its length is its limit.
        if call.is_of_an_image() {
            return;
        }
        let quota = Arc::new(FakeQuota::default());
        let fixture = call.prepare(quota.clone());
        fixture.script.start(Some(Trouble::Once(at, errno)));
        call.make(&fixture).unwrap_err();
        fixture.script.end();
        fixture.recovers();
        if call == Call::Expand {
            assert_limits(&fixture, &quota);
        }
        call.make(&fixture).expect("the retry");
        // Kept volumes keep their limits.
        fixture.driver().purge(None).unwrap();
        fixture.assert_ends_with(call.leaves());
        assert_limits(&fixture, &quota);
        if call == Call::Expand {
            let target = fixture.node.target("pvc");
            fixture
                .driver()
                .unpublish(&fixture.id("pvc"), &target)
                .unwrap();
        }
        for volume in call.leaves() {
            fixture.driver().delete_now(&fixture.id(volume)).unwrap();
        }
        fixture.assert_ends_with(&[]);
        assert_eq!(quota.limits().len(), 0, "no limit without a volume");
    });
}
