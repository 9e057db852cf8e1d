//! Enforcing the size of an existing volume, interrupted at every step.

use rootcellar::error::Error;

use super::fixture::{StepFixture, Trouble};
use super::*;
use support::names;
use support::quota::NoQuotas;

/// A volume that was made before its pool could enforce its size.
fn unenforced(quota: &Arc<FakeQuota>) -> StepFixture {
    let mut fixture = StepFixture::new(Arc::new(NoQuotas));
    fixture.start();
    fixture.make("pvc");
    let data = fixture.directory("pvc").unwrap().join("data");
    std::fs::create_dir(data.join("dir")).unwrap();
    std::os::unix::fs::symlink("file", data.join("link")).unwrap();
    std::os::unix::fs::symlink("file", data.join("dir/link")).unwrap();
    fixture.running = None;
    fixture.fakes.quotas = quota.clone();
    fixture.start();
    fixture
}

/// After any step failed, or was the last of a killed driver, the volume is unchanged or cannot be
/// published. Enforcing its size again succeeds.
///
/// Proves: S15.
#[test]
fn enforcing_can_be_repeated_whichever_step_failed() {
    for trouble in [
        |at| Trouble::Once(at, Errno::IO),
        |at| Trouble::Once(at, Errno::NOSPC),
        Trouble::Halt,
    ] {
        for at in 0.. {
            let quota = Arc::new(FakeQuota::default());
            let mut fixture = unenforced(&quota);
            let id = fixture.id("pvc");
            fixture.script.start(Some(trouble(at)));
            let outcome = fixture.driver().enforce(&id);
            let steps = fixture.script.end().len();
            if outcome.is_ok() {
                assert!(steps > 10 && at >= steps, "{at} of {steps}");
                break;
            }
            match trouble(at) {
                Trouble::Halt(_) => fixture.start(),
                Trouble::Once(..) => fixture.recovers(),
            }
            let target = fixture.node.target("pvc");
            match fixture.driver().publish(&publish(&id, &target)) {
                Ok(()) => fixture.driver().unpublish(&id, &target).unwrap(),
                Err(error) => assert!(matches!(error, Error::Precondition(_)), "{error}"),
            }
            fixture.driver().enforce(&id).unwrap();
            assert_limits(&fixture, &quota);
            assert!(fixture.has("pvc"));
            let data = fixture.directory("pvc").unwrap().join("data");
            assert_eq!(names(&data), ["dir", "file", "link"], "{at}");
            for link in ["link", "dir/link"] {
                assert_eq!(data.join(link).read_link().unwrap().to_str(), Some("file"));
            }
            fixture.driver().publish(&publish(&id, &target)).unwrap();
            fixture.driver().unpublish(&id, &target).unwrap();
        }
    }
}
