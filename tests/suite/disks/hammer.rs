//! Calls that continue while disks are unmounted and mounted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tonic::Code;

use super::{ServedDisks, eventually, mount_all, unmount_all};
use support::disk::FILESYSTEMS;
use support::messages::create_with;
use support::require;
use support::server::Clients;
use support::{DEADLINE, names};

const PAUSE: Duration = Duration::from_millis(10);

/// The counters of a caller, and the signal to stop.
#[derive(Default)]
struct Calls {
    stop: AtomicBool,
    made: AtomicUsize,
}

/// Creates volumes and deletes every other one. Like the provisioner, it repeats a call whose
/// result is not final. Returns the volumes that it created and did not delete.
async fn hammer(mut clients: Clients, pool: &'static str, calls: Arc<Calls>) -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    for count in 0.. {
        if calls.stop.load(Ordering::Relaxed) {
            break;
        }
        let request = create_with(&format!("{pool}-{count}"), 0, &[("pool", pool)]);
        let made = loop {
            match clients.create(request.clone()).await {
                Ok(volume) => break Some(volume.volume_id),
                Err(status) if status.code() == Code::ResourceExhausted => break None,
                Err(status) => assert_not_final(&status),
            }
            tokio::time::sleep(PAUSE).await;
        };
        let Some(id) = made else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if calls.made.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            there.insert(id);
            continue;
        }
        while let Err(status) = clients.delete(&id).await {
            assert_not_final(&status);
            tokio::time::sleep(PAUSE).await;
        }
    }
    there
}

#[track_caller]
fn assert_not_final(status: &tonic::Status) {
    let codes = [Code::Unavailable, Code::Aborted];
    assert!(codes.contains(&status.code()), "{status}");
}

/// While disks are unmounted and mounted, callers create and delete volumes without a pause.
/// Nothing is written below the mount points, and in the end exactly the acknowledged volumes
/// exist.
///
/// Proves: DK1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_while_disks_come_and_go_is_there() {
    require!(loop_devices);
    let (disks, mut rig, _) = ServedDisks::serve_disks(&[]).await;
    let mut callers = Vec::new();
    for pool in FILESYSTEMS {
        let (clients, calls) = (rig.server.clients().await, Arc::new(Calls::default()));
        let caller = tokio::spawn(hammer(clients, pool, Arc::clone(&calls)));
        callers.push((pool, caller, calls));
    }
    for round in 1..=2 {
        // Mounted again before any health check.
        for disk in &disks {
            disk.unmount();
            disk.mount(&[]);
        }
        unmount_all(&disks);
        rig.wait_all(&FILESYSTEMS, "unavailable").await;
        mount_all(&disks);
        rig.wait_all(&FILESYSTEMS, "healthy").await;
        for (_, _, calls) in &callers {
            eventually("volumes are made again", || {
                calls.made.load(Ordering::Relaxed) > round * 8
            });
        }
    }
    let mut acknowledged = BTreeSet::new();
    for ((pool, caller, calls), disk) in callers.into_iter().zip(&disks) {
        calls.stop.store(true, Ordering::Relaxed);
        let there = tokio::time::timeout(DEADLINE, caller).await;
        let there = there.expect("its calls end").unwrap();
        let own = disk.path().join(".rootcellar");
        eventually("the trash is empty", || {
            names(&own.join("trash")).is_empty()
        });
        assert_eq!(names(&own.join("staging")), [""; 0], "{pool}");
        assert_eq!(
            names(&disk.path().join("volumes")).len(),
            there.len(),
            "{pool}"
        );
        acknowledged.extend(there);
    }
    let listed = rig.clients.list_all().await;
    assert_eq!(BTreeSet::from_iter(listed), acknowledged);
    rig.assert_beneath();
}
