//! Random operations: after every step, the kernel's limits are those of the existing volumes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use support::disk::ENFORCING;
use support::disk_node::{DiskNode, MIB, OURS, Served, append};
use support::kernel;
use support::{random, require};

/// The number of cases unless `PROPTEST_CASES` is set.
const CASES: u32 = 5;

#[derive(Debug, Clone)]
enum Work {
    /// Makes a volume, or requests an existing one again.
    Make(usize, u64),
    /// Grows a volume.
    Grow(usize, u64),
    /// Writes into a volume.
    Write(usize, u64),
    /// Deletes a volume, and repeats the request.
    Delete(usize),
    /// Stops the driver and starts another.
    Restart,
}

fn work() -> impl Strategy<Value = Work> {
    let volume = 0..4_usize;
    let size = 1..16_u64;
    prop_oneof![
        4 => (volume.clone(), size.clone()).prop_map(|(at, size)| Work::Make(at, size * MIB)),
        3 => (volume.clone(), size.clone()).prop_map(|(at, size)| Work::Grow(at, size * MIB)),
        2 => (volume.clone(), size).prop_map(|(at, size)| Work::Write(at, size * MIB / 4)),
        2 => volume.prop_map(Work::Delete),
        1 => Just(Work::Restart),
    ]
}

/// The expected volumes: the size and id of each.
type Model = BTreeMap<usize, (u64, String)>;

async fn step(node: &DiskNode, served: &mut Served, model: &mut Model, work: &Work) {
    match *work {
        Work::Make(at, size) => {
            let size = model.get(&at).map_or(size, |(has, _)| *has);
            let id = served.make(&format!("pvc{at}"), size).await;
            model.insert(at, (size, id));
        }
        Work::Grow(at, size) => {
            let Some((has, id)) = model.get_mut(&at) else {
                return;
            };
            let target = node.publish(served, id, &format!("pod{at}")).await;
            *has = served.expand(id, &target, size).await.unwrap().max(*has);
            assert!(*has >= size);
        }
        Work::Write(at, most) => {
            let Some((size, id)) = model.get(&at) else {
                return;
            };
            let target = node.publish(served, id, &format!("pod{at}")).await;
            let (_, error) = append(&target.join("file"), most);
            assert!(error.is_none_or(|errno| errno == node.full()), "{error:?}");
            assert!(node.quota(&format!("pvc{at}")).used[0] <= *size);
        }
        Work::Delete(at) => {
            let Some((_, id)) = model.remove(&at) else {
                return;
            };
            let target = node.target(&format!("pod{at}"));
            served.clients.unpublish(&id, &target).await.unwrap();
            served.clients.delete(&id).await.unwrap();
            served.clients.delete(&id).await.unwrap();
        }
        Work::Restart => {}
    }
}

async fn play(node: &DiskNode, sequence: &[Work]) {
    let mut served = node.serve().await;
    let mut model = Model::new();
    let all: Vec<Work> = (0..4).map(Work::Delete).collect();
    for work in sequence.iter().chain(&all) {
        if matches!(work, Work::Restart) {
            served.stop();
            served = node.serve().await;
        }
        step(node, &mut served, &mut model, work).await;
        for (at, (size, _)) in &model {
            node.assert_limited(&format!("pvc{at}"), *size);
        }
    }
    support::eventually("nothing is limited any more", || {
        kernel::quotas(node.at(), OURS.start).is_empty()
    });
    served.stop();
}

/// After any sequence of creates, expansions, writes, deletes and restarts, the kernel limits
/// exactly the existing volumes, each to the size in its record.
///
/// Proves: C2.
#[test]
fn limits_are_those_of_the_volumes_after_any_sequence() {
    require!(project_quota);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for disk in ENFORCING {
        let config = Config {
            // A shrink iteration takes seconds in the guest, and half a minute if it waits in vain.
            max_shrink_iters: 8,
            ..random::config(CASES)
        };
        TestRunner::new(config)
            .run(&prop::collection::vec(work(), 1..16), |sequence| {
                runtime.block_on(play(&DiskNode::new(disk), &sequence));
                Ok(())
            })
            .unwrap();
    }
}
