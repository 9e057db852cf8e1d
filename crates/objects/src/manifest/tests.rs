use serde_json::{Value, json};

use super::*;
use crate::AccessMode;

fn parsed(documents: &[Document]) -> Vec<Value> {
    let text = yaml(documents).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn volume(name: &str) -> Volume {
    Volume {
        name: name.into(),
        labels: BTreeMap::new(),
        handle: "v1-a-b".into(),
        place: DriverNode {
            driver: "csi.rootcellar.dev".into(),
            topology_key: "topology.rootcellar.dev/node".into(),
            node: "n1".parse().unwrap(),
        },
        claim: ClaimRef::new("shop", "orders", None),
        capacity: Bytes(1 << 30),
        modes: vec![ClaimMode::ReadWriteOnce],
        is_device: false,
        fs_type: None,
        class: "fast".into(),
        policy: ReclaimPolicy::Retain,
        mount_options: Vec::new(),
        attributes: BTreeMap::new(),
    }
}

#[test]
fn a_volume_and_its_claim_name_each_other() {
    let volume = volume("pvc-1");
    let expected = [
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pvc-1"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "fast",
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": "shop",
                    "name": "orders",
                },
                "csi": {"driver": "csi.rootcellar.dev", "volumeHandle": "v1-a-b"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{
                    "key": "topology.rootcellar.dev/node",
                    "operator": "In",
                    "values": ["n1"],
                }]}]}},
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "orders", "namespace": "shop"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "fast",
                "volumeName": "pvc-1",
            },
        }),
    ];
    assert_eq!(
        parsed(&[volume.document(), volume.claim_document()]),
        expected
    );
}

#[test]
fn a_device_with_options_and_an_existing_claim_has_these_fields_too() {
    let mut volume = volume("pvc-1");
    volume.claim.uid = Some("8b2c".into());
    volume.is_device = true;
    volume.fs_type = Some("xfs".into());
    volume.mount_options = vec!["noexec".into()];
    volume.policy = ReclaimPolicy::Delete;
    volume.labels = [("app".to_owned(), "db".to_owned())].into();
    let parsed = &parsed(&[volume.document()])[0];
    let spec = &parsed["spec"];
    assert_eq!(spec["claimRef"]["uid"], "8b2c");
    assert_eq!(spec["volumeMode"], "Block");
    assert_eq!(spec["csi"]["fsType"], "xfs");
    assert_eq!(spec["mountOptions"], json!(["noexec"]));
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(parsed["metadata"]["labels"]["app"], "db");
}

/// The label of a node with a long name is a shorter one, as in the server's topology.
#[test]
fn the_affinity_has_the_value_of_the_topology() {
    let mut volume = volume("pvc-1");
    volume.place.node = "n".repeat(200).parse().unwrap();
    let parsed = &parsed(&[volume.document()])[0];
    let terms = &parsed["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let value = terms[0]["matchExpressions"][0]["values"][0]
        .as_str()
        .unwrap();
    assert_eq!(value, volume.place.node.topology_value());
    assert_eq!(value.len(), MAX_LABEL);
}

#[test]
fn a_snapshot_and_its_content_name_each_other() {
    let snapshot = SnapshotOf {
        content: "snapcontent-1".into(),
        namespace: "shop".into(),
        name: "before".into(),
        handle: "s1-a-b".into(),
        place: volume("pvc-1").place,
        is_device: true,
    };
    let expected = [
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": "snapcontent-1", "labels": {MANAGED_BY: "n1"}},
            "spec": {
                "driver": "csi.rootcellar.dev",
                "deletionPolicy": "Retain",
                "source": {"snapshotHandle": "s1-a-b"},
                "sourceVolumeMode": "Block",
                "volumeSnapshotRef": {"namespace": "shop", "name": "before"},
            },
        }),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": "before", "namespace": "shop"},
            "spec": {"source": {"volumeSnapshotContentName": "snapcontent-1"}},
        }),
    ];
    assert_eq!(parsed(&snapshot.documents()), expected);
}

