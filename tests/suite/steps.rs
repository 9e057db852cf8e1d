//! Every step on a disk, failed and stopped at: what the caller is told, and what is left. This is
//! a driver that ends, not a machine: what was written stays written.

mod background;
mod copies;
mod enforce;
mod stage;

use std::ffi::OsStr;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use rootcellar::error::{Code, Operation};
use rootcellar::os::{Observer, Os, Step};
use rootcellar::quota::{FakeQuota, NoQuota, Quotas};
use rootcellar::types::Bytes;
use rootcellar::volume::ExpandRequest;

use stage::{SIZE, Stage, Trouble};
use support::{create, publish};

/// A request about the volume "pvc", beside which there is a volume "kept".
#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Create,
    Delete,
    Expand,
}

impl Call {
    fn prepare(self, quotas: Arc<dyn Quotas>) -> Stage {
        let mut stage = Stage::new(quotas);
        stage.start();
        stage.make("kept");
        if self != Self::Create {
            stage.make("pvc");
        }
        self.republish(&stage);
        stage
    }

    /// Publishes what is to grow; once a driver was started anew it must learn of it.
    fn republish(self, stage: &Stage) {
        if self == Self::Expand {
            let target = stage.node.target("pvc");
            let request = publish(&stage.id("pvc"), &target);
            stage.driver().publish(&request).unwrap();
        }
    }

    fn make(self, stage: &Stage) -> Result<(), Code> {
        let id = stage.id("pvc");
        match self {
            Self::Create => match stage.driver().create(&create("pvc", SIZE)) {
                Ok(volume) => {
                    assert_eq!(volume.id.to_string(), id);
                    Ok(())
                }
                Err(error) => Err(error.code(Operation::CreateVolume)),
            },
            Self::Delete => match stage.driver().delete(&id) {
                Err(error) if error.code(Operation::Delete) == Code::Ok => Ok(()),
                outcome => outcome.map_err(|error| error.code(Operation::Delete)),
            },
            Self::Expand => {
                let request = ExpandRequest {
                    id,
                    path: stage.node.target("pvc"),
                    required: Bytes(2 * SIZE),
                    limit: None,
                };
                let expanded = stage.driver().expand(&request);
                expanded
                    .map(|size| assert_eq!(size, request.required))
                    .map_err(|error| error.code(Operation::Expand))
            }
        }
    }

    /// The steps when nothing goes wrong.
    fn steps(self) -> Vec<Step> {
        let stage = self.prepare(Arc::new(NoQuota));
        stage.script.start(None);
        self.make(&stage).unwrap();
        stage.script.end()
    }

    fn leaves(self) -> &'static [&'static str] {
        match self {
            Self::Create | Self::Expand => &["kept", "pvc"],
            Self::Delete => &["kept"],
        }
    }

    /// Whether the volume is there when this many of the steps were made.
    fn shows(self, made: usize, steps: &[Step]) -> bool {
        match self {
            Self::Create => made > visible(steps),
            Self::Delete => made <= visible(steps),
            Self::Expand => true,
        }
    }

    /// The size that the volume has then, if it shows.
    fn size(self, made: usize, steps: &[Step]) -> u64 {
        if self == Self::Expand && made > visible(steps) {
            2 * SIZE
        } else {
            SIZE
        }
    }
}

/// The one step that makes a volume appear, or disappear, or shows its new size.
fn visible(steps: &[Step]) -> usize {
    let renames = steps.iter().filter(|step| **step == Step::Rename);
    assert_eq!(renames.count(), 1, "{steps:?}");
    steps.iter().position(|step| *step == Step::Rename).unwrap()
}

/// Whether the pool is sick after a failed step, and what the caller is told.
fn verdict(call: Call, steps: &[Step], at: usize, errno: Errno) -> (bool, Code) {
    // After a failed sync nobody knows what is on the disk, however the error is called.
    let sync = matches!(steps[at], Step::Fsync | Step::Syncfs);
    let sick = sync || matches!(errno, Errno::IO | Errno::ROFS);
    let home = call != Call::Create || at > visible(steps);
    let code = match (sick, home) {
        (true, true) => Code::Unavailable,
        (false, _) if errno == Errno::NOMEM => Code::Unavailable,
        (false, _) if call == Call::Expand => Code::OutOfRange,
        _ => Code::ResourceExhausted,
    };
    (sick, code)
}

/// A broken disk, two ways of being full, one that turned read-only, and a shortage that is not
/// the disk's.
const ERRORS: [Errno; 5] = [
    Errno::IO,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::ROFS,
    Errno::NOMEM,
];

