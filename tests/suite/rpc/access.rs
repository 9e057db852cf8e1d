//! Access modes.

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rootcellar::csi::volume_capability::{AccessType, BlockVolume, MountVolume};
use tonic::Code;

use support::messages::{capability, create, create_with, publish, read_write_once, refused};
use support::require;
use support::server::Server;

/// The mode, whether it is for many nodes, and whether it is for one target.
const MODES: [(Mode, bool, bool); 7] = [
    (Mode::SingleNodeWriter, false, true),
    (Mode::SingleNodeReaderOnly, false, true),
    (Mode::SingleNodeSingleWriter, false, true),
    (Mode::SingleNodeMultiWriter, false, false),
    (Mode::MultiNodeReaderOnly, true, false),
    (Mode::MultiNodeSingleWriter, true, false),
    (Mode::MultiNodeMultiWriter, true, false),
];

/// Every mode of a single node is accepted. The `MULTI_NODE` modes are `INVALID_ARGUMENT` with a
/// hint, unless the class has `sharing=node`. `ValidateVolumeCapabilities` agrees, without an
/// error.
///
/// Proves: A1.
#[tokio::test]
async fn multi_node_modes_need_sharing() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    for sharing in ["none", "node"] {
        let volume = clients
            .create(create_with(sharing, 1000, &[("sharing", sharing)]))
            .await
            .unwrap();
        for (mode, many_nodes, _) in MODES {
            let case = format!("{mode:?}, sharing={sharing}");
            let mut request = create_with(&case, 1000, &[("sharing", sharing)]);
            request.volume_capabilities = vec![read_write_once(), capability(mode, &[])];
            let answer = clients.create(request).await;
            let reason = clients
                .validate(&volume.volume_id, capability(mode, &[]))
                .await
                .unwrap();
            if many_nodes && sharing == "none" {
                refused(&case, answer, Code::InvalidArgument, "sharing=node");
                assert!(reason.unwrap().contains("sharing=node"), "{case}");
            } else {
                assert!(answer.is_ok(), "{case}: {answer:?}");
                assert_eq!(reason, None, "{case}");
            }
        }
    }
}

/// Access that a directory can never offer is `INVALID_ARGUMENT` at `CreateVolume` and
/// `NodePublishVolume`. `ValidateVolumeCapabilities` answers without `confirmed` but with a reason.
///
/// Proves: A2.
#[tokio::test]
async fn unsupported_access_is_refused_and_not_confirmed() {
    let (node, _server, mut clients) = Server::on_new_node().await;
    let id = clients.make("a", 1000).await;
    let block = csi::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..read_write_once()
    };
    let group = csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            volume_mount_group: "1000".into(),
            ..Default::default()
        })),
        ..read_write_once()
    };
    let mut unheard_of = read_write_once();
    unheard_of.access_mode = Some(csi::volume_capability::AccessMode { mode: 99 });
    let cases = [
        ("block", block, "filesystem"),
        ("mount group", group, "volume_mount_group"),
        ("mode 0", capability(Mode::Unknown, &[]), "access_mode"),
        ("mode 99", unheard_of, "access_mode"),
    ];
    for (case, unsupported, says) in cases {
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![read_write_once(), unsupported.clone()],
            ..create(case, 1000)
        };
        refused(
            case,
            clients.create(request).await,
            Code::InvalidArgument,
            says,
        );
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(unsupported.clone()),
            ..publish(&id, &node.target("pod"))
        };
        refused(
            case,
            clients.publish(request).await,
            Code::InvalidArgument,
            says,
        );
        let reason = clients.validate(&id, unsupported).await.unwrap();
        assert!(reason.unwrap().contains(says), "{case}");
    }
}

/// The answer confirms the fields of the request. Parameters that differ from the volume's are not
/// confirmed.
///
/// Proves: A2.
#[tokio::test]
async fn validation_confirms_what_it_was_asked() {
    let (_node, _server, mut clients) = Server::on_new_node().await;
    let volume = clients
        .create(create_with("a", 1000, &[("mode", "0700")]))
        .await
        .unwrap();
    let ask = |mode: &str| csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id.clone(),
        volume_context: volume.volume_context.clone(),
        volume_capabilities: vec![
            read_write_once(),
            capability(Mode::SingleNodeWriter, &["ro"]),
        ],
        parameters: support::messages::map(&[("mode", mode)]),
        ..Default::default()
    };
    let answer = clients
        .controller
        .validate_volume_capabilities(ask("700"))
        .await
        .unwrap();
    let confirmed = answer.into_inner().confirmed.unwrap();
    assert_eq!(
        confirmed.volume_capabilities,
        ask("700").volume_capabilities
    );
    assert_eq!(confirmed.volume_context, ask("700").volume_context);
    assert_eq!(confirmed.parameters, ask("700").parameters);
    for other in ["0770", "9"] {
        let answer = clients
            .controller
            .validate_volume_capabilities(ask(other))
            .await
            .unwrap();
        let answer = answer.into_inner();
        assert_eq!(answer.confirmed, None, "{other}");
        assert!(answer.message.contains(other), "{}", answer.message);
    }
}

/// A second target is `FAILED_PRECONDITION` if either use is for one target alone, and accepted
/// otherwise. The same target in another mode is `ALREADY_EXISTS`.
///
/// Proves: A3.
#[tokio::test]
async fn a_single_writer_has_a_single_target() {
    require!(loop_devices);
    let (node, _server, mut clients) = Server::on_new_node().await;
    let mut request = create_with("a", 1000, &[("sharing", "node")]);
    request.volume_capabilities = MODES
        .iter()
        .map(|(mode, ..)| capability(*mode, &[]))
        .collect();
    let id = clients.create(request).await.unwrap().volume_id;
    let (first, second) = (node.target("first"), node.target("second"));
    let at = |target, mode| csi::NodePublishVolumeRequest {
        volume_capability: Some(capability(mode, &[])),
        ..publish(&id, target)
    };
    for (mode, _, one) in MODES {
        clients.publish(at(&first, mode)).await.unwrap();
        clients.publish(at(&first, mode)).await.unwrap();
        for (other, _, other_one) in MODES {
            let case = format!("{mode:?}, then {other:?}");
            let answer = clients.publish(at(&second, other)).await;
            if one || other_one {
                refused(
                    &case,
                    answer,
                    Code::FailedPrecondition,
                    first.to_str().unwrap(),
                );
                assert!(
                    support::names(second.parent().unwrap()).is_empty(),
                    "{case}"
                );
            } else {
                assert!(answer.is_ok(), "{case}: {answer:?}");
                clients.unpublish_soon(&id, &second).await;
            }
            if other != mode {
                let answer = clients.publish(at(&first, other)).await;
                refused(
                    &case,
                    answer,
                    Code::AlreadyExists,
                    "exists already and differs",
                );
            }
        }
        clients.unpublish_soon(&id, &first).await;
    }
}
