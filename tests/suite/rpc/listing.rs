//! `ListVolumes`.

use tonic::Code;

use support::messages::{create, refused};
use support::server::{Clients, Server};

async fn make(clients: &mut Clients, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for index in 0..count {
        let volume = clients
            .create(create(&format!("pvc-{index}"), 1000))
            .await
            .unwrap();
        ids.push(volume.volume_id);
    }
    ids.sort();
    ids
}

/// Pages of any size show every volume once and in one order. Only the last page has no token, and
/// no page is empty unless there is no volume.
///
/// Proves: L1.
#[tokio::test]
async fn pages_are_exact_at_every_boundary() {
    for count in 0_usize..=7 {
        let (_node, _server, mut clients) = Server::on_new_node().await;
        let all = make(&mut clients, count).await;
        for size in 1..=count + 1 {
            let mut pages = Vec::new();
            let mut token = String::new();
            loop {
                let (ids, next) = clients
                    .list(size.try_into().unwrap(), &token)
                    .await
                    .unwrap();
                pages.push(ids);
                assert!(pages.len() <= count + 1, "the last page never comes");
                if next.is_empty() {
                    break;
                }
                token = next;
            }
            let expected: Vec<Vec<String>> = all.chunks(size).map(<[String]>::to_vec).collect();
            let expected = if count == 0 { vec![vec![]] } else { expected };
            assert_eq!(pages, expected, "{count} volumes, {size} on a page");
        }
        for size in [0, i32::MAX] {
            assert_eq!(
                clients.list(size, "").await.unwrap(),
                (all.clone(), String::new())
            );
        }
    }
}

/// A deletion or creation between two pages shifts nothing. The next page begins after the last
/// volume of the page before, also if that volume was deleted.
///
/// Proves: L1.
#[tokio::test]
async fn a_token_holds_when_volumes_come_and_go() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let all = make(&mut clients, 6).await;
    let (first, token) = clients.list(2, "").await.unwrap();
    assert_eq!(first, all[..2]);
    for deleted in [&all[0], &all[1], &all[3]] {
        clients.delete(deleted).await.unwrap();
    }
    let (second, token) = clients.list(2, &token).await.unwrap();
    assert_eq!(second, [all[2].clone(), all[4].clone()]);
    clients.delete(&all[5]).await.unwrap();
    assert_eq!(
        clients.list(2, &token).await.unwrap(),
        (vec![], String::new())
    );
}

/// A token that is not the driver's is `ABORTED`, and a negative page size is `INVALID_ARGUMENT`.
///
/// Proves: L1.
#[tokio::test]
async fn a_foreign_token_is_aborted() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let id = make(&mut clients, 1).await.remove(0);
    let tokens = [
        "invalid-token",
        " ",
        "0",
        "\0",
        "../..",
        &id.to_uppercase(),
        &format!("{id} "),
    ];
    for token in tokens {
        refused(
            token,
            clients.list(1, token).await,
            Code::Aborted,
            "starting_token",
        );
    }
    for size in [-1, i32::MIN] {
        refused(
            "size",
            clients.list(size, "").await,
            Code::InvalidArgument,
            "max_entries",
        );
    }
}
