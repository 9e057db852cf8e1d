//! Pools that were retired, and the volumes that were moved out of them before.

use objects::inventory::{Inventory, Item, PoolInventory};

use super::lost::{lost, retained};
use super::*;
use crate::answer::has_lost;
use crate::step::Live;

/// Proves: F10.
#[test]
fn a_retired_pool_is_lost_after_minutes_unless_it_is_adopted() {
    let mut world = lost();
    let id = world.pool;
    world.back();
    let retire = |page: &mut Inventory| page.retired = vec![id];
    world.page(HERE, retire);
    assert_eq!(world.steps(), ["ReleaseSoon"]);
    world.page(HERE, |_| {});
    assert!(world.wait(60).is_empty(), "it was adopted");
    world.page(HERE, retire);
    assert_eq!(world.steps(), ["ReleaseSoon"]);
    assert!(world.wait(4).is_empty());
    world.after(60).read_again();
    let due = world.due();
    let asks = |fact: &Live| matches!(fact, Live::Retired { node, .. } if node == HERE);
    assert!(due.steps[0].confirm.iter().any(asks), "{:?}", due.steps);
    world.memory.released(None, world.now);
    world.pv(retained());
    assert_eq!(world.wait(1), ["delete data-db-0"]);
    world.page(HERE, |_| {});
    assert_eq!(world.wait(3), ["ReleaseKept"], "it was adopted");
}

/// Proves: F10.
#[test]
fn a_node_that_does_not_answer_for_a_while_does_not_begin_the_minutes_again() {
    let mut world = lost();
    let id = world.pool;
    world.back();
    world.page(HERE, |page| page.retired = vec![id]);
    assert_eq!(world.steps(), ["ReleaseSoon"]);
    world.after(200);
    assert!(world.steps().is_empty(), "the answer is old");
    world.after(150);
    assert!(world.steps().is_empty(), "the answer is old");
    world.read_again();
    assert_eq!(world.steps(), ["retain pv"]);
}

/// A moved volume keeps the retired pool in its id.
///
/// Proves: F10.
#[test]
fn a_volume_of_a_retired_pool_that_another_pool_may_have_is_not_lost() {
    type OnPage = fn(&mut PoolInventory, Item<VolumeId>);
    let cases: [(&str, OnPage); 5] = [
        ("has it", |pool, item| pool.volumes.push(item)),
        ("had it, and is away", |pool, item| {
            pool.volumes.push(item);
            pool.complete = false;
            pool.unavailable = Some("its disk has not answered".into());
        }),
        ("is away", |pool, _| {
            pool.complete = false;
            pool.empty = true;
            pool.unavailable = Some("nothing is mounted".into());
        }),
        ("lists nothing", |pool, _| pool.complete = false),
        ("has something quarantined", |pool, _| pool.quarantined = 1),
    ];
    for (pool, change) in cases {
        let mut world = lost();
        let (id, item) = (world.pool, world.moved());
        let listed = item.clone();
        let show = |page: &mut Inventory| {
            page.retired = vec![id];
            change(&mut page.pools[0], item);
        };
        world.back();
        world.page(HERE, show.clone());
        let answer = world.view.pages[HERE].answer.as_ref().unwrap();
        assert!(!has_lost(answer, listed.id), "another pool {pool}");
        assert!(world.wait(10).is_empty(), "another pool {pool}");
        world.pv(retained());
        assert_eq!(world.wait(3), ["ReleaseKept"], "another pool {pool}");

        world.pv(json!({}));
        world.page(HERE, |page| page.retired = vec![id]);
        let answer = world.view.pages[HERE].answer.as_ref().unwrap();
        assert!(has_lost(answer, listed.id));
        assert_eq!(world.wait(4), ["ReleaseSoon"], "no pool has it");
        world.page(HERE, show);
        assert!(world.wait(1).is_empty(), "another pool {pool}");
        world.page(HERE, |page| page.retired = vec![id]);
        assert!(world.wait(5).is_empty(), "it was there in between");
        assert_eq!(world.wait(2), ["retain pv"], "no pool has it");
    }
}

/// The volume was moved from a pool that was retired to one that the configuration lacks now.
///
/// Proves: F10, F12.
#[test]
fn a_volume_that_a_pool_without_configuration_may_have_is_not_lost() {
    let dropped = PoolId::random();
    for unserved in [Some(vec![dropped]), None] {
        let mut world = lost();
        let id = world.pool;
        world.back();
        world.page(HERE, |page| {
            page.retired = vec![id];
            page.unserved.clone_from(&unserved);
        });
        assert!(world.wait(10).is_empty(), "{unserved:?}");
        assert!(world.observe().is_empty(), "{unserved:?}");
        world.page(HERE, |page| page.retired = vec![id, dropped]);
        assert_eq!(world.wait(7), ["ReleaseSoon", "retain pv"]);
        assert!(!world.observe().is_empty(), "it was retired");
    }
    let mut world = lost();
    let id = world.pool;
    world.back();
    let serves = |page: &mut Inventory| page.pools[0].id = Some(id);
    world.page(HERE, |page| {
        serves(page);
        page.unserved = Some(vec![dropped]);
    });
    assert!(world.observe().is_empty(), "it may have been moved");
    world.page(HERE, serves);
    assert!(!world.observe().is_empty(), "no pool may have it");
}

/// Proves: F10.
#[test]
fn a_retired_disk_that_is_left_has_no_volume() {
    type OnPage = fn(&mut PoolInventory, PoolId);
    let cases: [(&str, OnPage); 3] = [
        ("nothing is mounted", |pool, _| {
            (pool.id, pool.empty) = (None, true);
        }),
        ("it was retired", |pool, retired| {
            (pool.id, pool.found) = (None, Some(retired));
        }),
        ("it hangs", |pool, retired| pool.id = Some(retired)),
    ];
    for (reason, change) in cases {
        let mut world = lost();
        let (id, item) = (world.pool, world.moved());
        world.back();
        world.page(HERE, |page| {
            page.retired = vec![id];
            let pool = &mut page.pools[0];
            pool.unavailable = Some(reason.into());
            pool.complete = false;
            pool.volumes = vec![item];
            change(pool, id);
        });
        assert_eq!(world.wait(7), ["ReleaseSoon", "retain pv"], "{reason}");
    }
}