fn with_every_failure(call: Call, mut check: impl FnMut(&[Step], usize, Errno)) {
    let steps = call.steps();
    assert!(steps.len() >= 3, "{steps:?}");
    for at in 0..steps.len() {
        for errno in ERRORS {
            eprintln!("{call:?}: step {at}, {:?}: {errno}", steps[at]);
            check(&steps, at, errno);
        }
    }
}

fn survives_every_failure(call: Call) {
    with_every_failure(call, |steps, at, errno| {
        let stage = call.prepare(Arc::new(NoQuota));
        let (sick, code) = verdict(call, steps, at, errno);
        stage.script.start(Some(Trouble::Once(at, errno)));
        assert_eq!(call.make(&stage), Err(code));
        stage.script.end();
        assert_eq!(stage.is_sick(), sick);
        assert_eq!(stage.names(".rootcellar/staging"), [""; 0]);
        assert_eq!(stage.directory("pvc").is_some(), call.shows(at, steps));
        if sick {
            assert_eq!(call.make(&stage), Err(code), "as long as the pool is sick");
            assert_eq!(stage.driver().pools()[0].available().unwrap(), Bytes::ZERO);
        }
        stage.recovers();
        assert!(stage.has("kept"));
        assert_eq!(stage.has("pvc"), call.shows(at, steps));
        stage.assert_size("pvc", call.size(at, steps));
        call.make(&stage).expect("the retry");
        stage.settles_to(call.leaves());
    });
}

/// Whichever step of making a volume fails, the caller is told so by the code that sends the pod
/// elsewhere while the volume cannot be on this disk and keeps it here once it can, nothing else
/// is lost, and a retry makes the same volume.
#[test]
fn a_create_survives_the_failure_of_every_step() {
    survives_every_failure(Call::Create);
}

/// Whichever step of deleting a volume fails, the caller is told to try again, nothing else is
/// lost, and a retry deletes it.
#[test]
fn a_delete_survives_the_failure_of_every_step() {
    survives_every_failure(Call::Delete);
}

/// Whichever step of making a volume larger fails, it has the old size or the new, nothing else is
/// lost, and a retry makes it as large as was asked for.
#[test]
fn an_expand_survives_the_failure_of_every_step() {
    survives_every_failure(Call::Expand);
}

/// How a halted driver goes on.
#[derive(Debug, Clone, Copy)]
enum Again {
    /// The disk came back.
    Reopened,
    /// The driver was started anew.
    Restarted,
}

fn survives_every_halt(call: Call) {
    let steps = call.steps();
    for (at, step) in steps.iter().enumerate() {
        for again in [Again::Reopened, Again::Restarted] {
            eprintln!("{call:?}: halted before step {at}, {step:?}; {again:?}");
            let mut stage = call.prepare(Arc::new(NoQuota));
            stage.script.start(Some(Trouble::Halt(at)));
            let (_, code) = verdict(call, &steps, at, Errno::IO);
            assert_eq!(call.make(&stage), Err(code));
            match again {
                Again::Reopened => {
                    stage.script.end();
                    stage.recovers();
                }
                Again::Restarted => {
                    // Still halted while the old driver ends: it gets nothing done.
                    stage.running = None;
                    stage.script.end();
                    stage.start();
                }
            }
            assert_eq!(stage.names(".rootcellar/staging"), [""; 0]);
            assert!(stage.has("kept"));
            assert_eq!(stage.has("pvc"), call.shows(at, &steps));
            stage.assert_size("pvc", call.size(at, &steps));
            call.republish(&stage);
            call.make(&stage).expect("the retry");
            stage.settles_to(call.leaves());
        }
    }
}

/// Wherever the driver ends while it makes a volume, the next start finds the volume whole or not
/// at all, and a retry ends with the same volume and nothing besides.
#[test]
fn a_create_may_end_before_any_step() {
    survives_every_halt(Call::Create);
}

/// Wherever the driver ends while it deletes a volume, the next start finds the volume whole or
/// not at all, and a retry ends with nothing of it left.
#[test]
fn a_delete_may_end_before_any_step() {
    survives_every_halt(Call::Delete);
}

/// Wherever the driver ends while it makes a volume larger, the next start finds it with the old
/// size or the new, and a retry ends with the new.
#[test]
fn an_expand_may_end_before_any_step() {
    survives_every_halt(Call::Expand);
}

/// What a driver that ended half-way left is made durable before a retry is answered.
#[test]
fn a_retry_is_answered_only_when_what_it_found_is_durable() {
    for call in [Call::Create, Call::Delete] {
        let mut stage = call.prepare(Arc::new(NoQuota));
        let at = visible(&call.steps()) + 1;
        stage.script.start(Some(Trouble::Halt(at)));
        call.make(&stage).unwrap_err();
        stage.running = None;
        stage.script.start(None);
        stage.start();
        call.make(&stage).unwrap();
        let steps = stage.script.end();
        let syncs = steps
            .iter()
            .any(|step| matches!(step, Step::Fsync | Step::Syncfs));
        assert!(syncs, "{call:?}: acknowledged after no more than {steps:?}");
    }
}

