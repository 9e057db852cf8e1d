//! The import of a directory and the export of a volume, interrupted at every step, the host's and the server's. The search
//! for users changes nothing, so it has no step. It reads every file of every process, and is left out.

use std::path::PathBuf;

use linux::mount::Users;
use objects::VolumeId;
use rootcellar::error::Result;
use rootcellar::host::{ExportTo, Import};

use super::fixture::{StepFixture, Trouble};
use super::*;
use support::imports::{Direct, assert_tree, export_of, import, import_of, make_tree};
use support::{eventually, names};

const IMPORTED: u64 = 4 << 20;

/// A pool that enforces sizes, and a directory on its mount.
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
    let request = Import {
        users: Users::Ignore,
        ..import_of(&fixture.fakes.os, old(fixture), "pvc", IMPORTED)
    };
    import(fixture.driver(), &request)
}

fn run_export(fixture: &StepFixture) -> Result<PathBuf> {
    let export = ExportTo {
        users: Users::Ignore,
        ..export_of(&fixture.fakes.os, parse(&fixture.id("pvc")))
    };
    Ok(export.run(&Direct(fixture.driver()))?.path)
}

fn parse(id: &str) -> VolumeId {
    objects::ObjectId::parse(id).unwrap()
}

/// Asserts that the tree is complete, and in one place: at its path, in the pool, or on the way.
fn assert_complete(fixture: &StepFixture) {
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

/// Asserts that the volume is not published, or that its size is enforced.
fn assert_not_unlimited(fixture: &StepFixture, quota: &FakeQuota) {
    let (id, target) = (fixture.id("pvc"), fixture.node.target("pvc"));
    match fixture.driver().publish(&publish(&id, &target)) {
        Ok(()) => {
            assert_limits(fixture, quota);
            fixture.driver().unpublish(&id, &target).unwrap();
        }
        Err(error) => assert!(
            error.to_string().contains("is enforced only in part"),
            "{error}"
        ),
    }
}

/// Interrupts an act at every step, and checks the outcome and the repetition.
fn interrupt(
    prepare: impl Fn(&StepFixture),
    act: impl Fn(&StepFixture) -> bool,
    check_between: impl Fn(&StepFixture, &FakeQuota),
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
            assert_complete(&fixture);
            check_between(&fixture, &quota);
            // A full disk takes no note of an export, which a repetition would find.
            let unnoted = done && matches!(trouble(at), Trouble::Once(_, Errno::NOSPC));
            assert!(act(&fixture) || unnoted, "the repetition after step {at}");
            assert_complete(&fixture);
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
            let imported = run_import(fixture);
            imported.inspect_err(|error| eprintln!("{error}")).is_ok()
        },
        |fixture, quota| {
            if fixture.directory("pvc").is_some() {
                assert_not_unlimited(fixture, quota);
            }
        },
        |fixture, quota| {
            assert!(fixture.has("pvc"));
            assert_limits(fixture, quota);
            assert_not_unlimited(fixture, quota);
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
            let exported = run_export(fixture);
            exported.inspect_err(|error| eprintln!("{error}")).is_ok()
        },
        |_, _| {},
        |fixture, quota| {
            assert!(old(fixture).is_dir());
            assert!(!fixture.has("pvc"));
            eventually("the limits are removed", || quota.limits().is_empty());
        },
    );
}

/// A volume whose import failed at any step can be exported, and imported again.
///
/// Proves: IM3.
#[test]
fn a_failed_import_can_be_undone_by_an_export() {
    interrupt(
        |_| {},
        |fixture| run_import(fixture).is_ok(),
        |fixture, _| {
            if fixture.directory("pvc").is_some() {
                run_export(fixture).unwrap();
                assert!(old(fixture).is_dir());
            }
        },
        |fixture, quota| {
            assert!(fixture.has("pvc"));
            assert_limits(fixture, quota);
        },
    );
}
