//! Ids that belong to nothing, and ids of other pools and nodes.

use std::path::Path;

use rootcellar::csi;
use tonic::Code;

use support::Node;
use support::messages::{Answer, publish, read_write_once, refused};
use support::server::{Clients, Server};

async fn stats(clients: &mut Clients, id: &str, path: &Path) -> Answer<Vec<csi::VolumeUsage>> {
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_str().unwrap().to_owned(),
        ..Default::default()
    };
    let answer = clients.node.node_get_volume_stats(request).await?;
    Ok(answer.into_inner().usage)
}

/// Asserts that every call about the id is `NOT_FOUND`, and that unpublishing it succeeds.
async fn assert_unknown(clients: &mut Clients, node: &Node, id: &str) {
    let target = node.target("pod");
    refused(id, clients.get(id).await, Code::NotFound, "");
    refused(
        id,
        clients.validate(id, read_write_once()).await,
        Code::NotFound,
        "",
    );
    refused(
        id,
        clients.publish(publish(id, &target)).await,
        Code::NotFound,
        "",
    );
    for path in [&target, Path::new("some/path")] {
        refused(id, stats(clients, id, path).await, Code::NotFound, "");
    }
    clients.unpublish_soon(id, &target).await;
    assert!(support::names(target.parent().unwrap()).is_empty());
}

/// An invalid id, or an id without a volume in a present pool, is deleted already. Every other call
/// is `NOT_FOUND`.
///
/// Proves: E1.
#[tokio::test]
async fn an_id_of_nothing_is_deleted_already_and_not_found() {
    let (node, _server, mut clients) = Server::on_new_node().await;
    let id = clients.make("a", 1000).await;
    let other_name = format!(
        "{}{}",
        &id[..id.len() - 1],
        if id.ends_with('0') { '1' } else { '0' }
    );
    let ids = [
        "fake-vol-id",
        "..",
        "/",
        &id.to_uppercase(),
        &id.replace("v1", "v2"),
        &format!("{id}/../x"),
        &other_name,
    ];
    for id in ids {
        clients.delete(id).await.unwrap();
        assert_unknown(&mut clients, &node, id).await;
    }
    assert!(clients.get(&id).await.is_ok());
}

/// Deleting a volume of an absent pool is `FAILED_PRECONDITION`, which names the pool and the
/// command that declares it lost. OK would drop the object and leak the data. Node calls are
/// `NOT_FOUND`.
///
/// Proves: E1.
#[tokio::test]
async fn a_volume_of_an_absent_pool_is_not_deleted() {
    let (node, _server, mut clients) = Server::on_new_node().await;
    let id = "v1-11111111111141118111111111111111-22222222222252228222222222222222";
    let hint = "rootcellar pool retire 11111111-1111-4111-8111-111111111111";
    clients.assert_in_use("delete", id, hint).await;
    assert_unknown(&mut clients, &node, id).await;
}

/// Volumes of one name on two nodes have two ids, and neither node deletes or shows the other's
/// volume.
///
/// Proves: V5.
#[tokio::test]
async fn two_nodes_never_share_an_id() {
    let nodes = [Node::new(), Node::new()];
    let mut both = Vec::new();
    for (node, name) in nodes.iter().zip(["node-a", "node-b"]) {
        let command = Server::command(node, &[node.pool_option()]);
        let server = Server::spawn(node, &mut Server::with(&command, "--node", name));
        server.wait_ready().await;
        let mut clients = server.clients().await;
        let id = clients.make("same", 1000).await;
        both.push((server, clients, id));
    }
    let [(_, first, own), (_, second, other)] = both.as_mut_slice() else {
        unreachable!("two nodes")
    };
    assert_ne!(own, other);
    refused(
        "other's",
        first.delete(other).await,
        Code::FailedPrecondition,
        "not on this node",
    );
    refused("other's", second.get(own).await, Code::NotFound, "");
    assert!(second.get(other).await.is_ok());
}

/// Statistics are for a volume at its published path, and `NOT_FOUND` at any other.
///
/// Proves: S9.
#[tokio::test]
async fn stats_are_of_the_published_volume() {
    support::require!(loop_devices);
    let (node, _server, mut clients) = Server::on_new_node().await;
    let id = clients.make("a", 1000).await;
    let other = clients.make("b", 1000).await;
    let target = node.target("pod");
    refused(
        "before",
        stats(&mut clients, &id, &target).await,
        Code::NotFound,
        "not published",
    );
    clients.publish(publish(&id, &target)).await.unwrap();
    let usages = stats(&mut clients, &id, &target).await.unwrap();
    assert_eq!(usages.len(), 2, "bytes and inodes");
    for usage in usages {
        assert!(
            usage.total > 0 && usage.used > 0 && usage.available > 0,
            "{usage:?}"
        );
    }
    let elsewhere = [
        target.parent().unwrap(),
        Path::new("some/path"),
        Path::new("/"),
        &node.pool(),
    ];
    for path in elsewhere {
        refused(
            "elsewhere",
            stats(&mut clients, &id, path).await,
            Code::NotFound,
            "",
        );
    }
    refused(
        "another's",
        stats(&mut clients, &other, &target).await,
        Code::NotFound,
        "",
    );
    clients.unpublish_soon(&id, &target).await;
    refused(
        "after",
        stats(&mut clients, &id, &target).await,
        Code::NotFound,
        "not published",
    );
}
