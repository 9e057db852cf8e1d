//! `CreateVolume` and `DeleteVolume`.

use std::path::Path;

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use support::loops::run;
use support::messages::{capability, create, create_with, map, publish, refused, with_fs_type};
use support::require;
use support::server::Server;
use support::{NODE, Node, names};

const TOPOLOGY_KEY: &str = "topology.rootcellar.dev/node";

/// A request can be repeated: it is answered with the same volume, and no second one is made.
///
/// Proves: V1.
#[tokio::test]
async fn a_create_that_is_repeated_finds_its_volume() {
    let (node, _server, mut clients) = Server::on_new_node().await;
    let request = create_with("pvc-1", 5 << 20, &[("mode", "0750"), ("uid", "7")]);
    let volume = clients.create(request.clone()).await.unwrap();
    assert_eq!(volume.capacity_bytes, 5 << 20);
    assert!(volume.volume_id.len() <= 128, "{volume:?}");
    let context = map(&[("enforcement", "none"), ("pool", "default")]);
    assert_eq!(volume.volume_context, context);
    assert_eq!(clients.create(request.clone()).await.unwrap(), volume);
    let spelled = create_with(
        "pvc-1",
        5 << 20,
        &[("uid", "07"), ("mode", "750"), ("gid", "0")],
    );
    assert_eq!(
        clients.create(spelled).await.unwrap(),
        volume,
        "the same in other words"
    );
    assert_eq!(clients.get(&volume.volume_id).await.unwrap(), volume);
    assert_eq!(node.names("volumes").len(), 1);
}

/// A volume fits every request whose range contains its size, and no other.
///
/// Proves: V4.
#[tokio::test]
async fn an_existing_volume_fits_when_its_size_is_within_the_range() {
    let (node, _server, mut clients) = Server::on_new_node().await;
    clients.create(create("sized", 1000)).await.unwrap();
    clients.create(create("unlimited", 0)).await.unwrap();
    // name, required, limit, whether it fits
    let cases = [
        ("sized", 1000, 0, true),
        ("sized", 1000, 1000, true),
        ("sized", 0, 0, true),
        ("sized", 1, 0, true),
        ("sized", 999, 1001, true),
        ("sized", 0, 1000, true),
        ("sized", 1001, 0, false),
        ("sized", 1001, 2000, false),
        ("sized", 0, 999, false),
        ("sized", 1, 999, false),
        ("sized", i64::MAX, 0, false),
        ("unlimited", 0, 0, true),
        ("unlimited", 1, 0, false),
        ("unlimited", 0, 1, false),
    ];
    for (name, required_bytes, limit_bytes, fits) in cases {
        let case = format!("{name} {required_bytes} to {limit_bytes}");
        let request = csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange {
                required_bytes,
                limit_bytes,
            }),
            ..create(name, 0)
        };
        let answer = clients.create(request).await;
        if fits {
            assert!(answer.is_ok(), "{case}: {answer:?}");
        } else {
            refused(&case, answer, Code::AlreadyExists, "bytes");
        }
    }
    assert_eq!(node.names("volumes").len(), 2);
}

/// A name that is taken by a volume with other parameters, capabilities or topology is
/// `ALREADY_EXISTS`, and the message names the difference.
///
/// Proves: V4.
#[tokio::test]
async fn a_name_taken_by_another_volume_is_already_exists() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let volume = clients.create(create("taken", 1000)).await.unwrap();
    let class = |key, value| create_with("taken", 1000, &[(key, value)]);
    let other_filesystem = csi::CreateVolumeRequest {
        volume_capabilities: vec![with_fs_type("zfs")],
        ..create("taken", 1000)
    };
    let elsewhere = csi::CreateVolumeRequest {
        accessibility_requirements: Some(requisite("other-node")),
        ..create("taken", 1000)
    };
    let cases = [
        ("mode", class("mode", "0770"), "0770"),
        ("uid", class("uid", "1000"), "1000"),
        ("gid", class("gid", "1000"), "1000"),
        ("sharing", class("sharing", "node"), "sharing"),
        ("nodatacow", class("nodatacow", "true"), "nodatacow"),
        ("fs_type", other_filesystem, "zfs"),
        ("topology", elsewhere, NODE),
    ];
    for (case, request, says) in cases {
        refused(
            case,
            clients.create(request).await,
            Code::AlreadyExists,
            says,
        );
    }
    assert_eq!(clients.get(&volume.volume_id).await.unwrap(), volume);
}

fn place(node: &str) -> csi::Topology {
    csi::Topology {
        segments: map(&[(TOPOLOGY_KEY, node)]),
    }
}

fn requisite(node: &str) -> csi::TopologyRequirement {
    csi::TopologyRequirement {
        requisite: vec![place(node)],
        preferred: vec![place(node)],
    }
}

/// A topology without this node gives the pod back to the scheduler: `RESOURCE_EXHAUSTED`, and
/// nothing is made.
///
/// Proves: E1.
#[tokio::test]
async fn a_topology_without_this_node_is_resource_exhausted() {
    let (node, _server, mut clients) = Server::on_new_node().await;
    let request = |name: &str, topology| csi::CreateVolumeRequest {
        accessibility_requirements: Some(topology),
        ..create(name, 1000)
    };
    let answer = clients.create(request("a", requisite("other-node"))).await;
    refused("another node", answer, Code::ResourceExhausted, NODE);
    assert_eq!(node.names("volumes"), Vec::<String>::new());
    clients.create(request("a", requisite(NODE))).await.unwrap();
    clients
        .create(request("b", csi::TopologyRequirement::default()))
        .await
        .unwrap();
}

