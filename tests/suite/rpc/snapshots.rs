//! Snapshots, and volumes that are copies, over the socket.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rootcellar::csi;
use tonic::Code;

use support::messages::{copy, create, map, of_snapshot, of_volume, refused, snapshot, soon};
use support::server::{Clients, Server};
use support::{NODE, Node};

const TOPOLOGY_KEY: &str = "topology.rootcellar.dev/node";
const SIZE: i64 = 1 << 20;
/// The ids of a volume and a snapshot of an absent pool.
const ELSEWHERE: [&str; 2] = [
    "v1-11111111111141118111111111111111-22222222222252228222222222222222",
    "s1-11111111111141118111111111111111-22222222222252228222222222222222",
];

fn requisite(node: &str) -> csi::TopologyRequirement {
    let place = csi::Topology {
        segments: map(&[(TOPOLOGY_KEY, node)]),
    };
    csi::TopologyRequirement {
        requisite: vec![place],
        preferred: vec![],
    }
}

fn list(max_entries: i32, starting_token: &str) -> csi::ListSnapshotsRequest {
    csi::ListSnapshotsRequest {
        max_entries,
        starting_token: starting_token.to_owned(),
        ..Default::default()
    }
}

fn list_of(snapshot_id: &str, source_volume_id: &str) -> csi::ListSnapshotsRequest {
    csi::ListSnapshotsRequest {
        snapshot_id: snapshot_id.to_owned(),
        source_volume_id: source_volume_id.to_owned(),
        ..Default::default()
    }
}

fn file_of(node: &Node, home: &str, name: &str) -> PathBuf {
    let directories = node.names(home).into_iter();
    let mut directories = directories.filter(|directory| directory.starts_with(name));
    let directory = directories.next().unwrap();
    node.pool().join(home).join(directory).join("data/file")
}

async fn start() -> (Node, Server, Clients) {
    let node = Node::new();
    let server = Server::start(&node).await;
    let clients = server.clients().await;
    (node, server, clients)
}

/// Makes a volume with a file in it and returns its id.
async fn make(node: &Node, clients: &mut Clients, name: &str) -> String {
    let id = clients.make(name, SIZE).await;
    fs::write(file_of(node, "volumes", name), name).unwrap();
    id
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs().try_into().unwrap()
}

/// A snapshot reports its volume, its time and its node, and that it is ready. All answers and
/// repeated requests report the same.
///
/// Proves: SN8.
#[tokio::test]
async fn every_call_describes_a_snapshot_alike() {
    let (node, server, mut clients) = start().await;
    let source = make(&node, &mut clients, "pvc").await;
    let before = now();
    let made = clients.snapshot(snapshot("snap", &source)).await.unwrap();
    assert!(made.snapshot_id.len() <= 128, "{made:?}");
    assert_eq!(made.source_volume_id, source);
    assert_eq!(made.size_bytes, SIZE);
    assert!(made.ready_to_use);
    let made_at = made.creation_time.unwrap();
    assert!((before..=now()).contains(&made_at.seconds), "{made_at}");
    let here = &made.accessible_topology[..];
    assert_eq!(here.len(), 1);
    assert_eq!(here[0].segments, map(&[(TOPOLOGY_KEY, NODE)]));

    let again = clients.snapshot(snapshot("snap", &source)).await;
    assert_eq!(again.unwrap(), made);
    assert_eq!(clients.get_snapshot(&made.snapshot_id).await.unwrap(), made);
    let listed = clients.list_snapshots(list(0, "")).await.unwrap();
    assert_eq!(listed, (vec![made.clone()], String::new()));
    assert_eq!(node.names("snapshots").len(), 1);

    server.stop();
    let server = Server::start(&node).await;
    let again = server
        .clients()
        .await
        .snapshot(snapshot("snap", &source))
        .await;
    assert_eq!(again.unwrap(), made, "after a restart");
}

