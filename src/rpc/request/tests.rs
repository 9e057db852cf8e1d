use linux::mount::{Atime, MountOptions};
use objects::AccessMode;
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;

use super::*;
use crate::csi::VolumeContentSource as Source;
use crate::csi::volume_capability::access_mode::Mode;
use crate::csi::volume_capability::{AccessMode as ModeMessage, AccessType, MountVolume};
use crate::error::Code::{self, InvalidArgument as Invalid, OutOfRange as Range};
use crate::error::Operation;

fn here() -> Topology {
    Topology {
        key: "topology.example/node".into(),
        value: "n1".into(),
    }
}

/// As [`super::create`], for a caller without a deadline.
fn create(message: csi::CreateVolumeRequest, here: &Topology) -> Result<CreateRequest> {
    super::create(message, here, &Caller::default())
}

fn mount(mode: Mode, fs_type: &str, mount_flags: &[&str]) -> csi::VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.into(),
        mount_flags: mount_flags.iter().map(ToString::to_string).collect(),
        volume_mount_group: String::new(),
    };
    csi::VolumeCapability {
        access_mode: Some(ModeMessage { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn writer() -> csi::VolumeCapability {
    mount(Mode::SingleNodeWriter, "", &[])
}

fn empty() -> csi::VolumeCapability {
    csi::VolumeCapability::default()
}

/// A map of one pair that has this number of bytes.
fn filler(bytes: usize) -> HashMap<String, String> {
    let key = "csi.storage.k8s.io/filler";
    map(&[(key, &"v".repeat(bytes - key.len()))])
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn range(required_bytes: i64, limit_bytes: i64) -> csi::CapacityRange {
    csi::CapacityRange {
        required_bytes,
        limit_bytes,
    }
}

fn create_message() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![writer()],
        ..Default::default()
    }
}

fn publish_message() -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: "v1-x".into(),
        target_path: "/kubelet/pods/p/mount".into(),
        volume_capability: Some(writer()),
        ..Default::default()
    }
}

/// Asserts the code, and that the message names the subject.
fn refused<T: std::fmt::Debug>(case: &str, result: Result<T>, code: Code, about: &str) {
    let error = result.expect_err(case);
    assert_eq!(error.code(Operation::CreateVolume), code, "{case}: {error}");
    assert!(error.to_string().contains(about), "{case}: {error}");
}

#[test]
fn a_malformed_create_request_is_refused() {
    type Spoil = fn(&mut csi::CreateVolumeRequest);
    #[rustfmt::skip]
    let cases: &[(&str, Spoil, Code, &str)] = &[
        ("no name", |r| r.name.clear(), Invalid, "name: "),
        ("129 bytes", |r| r.name = "n".repeat(129), Invalid, "129 bytes"),
        ("129 bytes in 43 characters", |r| r.name = "→".repeat(43), Invalid, "129 bytes"),
        ("NUL in the name", |r| r.name = "a\0b".into(), Invalid, "U+0000"),
        ("escape in the name", |r| r.name = "\u{1b}[2J".into(), Invalid, "U+001B"),
        ("no capability", |r| r.volume_capabilities.clear(), Invalid, "volume_capabilities"),
        ("an empty capability after a good one", |r| r.volume_capabilities.push(empty()), Invalid, "access_type"),
        ("negative", |r| r.capacity_range = Some(range(-1, 0)), Invalid, "required_bytes: -1"),
        ("least", |r| r.capacity_range = Some(range(i64::MIN, 0)), Invalid, "required_bytes"),
        ("negative limit", |r| r.capacity_range = Some(range(0, -5)), Invalid, "limit_bytes: -5"),
        ("above the limit", |r| r.capacity_range = Some(range(11, 10)), Range, "11 bytes"),
        ("far above", |r| r.capacity_range = Some(range(i64::MAX, 1)), Range, "9223372036854775807"),
        ("unknown parameter", |r| r.parameters = map(&[("size", "1")]), Invalid, "\"size\""),
        ("bad value", |r| r.parameters = map(&[("mode", "999")]), Invalid, "\"mode\""),
        ("bad class", |r| r.parameters = map(&[("class", "A b")]), Invalid, "\"class\""),
        ("bad policy", |r| r.parameters = map(&[("reclaimPolicy", "Recycle")]), Invalid, "Delete, Retain"),
        ("parameters of 4 KiB and a byte", |r| r.parameters = filler(4097), Invalid, "4097 bytes"),
        ("mutable parameters", |r| r.mutable_parameters = filler(30), Invalid, "mutable_parameters"),
        ("a source", |r| r.volume_content_source = Some(Source::default()), Invalid, "volume_content_source"),
    ];
    for (case, spoil, code, about) in cases {
        let mut message = create_message();
        spoil(&mut message);
        refused(case, create(message, &here()), *code, about);
    }
}