/// Every answer that describes a volume names its node, and `NodeGetInfo` names the same.
///
/// Proves: V5.
#[tokio::test]
async fn every_volume_says_on_which_node_it_is() {
    let long = format!("{}.example.com", "n".repeat(100));
    for name in [NODE, &long] {
        let node = Node::new();
        let mut command = Server::with(
            &Server::command(&node, &[node.pool_option()]),
            "--node",
            name,
        );
        let server = Server::spawn(&node, &mut command);
        server.wait_ready().await;
        let mut clients = server.clients().await;
        let info = csi::NodeGetInfoRequest {};
        let info = clients.node.node_get_info(info).await.unwrap().into_inner();
        assert_eq!(info.node_id, name);
        let here = info.accessible_topology.unwrap();
        let value = &here.segments[TOPOLOGY_KEY];
        assert_eq!(here.segments.len(), 1);
        assert!(
            value.len() <= 63 && (name.len() > 63 || value == name),
            "{value}"
        );

        let volume = clients.create(create("a", 1000)).await.unwrap();
        let request = csi::CreateVolumeRequest {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![place("x"), here.clone()],
                preferred: vec![],
            }),
            ..create("a", 1000)
        };
        let repeated = clients.create(request).await.unwrap();
        let got = clients.get(&volume.volume_id).await.unwrap();
        let list = csi::ListVolumesRequest::default();
        let mut list = clients
            .controller
            .list_volumes(list)
            .await
            .unwrap()
            .into_inner();
        let listed = list.entries.remove(0).volume.unwrap();
        for volume in [volume, repeated, got, listed] {
            assert_eq!(volume.accessible_topology, vec![here.clone()]);
        }
    }
}

/// Each of several simultaneous calls for one name gets the one volume or `ABORTED`.
///
/// Proves: V1.
#[tokio::test]
async fn calls_for_one_name_at_once_make_one_volume() {
    let node = Node::new();
    let server = Server::start(&node).await;
    for round in 0..8 {
        let name = format!("pvc-{round}");
        let mut calls = Vec::new();
        for _ in 0..16 {
            let (mut clients, name) = (server.clients().await, name.clone());
            calls.push(tokio::spawn(async move {
                clients.create(create(&name, 1000)).await
            }));
        }
        let mut ids = Vec::new();
        for call in calls {
            match call.await.unwrap() {
                Ok(volume) => ids.push(volume.volume_id),
                refusal => refused(&name, refusal, Code::Aborted, &name),
            }
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
    }
    assert_eq!(node.names("volumes").len(), 8);
}

/// A published volume is not deleted: `FAILED_PRECONDITION` names the target, and the data is
/// intact. The volume is deleted after its last target was unmounted, by the driver or by others.
///
/// Proves: R1.
#[tokio::test]
async fn a_published_volume_is_not_deleted() {
    require!(loop_devices);
    let (node, _server, mut clients) = Server::on_new_node().await;
    let id = clients.make("used", 1000).await;
    let (first, second) = (node.target("first"), node.target("second"));
    for target in [&first, &second] {
        clients.publish(publish(&id, target)).await.unwrap();
    }
    std::fs::write(first.join("file"), "kept").unwrap();
    let named = |target: &Path| target.to_str().unwrap().to_owned();
    clients.assert_in_use("twice", &id, &named(&first)).await;
    clients.unpublish_soon(&id, &first).await;
    clients.assert_in_use("once", &id, &named(&second)).await;
    assert_eq!(
        std::fs::read_to_string(second.join("file")).unwrap(),
        "kept"
    );
    // An operator's umount, of which the driver is not notified.
    run(std::process::Command::new("umount").arg(&second));
    clients.delete(&id).await.unwrap();
    clients.delete(&id).await.unwrap();
    assert_eq!(node.names("volumes"), Vec::<String>::new());
}

/// The name of a deleted volume can be used again, for an empty volume.
///
/// Proves: R2.
#[tokio::test]
async fn a_deleted_name_starts_anew() {
    require!(loop_devices);
    let (node, _server, mut clients) = Server::on_new_node().await;
    let target = node.target("pod");
    let mut ids = Vec::new();
    for size in [1000, 2000] {
        let id = clients.make("again", size).await;
        clients.publish(publish(&id, &target)).await.unwrap();
        assert_eq!(names(&target), Vec::<String>::new());
        std::fs::write(target.join("file"), "old").unwrap();
        clients.unpublish_soon(&id, &target).await;
        clients.delete(&id).await.unwrap();
        refused("gone", clients.get(&id).await, Code::NotFound, &id);
        ids.push(id);
    }
    assert_eq!(ids[0], ids[1], "the id is made of the name");
    assert!(clients.create(create("again", 1)).await.is_ok());
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![capability(Mode::SingleNodeReaderOnly, &["ro"])],
        ..create("again", 1)
    };
    assert!(
        clients.create(request).await.is_ok(),
        "nothing in it differs"
    );
}
