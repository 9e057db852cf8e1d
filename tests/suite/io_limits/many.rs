//! Many publications of volumes with limits.

use std::collections::BTreeMap;

use linux::image::loops::Number;
use rustix::mount::MountFlags;
use support::{memory, require};

use super::*;

/// The pods of the first volume.
const PODS: usize = 1000;

/// The other volumes, each with a pod.
const OTHERS: usize = 100;

/// The limits of the volume with a number.
fn limits(number: usize) -> IoLimits {
    IoLimits {
        write_operations: Some(100 + number as u64),
        ..LIMITS
    }
}

/// Publishes all volumes. Returns each with the name of a pod.
fn publish_many(rig: &Rig) -> Vec<(Volume, String)> {
    let mut published = Vec::new();
    for number in 0..=OTHERS {
        let mut request = device(&format!("pvc-{number}"), limits(number));
        request.class.allocation = Some(Allocation::Thin);
        request.required = Bytes(MIB);
        let volume = rig.driver().create(&request).unwrap();
        let pods = if number == 0 { PODS } else { 1 };
        for pod in 0..pods {
            let pod = format!("pod-{number}-{pod}");
            rig.publish(&volume, &pod);
            published.push((volume.clone(), pod));
        }
    }
    published
}

/// The kernel has one entry for each volume, no matter how many pods it has, also after a restart. All entries are removed at
/// once, and each is removed with the last pod of its volume.
///
/// Proves: IO1, IO4, IO6.
#[test]
fn each_of_many_volumes_has_one_entry() {
    require!(mount_namespace);
    let node = Node::new();
    // A disk would take the most time.
    let flags = MountFlags::empty();
    rustix::mount::mount(memory::SOURCE, node.pool(), "tmpfs", flags, None).unwrap();
    let mut rig = Rig::on(node);
    let published = publish_many(&rig);
    let all: BTreeMap<Number, IoLimits> = rig.cgroups.limits();
    let has: Vec<_> = all.values().copied().collect();
    assert_eq!(has, (0..=OTHERS).map(limits).collect::<Vec<_>>());
    assert_eq!(rig.cgroups.writes(), all.len(), "each is set once");

    for lifted in [all.len(), 0] {
        let count = rig.driver().lift_all_limits().unwrap();
        assert_eq!(count, lifted as u64);
        assert_eq!(rig.cgroups.limits(), BTreeMap::new());
    }
    rig.driver = None;
    rig.cgroups.enable();
    rig.start();
    assert_eq!(rig.cgroups.limits(), all);
    assert_eq!(rig.cgroups.writes(), all.len(), "each is set once");

    let (last, others) = published.split_at(PODS);
    let (last, pods) = last.split_last().unwrap();
    for (volume, pod) in pods {
        rig.unpublish(volume, pod);
    }
    assert_eq!(rig.cgroups.limits(), all);
    assert_eq!(rig.cgroups.writes(), all.len(), "none is lifted");
    for (volume, pod) in [last].into_iter().chain(others) {
        rig.unpublish(volume, pod);
    }
    assert_eq!(rig.cgroups.limits(), BTreeMap::new());
    assert_eq!(rig.cgroups.writes(), 2 * all.len(), "each is removed once");
    rig.start();
    assert_eq!(rig.cgroups.limits(), BTreeMap::new());
}
