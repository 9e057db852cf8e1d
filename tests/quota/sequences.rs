//! Random operations: after every step, the kernel's limits are those of the existing volumes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use support::disk::ENFORCING;
use support::disk_node::{DiskNode, MIB, OURS, Served, append};
use support::random::{Op, play};
use support::{create, kernel, require};

/// The number of cases unless `PROPTEST_CASES` is set.
const CASES: u32 = 5;

const NAMES: [&str; 4] = ["pvc0", "pvc1", "pvc2", "pvc3"];

fn ops() -> impl Strategy<Value = Op> {
    let name = || prop::sample::select(&NAMES[..]);
    let size = || (1..16_u64).prop_map(|size| size * MIB);
    prop_oneof![
        4 => (name(), size()).prop_map(|(name, size)| Op::Create(create(name, size))),
        3 => (name(), size()).prop_map(|(name, size)| Op::Expand(name, size)),
        2 => (name(), 1..=4_usize).prop_map(|(name, mib)| Op::Write(name, 1, mib)),
        2 => name().prop_map(Op::Delete),
        1 => Just(Op::RESTART),
    ]
}

/// The expected volumes: the size and id of each.
type Model = BTreeMap<String, (u64, String)>;

async fn step(node: &DiskNode, served: &mut Served, model: &mut Model, op: &Op) {
    match *op {
        Op::Create(ref request) => {
            let name = request.name.as_str();
            let size = model.get(name).map_or(request.required.0, |(has, _)| *has);
            let id = served.make(name, size).await;
            model.insert(name.to_owned(), (size, id));
        }
        Op::Expand(name, size) => {
            let Some((has, id)) = model.get_mut(name) else {
                return;
            };
            let target = node.publish(served, id, name).await;
            *has = served.expand(id, &target, size).await.unwrap().max(*has);
            assert!(*has >= size);
        }
        Op::Write(name, _, mib) => {
            let Some((size, id)) = model.get(name) else {
                return;
            };
            let target = node.publish(served, id, name).await;
            let (_, error) = append(&target.join("file"), mib as u64 * MIB);
            assert!(error.is_none_or(|errno| errno == node.full()), "{error:?}");
            assert!(node.quota(name).used[0] <= *size);
        }
        Op::Delete(name) => {
            let Some((_, id)) = model.remove(name) else {
                return;
            };
            let target = node.target(name);
            served.clients.unpublish_soon(&id, &target).await;
            served.clients.delete(&id).await.unwrap();
            served.clients.delete(&id).await.unwrap();
        }
        Op::Restart { .. } => {}
        ref other => other.is_unknown(),
    }
}

async fn play_on(node: &DiskNode, sequence: &[Op]) {
    let mut served = node.serve().await;
    let mut model = Model::new();
    for op in sequence.iter().chain(&NAMES.map(Op::Delete)) {
        if matches!(op, Op::Restart { .. }) {
            served.stop();
            served = node.serve().await;
        }
        step(node, &mut served, &mut model, op).await;
        for (name, (size, _)) in &model {
            node.assert_limited(name, *size);
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
        let sequences = prop::collection::vec(ops(), 1..16);
        play(CASES, 1, &sequences, |sequence| {
            runtime.block_on(play_on(&DiskNode::new(disk), sequence));
        });
    }
}
