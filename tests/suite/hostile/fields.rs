//! Fields that are missing, too large or absurd.

use std::collections::HashMap;
use std::path::Path;

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rootcellar::volume::{Class, Parametrized, SnapshotClass};
use tonic::Code;

use super::HostileNode;
use support::messages::{
    Answer, capability, copy, create, create_with, map, of_snapshot, of_volume, publish,
    publish_with, read_write_once, refused, snapshot,
};

fn without_type() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: None,
        ..read_write_once()
    }
}

fn without_mode() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: None,
        ..read_write_once()
    }
}

/// A `CreateVolumeRequest` without a required field is `INVALID_ARGUMENT`, and the message names
/// the field.
///
/// Proves: V9.
#[tokio::test]
async fn a_create_without_a_field_is_refused_with_its_name() {
    let mut scene = HostileNode::new().await;
    let without_name = csi::CreateVolumeRequest {
        name: String::new(),
        ..create("a", 1000)
    };
    let with = |volume_capabilities| csi::CreateVolumeRequest {
        volume_capabilities,
        ..create("a", 1000)
    };
    let nothing = csi::VolumeCapability::default();
    let requests = [
        ("name", without_name),
        ("name", csi::CreateVolumeRequest::default()),
        ("volume_capabilities", with(vec![])),
        ("access_type", with(vec![read_write_once(), without_type()])),
        ("access_mode", with(vec![without_mode()])),
        ("access_type", with(vec![nothing])),
    ];
    for (field, request) in requests {
        let answer = scene.clients.create(request).await;
        refused(field, answer, Code::InvalidArgument, field);
    }
    scene.assert_untouched("create");
}

/// A `CreateSnapshotRequest` without a required field is `INVALID_ARGUMENT`, and so is a volume
/// source that names nothing. The message names the field.
///
/// Proves: V9.
#[tokio::test]
async fn a_copy_without_a_field_is_refused_with_its_name() {
    let (mut scene, id) = HostileNode::with_volume().await;
    let requests = [
        ("name", snapshot("", &id)),
        ("source_volume_id", snapshot("s", "")),
        ("name", csi::CreateSnapshotRequest::default()),
    ];
    for (field, request) in requests {
        let answer = scene.clients.snapshot(request).await;
        refused(field, answer, Code::InvalidArgument, field);
    }
    let sources = [
        ("volume_content_source", csi::VolumeContentSource::default()),
        ("volume_content_source.snapshot_id", of_snapshot("")),
        ("volume_content_source.volume_id", of_volume("")),
    ];
    for (field, source) in sources {
        let answer = scene.clients.create(copy("b", 1000, source)).await;
        refused(field, answer, Code::InvalidArgument, field);
    }
    let clients = &mut scene.clients;
    for answer in [
        clients.delete_snapshot("").await,
        clients.get_snapshot("").await.map(drop),
    ] {
        refused("id", answer, Code::InvalidArgument, "snapshot_id");
    }
    assert_eq!(scene.node.names("snapshots"), Vec::<String>::new());
    scene.assert_untouched("copies");
}

/// A `NodePublishVolumeRequest` without a required field is `INVALID_ARGUMENT`, and the message
/// names the field.
///
/// Proves: V9.
#[tokio::test]
async fn a_publish_without_a_field_is_refused_with_its_name() {
    let (mut scene, id) = HostileNode::with_volume().await;
    let target = scene.node.path("kubelet/pods/pod/mount");
    let with = |volume_capability| csi::NodePublishVolumeRequest {
        volume_capability,
        ..publish(&id, &target)
    };
    let requests = [
        ("volume_id", publish("", &target)),
        ("target_path", publish(&id, Path::new(""))),
        ("volume_id", csi::NodePublishVolumeRequest::default()),
        ("volume_capability", with(None)),
        ("access_type", with(Some(without_type()))),
        ("access_mode", with(Some(without_mode()))),
    ];
    for (field, request) in requests {
        let answer = scene.clients.publish(request).await;
        refused(field, answer, Code::InvalidArgument, field);
    }
    scene.assert_untouched("publish");
}

/// Every other request without a required field is also `INVALID_ARGUMENT`, and the message names
/// the field.
///
/// Proves: V9.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "it is one table")]
async fn a_missing_id_is_named() {
    let mut scene = HostileNode::new().await;
    let clients = &mut scene.clients;
    let id = clients.make("a", 1000).await;
    let target = scene.node.path("kubelet/pods/pod/mount");
    let stats = |volume_id: &str, volume_path: &str| csi::NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        volume_path: volume_path.to_owned(),
        ..Default::default()
    };
    let without = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        ..Default::default()
    };
    let answers: Vec<(&str, Answer)> = vec![
        ("volume_id", clients.delete("").await),
        ("volume_id", clients.get("").await.map(drop)),
        (
            "volume_id",
            clients.validate("", read_write_once()).await.map(drop),
        ),
        (
            "access_type",
            clients.validate(&id, without_type()).await.map(drop),
        ),
        (
            "access_mode",
            clients.validate("v1-x", without_mode()).await.map(drop),
        ),
        (
            "volume_capabilities",
            clients
                .controller
                .validate_volume_capabilities(without)
                .await
                .map(drop),
        ),
        ("volume_id", clients.unpublish("", &target).await),
        ("target_path", clients.unpublish(&id, Path::new("")).await),
        (
            "volume_id",
            clients
                .node
                .node_get_volume_stats(stats("", "/x"))
                .await
                .map(drop),
        ),
        (
            "volume_path",
            clients
                .node
                .node_get_volume_stats(stats(&id, ""))
                .await
                .map(drop),
        ),
    ];
    for (field, answer) in answers {
        refused(field, answer, Code::InvalidArgument, field);
    }
    scene.assert_untouched("ids");
}