/// A volume made from a snapshot has the data that the source had then, and a clone has the present
/// data. Each answer names the content source of the copy, and a repeated request finds the copy.
///
/// Proves: SN1.
#[tokio::test]
async fn a_copy_says_of_what_it_is() {
    let (node, _server, mut clients) = start().await;
    let source = make(&node, &mut clients, "pvc").await;
    let taken = clients.snapshot(snapshot("snap", &source)).await.unwrap();
    fs::write(file_of(&node, "volumes", "pvc"), "later").unwrap();
    let cases = [
        ("restored", of_snapshot(&taken.snapshot_id), "pvc"),
        ("cloned", of_volume(&source), "later"),
    ];
    for (name, content, holds) in cases {
        let request = copy(name, SIZE, content.clone());
        let volume = clients.create(request.clone()).await.unwrap();
        assert_eq!(volume.content_source, Some(content));
        let file = fs::read_to_string(file_of(&node, "volumes", name));
        assert_eq!(file.unwrap(), holds, "{name}");
        assert_eq!(clients.create(request).await.unwrap(), volume);
        assert_eq!(clients.get(&volume.volume_id).await.unwrap(), volume);
    }
    let of_nothing = clients.get(&source).await.unwrap();
    assert_eq!(of_nothing.content_source, None);
}

/// A name that is taken by a snapshot of another volume, or by a volume with another content
/// source, is `ALREADY_EXISTS`. The message names that source.
///
/// Proves: V4.
#[tokio::test]
async fn a_name_taken_by_a_copy_of_another_is_already_exists() {
    let (node, _server, mut clients) = start().await;
    let one = make(&node, &mut clients, "one").await;
    let other = make(&node, &mut clients, "other").await;
    let taken = clients.snapshot(snapshot("taken", &one)).await.unwrap();
    let answer = clients.snapshot(snapshot("taken", &other)).await;
    refused("snapshot", answer, Code::AlreadyExists, &one);
    let elsewhere = csi::CreateSnapshotRequest {
        accessibility_requirements: Some(requisite("other-node")),
        ..snapshot("taken", &one)
    };
    let answer = clients.snapshot(elsewhere).await;
    refused("topology", answer, Code::AlreadyExists, NODE);

    let of_one = of_snapshot(&taken.snapshot_id);
    clients.create(copy("copy", SIZE, of_one)).await.unwrap();
    let second = clients.snapshot(snapshot("second", &one)).await.unwrap();
    let cases = [
        ("nothing", create("copy", SIZE)),
        ("a clone", copy("copy", SIZE, of_volume(&one))),
        (
            "another",
            copy("copy", SIZE, of_snapshot(&second.snapshot_id)),
        ),
        ("an unknown one", copy("copy", SIZE, of_snapshot("s1-x"))),
    ];
    for (case, request) in cases {
        let answer = clients.create(request).await;
        refused(case, answer, Code::AlreadyExists, &taken.snapshot_id);
    }
    let answer = clients.create(copy("one", SIZE, of_volume(&other))).await;
    refused("no copy", answer, Code::AlreadyExists, "not a copy");
}

/// A content source that does not exist is `NOT_FOUND`, with any id.
///
/// Proves: E1.
#[tokio::test]
async fn a_source_of_nothing_is_not_found() {
    let (node, _server, mut clients) = start().await;
    let source = make(&node, &mut clients, "pvc").await;
    let taken = clients.snapshot(snapshot("snap", &source)).await.unwrap();
    let taken = taken.snapshot_id;
    let deleted = clients.make("gone", SIZE).await;
    clients.delete(&deleted).await.unwrap();
    // The id of a snapshot is no volume id, and a volume id is no snapshot id.
    for id in ["x", "..", &deleted, &taken, &source.to_uppercase()] {
        let answer = clients.snapshot(snapshot("new", id)).await;
        refused(id, answer, Code::NotFound, "volume");
        let answer = clients.create(copy("new", SIZE, of_volume(id))).await;
        refused(id, answer, Code::NotFound, "volume");
    }
    for id in ["x", "..", &source, &taken.to_uppercase()] {
        let answer = clients.create(copy("new", SIZE, of_snapshot(id))).await;
        refused(id, answer, Code::NotFound, "snapshot");
        refused(
            id,
            clients.get_snapshot(id).await,
            Code::NotFound,
            "snapshot",
        );
        clients.delete_snapshot(id).await.unwrap();
    }
    assert!(clients.get_snapshot(&taken).await.is_ok());
    assert!(clients.get(&source).await.is_ok());
    assert_eq!(node.names("snapshots").len(), 1);
    assert_eq!(node.names("volumes").len(), 1);
}