/// Strings with a meaning in YAML, or with characters that it forbids.
#[rustfmt::skip]
const ODD: &[&str] = &[
    "no", "yes", "on", "off", "y", "n", "true", "null", "~", "", "123", "0123", "0x1f", "0o7",
    "1e3", "1_000", "1.5", ".inf", "12:30:45", "2026-01-01", "<<", "=", "*", "*a", "&a", "!a",
    "'", "\"", "'\"", "a: b", "a #b", "# a", "- a", "-", "---", "...", "?", "|", ">", "%a", "@a",
    "`a", "{a}", "[a]", ",", " a", "a ", "a\nb", "\ta", "a\\b", "é", "\u{7f}", "\u{feff}a",
];

/// The parser of kubectl follows YAML 1.1 in part, and reads `no` as a boolean.
#[test]
fn odd_strings_survive() {
    for string in ODD {
        let mut volume = volume("pvc-1");
        volume.class = (*string).into();
        volume.mount_options = vec![(*string).into()];
        volume.labels = [((*string).to_owned(), (*string).to_owned())].into();
        let text = yaml(&[volume.document()]).unwrap();
        let parsed: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(parsed["spec"]["storageClassName"], *string, "{text}");
        assert_eq!(parsed["spec"]["mountOptions"][0], *string, "{text}");
        assert_eq!(parsed["metadata"]["labels"][string], *string, "{text}");
    }
}

#[test]
fn strings_that_another_version_of_yaml_reads_otherwise_are_quoted() {
    let special = [
        "no", "yes", "on", "off", "y", "null", "~", "123", "0123", "0x1f", "1e3", "12:30",
    ];
    for string in special {
        let mut volume = volume("pvc-1");
        volume.class = string.into();
        let text = yaml(&[volume.document()]).unwrap();
        let quoted = ['"', '\''].map(|quote| format!("storageClassName: {quote}{string}{quote}\n"));
        assert!(quoted.iter().any(|line| text.contains(line)), "{text}");
    }
}

#[test]
fn the_modes_of_a_request_are_those_of_a_claim() {
    use AccessMode as A;
    use ClaimMode as C;
    let cases: [(&[A], &[C]); 7] = [
        (&[A::SingleNodeWriter], &[C::ReadWriteOnce]),
        (&[A::SingleNodeMultiWriter], &[C::ReadWriteOnce]),
        (&[A::SingleNodeReaderOnly], &[C::ReadWriteOnce]),
        (&[A::SingleNodeSingleWriter], &[C::ReadWriteOncePod]),
        (&[A::MultiNodeReaderOnly], &[C::ReadOnlyMany]),
        (&[A::MultiNodeMultiWriter], &[C::ReadWriteMany]),
        (
            &[
                A::MultiNodeMultiWriter,
                A::SingleNodeWriter,
                A::SingleNodeMultiWriter,
            ],
            &[C::ReadWriteOnce, C::ReadWriteMany],
        ),
    ];
    for (modes, expected) in cases {
        assert_eq!(ClaimMode::of_request(modes), expected, "{modes:?}");
    }
}

#[test]
fn names_are_those_that_kubernetes_accepts() {
    for name in ["a", "0", "pvc-1", "a.b-c.d", &"a".repeat(253)] {
        assert!(is_name(name), "{name}");
    }
    for name in [
        "",
        "A",
        "a_b",
        "-a",
        "a-",
        "a..b",
        "a/b",
        ".a",
        &"a".repeat(254),
    ] {
        assert!(!is_name(name), "{name}");
    }
    assert!(is_namespace("shop"));
    assert!(!is_namespace("a.b"));
    assert!(!is_namespace(&"a".repeat(64)));
}

#[test]
fn sizes_have_the_largest_unit_that_is_exact() {
    let cases = [
        (0, "0"),
        (7, "7"),
        (1024, "1Ki"),
        (3 << 19, "1536Ki"),
        (64 << 20, "64Mi"),
        (5 << 40, "5Ti"),
        (10_000_000_000, "9765625Ki"),
        (u64::MAX, "18446744073709551615"),
    ];
    for (bytes, text) in cases {
        assert_eq!(quantity(Bytes(bytes)), text);
    }
}