/// An invalid size is `INVALID_ARGUMENT`, a range without a valid size is `OUT_OF_RANGE`, and a
/// size above every disk is `RESOURCE_EXHAUSTED`.
///
/// Proves: V9.
#[tokio::test]
async fn absurd_sizes_are_refused() {
    let mut scene = HostileNode::new().await;
    let half = i64::MAX / 2 + 1;
    #[rustfmt::skip]
    let cases = [
        (-1, 0, Code::InvalidArgument, "required_bytes: -1 is negative"),
        (i64::MIN, 0, Code::InvalidArgument, "required_bytes"),
        (0, -1, Code::InvalidArgument, "limit_bytes: -1 is negative"),
        (0, i64::MIN, Code::InvalidArgument, "limit_bytes"),
        (-1, -1, Code::InvalidArgument, "negative"),
        (2, 1, Code::OutOfRange, "required_bytes is 2 bytes"),
        (i64::MAX, 1, Code::OutOfRange, "9223372036854775807"),
        (i64::MAX, 0, Code::ResourceExhausted, "9223372036854775807"),
        (i64::MAX, i64::MAX, Code::ResourceExhausted, "9223372036854775807"),
        (half, 0, Code::ResourceExhausted, "4611686018427387904"),
    ];
    for (required_bytes, limit_bytes, code, says) in cases {
        let request = csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange {
                required_bytes,
                limit_bytes,
            }),
            ..create("a", 0)
        };
        let case = format!("{required_bytes} to {limit_bytes}");
        refused(&case, scene.clients.create(request).await, code, says);
    }
    assert_eq!(scene.node.names("volumes"), Vec::<String>::new());
    scene.assert_untouched("sizes");
}

/// An unknown parameter or a parameter with an invalid value is `INVALID_ARGUMENT`, and the message
/// names it.
///
/// Proves: V9.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "it is one table")]
async fn bad_parameters_are_named() {
    let mut scene = HostileNode::new().await;
    let long = "9".repeat(4000);
    let cases = [
        ("size", "1"),
        ("", ""),
        ("mode\n", "0777"),
        ("MODE", "0777"),
        ("..", "/"),
        ("csi.storage.k8s.io", "x"),
        ("mode", "9"),
        ("mode", "4000"),
        ("mode", "7777"),
        ("mode", "-1"),
        ("mode", "+777"),
        ("mode", "0o777"),
        ("mode", "000777"),
        ("mode", "rwx"),
        ("mode", &long),
        ("uid", "-1"),
        ("uid", "+1"),
        ("uid", "4294967295"),
        ("uid", "4294967296"),
        ("uid", "0x10"),
        ("uid", "١"),
        ("uid", &long),
        ("gid", ""),
        ("gid", "4294967295"),
        ("gid", "root"),
        ("sharing", "Node"),
        ("pool", "../etc"),
        ("pool", "a/b"),
        ("pool", &"p".repeat(64)),
        ("copy", "yes"),
        ("maxStall", "100"),
    ];
    let known = Class::own_parameters().map(|parameter| (parameter.key, "?"));
    for (key, value) in cases.into_iter().chain(known) {
        let case = format!("{key:?}={value:.20?}");
        let answer = scene
            .clients
            .create(create_with("a", 1000, &[(key, value)]))
            .await;
        refused(
            &case,
            answer,
            Code::InvalidArgument,
            &format!("parameter {key:?}"),
        );
    }
    let mutable = csi::CreateVolumeRequest {
        mutable_parameters: map(&[("mode", "0777")]),
        ..create("a", 1000)
    };
    refused(
        "mutable",
        scene.clients.create(mutable).await,
        Code::InvalidArgument,
        "mutable_parameters",
    );
    assert_eq!(scene.node.names("volumes"), Vec::<String>::new());
    scene.assert_untouched("parameters");
}

