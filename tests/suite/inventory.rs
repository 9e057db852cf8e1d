//! The inventory of a node, which the controller reads.

use std::fs;
use std::sync::{Arc, Mutex, OnceLock};

use objects::inventory::{Inventory, PoolInventory};
use objects::{Bytes, PoolId, VolumeId};
use pool::{KnownPools, retire};
use rootcellar::volume::Volumes;

use linux::os::Os;
use support::{Fakes, Node, create, eventually, snapshot};

const MIB: u64 = 1 << 20;

fn only_pool(volumes: &Volumes) -> PoolInventory {
    let Inventory { mut pools, .. } = volumes.inventory().unwrap();
    assert_eq!(pools.len(), 1);
    pools.remove(0)
}

fn ids(pool: &PoolInventory) -> Vec<VolumeId> {
    pool.volumes.iter().map(|item| item.id).collect()
}

/// Proves: SV11.
#[test]
fn the_inventory_has_the_volumes_and_snapshots_of_each_pool() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let a = volumes.create(&create("a", MIB)).unwrap();
    let b = volumes.create(&create("b", 2 * MIB)).unwrap();
    let taken = volumes.create_snapshot(&snapshot("taken", a.id)).unwrap();
    let expected = |pool: &PoolInventory| {
        let mut volumes: Vec<_> = pool
            .volumes
            .iter()
            .map(|one| (one.id, one.bytes.0))
            .collect();
        volumes.sort();
        let mut both = [(a.id, MIB), (b.id, 2 * MIB)];
        both.sort();
        assert_eq!(volumes, both);
        assert!(pool.volumes.iter().all(|one| one.age < 3600));
        assert_eq!(pool.snapshots.len(), 1);
        assert_eq!(pool.snapshots[0].id, taken.id);
        assert!(pool.complete && pool.unavailable.is_none() && !pool.empty);
        assert!(pool.reserved >= Bytes(3 * MIB));
    };
    expected(&only_pool(&volumes));
    drop(volumes);
    let again = node.volumes(&fakes);
    expected(&only_pool(&again));
    again.delete(&b.id.to_string()).unwrap();
    again.delete_snapshot(&taken.id.to_string()).unwrap();
    let pool = only_pool(&again);
    assert_eq!(ids(&pool), [a.id]);
    assert!(pool.snapshots.is_empty());
}

/// Proves: SV11.
#[test]
fn a_pool_that_is_away_is_named_and_incomplete() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let volume = volumes.create(&create("a", MIB)).unwrap();
    let id = only_pool(&volumes).id;
    let (path, away) = (node.pool(), node.path("away"));
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    volumes.check_pools();
    let pool = only_pool(&volumes);
    assert_eq!((pool.id, pool.complete), (id, false));
    assert!(pool.unavailable.is_some());
    drop(volumes);
    let volumes = node.volumes(&fakes);
    let pool = only_pool(&volumes);
    assert_eq!((pool.id, pool.complete), (id, false), "remembered");
    drop(volumes);

    let other: PoolId = retired(&node, id.unwrap());
    let volumes = node.volumes(&fakes);
    let inventory = volumes.inventory().unwrap();
    assert_eq!(inventory.retired, [other]);
    fs::rename(&path, node.path("new")).unwrap();
    fs::rename(&away, &path).unwrap();
    eventually("the retired pool is found", || {
        volumes.check_pools();
        only_pool(&volumes).found == id
    });
    let pool = only_pool(&volumes);
    assert!(!pool.complete && !ids(&pool).contains(&volume.id));
}

/// Proves: SV11.
#[test]
fn a_pool_that_is_not_configured_any_more_is_listed_until_it_is_retired() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let id = only_pool(&volumes).id.unwrap();
    assert_eq!(volumes.inventory().unwrap().unserved, Some(vec![]));
    drop(volumes);
    let volumes = node.volumes_of(&[], &fakes);
    let inventory = volumes.inventory().unwrap();
    assert_eq!(inventory.unserved, Some(vec![id]));
    assert!(inventory.pools.is_empty() && inventory.retired.is_empty());
    fs::rename(node.pool(), node.path("away")).unwrap();
    retired(&node, id);
    let inventory = volumes.inventory().unwrap();
    assert_eq!(inventory.unserved, Some(vec![]));
    assert_eq!(inventory.retired, [id]);
}

fn retired(node: &Node, id: PoolId) -> PoolId {
    let state = node.settings(&[]).state_dir;
    let memory = KnownPools::open(Os::default(), &state).unwrap();
    retire(&memory, id).unwrap();
    id
}

/// A disk may hang at each of these steps. A lock that the call holds then would stop this test.
///
/// Proves: SV11.
#[test]
fn the_inventory_waits_for_no_call_and_shows_what_was_acknowledged() {
    type Asked = Arc<OnceLock<Arc<Volumes>>>;
    let (asked, seen): (Asked, Arc<Mutex<Vec<usize>>>) = <_>::default();
    let (at_a_step, counts) = (Arc::clone(&asked), Arc::clone(&seen));
    let fakes = Fakes::planned(move |_, _| {
        if let Some(volumes) = at_a_step.get() {
            let pool = only_pool(volumes);
            counts.lock().unwrap().push(pool.volumes.len());
        }
        Ok(())
    });
    let node = Node::new();
    let volumes = node.volumes(&fakes);
    let volume = volumes.create(&create("a", MIB)).unwrap();
    asked.set(Arc::clone(&volumes.0)).unwrap();
    volumes.create(&create("b", MIB)).unwrap();
    let creating = std::mem::take(&mut *seen.lock().unwrap());
    assert!(
        creating.len() > 5 && creating.iter().all(|count| *count == 1),
        "{creating:?}"
    );
    volumes.delete(&volume.id.to_string()).unwrap();
    let deleting = std::mem::take(&mut *seen.lock().unwrap());
    assert!(!deleting.is_empty(), "it was asked");
    assert_eq!(ids(&only_pool(&volumes)).len(), 1);
}
