//! Several pools on one node.

use tonic::Code;

use super::serve;
use support::messages::{create, create_with, refused};
use support::names;
use support::require;

const MIB: i64 = 1 << 20;

/// A volume is made in the pool that its class names. A class without a pool name means the pool
/// `default`.
///
/// Proves: V8.
#[tokio::test]
async fn a_volume_goes_to_the_pool_of_its_class() {
    require!(mount_namespace);
    let (node, _server, mut clients) = serve(&["fast", "default"]).await;
    let (fast, default) = ([("pool", "fast")], [("pool", "default")]);
    let before = [
        clients.capacity(&fast).await,
        clients.capacity(&default).await,
    ];
    clients
        .create(create_with("in fast", 2 * MIB, &fast))
        .await
        .unwrap();
    clients
        .create(create_with("in default", 3 * MIB, &default))
        .await
        .unwrap();
    clients
        .create(create("in none named", 4 * MIB))
        .await
        .unwrap();
    let after = [
        clients.capacity(&fast).await,
        clients.capacity(&default).await,
    ];
    assert_eq!(
        [before[0] - after[0], before[1] - after[1]],
        [2 * MIB, 7 * MIB]
    );
    assert_eq!(clients.capacity(&[]).await, after[1]);
    assert_eq!(names(&node.pool("fast").join("volumes")).len(), 1);
    assert_eq!(names(&node.pool("default").join("volumes")).len(), 2);
    let (list, _) = clients.list(0, "").await.unwrap();
    assert_eq!(list.len(), 3, "the list is of all pools");
}

/// If there are several pools and none is called `default`, a class must name one:
/// `INVALID_ARGUMENT` lists their names. The capacity without a name is that of the pool with the
/// most free space, so that the call is made.
///
/// Proves: V8, G5.
#[tokio::test]
async fn a_class_names_a_pool_where_none_is_the_default() {
    require!(mount_namespace);
    let (_node, _server, mut clients) = serve(&["fast", "slow"]).await;
    let slow = [("pool", "slow")];
    clients
        .create(create_with("filler", 5 * MIB, &[("pool", "fast")]))
        .await
        .unwrap();
    assert_eq!(clients.capacity(&[]).await, clients.capacity(&slow).await);
    for part in ["parameter \"pool\"", "fast, slow"] {
        let answer = clients.create(create("a", MIB)).await;
        refused("no pool", answer, Code::InvalidArgument, part);
    }
    let volume = clients.create(create_with("a", MIB, &slow)).await.unwrap();
    let found = clients.create(create("a", MIB)).await.unwrap();
    assert_eq!(found, volume, "found where it is");
}

/// A pool that this node does not have gives the pod back to the scheduler: capacity 0, and
/// `RESOURCE_EXHAUSTED` with the names of the node's pools.
///
/// Proves: E1.
#[tokio::test]
async fn a_pool_of_other_nodes_is_resource_exhausted() {
    require!(mount_namespace);
    let (_node, _server, mut clients) = serve(&["fast", "slow"]).await;
    let bulk = [("pool", "bulk")];
    assert_eq!(clients.capacity(&bulk).await, 0);
    let answer = clients.create(create_with("a", MIB, &bulk)).await;
    refused(
        "not here",
        answer,
        Code::ResourceExhausted,
        "it has fast, slow",
    );
}

/// A name is searched in every pool before it is new. A request for it in another pool is
/// `ALREADY_EXISTS`, which names the pool that has it.
///
/// Proves: V4.
#[tokio::test]
async fn a_name_is_one_volume_whatever_the_pool() {
    require!(mount_namespace);
    let (node, _server, mut clients) = serve(&["fast", "default"]).await;
    let fast = create_with("one", MIB, &[("pool", "fast")]);
    let volume = clients.create(fast.clone()).await.unwrap();
    let other = create_with("one", MIB, &[("pool", "default")]);
    refused(
        "other pool",
        clients.create(other).await,
        Code::AlreadyExists,
        "in pool fast",
    );
    assert_eq!(
        clients.create(create("one", MIB)).await.unwrap(),
        volume,
        "no pool named"
    );
    assert_eq!(clients.create(fast).await.unwrap(), volume);
    assert!(names(&node.pool("default").join("volumes")).is_empty());
}
