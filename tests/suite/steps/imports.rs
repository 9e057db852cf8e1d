//! The import of a directory and the export of a volume, interrupted at every step, the host's and the
//! server's.

use std::path::PathBuf;

use rootcellar::error::Result;
use rootcellar::types::VolumeId;

use super::fixture::{StepFixture, Trouble};
use super::*;
use support::imports::{assert_tree, export_back, import, import_of, make_tree};
use support::names;

const IMPORTED: u64 = 4 << 20;

/// A pool that enforces sizes, and a directory beside it.
fn fixture(quota: &Arc<FakeQuota>) -> StepFixture {
    let mut fixture = StepFixture::new(quota.clone());
    fixture.start();
    make_tree(&old(&fixture), "content");
    fixture
}

fn old(fixture: &StepFixture) -> PathBuf {
    fixture.node.pool("default").with_file_name("old")
}

fn run_import(fixture: &StepFixture) -> Result<VolumeId> {
    let request = import_of(&fixture.fakes.os, old(fixture), "pvc", IMPORTED);
    import(fixture.driver(), &request)
}

fn run_export(fixture: &StepFixture) -> Result<PathBuf> {
    let id = fixture.id("pvc");
    export_back(fixture.driver(), &fixture.fakes.os, parse(&id))
}

fn parse(id: &str) -> VolumeId {
    rootcellar::types::ObjectId::parse(id).unwrap()
}

/// Asserts that the tree is complete, and in one place: at its path, in the pool, or on the way.
fn assert_once(fixture: &StepFixture) {
    let incoming = fixture.node.pool("default").join(".rootcellar/incoming");
    let mut places = vec![old(fixture)];
    places.extend(fixture.directory("pvc").map(|volume| volume.join("data")));
    if incoming.is_dir() {
        let names = names(&incoming);
        places.extend(names.iter().map(|name| incoming.join(name).join("data")));
    }
    places.retain(|place| place.is_dir());
    assert_eq!(places.len(), 1, "{places:?}");
    assert_tree(&places[0], "content");
}

/// Interrupts an act at every step, and checks the repetition.
fn interrupt(
    prepare: impl Fn(&StepFixture),
    act: impl Fn(&StepFixture) -> bool,
    check: impl Fn(&StepFixture, &FakeQuota),
) {
    for trouble in [
        |at| Trouble::Once(at, Errno::IO),
        |at| Trouble::Once(at, Errno::NOSPC),
        Trouble::Halt,
    ] {
        for at in 0.. {
            let quota = Arc::new(FakeQuota::default());
            let mut fixture = fixture(&quota);
            prepare(&fixture);
            fixture.script.start(Some(trouble(at)));
            let done = act(&fixture);
            let steps = fixture.script.count_so_far();
            match trouble(at) {
                Trouble::Halt(_) => fixture.restart_after_halt(),
                Trouble::Once(..) => {
                    fixture.script.end();
                    fixture.recovers();
                }
            }
            assert_once(&fixture);
            assert!(act(&fixture), "the repetition after step {at}");
            assert_once(&fixture);
            check(&fixture, &quota);
            let incoming = fixture.node.pool("default").join(".rootcellar/incoming");
            // A failed clean-up is repeated by the next start.
            fixture.start();
            assert_eq!(names(&incoming), [""; 0], "after step {at}");
            if done && at >= steps {
                assert!(steps > 15, "{steps}");
                break;
            }
        }
    }
}

/// After any step of an import failed, or was the last one, the tree is complete and in one place. The
/// repetition makes it a volume whose size is enforced.
///
/// Proves: IM3.
#[test]
fn an_import_can_be_repeated_whichever_step_failed() {
    interrupt(
        |_| {},
        |fixture| {
            run_import(fixture)
                .inspect_err(|error| eprintln!("{error}"))
                .is_ok()
        },
        |fixture, quota| {
            assert!(fixture.has("pvc"));
            assert_limits(fixture, quota);
            let target = fixture.node.target("pvc");
            let id = fixture.id("pvc");
            fixture.driver().publish(&publish(&id, &target)).unwrap();
            fixture.driver().unpublish(&id, &target).unwrap();
        },
    );
}

/// The same of an export, after which the directory has no limit.
///
/// Proves: IM3.
#[test]
fn an_export_can_be_repeated_whichever_step_failed() {
    interrupt(
        |fixture| {
            run_import(fixture).unwrap();
        },
        |fixture| {
            let outcome = run_export(fixture);
            // It may have ended before the repetition.
            outcome.is_ok() || old(fixture).is_dir()
        },
        |fixture, quota| {
            assert!(old(fixture).is_dir());
            assert_eq!(quota.limits().len(), 0);
        },
    );
}