/// A copy of a source in an absent pool gives the pod back to the scheduler. A snapshot of it is
/// `FAILED_PRECONDITION`, and so is its deletion. Once the pool is declared lost, the source is
/// `NOT_FOUND`, and the deletion is OK.
///
/// Proves: E1.
#[tokio::test]
async fn a_source_elsewhere_is_for_another_node() {
    let (node, server, mut clients) = start().await;
    let [volume, taken] = ELSEWHERE;
    let pool = "11111111-1111-4111-8111-111111111111";
    let answer = clients.snapshot(snapshot("new", volume)).await;
    refused("snapshot", answer, Code::FailedPrecondition, pool);
    for content in [of_volume(volume), of_snapshot(taken)] {
        let answer = clients.create(copy("new", SIZE, content)).await;
        refused("copy", answer, Code::ResourceExhausted, pool);
    }
    let answer = clients.delete_snapshot(taken).await;
    refused("delete", answer, Code::FailedPrecondition, "pool retire");
    let answer = clients.get_snapshot(taken).await;
    refused("get", answer, Code::NotFound, pool);

    server.stop();
    let mut retire = Command::new(env!("CARGO_BIN_EXE_rootcellar"));
    retire.args(["pool", "retire", pool, "--state-dir"]);
    let retired = retire.arg(node.path("state")).output().unwrap();
    assert!(retired.status.success(), "{retired:?}");
    let server = Server::start(&node).await;
    let mut clients = server.clients().await;
    let answer = clients.snapshot(snapshot("new", volume)).await;
    refused("retired", answer, Code::NotFound, volume);
    for (id, content) in [(volume, of_volume(volume)), (taken, of_snapshot(taken))] {
        let answer = clients.create(copy("new", SIZE, content)).await;
        refused("retired", answer, Code::NotFound, id);
    }
    clients.delete_snapshot(taken).await.unwrap();
}

/// A volume that is smaller than its source is `OUT_OF_RANGE`, and a larger one is made. Without a
/// size the copy is as large as its source.
///
/// Proves: SN4.
#[tokio::test]
async fn a_copy_is_not_smaller_than_its_source() {
    let (node, _server, mut clients) = start().await;
    let source = make(&node, &mut clients, "pvc").await;
    let taken = clients.snapshot(snapshot("snap", &source)).await.unwrap();
    for (kind, content) in [
        ("restore", of_snapshot(&taken.snapshot_id)),
        ("clone", of_volume(&source)),
    ] {
        let answer = clients
            .create(copy("small", SIZE - 1, content.clone()))
            .await;
        let size = SIZE.to_string();
        refused(kind, answer, Code::OutOfRange, &size);
        let at_most = csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange {
                required_bytes: 0,
                limit_bytes: SIZE - 1,
            }),
            ..copy("small", 0, content.clone())
        };
        refused(kind, clients.create(at_most).await, Code::OutOfRange, &size);
        for (asked, gets) in [(0, SIZE), (SIZE, SIZE), (2 * SIZE, 2 * SIZE)] {
            let name = format!("{kind}-{asked}");
            let volume = clients.create(copy(&name, asked, content.clone())).await;
            assert_eq!(volume.unwrap().capacity_bytes, gets, "{name}");
        }
    }
    let small = node.names("volumes").into_iter();
    assert_eq!(small.filter(|name| name.starts_with("small")).count(), 0);
}