#[test]
fn a_create_request_is_converted() {
    let names = [
        "pvc-1",
        "..",
        "a/b",
        "line\nbreak",
        &"n".repeat(128),
        &"→".repeat(42),
    ];
    for name in names {
        let message = csi::CreateVolumeRequest {
            name: name.into(),
            ..create_message()
        };
        assert_eq!(create(message, &here()).unwrap().name.as_str(), name);
    }
    let ranges = [
        // range, required, limit
        (None, 0, None),
        (Some(range(0, 0)), 0, None),
        (Some(range(7, 0)), 7, None),
        (Some(range(0, 9)), 0, Some(9)),
        (Some(range(9, 9)), 9, Some(9)),
        (
            Some(range(i64::MAX, i64::MAX)),
            i64::MAX.cast_unsigned(),
            Some(i64::MAX.cast_unsigned()),
        ),
    ];
    for (capacity_range, required, limit) in ranges {
        let message = csi::CreateVolumeRequest {
            capacity_range,
            ..create_message()
        };
        let request = create(message, &here()).unwrap();
        assert_eq!(
            (request.required, request.limit),
            (Bytes(required), limit.map(Bytes))
        );
    }
    let elsewhere = csi::TopologyRequirement {
        requisite: vec![csi::Topology {
            segments: map(&[("topology.example/node", "n2")]),
        }],
        preferred: vec![],
    };
    for (accessibility_requirements, excludes_node) in [(None, false), (Some(elsewhere), true)] {
        let message = csi::CreateVolumeRequest {
            accessibility_requirements,
            ..create_message()
        };
        assert_eq!(
            create(message, &here()).unwrap().excludes_node,
            excludes_node
        );
    }
}

#[test]
fn parameters_of_exactly_4_kib_are_accepted() {
    let message = csi::CreateVolumeRequest {
        parameters: filler(4096),
        ..create_message()
    };
    assert!(create(message, &here()).is_ok());
}

/// Proves: A2.
#[test]
fn a_capability_without_support_is_refused() {
    type Spoil = fn(&mut csi::VolumeCapability);
    type SpoilMount = fn(&mut MountVolume);
    #[rustfmt::skip]
    let cases: &[(&str, Spoil, &str)] = &[
        ("empty", |c| *c = empty(), "access_type"),
        ("no type", |c| c.access_type = None, "access_type"),
        ("no mode", |c| c.access_mode = None, "access_mode"),
        ("UNKNOWN", |c| c.access_mode = Some(ModeMessage { mode: 0 }), "access_mode"),
        ("a mode of the future", |c| c.access_mode = Some(ModeMessage { mode: 8 }), "access_mode"),
        ("a negative mode", |c| c.access_mode = Some(ModeMessage { mode: -1 }), "access_mode"),
    ];
    #[rustfmt::skip]
    let mount_cases: &[(&str, SpoilMount, &str)] = &[
        ("group", |m| m.volume_mount_group = "5".into(), "volume_mount_group"),
        ("unknown flag", |m| m.mount_flags = vec!["discard".into()], "discard"),
        ("empty flag", |m| m.mount_flags = vec![String::new()], "mount_flags"),
        ("two flags in one", |m| m.mount_flags = vec!["ro,noexec".into()], "ro,noexec"),
        ("contradiction", |m| m.mount_flags = vec!["ro".into(), "rw".into()], "contradict"),
        ("flags of more than 4 KiB", |m| m.mount_flags = vec!["ro".into(); 2049], "4098 bytes"),
        ("long fs_type", |m| m.fs_type = "x".repeat(129), "129 bytes"),
    ];
    for (case, spoil, about) in cases {
        let mut message = writer();
        spoil(&mut message);
        refused(case, capability::capability(&message), Invalid, about);
    }
    for (case, spoil, about) in mount_cases {
        let mut mount = MountVolume::default();
        spoil(&mut mount);
        let access_type = Some(AccessType::Mount(mount));
        let message = csi::VolumeCapability {
            access_type,
            ..writer()
        };
        refused(case, capability::capability(&message), Invalid, about);
    }
}

/// Proves: C5.
#[test]
fn a_secret_in_a_mount_flag_is_not_reported() {
    let message = mount(Mode::SingleNodeWriter, "", &["password=hunter2"]);
    let error = capability::capability(&message).unwrap_err().to_string();
    assert!(
        error.contains("password") && !error.contains("hunter2"),
        "{error}"
    );
}

