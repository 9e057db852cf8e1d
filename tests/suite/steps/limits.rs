//! Limits of I/O that the kernel does not take, and those of all volumes, which are lifted one after the other.

use std::collections::BTreeMap;

use linux::image::loops::Number;
use linux::io::IoLimits;
use rootcellar::volume::{Allocation, CreateRequest, PublishRequest};

use super::call::{LIMITS, assert_limited};
use super::fixture::{SIZE, StepFixture};
use super::*;
use support::require;

/// How the driver goes on after the kernel has not taken a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    Retried,
    /// The next health check.
    Checked,
    Restarted,
}

/// A change of the limits of a published volume fails if the kernel does not take them, and until then the volume has those
/// that it had. A retry, a restart and, for a limit that holds, a health check bring record and kernel together.
///
/// Proves: IO4, IO5.
#[test]
fn a_limit_that_the_kernel_did_not_take_is_set_later() {
    require!(mount_namespace);
    for call in LIMITS {
        for then in [Then::Retried, Then::Checked, Then::Restarted] {
            let Call::Limit(before, after) = call else {
                panic!("{call:?}");
            };
            // Nothing tells the driver that limits may be removed now.
            if after.is_none() && then == Then::Checked {
                continue;
            }
            eprintln!("{call:?}, then {then:?}");
            let mut fixture = call.prepare(Arc::new(NoQuotas));
            fixture.cgroups.fill(0);
            for _ in 0..2 {
                assert_eq!(call.make(&fixture), Err(Code::FailedPrecondition));
                assert_eq!(in_kernel(&fixture), before.into_iter().collect::<Vec<_>>());
            }
            fixture.cgroups.make_room();
            match then {
                Then::Retried => call.make(&fixture).unwrap(),
                Then::Checked => fixture.driver().check_pools(),
                Then::Restarted => fixture.start(),
            }
            assert_limited(&fixture, after);
        }
    }
}

/// The limits of writes that the kernel has.
fn in_kernel(fixture: &StepFixture) -> Vec<u64> {
    let limits = fixture.cgroups.limits().into_values();
    limits
        .filter_map(|limits| limits.write_operations)
        .collect()
}

/// The limits of the volume with a number.
fn limits(number: usize) -> IoLimits {
    IoLimits {
        read_operations: Some(100 + number as u64),
        ..IoLimits::NONE
    }
}

fn limited(number: usize) -> CreateRequest {
    let mut request = create(&format!("pvc-{number}"), SIZE);
    request.class.allocation = Some(Allocation::Thin);
    request.class.io_limits = limits(number);
    request.capabilities[0].block = true;
    request
}

fn publication(fixture: &StepFixture, number: usize) -> PublishRequest {
    let volume = format!("pvc-{number}");
    let mut request = publish(&fixture.id(&volume), &fixture.node.target(&volume));
    request.capability.block = true;
    request
}

/// The published volumes whose limits are lifted.
const PUBLISHED: usize = 3;

/// A driver with published volumes, and the limits that the kernel has for them.
fn published() -> (StepFixture, BTreeMap<Number, IoLimits>) {
    let mut fixture = StepFixture::new(Arc::new(NoQuotas));
    fixture.start();
    // The last one is not published.
    for number in 0..=PUBLISHED {
        fixture.driver().create(&limited(number)).unwrap();
        if number < PUBLISHED {
            let request = publication(&fixture, number);
            fixture.driver().publish(&request).unwrap();
        }
    }
    let all = fixture.cgroups.limits();
    let expected: Vec<_> = (0..PUBLISHED).map(limits).collect();
    assert_eq!(all.values().copied().collect::<Vec<_>>(), expected);
    (fixture, all)
}

/// If the limits of some volumes cannot be lifted, the call fails, and these keep theirs until the call is repeated or the
/// next health check. No volume with limits is published before the next start, which sets them all again.
///
/// Proves: IO4, IO6.
#[test]
fn limits_that_were_not_lifted_are_lifted_later() {
    require!(mount_namespace);
    for lifted in 0..PUBLISHED {
        for then in [Then::Retried, Then::Checked, Then::Restarted] {
            eprintln!("{lifted} are lifted, then {then:?}");
            let (mut fixture, all) = published();
            fixture.cgroups.fill(lifted);
            let refused = fixture.driver().lift_all_limits().unwrap_err();
            assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
            let left: BTreeMap<_, _> = all.clone().into_iter().skip(lifted).collect();
            assert_eq!(fixture.cgroups.limits(), left);
            fixture.cgroups.make_room();
            let request = publication(&fixture, PUBLISHED);
            let refused = fixture.driver().publish(&request).unwrap_err();
            assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);

            match then {
                Then::Retried => {
                    let count = fixture.driver().lift_all_limits().unwrap();
                    assert_eq!(count, (PUBLISHED - lifted) as u64);
                }
                Then::Checked => fixture.driver().check_pools(),
                Then::Restarted => {}
            }
            if then != Then::Restarted {
                assert_eq!(fixture.cgroups.limits(), BTreeMap::new());
            }
            fixture.start();
            assert_eq!(fixture.cgroups.limits(), all);
            fixture.driver().publish(&request).unwrap();
            assert_eq!(fixture.cgroups.limits().len(), PUBLISHED + 1);
        }
    }
}

/// The driver ends after it has lifted the limits of some volumes. The next one sets them again, and lifts them all if it is
/// told to.
///
/// Proves: IO4, IO6.
#[test]
fn a_driver_may_end_while_it_lifts_all_limits() {
    for lifted in 0..=PUBLISHED {
        let (mut fixture, all) = published();
        fixture.running = None;
        for number in all.keys().take(lifted) {
            fixture.cgroups.limit(*number, IoLimits::NONE);
        }
        fixture.start();
        assert_eq!(fixture.cgroups.limits(), all, "{lifted}");
        let count = fixture.driver().lift_all_limits().unwrap();
        assert_eq!(count, PUBLISHED as u64);
        assert_eq!(fixture.cgroups.limits(), BTreeMap::new());
    }
}
