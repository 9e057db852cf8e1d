//! `GetCapacity`, and its agreement with `CreateVolume`.

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rootcellar::csi::volume_capability::{AccessType, BlockVolume};
use tonic::Code;

use super::serve;
use support::memory::MemoryNode;
use support::messages::{
    capability, create, create_with, map, read_write_once, refused, soon, with_fs_type,
};
use support::require;
use support::server::{Clients, Server};
use support::{NODE, memory};

const MIB: i64 = 1 << 20;

/// A volume takes exactly its size from the capacity, with any data in it, and gives it back when
/// it is reclaimed. Calls that make nothing take nothing.
///
/// Proves: G3.
#[tokio::test]
async fn capacity_falls_by_exactly_the_reservations() {
    require!(mount_namespace);
    let (node, _server, mut clients) = serve(&["a"]).await;
    let empty = clients.capacity(&[]).await;
    assert!(
        empty > 100 * MIB && empty.cast_unsigned() < memory::SIZE,
        "{empty}"
    );
    let first = clients.make("first", 10 * MIB).await;
    assert_eq!(clients.capacity(&[]).await, empty - 10 * MIB);
    let second = clients.make("second", 7 * MIB + 1).await;
    let both = empty - 17 * MIB - 1;
    assert_eq!(clients.capacity(&[]).await, both);

    clients.create(create("first", 10 * MIB)).await.unwrap();
    clients.create(create("unlimited", 0)).await.unwrap();
    clients.create(create("first", 11 * MIB)).await.unwrap_err();
    clients.create(create("huge", i64::MAX)).await.unwrap_err();
    clients
        .create(create_with("bad", MIB, &[("mode", "9")]))
        .await
        .unwrap_err();
    assert_eq!(clients.capacity(&[]).await, both);

    let data = std::fs::read_dir(node.pool("a").join("volumes")).unwrap();
    for entry in data {
        std::fs::write(entry.unwrap().path().join("data/file"), vec![7; 1 << 20]).unwrap();
    }
    assert_eq!(
        clients.capacity(&[]).await,
        both,
        "the written bytes were reserved before"
    );
    clients.delete(&first).await.unwrap();
    soon("the first is given back", async || {
        clients.capacity(&[]).await == empty - 7 * MIB - 1
    })
    .await;
    clients.delete(&second).await.unwrap();
    let (ids, _) = clients.list(0, "").await.unwrap();
    clients.delete(&ids[0]).await.unwrap();
    soon("all is given back", async || {
        clients.capacity(&[]).await == empty
    })
    .await;
}

/// The next `CreateVolume` accepts the size that `GetCapacity` returns. One byte more is
/// `RESOURCE_EXHAUSTED`, with both numbers in the message. This is true with all options of the
/// pool.
///
/// Proves: G3.
#[tokio::test]
async fn the_capacity_is_what_a_create_accepts() {
    for options in [
        "reserve=0",
        "reserve=10Mi",
        "reserve=25%",
        "overcommit=2",
        "overcommit=0.5",
    ] {
        let node = require!(mount_namespace, MemoryNode::new(&["a"]));
        let pools: Vec<String> = node
            .options()
            .iter()
            .map(|o| o.replace("reserve=0", options))
            .collect();
        let server = Server::start_with(&node, &pools).await;
        let mut clients = server.clients().await;
        clients.create(create("before", 3 * MIB)).await.unwrap();
        let capacity = clients.capacity(&[]).await;
        for bytes in [capacity, capacity + 1] {
            let says = format!(" {bytes} bytes");
            let too_much = clients.create(create("next", capacity + 1)).await;
            refused(options, too_much, Code::ResourceExhausted, &says);
        }
        let volume = clients.create(create("next", capacity)).await.unwrap();
        assert_eq!(volume.capacity_bytes, capacity, "{options}");
        let rest = clients.capacity(&[]).await;
        let too_much = clients.create(create("last", rest + 1)).await;
        refused(
            options,
            too_much,
            Code::ResourceExhausted,
            "overcommit or reserve",
        );
        // A volume without a size reserves nothing, so there is always enough free space.
        clients.create(create("none", 0)).await.unwrap();
        clients.create(create("last", rest)).await.unwrap();
    }
}

/// A refusal for lack of free space leaves nothing behind.
///
/// Proves: G3.
#[tokio::test]
async fn a_refused_create_leaves_nothing() {
    require!(mount_namespace);
    let (node, _server, mut clients) = serve(&["a"]).await;
    let capacity = clients.capacity(&[]).await;
    clients
        .create(create("huge", capacity + 1))
        .await
        .unwrap_err();
    for directory in ["volumes", ".rootcellar/staging", ".rootcellar/trash"] {
        assert!(
            support::names(&node.pool("a").join(directory)).is_empty(),
            "{directory}"
        );
    }
    assert_eq!(clients.capacity(&[]).await, capacity);
}

