//! The services over a real pool, called as a client calls them.

use std::collections::HashMap;
use std::path::Path;

use tonic::{Code, Request};

use super::*;
use crate::csi;
use crate::csi::controller_server::Controller as _;
use crate::csi::identity_server::Identity as _;
use crate::csi::node_server::Node as _;
use crate::csi::volume_capability::access_mode::Mode;
use crate::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

const MIB: i64 = 1 << 20;

/// The answer to a call that succeeds.
macro_rules! answer {
    ($driver:ident.$service:ident.$call:ident($request:expr)) => {{
        let answer = $driver.$service.$call(Request::new($request)).await;
        answer.unwrap().into_inner()
    }};
}

/// The three services over one pool.
struct Driver {
    dir: TempDir,
    identity: IdentityService,
    controller: ControllerService,
    node: NodeService,
}

impl Driver {
    fn start() -> Self {
        let (dir, edge) = edge_with(&["default"], true);
        Self {
            dir,
            identity: IdentityService(Arc::clone(&edge)),
            controller: ControllerService(Arc::clone(&edge)),
            node: NodeService(edge),
        }
    }

    async fn create(&self, name: &str) -> csi::Volume {
        let request = csi::CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: MIB,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![mount(Mode::SingleNodeMultiWriter, &[])],
            parameters: map(&[("mode", "0750")]),
            ..Default::default()
        };
        let answer = answer!(self.controller.create_volume(request));
        answer.volume.unwrap()
    }

    async fn validate(
        &self,
        id: &str,
        capability: csi::VolumeCapability,
        parameters: &[(&str, &str)],
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse, Code> {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_context: map(&[("enforcement", "none"), ("sidecar", "its own")]),
            volume_capabilities: vec![capability],
            parameters: map(parameters),
            ..Default::default()
        };
        let answer = self
            .controller
            .validate_volume_capabilities(Request::new(request))
            .await;
        answer
            .map(Response::into_inner)
            .map_err(|status| status.code())
    }

    async fn delete(&self, id: &str) -> Result<(), Code> {
        let request = csi::DeleteVolumeRequest {
            volume_id: id.into(),
            ..Default::default()
        };
        let answer = self.controller.delete_volume(Request::new(request)).await;
        answer.map(|_| ()).map_err(|status| status.code())
    }

    async fn capacity(&self, request: csi::GetCapacityRequest) -> i64 {
        let answer = answer!(self.controller.get_capacity(request));
        assert_eq!(answer.maximum_volume_size, Some(answer.available_capacity));
        answer.available_capacity
    }
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn mount(mode: Mode, flags: &[&str]) -> csi::VolumeCapability {
    let mount_flags = flags.iter().map(ToString::to_string).collect();
    let mount = MountVolume {
        mount_flags,
        ..Default::default()
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn writer() -> csi::VolumeCapability {
    mount(Mode::SingleNodeWriter, &["noexec"])
}

fn block() -> csi::VolumeCapability {
    let access_type = Some(AccessType::Block(BlockVolume {}));
    csi::VolumeCapability {
        access_type,
        ..mount(Mode::SingleNodeWriter, &[])
    }
}

fn place(value: &str) -> csi::Topology {
    csi::Topology {
        segments: map(&[(KEY, value)]),
    }
}

/// Proves: V5, V11.
#[tokio::test]
async fn create_get_and_list_describe_a_volume_alike() {
    let driver = Driver::start();
    let volume = driver.create("pvc-1").await;
    assert_eq!(volume.capacity_bytes, MIB);
    assert_eq!(volume.accessible_topology, [place("n1")]);
    assert_eq!(
        volume.volume_context,
        map(&[("enforcement", "none"), ("pool", "default")])
    );
    assert_eq!(
        driver.create("pvc-1").await,
        volume,
        "creating is idempotent"
    );

    let get = csi::ControllerGetVolumeRequest {
        volume_id: volume.volume_id.clone(),
    };
    let got = answer!(driver.controller.controller_get_volume(get));
    assert!(got.status.is_some(), "the specification requires it");
    assert_eq!(got.volume.unwrap(), volume);

    let list = csi::ListVolumesRequest::default();
    let list = answer!(driver.controller.list_volumes(list));
    let listed: Vec<_> = list
        .entries
        .into_iter()
        .filter_map(|entry| entry.volume)
        .collect();
    assert_eq!(
        (listed, list.next_token),
        (vec![volume.clone()], String::new())
    );

    for _twice in 0..2 {
        assert_eq!(driver.delete(&volume.volume_id).await, Ok(()));
    }
}

/// The driver was upgraded, or the class was made again, between two attempts.
///
/// Proves: V10.
#[tokio::test]
async fn a_repeated_request_may_differ_in_the_fields_of_kubernetes_objects() {
    let driver = Driver::start();
    let request = |class: &str, policy: &str, option: &str| csi::CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter, &[option])],
        parameters: map(&[("class", class), ("reclaimPolicy", policy)]),
        ..Default::default()
    };
    let first = answer!(
        driver
            .controller
            .create_volume(request("fast", "Delete", "noexec"))
    );
    for (class, policy, option) in [("slow", "Retain", "noatime"), ("fast", "Delete", "noexec")] {
        let again = answer!(
            driver
                .controller
                .create_volume(request(class, policy, option))
        );
        assert_eq!(again, first);
    }
    let volumes = driver.dir.path().join("default/volumes");
    let directory = std::fs::read_dir(volumes).unwrap().next().unwrap().unwrap();
    let record = std::fs::read(directory.path().join("volume.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let expected = serde_json::json!({
        "class": "fast", "reclaim_policy": "Delete", "mount_options": ["noexec"],
    });
    assert_eq!(record["kubernetes"], expected);
    assert_eq!(record["format"], 1, "an older driver serves the volume");
}