fn init_steps() -> Vec<Step> {
    let mut stage = Stage::new(Arc::new(NoQuota));
    stage.script.start(None);
    stage.start();
    assert!(!stage.is_sick());
    stage.script.end()
}

fn is_a_good_pool(stage: &Stage) {
    stage.settles_to(&[]);
    stage.make("pvc");
    stage.settles_to(&["pvc"]);
}

/// Whichever step of making a pool fails, the pool is sick and refuses volumes, and the next look
/// finishes it.
#[test]
fn making_a_pool_survives_the_failure_of_every_step() {
    let steps = init_steps();
    assert!(steps.len() > 10, "{steps:?}");
    for (at, step) in steps.iter().enumerate() {
        for errno in [Errno::IO, Errno::NOSPC] {
            eprintln!("step {at}, {step:?}: {errno}");
            let mut stage = Stage::new(Arc::new(NoQuota));
            stage.script.start(Some(Trouble::Once(at, errno)));
            stage.start();
            stage.script.end();
            assert!(stage.is_sick());
            let refused = stage.driver().create(&create("pvc", SIZE)).unwrap_err();
            assert_eq!(
                refused.code(Operation::CreateVolume),
                Code::ResourceExhausted
            );
            stage.recovers();
            is_a_good_pool(&stage);
        }
    }
}

/// Wherever the driver ends while it makes a pool, the next start finishes it.
#[test]
fn making_a_pool_may_end_before_any_step() {
    for at in 0..init_steps().len() {
        eprintln!("halted before step {at}");
        let mut stage = Stage::new(Arc::new(NoQuota));
        stage.script.start(Some(Trouble::Halt(at)));
        stage.start();
        stage.running = None;
        stage.script.end();
        stage.start();
        is_a_good_pool(&stage);
    }
}

/// Notes the limits in force around every step.
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

    fn after(&self, _step: Step, _name: &OsStr) {}
}

/// A volume's limit is in force before its directory exists and until all that was in it is gone.
#[test]
fn a_limit_outlives_the_data_at_both_ends() {
    let quota = Arc::new(FakeQuota::default());
    let limits = Arc::new(Limits {
        quota: quota.clone(),
        seen: Mutex::default(),
    });
    let mut stage = Stage::new(quota.clone());
    stage.fakes.os = Os::observed(limits.clone());
    stage.start();
    stage.make("pvc");
    stage.driver().delete(&stage.id("pvc")).unwrap();
    stage.settles_to(&[]);
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

/// Each volume has its size for a limit, and nothing else has one.
fn assert_limits(stage: &Stage, quota: &FakeQuota) {
    let volumes = stage.driver().list(0, "").unwrap().volumes;
    let mut sizes: Vec<Bytes> = volumes.iter().map(|volume| volume.size).collect();
    let mut limits: Vec<Bytes> = quota.limits().into_values().collect();
    sizes.sort_unstable();
    limits.sort_unstable();
    assert_eq!(limits, sizes);
}

fn leaves_no_limit(call: Call) {
    with_every_failure(call, |_, at, errno| {
        let quota = Arc::new(FakeQuota::default());
        let stage = call.prepare(quota.clone());
        stage.script.start(Some(Trouble::Once(at, errno)));
        call.make(&stage).unwrap_err();
        stage.script.end();
        stage.recovers();
        if call == Call::Expand {
            assert_limits(&stage, &quota);
        }
        call.make(&stage).expect("the retry");
        stage.settles_to(call.leaves());
        assert_limits(&stage, &quota);
        if call == Call::Expand {
            let target = stage.node.target("pvc");
            stage.driver().unpublish(&stage.id("pvc"), &target).unwrap();
        }
        for volume in call.leaves() {
            stage.driver().delete(&stage.id(volume)).unwrap();
        }
        stage.settles_to(&[]);
        assert_eq!(quota.limits().len(), 0, "no limit without a volume");
    });
}

/// Whichever step of making a volume fails, every volume has its limit and nothing else has one.
#[test]
fn a_failed_create_leaves_no_limit_and_takes_none() {
    leaves_no_limit(Call::Create);
}

/// Whichever step of making a volume larger fails, its limit is the size it has.
#[test]
fn a_failed_expand_leaves_the_limit_as_recorded() {
    leaves_no_limit(Call::Expand);
}

/// Whichever step of deleting a volume fails, every volume has its limit and nothing else has one.
#[test]
fn a_failed_delete_leaves_no_limit_and_takes_none() {
    leaves_no_limit(Call::Delete);
}
