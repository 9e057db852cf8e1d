//! Runs one operation on a pool on a disk of the machine and cuts the machine's power as soon as
//! the reply has arrived; or inspects such a disk afterwards. hack/test/uml-poweroff.sh runs it. Or runs
//! databases on such a disk until somebody else cuts the power, for hack/test/guest/power-cuts.sh.
//!
//! Usage: power act|check OPERATION FILESYSTEM DEVICE
//!        power databases write|full|end FILESYSTEM DEVICE UNFLUSHED [NAME=NUMBER...]
#![allow(unreachable_pub, missing_debug_implementations)]
// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod databases;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use support::disk::ENFORCING;
use support::disk_node::{DiskNode, MIB, OURS, Served, append};
use support::{eventually, kernel, names};

const MODE: u32 = 0o2770;
const OWNER: u32 = 1007;
const CLASS: &[(&str, &str)] = &[("mode", "2770"), ("uid", "1007")];

/// The operation before the power-off; it determines the volumes that must exist afterwards.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    Create,
    Expand,
    Delete,
    Reclaim,
}

impl Operation {
    fn parse(name: &str) -> Self {
        match name {
            "create" => Self::Create,
            "expand" => Self::Expand,
            "delete" => Self::Delete,
            "reclaim" => Self::Reclaim,
            _ => panic!("no such operation: {name}"),
        }
    }

    /// The volumes that exist after the reply, and their sizes.
    fn leaves(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Create => &[("kept", 8 * MIB), ("pvc", 4 * MIB)],
            Self::Expand => &[("kept", 8 * MIB), ("pvc", 12 * MIB)],
            Self::Delete | Self::Reclaim => &[("kept", 8 * MIB)],
        }
    }
}

async fn make(served: &mut Served, volume: &str, size: u64) -> String {
    served.create(volume, size, CLASS).await.unwrap().volume_id
}

/// Prepares the pool, then runs the operation.
async fn act(operation: Operation, node: &DiskNode) {
    let mut served = node.serve().await;
    make(&mut served, "kept", 8 * MIB).await;
    append(&node.directory("kept").join("data/file"), MIB);
    if operation == Operation::Create {
        sync();
        make(&mut served, "pvc", 4 * MIB).await;
        return lose_power();
    }
    let id = make(&mut served, "pvc", 4 * MIB).await;
    let target = node.publish(&mut served, &id, "pod").await;
    append(&target.join("file"), 2 * MIB);
    if operation == Operation::Expand {
        sync();
        served.expand(&id, &target, 12 * MIB).await.unwrap();
        return lose_power();
    }
    served.clients.unpublish(&id, &target).await.unwrap();
    let project = node.project("pvc");
    sync();
    served.clients.delete(&id).await.unwrap();
    if operation == Operation::Reclaim {
        node.wait_free(project);
    }
    lose_power();
}

/// Makes the preparation durable.
fn sync() {
    rustix::fs::sync();
}

/// Powers the machine off: nothing more is written, and this does not return.
fn lose_power() {
    fs::write("/proc/sysrq-trigger", "o").unwrap();
    std::thread::park();
}

/// Inspects the disk with a driver started again.
async fn check(operation: Operation, node: &DiskNode) {
    let mut served = node.serve().await;
    assert_eq!(served.metric("rootcellar_pool_quarantined"), 0);
    let volumes = operation.leaves();
    let (ids, _) = served.clients.list(0, "").await.unwrap();
    assert_eq!(ids.len(), volumes.len(), "{ids:?}");
    for &(volume, size) in volumes {
        let directory = node.directory(volume);
        assert_eq!(names(&directory), ["data", "volume.json"]);
        let data = fs::metadata(directory.join("data")).unwrap();
        assert_eq!(data.permissions().mode() & 0o7777, MODE, "{volume}");
        assert_eq!(data.uid(), OWNER, "{volume}");
        node.assert_limited(volume, size);
        assert!(ids.contains(&make(&mut served, volume, size).await));
    }
    let kept = fs::metadata(node.directory("kept").join("data/file"));
    assert_eq!(kept.unwrap().len(), MIB);

    assert_eq!(names(&node.at().join(".rootcellar/staging")), [""; 0]);
    eventually("what was deleted is reclaimed", || {
        let trash = names(&node.at().join(".rootcellar/trash"));
        let quotas = kernel::quotas(node.at(), OURS.start);
        trash.is_empty() && quotas.len() == volumes.len()
    });
    served.stop();
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [action, operation, filesystem, device, others @ ..] = &arguments[..] else {
        panic!("usage: power act|check|databases OPERATION FILESYSTEM DEVICE ...");
    };
    if action == "databases" {
        let [unflushed, acknowledged @ ..] = others else {
            panic!("usage: power databases MODE FILESYSTEM DEVICE UNFLUSHED [NAME=NUMBER...]");
        };
        let devices = [device, unflushed].map(Path::new);
        databases::recover(filesystem, devices, operation, acknowledged).await;
        return;
    }
    let operation = Operation::parse(operation);
    let disk = { ENFORCING.into_iter() }.find(|disk| disk.filesystem == filesystem);
    let node = DiskNode::of_device(disk.unwrap(), Path::new(device));
    match action.as_str() {
        "act" => act(operation, &node).await,
        "check" => check(operation, &node).await,
        _ => panic!("neither act nor check: {action}"),
    }
}