/// Proves: A2.
#[tokio::test]
async fn an_unsupported_capability_is_a_message_and_no_error() {
    let driver = Driver::start();
    let id = driver.create("pvc-1").await.volume_id;
    #[rustfmt::skip]
    let cases = [
        // case, capability, parameters, about
        ("all well", writer(), vec![], None),
        ("its own parameters", writer(), vec![("mode", "0750")], None),
        ("other parameters", writer(), vec![("mode", "0777")], Some("0777")),
        ("unknown parameter", writer(), vec![("size", "1")], Some("size")),
        ("many nodes", mount(Mode::MultiNodeMultiWriter, &[]), vec![], Some("sharing=node")),
        ("no mode", mount(Mode::Unknown, &[]), vec![], Some("access mode")),
        ("unknown option", mount(Mode::SingleNodeWriter, &["discard"]), vec![], Some("discard")),
        ("block", block(), vec![], Some("filesystem")),
    ];
    for (case, capability, parameters, about) in cases {
        let answer = driver
            .validate(&id, capability.clone(), &parameters)
            .await
            .unwrap();
        if let Some(about) = about {
            assert_eq!(answer.confirmed, None, "{case}");
            assert!(answer.message.contains(about), "{case}: {}", answer.message);
        } else {
            let confirmed = answer.confirmed.expect(case);
            assert_eq!(confirmed.volume_capabilities, [capability], "{case}");
            assert_eq!(confirmed.parameters, map(&parameters), "{case}");
            assert_eq!(confirmed.volume_context.len(), 2, "{case}");
        }
    }
}

#[tokio::test]
async fn validation_fails_for_an_incomplete_request_and_an_absent_volume() {
    let driver = Driver::start();
    let id = driver.create("pvc-1").await.volume_id;
    let incomplete = csi::VolumeCapability {
        access_type: None,
        ..writer()
    };
    let cases = [
        (id.as_str(), incomplete, Code::InvalidArgument),
        ("", writer(), Code::InvalidArgument),
        ("no-id", writer(), Code::NotFound),
        ("no-id", block(), Code::NotFound),
    ];
    for (id, capability, code) in cases {
        assert_eq!(
            driver.validate(id, capability, &[]).await,
            Err(code),
            "{id:?}"
        );
    }
}

/// Proves: G3.
#[tokio::test]
async fn capacity_is_the_size_that_a_create_would_accept() {
    let driver = Driver::start();
    #[rustfmt::skip]
    let cases = [
        // case, capabilities, parameters, place, whether there is any
        ("the poll of the provisioner", vec![], vec![], Some(place("n1")), true),
        ("no place", vec![], vec![], None, true),
        ("another node", vec![], vec![], Some(place("n2")), false),
        ("a place without words", vec![], vec![], Some(csi::Topology::default()), false),
        ("a supported mode", vec![writer()], vec![], None, true),
        ("a mode for many nodes", vec![mount(Mode::MultiNodeMultiWriter, &[])], vec![], None, true),
        ("block", vec![block()], vec![], None, true),
        ("one of two is block", vec![writer(), block()], vec![], None, true),
        ("an invalid class", vec![], vec![("size", "1"), ("mode", "x")], None, true),
        ("another filesystem", vec![], vec![("csi.storage.k8s.io/fstype", "ntfs")], None, false),
        ("a pool that is not here", vec![], vec![("pool", "fast")], None, false),
    ];
    for (case, volume_capabilities, parameters, accessible_topology, some) in cases {
        let request = csi::GetCapacityRequest {
            volume_capabilities,
            parameters: map(&parameters),
            accessible_topology,
        };
        assert_eq!(driver.capacity(request).await > 0, some, "{case}");
    }
}