/// An unknown parameter of a snapshot or one with an invalid value is `INVALID_ARGUMENT`, and the
/// message names it.
///
/// Proves: V9.
#[tokio::test]
async fn bad_parameters_of_snapshots_are_named() {
    let (mut scene, id) = HostileNode::with_volume().await;
    let cases = [
        ("pool", "default"),
        ("", ""),
        ("Copy", "allowed"),
        ("csi.storage.k8s.io", "x"),
        ("copy", ""),
        ("copy", "allow"),
        ("copy", "true"),
        ("inUse", "no"),
        ("inUse", "Refuse"),
        ("maxStall", ""),
        ("maxStall", "0ms"),
        ("maxStall", "100"),
        ("maxStall", "ms"),
        ("maxStall", "-1s"),
        ("maxStall", "+1s"),
        ("maxStall", "1.5s"),
        ("maxStall", "1m"),
        ("maxStall", "18446744073709551615s"),
    ];
    let known = SnapshotClass::own_parameters().map(|parameter| (parameter.key, "?"));
    for (key, value) in cases.into_iter().chain(known) {
        let request = csi::CreateSnapshotRequest {
            parameters: map(&[(key, value)]),
            ..snapshot("s", &id)
        };
        let answer = scene.clients.snapshot(request).await;
        let says = format!("parameter {key:?}");
        refused(value, answer, Code::InvalidArgument, &says);
    }
    assert_eq!(scene.node.names("snapshots"), Vec::<String>::new());
    scene.assert_untouched("parameters of snapshots");
}

/// Maps and mount options of 4 KiB are accepted. One byte more is `INVALID_ARGUMENT`.
///
/// Proves: V9.
#[tokio::test]
async fn maps_hold_at_most_4_kib() {
    let mut scene = HostileNode::new().await;
    let key = "csi.storage.k8s.io/filler";
    let filler = |bytes: usize| HashMap::from([(key.to_owned(), "v".repeat(bytes - key.len()))]);
    let target = scene.node.path("kubelet/pods/pod/mount");
    let cases = [(4096, true), (4097, false), (1 << 20, false)];
    for (bytes, fits) in cases {
        let request = csi::CreateVolumeRequest {
            parameters: filler(bytes),
            ..create(&format!("pvc-{bytes}"), 1000)
        };
        let answer = scene.clients.create(request).await;
        let labels = csi::CreateSnapshotRequest {
            parameters: filler(bytes),
            ..snapshot("s", "v1-x")
        };
        let labels = scene.clients.snapshot(labels).await;
        let context = csi::NodePublishVolumeRequest {
            volume_context: filler(bytes),
            ..publish("v1-x", &target)
        };
        let context = scene.clients.publish(context).await;
        let flags = vec!["ro"; bytes / 2 + bytes % 2];
        let flags = scene
            .clients
            .publish(publish_with("v1-x", &target, &flags))
            .await;
        if fits {
            assert!(answer.is_ok(), "{bytes}: {answer:?}");
            refused("they fit", labels, Code::NotFound, "");
            refused("it fits", context, Code::NotFound, "");
            refused("they fit", flags, Code::NotFound, "");
        } else {
            let too_large = format!("{bytes} bytes");
            refused("parameters", answer, Code::InvalidArgument, &too_large);
            refused("labels", labels, Code::InvalidArgument, &too_large);
            refused("volume_context", context, Code::InvalidArgument, &too_large);
            refused("mount_flags", flags, Code::InvalidArgument, "4096");
        }
    }
    scene.assert_untouched("maps");
}

/// A mount option that is unknown, contradictory or misspelt is `INVALID_ARGUMENT` at
/// `CreateVolume` and `NodePublishVolume`, and the message names it. `ValidateVolumeCapabilities`
/// does not confirm it and gives the reason.
///
/// Proves: V9.
#[tokio::test]
async fn bad_mount_options_are_named() {
    let (mut scene, id) = HostileNode::with_volume().await;
    let target = scene.node.path("kubelet/pods/pod/mount");
    let cases: [(&[&str], &str); 13] = [
        (&["sync"], "\"sync\""),
        (&["ro", "bind"], "\"bind\""),
        (&["RO"], "\"RO\""),
        (&[""], "\"\""),
        (&["ro,nosuid"], "\"ro,nosuid\""),
        (&["nosuid "], "\"nosuid \""),
        (&["uid=0"], "\"uid\""),
        (&["\0"], "mount option"),
        (&["x-systemd.automount"], "x-systemd.automount"),
        (&["ro", "rw"], "ro and rw"),
        (
            &["noatime", "relatime"],
            "noatime, relatime and strictatime",
        ),
        (
            &["strictatime", "noatime"],
            "noatime, relatime and strictatime",
        ),
        (&["suid"], "\"suid\""),
    ];
    for (flags, says) in cases {
        let case = format!("{flags:?}");
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![read_write_once(), capability(Mode::SingleNodeWriter, flags)],
            ..create("b", 1000)
        };
        refused(
            &case,
            scene.clients.create(request).await,
            Code::InvalidArgument,
            says,
        );
        let answer = scene
            .clients
            .publish(publish_with(&id, &target, flags))
            .await;
        refused(&case, answer, Code::InvalidArgument, says);
        let reason = scene
            .clients
            .validate(&id, capability(Mode::SingleNodeWriter, flags))
            .await;
        assert!(reason.unwrap().unwrap().contains(says), "{case}");
    }
    scene.assert_untouched("mount options");
}
