//! Enforcing the size of an existing volume, cut short at every step.

use rootcellar::error::Error;

use super::stage::{Stage, Trouble};
use super::*;
use support::names;

/// A volume that was made before its pool could enforce its size.
fn unenforced(quota: &Arc<FakeQuota>) -> Stage {
    let mut stage = Stage::new(Arc::new(NoQuota));
    stage.start();
    stage.make("pvc");
    let data = stage.directory("pvc").unwrap().join("data");
    std::fs::create_dir(data.join("dir")).unwrap();
    std::os::unix::fs::symlink("file", data.join("link")).unwrap();
    std::os::unix::fs::symlink("file", data.join("dir/link")).unwrap();
    stage.running = None;
    stage.fakes.quotas = quota.clone();
    stage.start();
    stage
}

/// Whichever step fails, or is the last one of a killed driver, the volume is as it was or cannot be
/// published, and enforcing it again succeeds.
#[test]
fn enforcing_can_be_repeated_whichever_step_failed() {
    for trouble in [
        |at| Trouble::Once(at, Errno::IO),
        |at| Trouble::Once(at, Errno::NOSPC),
        Trouble::Halt,
    ] {
        for at in 0.. {
            let quota = Arc::new(FakeQuota::default());
            let mut stage = unenforced(&quota);
            let id = stage.id("pvc");
            stage.script.start(Some(trouble(at)));
            let outcome = stage.driver().enforce(&id);
            let steps = stage.script.end().len();
            if outcome.is_ok() {
                assert!(steps > 10 && at >= steps, "{at} of {steps}");
                break;
            }
            match trouble(at) {
                Trouble::Halt(_) => stage.start(),
                Trouble::Once(..) => stage.recovers(),
            }
            let target = stage.node.target("pvc");
            match stage.driver().publish(&publish(&id, &target)) {
                Ok(()) => stage.driver().unpublish(&id, &target).unwrap(),
                Err(error) => assert!(matches!(error, Error::HalfEnforced { .. }), "{error}"),
            }
            stage.driver().enforce(&id).unwrap();
            assert_limits(&stage, &quota);
            assert!(stage.has("pvc"));
            let data = stage.directory("pvc").unwrap().join("data");
            assert_eq!(names(&data), ["dir", "file", "link"], "{at}");
            for link in ["link", "dir/link"] {
                assert_eq!(data.join(link).read_link().unwrap().to_str(), Some("file"));
            }
            stage.driver().publish(&publish(&id, &target)).unwrap();
            stage.driver().unpublish(&id, &target).unwrap();
        }
    }
}