#[tokio::test]
async fn a_volume_is_published_measured_and_unpublished() {
    let driver = Driver::start();
    let volume = driver.create("pvc-1").await;
    let target = driver.dir.path().join("kubelet/mount");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let publish = csi::NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        target_path: text(&target),
        volume_capability: Some(mount(Mode::SingleNodeMultiWriter, &[])),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    };
    answer!(driver.node.node_publish_volume(publish));

    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: volume.volume_id.clone(),
        volume_path: text(&target),
        ..Default::default()
    };
    let stats = answer!(driver.node.node_get_volume_stats(stats));
    let units: Vec<_> = stats.usage.iter().map(csi::VolumeUsage::unit).collect();
    assert_eq!(
        units,
        [
            csi::volume_usage::Unit::Bytes,
            csi::volume_usage::Unit::Inodes
        ]
    );

    let deleted = driver.delete(&volume.volume_id).await;
    assert_eq!(deleted, Err(Code::FailedPrecondition));

    for _twice in 0..2 {
        let unpublish = csi::NodeUnpublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            target_path: text(&target),
        };
        answer!(driver.node.node_unpublish_volume(unpublish));
    }
    assert!(target.symlink_metadata().is_err(), "the target is gone");
}

/// Proves: C1.
#[tokio::test]
async fn the_driver_reports_its_identity_and_its_capabilities() {
    let driver = Driver::start();
    let info = answer!(
        driver
            .identity
            .get_plugin_info(csi::GetPluginInfoRequest {})
    );
    assert_eq!(info.name, "csi.example");
    assert_eq!(info.vendor_version, env!("CARGO_PKG_VERSION"));
    assert_eq!(
        answer!(driver.identity.probe(csi::ProbeRequest {})).ready,
        Some(true)
    );
    let plugin = answer!(
        driver
            .identity
            .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
    );
    let node = answer!(
        driver
            .node
            .node_get_capabilities(csi::NodeGetCapabilitiesRequest {})
    );
    let controller = answer!(
        driver
            .controller
            .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
    );
    assert_eq!(plugin.capabilities.len(), 4);
    assert_eq!(node.capabilities.len(), 5);
    assert_eq!(controller.capabilities.len(), 9);
}

/// Proves: VH1.
#[tokio::test]
async fn the_health_of_a_volume_needs_no_path_and_refuses_a_relative_one() {
    let driver = Driver::start();
    let volume_id = driver.create("pvc-1").await.volume_id;
    let ask = |id: &str, publish: &str, staging: &str| csi::NodeGetVolumeHealthRequest {
        volume_id: id.into(),
        volume_publish_path: publish.into(),
        staging_target_path: staging.into(),
    };
    let absent = "v1-00000000000000000000000000000000-00000000000000000000000000000000";
    let cases = [
        // request, code
        (ask(&volume_id, "", ""), Code::Ok),
        (ask(&volume_id, "/a", "/b"), Code::Ok),
        (ask(&volume_id, "a", ""), Code::InvalidArgument),
        (ask(&volume_id, "", "b"), Code::InvalidArgument),
        (ask("", "", ""), Code::InvalidArgument),
        (ask("no id", "", ""), Code::NotFound),
        (ask(absent, "", ""), Code::NotFound),
    ];
    for (request, code) in cases {
        let case = format!("{request:?}");
        let answer = driver
            .node
            .node_get_volume_health(Request::new(request))
            .await;
        match answer {
            Ok(answer) => {
                let health = answer.into_inner().volume_health.unwrap();
                assert_eq!(
                    (health.volume_id, health.health_statuses),
                    (volume_id.clone(), vec![])
                );
                assert_eq!(code, Code::Ok, "{case}");
            }
            Err(status) => assert_eq!(status.code(), code, "{case}"),
        }
    }
}
