//! The health of volumes and of the storage, as kubelet asks for it.

use std::fs;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use linux::os::Os;
use objects::PoolId;
use pool::{Condition, Impairment, KnownPools, retire};
use rootcellar::csi;
use rootcellar::csi::volume_health::VolumeHealthEntry;
use rootcellar::volume::Volumes;
use support::disk::Disk;
use support::disk_node::{DiskNode, Served};
use support::page::page;
use support::{Fakes, Node, create, require};

const MIB: u64 = 1 << 20;

fn kinds(conditions: &[Condition]) -> Vec<Impairment> {
    conditions.iter().map(|condition| condition.kind).collect()
}

/// The conditions of the only pool.
fn storage(volumes: &Volumes) -> Vec<Condition> {
    let health = volumes.storage_health().into_iter();
    health.map(|(_, condition)| condition).collect()
}

fn has_no_pool_id(conditions: &[Condition], id: PoolId) {
    for Condition { message, .. } in conditions {
        assert!(!message.contains(&id.to_string()), "{message}");
    }
}

/// Proves: VH1, VH2.
#[test]
fn the_health_of_a_volume_follows_its_disk() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let volume = volumes.create(&create("a", MIB)).unwrap();
    let id = volume.id.to_string();
    assert_eq!(volumes.health(&id).unwrap(), []);
    assert_eq!(storage(&volumes), []);
    let unknown = volumes.create(&create("b", MIB)).unwrap().id.to_string();
    volumes.delete(&unknown).unwrap();
    volumes.health(&unknown).unwrap_err();

    let (path, away) = (node.pool(), node.path("away"));
    fs::rename(&path, &away).unwrap();
    volumes.check_pools();
    let pool = volumes.pools()[0].id().unwrap();
    for conditions in [volumes.health(&id).unwrap(), storage(&volumes)] {
        assert_eq!(kinds(&conditions), [Impairment::PoolUnavailable]);
        assert!(
            conditions[0]
                .message
                .starts_with("pool default: nothing is at its path")
        );
    }
    fs::create_dir(&path).unwrap();
    volumes.check_pools();
    has_no_pool_id(&volumes.health(&id).unwrap(), pool);
    has_no_pool_id(&storage(&volumes), pool);
    drop(volumes);
    // A driver that has never seen the disk knows that the volume is there by its id.
    let volumes = node.volumes(&fakes);
    assert_eq!(
        kinds(&volumes.health(&id).unwrap()),
        [Impairment::PoolUnavailable]
    );

    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    volumes.check_pools();
    assert_eq!(volumes.health(&id).unwrap(), []);
    assert_eq!(storage(&volumes), []);
}

/// Proves: VH1.
#[test]
fn a_volume_of_a_retired_pool_is_lost() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let id = volumes.create(&create("a", MIB)).unwrap().id.to_string();
    let pool = volumes.pools()[0].id().unwrap();
    drop(volumes);
    fs::rename(node.pool(), node.path("away")).unwrap();
    fs::create_dir(node.pool()).unwrap();
    let memory = KnownPools::open(Os::default(), &node.settings(&[]).state_dir).unwrap();
    retire(&memory, pool).unwrap();
    let volumes = node.volumes(&fakes);
    let conditions = volumes.health(&id).unwrap();
    assert_eq!(kinds(&conditions), [Impairment::PoolRetired]);
    has_no_pool_id(&conditions, pool);
}

/// A disk may hang at each of these steps. A lock that the call holds then would stop this test.
///
/// Proves: VH3.
#[test]
fn the_health_waits_for_no_disk() {
    type Asked = Arc<OnceLock<(Arc<Volumes>, String)>>;
    let (asked, seen): (Asked, Arc<Mutex<Vec<Vec<Impairment>>>>) = <_>::default();
    let (at_a_step, answers) = (Arc::clone(&asked), Arc::clone(&seen));
    let plan = Fakes::planned(move |_, _| {
        if let Some((volumes, id)) = at_a_step.get() {
            let mut answers = answers.lock().unwrap();
            answers.push(kinds(&volumes.health(id).unwrap()));
            answers.push(kinds(&storage(volumes)));
        }
        Ok(())
    });
    let timeout = Duration::ZERO;
    let fakes = Fakes { timeout, ..plan };
    let node = Node::new();
    let volumes = node.volumes(&fakes);
    let volume = volumes.create(&create("a", MIB)).unwrap();
    let id = volume.id.to_string();
    asked.set((Arc::clone(&volumes.0), id.clone())).unwrap();
    volumes.create(&create("b", MIB)).unwrap();
    let during = std::mem::take(&mut *seen.lock().unwrap());
    assert!(during.len() > 10, "{during:?}");
    let silent = [Impairment::DiskNotAnswering];
    assert!(during.iter().all(|kinds| *kinds == silent), "{during:?}");
    assert_eq!(volumes.health(&id).unwrap(), []);
}

async fn health(served: &mut Served, id: &str) -> Vec<VolumeHealthEntry> {
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let answer = served.clients.node.node_get_volume_health(request).await;
    let health = answer.unwrap().into_inner().volume_health.unwrap();
    assert_eq!(health.volume_id, id);
    health.health_statuses
}

/// Proves: VH1, VH4.
#[tokio::test]
async fn errors_that_the_kernel_counts_are_shown() {
    require!(loop_devices);
    let (_node, mut served) = DiskNode::served(Disk::new("ext4")).await;
    let id = served.make("pvc", MIB).await;
    assert_eq!(health(&mut served, &id).await, []);
    assert_eq!(served.metric("rootcellar_pool_io_errors_total"), 0);
    let (_, text) = page(served.page, "/metrics").unwrap();
    let (_, device) = text.split_once("device=\"").unwrap();
    let (device, rest) = device.split_once('"').unwrap();
    assert!(rest.starts_with(",filesystem=\"ext4\"} 1"), "{text}");
    let trigger = format!("/sys/fs/ext4/{device}/trigger_fs_error");
    fs::write(trigger, "a test of rootcellar").unwrap();
    support::eventually("the error is counted", || {
        served.metric("rootcellar_pool_io_errors_total") == 1
    });
    let entries = health(&mut served, &id).await;
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0].status(), csi::VolumeHealthErrorType::Degraded);
    assert_eq!(entries[0].reason, "DiskErrors");
    assert!(
        entries[0]
            .message
            .contains(&format!("1 errors on {device}")),
        "{entries:?}"
    );
    let request = csi::NodeGetStorageHealthRequest::default();
    let answer = served.clients.node.node_get_storage_health(request).await;
    let storage = answer.unwrap().into_inner().backend_health;
    assert_eq!(storage.len(), 1);
    assert_eq!(
        storage[0].status(),
        csi::StorageHealthErrorType::StorageDegraded
    );
    served.stop();
}