#[test]
fn a_capability_is_converted() {
    let modes = [
        (Mode::SingleNodeWriter, AccessMode::SingleNodeWriter),
        (Mode::SingleNodeReaderOnly, AccessMode::SingleNodeReaderOnly),
        (Mode::MultiNodeReaderOnly, AccessMode::MultiNodeReaderOnly),
        (
            Mode::MultiNodeSingleWriter,
            AccessMode::MultiNodeSingleWriter,
        ),
        (Mode::MultiNodeMultiWriter, AccessMode::MultiNodeMultiWriter),
        (
            Mode::SingleNodeSingleWriter,
            AccessMode::SingleNodeSingleWriter,
        ),
        (
            Mode::SingleNodeMultiWriter,
            AccessMode::SingleNodeMultiWriter,
        ),
    ];
    for (mode, expected) in modes {
        let checked = capability::capability(&mount(mode, "", &[])).unwrap();
        assert_eq!((checked.access_mode, checked.fs_type), (expected, None));
        assert_eq!(checked.options, MountOptions::default());
    }
    let message = mount(Mode::SingleNodeWriter, "xfs", &["ro", "noatime"]);
    let checked = capability::capability(&message).unwrap();
    assert_eq!(checked.fs_type.as_deref(), Some("xfs"));
    assert!(
        checked
            .options
            .flags
            .contains(rustix::fs::StatVfsMountFlags::RDONLY)
    );
    assert_eq!(checked.options.atime, Some(Atime::Noatime));
    assert_eq!(checked.options.names(), ["ro", "noatime"]);
}

#[test]
fn a_malformed_publish_request_is_refused() {
    type Spoil = fn(&mut csi::NodePublishVolumeRequest);
    let cases: &[(&str, Spoil, &str)] = &[
        ("no target", |r| r.target_path.clear(), "target_path"),
        (
            "no capability",
            |r| r.volume_capability = None,
            "volume_capability",
        ),
        (
            "an empty one",
            |r| r.volume_capability = Some(empty()),
            "access_type",
        ),
        (
            "a context of more than 4 KiB",
            |r| r.volume_context = filler(4097),
            "volume_context",
        ),
    ];
    for (case, spoil, about) in cases {
        let mut message = publish_message();
        spoil(&mut message);
        refused(case, publish(message), Invalid, about);
    }
}

/// Proves: M1.
#[test]
fn a_publish_request_is_read_only_by_its_flag_or_by_its_mode() {
    let cases = [
        // mode, readonly, read_only
        (Mode::SingleNodeWriter, false, false),
        (Mode::SingleNodeWriter, true, true),
        (Mode::SingleNodeReaderOnly, false, true),
        (Mode::MultiNodeReaderOnly, false, true),
        (Mode::MultiNodeMultiWriter, false, false),
    ];
    for (mode, readonly, read_only) in cases {
        let message = csi::NodePublishVolumeRequest {
            volume_capability: Some(mount(mode, "", &[])),
            readonly,
            ..publish_message()
        };
        assert_eq!(
            publish(message).unwrap().read_only,
            read_only,
            "{mode:?} {readonly}"
        );
    }
}

#[test]
fn paths_are_passed_on_as_they_are() {
    for text in [
        "fake-vol-id",
        "../..",
        "some/path",
        "a\0b",
        "\n",
        &"x".repeat(5000),
    ] {
        assert_eq!(
            path("volume_path", text.into()).unwrap().to_str(),
            Some(text)
        );
    }
}

#[test]
fn a_page_is_bounded_and_a_negative_size_is_refused() {
    let cases = [
        (i32::MIN, None),
        (-1, None),
        (0, Some(256)),
        (1, Some(1)),
        (256, Some(256)),
        (257, Some(256)),
        (i32::MAX, Some(256)),
    ];
    for (number, expected) in cases {
        assert_eq!(max_entries(number).ok(), expected, "{number}");
    }
}

proptest! {
    #![proptest_config(support::random::config(256))]

    #[test]
    fn every_refused_request_is_an_invalid_argument_or_out_of_range(
        name in any::<String>(),
        id in any::<String>(),
        target_path in any::<String>(),
        fs_type in any::<String>(),
        mount_flags in vec(any::<String>(), 0..3),
        mode in any::<i32>(),
        pairs in hash_map(any::<String>(), any::<String>(), 0..3),
        (required_bytes, limit_bytes) in any::<(i64, i64)>(),
    ) {
        let mount = MountVolume { fs_type, mount_flags, ..Default::default() };
        let capability = csi::VolumeCapability {
            access_mode: Some(ModeMessage { mode }),
            access_type: Some(AccessType::Mount(mount)),
        };
        let created = create(csi::CreateVolumeRequest {
            name,
            capacity_range: Some(range(required_bytes, limit_bytes)),
            volume_capabilities: vec![capability.clone()],
            parameters: pairs.clone(),
            ..Default::default()
        }, &here());
        let published = publish(csi::NodePublishVolumeRequest {
            volume_id: id,
            target_path,
            volume_capability: Some(capability),
            volume_context: pairs,
            ..Default::default()
        });
        for error in [created.err(), published.err()].into_iter().flatten() {
            let code = error.code(Operation::CreateVolume);
            prop_assert!(matches!(code, Invalid | Range), "{error}");
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
