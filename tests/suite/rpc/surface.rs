//! The declared capabilities, the calls that are not served, and the secrecy of secrets.

use rootcellar::csi;
use tonic::{Code, Status};

use csi::volume_capability::access_mode::Mode;
use support::messages::{
    assert_well_formed, capability, create, map, publish, publish_with, refused, snapshot,
};
use support::server::Server;
use support::{NODE, Node};

/// The driver reports its name and its node.
///
/// Proves: C1.
#[tokio::test]
async fn the_driver_says_who_it_is() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let request = csi::GetPluginInfoRequest {};
    let plugin = clients.identity.get_plugin_info(request).await.unwrap();
    let plugin = plugin.into_inner();
    assert_eq!(plugin.name, "csi.rootcellar.dev");
    assert_eq!(plugin.vendor_version, env!("CARGO_PKG_VERSION"));
    let request = csi::NodeGetInfoRequest {};
    let info = clients.node.node_get_info(request).await.unwrap();
    let info = info.into_inner();
    assert_eq!(
        (info.node_id.as_str(), info.max_volumes_per_node),
        (NODE, 0)
    );
}

/// The plugin declares a controller on every node, and volumes and snapshots that are accessible on
/// one node.
///
/// Proves: C1.
#[tokio::test]
async fn the_plugin_declares_what_it_does() {
    use csi::plugin_capability::Type;
    use csi::plugin_capability::service::Type as Service;
    use csi::plugin_capability::volume_expansion::Type as Expansion;
    let node = Node::new();
    let server = Server::start(&node).await;
    let mut client = server.clients().await.identity;
    let request = csi::GetPluginCapabilitiesRequest {};
    let answer = client.get_plugin_capabilities(request).await.unwrap();
    let declared = answer.into_inner().capabilities.into_iter();
    let declared = declared.map(|capability| match capability.r#type {
        Some(Type::Service(service)) => service.r#type().as_str_name(),
        Some(Type::VolumeExpansion(expansion)) => expansion.r#type().as_str_name(),
        None => panic!("nothing"),
    });
    let expected = [
        Service::ControllerService.as_str_name(),
        Service::VolumeAccessibilityConstraints.as_str_name(),
        Service::SnapshotAccessibilityConstraints.as_str_name(),
        Expansion::Online.as_str_name(),
    ];
    assert_eq!(declared.collect::<Vec<_>>(), expected);
}

/// The controller and the node service declare exactly the calls that work.
///
/// Proves: C1.
#[tokio::test]
async fn the_services_declare_the_calls_that_work() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    macro_rules! assert_declared {
        ($service:ident.$call:ident($request:ident), $of:ident: $($rpc:ident)*) => {
            let answer = clients.$service.$call(csi::$request {}).await.unwrap();
            let declared = answer.into_inner().capabilities.into_iter();
            let declared = declared.map(|capability| match capability.r#type {
                Some(csi::$of::Type::Rpc(rpc)) => rpc.r#type(),
                None => panic!("nothing"),
            });
            let expected = [$(csi::$of::rpc::Type::$rpc),*];
            assert_eq!(declared.collect::<Vec<_>>(), expected);
        };
    }
    assert_declared!(
        controller.controller_get_capabilities(ControllerGetCapabilitiesRequest),
        controller_service_capability:
            CreateDeleteVolume CreateDeleteSnapshot ListSnapshots GetSnapshot CloneVolume GetCapacity
            ListVolumes GetVolume SingleNodeMultiWriter
    );
    assert_declared!(
        node.node_get_capabilities(NodeGetCapabilitiesRequest),
        node_service_capability:
            GetVolumeStats ExpandVolume SingleNodeMultiWriter GetVolumeHealth GetStorageHealth
    );
}

/// Proves: C1.
#[tokio::test]
async fn what_is_not_declared_is_unimplemented() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let (controller, node) = (&mut clients.controller, &mut clients.node);
    macro_rules! status {
        ($service:ident.$call:ident($message:ident)) => {{
            let request = csi::$message::default();
            (stringify!($call), $service.$call(request).await.err())
        }};
    }
    let answers: Vec<(&str, Option<Status>)> = vec![
        status!(controller.controller_publish_volume(ControllerPublishVolumeRequest)),
        status!(controller.controller_unpublish_volume(ControllerUnpublishVolumeRequest)),
        status!(controller.controller_get_volume_health(ControllerGetVolumeHealthRequest)),
        status!(controller.controller_list_volume_health(ControllerListVolumeHealthRequest)),
        status!(controller.controller_expand_volume(ControllerExpandVolumeRequest)),
        status!(controller.controller_modify_volume(ControllerModifyVolumeRequest)),
        status!(node.node_stage_volume(NodeStageVolumeRequest)),
        status!(node.node_unstage_volume(NodeUnstageVolumeRequest)),
    ];
    for (case, status) in answers {
        let status = status.unwrap_or_else(|| panic!("{case}: accepted"));
        assert_eq!(status.code(), Code::Unimplemented, "{case}");
        assert_well_formed(case, &status);
    }
}