/// A class that asks for another filesystem than the pool's has capacity 0, and a create for it is
/// `RESOURCE_EXHAUSTED`. All other keys of the sidecars are ignored.
///
/// Proves: G5.
#[tokio::test]
async fn another_filesystem_has_no_capacity_here() {
    require!(mount_namespace);
    let (_node, _server, mut clients) = serve(&["a"]).await;
    let capacity = clients.capacity(&[]).await;
    let key = "csi.storage.k8s.io/fstype";
    for (value, expected) in [
        ("", capacity),
        ("tmpfs", capacity),
        ("xfs", 0),
        ("TMPFS", 0),
    ] {
        assert_eq!(
            clients.capacity(&[(key, value)]).await,
            expected,
            "{value:?}"
        );
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![with_fs_type(value)],
            ..create(&format!("by capability {value}"), MIB)
        };
        let by_parameter = create_with(&format!("by parameter {value}"), MIB, &[(key, value)]);
        for request in [request, by_parameter] {
            let answer = clients.create(request).await;
            if expected == 0 {
                refused(
                    value,
                    answer,
                    Code::ResourceExhausted,
                    &format!("{value:?}"),
                );
            } else {
                clients.delete(&answer.unwrap().volume_id).await.unwrap();
            }
        }
        soon("all is reclaimed", async || {
            clients.capacity(&[]).await == capacity
        })
        .await;
    }
    let ignored = [
        ("csi.storage.k8s.io/anything", "at all"),
        ("csi.storage.k8s.io/pvc/name", "c"),
    ];
    assert_eq!(clients.capacity(&ignored).await, capacity);
    clients
        .create(create_with("ignored", MIB, &ignored))
        .await
        .unwrap();
}

/// A class with a mistake has the capacity of the corrected class. So `CreateVolume` is called and
/// returns `INVALID_ARGUMENT`, which names the key.
///
/// Proves: G5.
#[tokio::test]
async fn a_mistake_in_a_class_is_reported_by_create_and_hides_no_capacity() {
    require!(mount_namespace);
    let (_node, _server, mut clients) = serve(&["a"]).await;
    let capacity = clients.capacity(&[]).await;
    let mistakes = [
        ("size", "1"),
        ("Mode", "0777"),
        ("mode", "9"),
        ("mode", ""),
        ("mode", "4000"),
        ("uid", "root"),
        ("gid", "4294967295"),
        ("sharing", "all"),
        ("pool", "Fast"),
        ("pool", ""),
        ("enforcement/x", ""),
        ("exclusive", "true"),
    ];
    for (key, value) in mistakes {
        let case = format!("{key}={value}");
        assert_eq!(clients.capacity(&[(key, value)]).await, capacity, "{case}");
        let answer = clients
            .create(create_with("bad", MIB, &[(key, value)]))
            .await;
        refused(&case, answer, Code::InvalidArgument, &format!("{key:?}"));
    }
}

async fn asked(clients: &mut Clients, request: csi::GetCapacityRequest) -> i64 {
    let answer = clients
        .controller
        .get_capacity(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.maximum_volume_size, Some(answer.available_capacity));
    answer.available_capacity
}

/// There is no capacity at another place or for another filesystem. A request that no node can
/// serve has its capacity nevertheless, so that `CreateVolume` is called and can say so.
///
/// Proves: G5.
#[tokio::test]
async fn capacity_is_of_this_node_and_of_what_it_can_do() {
    require!(mount_namespace);
    let (_node, _server, mut clients) = serve(&["a"]).await;
    let all = clients.capacity(&[]).await;
    let at = |value| csi::GetCapacityRequest {
        accessible_topology: Some(csi::Topology {
            segments: map(&[("topology.rootcellar.dev/node", value)]),
        }),
        ..Default::default()
    };
    let with = |parameters: &[(&str, &str)], capability| csi::GetCapacityRequest {
        volume_capabilities: vec![capability],
        parameters: map(parameters),
        ..Default::default()
    };
    let block = csi::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..read_write_once()
    };
    let many = || capability(Mode::MultiNodeMultiWriter, &[]);
    let cases = [
        ("this node", at(NODE), all),
        ("another node", at("other"), 0),
        ("a mount", with(&[], read_write_once()), all),
        ("another filesystem", with(&[], with_fs_type("xfs")), 0),
        ("block", with(&[], block), all - all % 4096),
        ("many nodes", with(&[], many()), all),
        (
            "many nodes, shared",
            with(&[("sharing", "node")], many()),
            all,
        ),
        (
            "an unknown mount option",
            with(&[], capability(Mode::SingleNodeWriter, &["sync"])),
            all,
        ),
    ];
    for (case, request, expected) in cases {
        assert_eq!(asked(&mut clients, request).await, expected, "{case}");
    }
}