/// A topology without this node is `RESOURCE_EXHAUSTED`, and nothing is made. A topology that names
/// this node is accepted.
///
/// Proves: E1.
#[tokio::test]
async fn a_topology_without_this_node_makes_no_copy() {
    let (node, _server, mut clients) = start().await;
    let source = make(&node, &mut clients, "pvc").await;
    let request = |place| csi::CreateSnapshotRequest {
        accessibility_requirements: Some(requisite(place)),
        ..snapshot("snap", &source)
    };
    let answer = clients.snapshot(request("other-node")).await;
    refused("snapshot", answer, Code::FailedPrecondition, NODE);
    assert!(node.names("snapshots").is_empty());
    let taken = clients.snapshot(request(NODE)).await.unwrap();
    let restore = |place| csi::CreateVolumeRequest {
        accessibility_requirements: Some(requisite(place)),
        ..copy("restored", SIZE, of_snapshot(&taken.snapshot_id))
    };
    let answer = clients.create(restore("other-node")).await;
    refused("restore", answer, Code::ResourceExhausted, NODE);
    assert_eq!(node.names("volumes").len(), 1);
    assert!(clients.create(restore(NODE)).await.is_ok());
}

/// Pages of any size show every snapshot once and in one order. Creations and deletions between two
/// pages shift nothing.
///
/// Proves: L1.
#[tokio::test]
async fn pages_of_snapshots_are_exact() {
    let (_node, _server, mut clients) = start().await;
    let source = clients.make("pvc", SIZE).await;
    let mut all = Vec::new();
    for count in 0..=5_usize {
        for size in 1..=count + 1 {
            let (mut seen, mut pages, mut token) = (Vec::new(), 0, String::new());
            loop {
                let request = list(size.try_into().unwrap(), &token);
                let (page, next) = clients.list_snapshots(request).await.unwrap();
                assert!(page.len() == size || next.is_empty(), "a short page");
                seen.extend(page);
                pages += 1;
                if next.is_empty() {
                    break;
                }
                token = next;
            }
            assert_eq!(seen, all, "{count} snapshots, {size} on a page");
            assert_eq!(pages, count.div_ceil(size).max(1));
        }
        let request = snapshot(&format!("snap-{count}"), &source);
        all.push(clients.snapshot(request).await.unwrap());
        all.sort_by(|one, other| one.snapshot_id.cmp(&other.snapshot_id));
    }
    let (first, token) = clients.list_snapshots(list(2, "")).await.unwrap();
    assert_eq!(first, all[..2]);
    for deleted in [0, 1, 3] {
        let id = &all[deleted].snapshot_id;
        clients.delete_snapshot(id).await.unwrap();
    }
    let (second, token) = clients.list_snapshots(list(2, &token)).await.unwrap();
    assert_eq!(second, [all[2].clone(), all[4].clone()]);
    let last = clients.list_snapshots(list(2, &token)).await.unwrap();
    assert_eq!(last, (vec![all[5].clone()], String::new()));
}

/// A list can be limited to one snapshot or to those of one volume, which may be deleted. An
/// unknown id gives an empty list. A token that is not the driver's is `ABORTED`, and a negative
/// page size is `INVALID_ARGUMENT`.
///
/// Proves: L1.
#[tokio::test]
async fn a_list_is_narrowed_by_snapshot_and_by_source() {
    let (_node, _server, mut clients) = start().await;
    let one = clients.make("one", SIZE).await;
    let other = clients.make("other", SIZE).await;
    let mut ids = Vec::new();
    for (name, source) in [("a", &one), ("b", &one), ("c", &other)] {
        let made = clients.snapshot(snapshot(name, source)).await.unwrap();
        ids.push(made.snapshot_id);
    }
    clients.delete(&one).await.unwrap();
    let [a, b, c] = [0, 1, 2].map(|at| ids[at].clone());
    let cases: [(&str, &str, Vec<&str>); 9] = [
        ("", "", vec![&a, &b, &c]),
        (&a, "", vec![&a]),
        ("", &one, vec![&a, &b]),
        ("", &other, vec![&c]),
        (&a, &one, vec![&a]),
        (&a, &other, vec![]),
        ("none", "", vec![]),
        ("", "none", vec![]),
        (&one, &a, vec![]),
    ];
    for (id, source, expected) in cases {
        let answer = clients.list_snapshots(list_of(id, source)).await.unwrap();
        let mut found: Vec<&str> = answer.0.iter().map(|s| s.snapshot_id.as_str()).collect();
        let mut expected = expected;
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{id:?} of {source:?}");
    }
    let paged = csi::ListSnapshotsRequest {
        max_entries: 1,
        ..list_of("", &one)
    };
    let (page, token) = clients.list_snapshots(paged.clone()).await.unwrap();
    assert_eq!((page.len(), token.is_empty()), (1, false));
    let paged = csi::ListSnapshotsRequest {
        starting_token: token,
        ..paged
    };
    let (page, token) = clients.list_snapshots(paged).await.unwrap();
    assert_eq!(
        (page.len(), token.as_str()),
        (1, ""),
        "what is left is another's"
    );

    for token in ["none", "0", "../..", &one, &a.to_uppercase()] {
        let answer = clients.list_snapshots(list(1, token)).await;
        refused(token, answer, Code::Aborted, "starting_token");
    }
    for size in [-1, i32::MIN] {
        let answer = clients.list_snapshots(list(size, "")).await;
        refused("size", answer, Code::InvalidArgument, "max_entries");
    }
}