/// A service that is not declared is `UNIMPLEMENTED`, with a message.
///
/// Proves: C1.
#[tokio::test]
async fn an_unknown_service_is_unimplemented() {
    use csi::group_controller_client::GroupControllerClient;
    let node = Node::new();
    let server = Server::start(&node).await;
    let endpoint = format!("unix://{}", server.socket.display());
    let mut client = GroupControllerClient::connect(endpoint).await.unwrap();
    let request = csi::GroupControllerGetCapabilitiesRequest {};
    let answer = client.group_controller_get_capabilities(request).await;
    refused("group", answer, Code::Unimplemented, "");
}

/// Secrets, and the text after the `=` of a mount option, are in no message and in no log, at any
/// log level.
///
/// Proves: C5.
#[tokio::test]
async fn secrets_are_never_reported() {
    const SECRET: &str = "hunter2";
    let node = Node::new();
    let mut command = Server::command(&node, &[node.pool_option()]);
    command.env("RUST_LOG", "trace");
    let server = Server::spawn(&node, &mut command);
    server.wait_ready().await;
    let mut clients = server.clients().await;
    let secrets = || map(&[("password", SECRET)]);
    let request = csi::CreateVolumeRequest {
        secrets: secrets(),
        ..create("a", 1000)
    };
    let id = clients.create(request).await.unwrap().volume_id;
    let option = format!("password={SECRET}");
    let flags = [option.as_str()];
    let target = node.target("pod");

    let request = csi::CreateVolumeRequest {
        secrets: secrets(),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter, &flags)],
        ..create("b", 1000)
    };
    let mut messages = vec![clients.create(request).await.unwrap_err()];
    let request = csi::NodePublishVolumeRequest {
        secrets: secrets(),
        ..publish_with(&id, &target, &flags)
    };
    messages.push(clients.publish(request).await.unwrap_err());
    let request = csi::NodePublishVolumeRequest {
        secrets: secrets(),
        ..publish("v1-x", &target)
    };
    messages.push(clients.publish(request).await.unwrap_err());
    let request = csi::CreateSnapshotRequest {
        secrets: secrets(),
        ..snapshot("s", "v1-x")
    };
    messages.push(clients.snapshot(request).await.unwrap_err());
    let request = csi::ListSnapshotsRequest {
        starting_token: "x".to_owned(),
        secrets: secrets(),
        ..Default::default()
    };
    messages.push(clients.list_snapshots(request).await.unwrap_err());
    for status in messages {
        assert!(!status.message().contains(SECRET), "{status}");
    }
    let reason = clients
        .validate(&id, capability(Mode::SingleNodeWriter, &flags))
        .await
        .unwrap();
    assert!(!reason.unwrap().contains(SECRET));
    let request = csi::DeleteVolumeRequest {
        volume_id: id,
        secrets: secrets(),
    };
    clients.controller.delete_volume(request).await.unwrap();
    let log = server.log();
    assert!(log.contains("DeleteVolume"), "it is the right log");
    assert!(!log.contains(SECRET), "{log}");
}

/// A message that quotes a request stays small enough for its header.
///
/// Proves: E1.
#[tokio::test]
async fn a_message_that_quotes_is_cut() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let long = "→".repeat(100_000);
    refused(
        "token",
        clients.list(1, &long).await,
        Code::Aborted,
        "starting_token",
    );
    let request = csi::CreateVolumeRequest {
        parameters: map(&[("uid", &"→".repeat(1300))]),
        ..create("a", 1)
    };
    refused(
        "uid",
        clients.create(request).await,
        Code::InvalidArgument,
        "\"uid\"",
    );
    let path = std::path::PathBuf::from(format!("/{}", "x/".repeat(2000)));
    refused(
        "path",
        clients.publish(publish("v1-x", &path)).await,
        Code::InvalidArgument,
        "target_path",
    );
}
