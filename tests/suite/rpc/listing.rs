//! `ListVolumes`.

use std::process::Command;

use rootcellar::csi::{ListVolumesRequest, ListVolumesResponse};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use support::messages::{create, refused, soon};
use support::server::{Clients, Server};

/// The most entries of a page.
const PAGE: usize = 256;

/// The most lists at once.
const LISTS: usize = 32;

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

/// Without a page size, or with a large one, a page has a bounded number of volumes. `volume enforce
/// --all` asks for every page.
///
/// Proves: L1.
#[tokio::test]
async fn a_page_is_bounded() {
    let (_node, server, mut clients) = Server::on_new_node().await;
    let all = make(&mut clients, PAGE + 1).await;
    for size in [0, i32::MAX] {
        let (ids, token) = clients.list(size, "").await.unwrap();
        assert_eq!(ids, all[..PAGE], "{size}");
        let last = (all[PAGE..].to_vec(), String::new());
        assert_eq!(clients.list(size, &token).await.unwrap(), last, "{size}");
    }
    let enforced = Command::new(support::rootcellar())
        .args(["volume", "enforce", "--all", "--endpoint"])
        .arg(format!("unix://{}", server.socket.display()))
        .output()
        .unwrap();
    let said = String::from_utf8(enforced.stdout).unwrap();
    let refused = format!(", {} refused\n", PAGE + 1);
    assert!(said.ends_with(&refused), "{said}");
}

/// Lists whose client never reads the response are few, and more are refused. They delay no other call,
/// and end with their client. That holds too if the server may send a part of the response, because it
/// still has all of it then.
///
/// Proves: L3.
#[tokio::test]
async fn lists_that_nobody_reads_are_few() {
    let (_node, server, mut clients) = Server::on_new_node().await;
    make(&mut clients, 1).await;
    let url = format!("unix://{}", server.socket.display());
    for window in [0, 1] {
        let silent = Endpoint::try_from(url.clone()).unwrap();
        let silent = silent.initial_stream_window_size(window).connect().await;
        let silent = silent.unwrap();
        let mut unread = Vec::new();
        for _ in 0..2 * LISTS {
            match unread_list(silent.clone()).await {
                Ok(response) => unread.push(response),
                Err(status) => {
                    refused("list", Err::<(), _>(status), Code::Unavailable, "lists");
                }
            }
        }
        assert_eq!(unread.len(), LISTS, "window {window}");
        let again = clients.list(0, "").await;
        refused("list", again, Code::Unavailable, "lists");
        make(&mut clients, 2).await;
        drop((unread, silent));
        soon("a list is answered", async || {
            clients
                .list(0, "")
                .await
                .is_ok_and(|(ids, _)| ids.len() == 2)
        })
        .await;
    }
}

/// A list whose response is only read as far as its headers.
async fn unread_list(channel: Channel) -> Result<impl Sized, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/csi.v1.Controller/ListVolumes");
    let codec: ProstCodec<ListVolumesRequest, ListVolumesResponse> = ProstCodec::default();
    let request = Request::new(ListVolumesRequest::default());
    client.server_streaming(request, path, codec).await
}