/// Source and copies are deleted in any order, each as often as the CO asks. The others retain
/// their data.
///
/// Proves: SN1.
#[tokio::test]
async fn source_and_copies_go_in_any_order() {
    // source, snapshot, restored volume
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let (node, _server, mut clients) = start().await;
    for order in orders {
        let source = make(&node, &mut clients, "pvc").await;
        let taken = clients.snapshot(snapshot("snap", &source)).await.unwrap();
        let taken = taken.snapshot_id;
        let restored = copy("restored", SIZE, of_snapshot(&taken));
        let restored = clients.create(restored).await.unwrap().volume_id;
        let places = [
            ("volumes", "pvc"),
            ("snapshots", "snap"),
            ("volumes", "restored"),
        ];
        for (at, deleted) in order.into_iter().enumerate() {
            for _ in 0..2 {
                match deleted {
                    0 => clients.delete(&source).await.unwrap(),
                    1 => clients.delete_snapshot(&taken).await.unwrap(),
                    _ => clients.delete(&restored).await.unwrap(),
                }
            }
            for left in &order[at + 1..] {
                let (home, name) = places[*left];
                let file = fs::read_to_string(file_of(&node, home, name));
                assert_eq!(file.unwrap(), "pvc", "{name} in {order:?}");
            }
        }
        assert!(node.names("volumes").is_empty() && node.names("snapshots").is_empty());
        soon("all is reclaimed", async || {
            node.names(".rootcellar/trash").is_empty()
        })
        .await;
    }
}

/// Simultaneous calls for one name make one snapshot and one volume. Each call gets it, or
/// `ABORTED` so that the caller tries again.
///
/// Proves: V1.
#[tokio::test]
async fn calls_for_one_copy_at_once_make_one() {
    let (node, server, mut clients) = start().await;
    let source = make(&node, &mut clients, "pvc").await;
    for round in 0..4 {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut clients = server.clients().await;
            let request = snapshot(&format!("snap-{round}"), &source);
            calls.spawn(async move {
                let taken = clients.snapshot(request).await;
                let taken = taken.map(|taken| taken.snapshot_id);
                let content = taken.clone().map(|id| of_snapshot(&id));
                let volume = match content {
                    Ok(content) => {
                        let request = copy(&format!("copy-{round}"), SIZE, content);
                        Some(clients.create(request).await.map(|volume| volume.volume_id))
                    }
                    Err(_) => None,
                };
                (taken, volume)
            });
        }
        let answers = calls.join_all().await;
        let all = answers
            .iter()
            .flat_map(|(taken, volume)| [Some(taken), volume.as_ref()]);
        for refusal in all.flatten().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(refusal.code(), Code::Aborted, "{refusal}");
        }
        let taken = clients
            .snapshot(snapshot(&format!("snap-{round}"), &source))
            .await;
        let taken = taken.unwrap().snapshot_id;
        let content = of_snapshot(&taken);
        let volume = clients
            .create(copy(&format!("copy-{round}"), SIZE, content))
            .await;
        let volume = volume.unwrap().volume_id;
        for (one, other) in answers {
            assert!(one.is_err() || one.unwrap() == taken);
            assert!(other.is_none_or(|other| other.is_err() || other.unwrap() == volume));
        }
        assert_eq!(node.names("snapshots").len(), round + 1);
        assert_eq!(node.names("volumes").len(), round + 2);
    }
}
