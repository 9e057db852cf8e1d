use clap::Parser;
use serde_json::Value;

use super::*;
use crate::cli::inspect::tests::{held, pools, volume as record};
use pool::KubernetesFields;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: ManifestArgs,
}

fn args(line: &str) -> ManifestArgs {
    let words = ["manifest"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap().args
}

fn with_class(record: VolumeRecord) -> VolumeRecord {
    VolumeRecord {
        kubernetes: KubernetesFields {
            class: Some("fast".into()),
            mount_options: vec!["noexec".into()],
            ..KubernetesFields::default()
        },
        ..record
    }
}

/// A pool with these volumes.
fn pool_of(records: Vec<VolumeRecord>) -> Vec<PoolContents> {
    let mut pools = pools();
    pools.truncate(1);
    pools[0].pool.quarantined.clear();
    pools[0].volumes = records
        .into_iter()
        .map(|record| held(record, None))
        .collect();
    pools[0].volumes.sort_by_key(|held| held.entry.record.id);
    pools
}

fn objects(printed: &Printed) -> Vec<Value> {
    let documents = printed
        .objects
        .iter()
        .flat_map(|objects| &objects.documents);
    documents.map(|document| json!(document)).collect()
}

const CLAIM: &str = r#"{"items": [
    {"kind": "Pod", "metadata": {"name": "p", "uid": "0"}},
    {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": "orders", "uid": "u1"},
     "spec": {"volumeName": "pvc-1"}}]}"#;

/// Proves: T12.
#[test]
fn the_uid_of_a_claim_is_given_if_and_only_if_the_claim_exists() {
    let pools = pool_of(vec![with_class(record("pvc-1", None))]);
    let known = Known::parse(CLAIM.as_bytes()).unwrap();
    let nobody = Known::parse(br#"{"items": []}"#).unwrap();
    let cases = [
        ("pvc-1", None, None, 1),
        ("pvc-1 --claims", None, None, 2),
        ("pvc-1 --claim-uid u2", None, Some("u2"), 1),
        ("pvc-1 --claims --known -", Some(&known), Some("u1"), 1),
        ("--all --claims --known -", Some(&known), Some("u1"), 1),
        ("--all --claims --known -", Some(&nobody), None, 2),
    ];
    for (line, known, uid, count) in cases {
        let printed = Printed::gather(&args(line), known, &pools).unwrap();
        let found = objects(&printed);
        assert_eq!(printed.refusals, Vec::<String>::new(), "{line}");
        assert_eq!(found.len(), count, "{line}");
        let spec = &found[0]["spec"];
        assert_eq!(spec["claimRef"]["uid"].as_str(), uid, "{line}");
        assert_eq!(spec["claimRef"]["name"], "orders", "{line}");
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain", "{line}");
        assert_eq!(spec["storageClassName"], "fast", "{line}");
        assert_eq!(spec["mountOptions"], json!(["noexec"]), "{line}");
    }
}

/// Proves: T12.
#[test]
fn flags_replace_what_is_recorded_and_add_what_is_not() {
    let mut record = record("pvc-1", None);
    record.size_bytes = Bytes::ZERO;
    let pools = pool_of(vec![record]);
    let line = "pvc-1 --pv data --claim a/b --class slow --size 7Ki --node n9 --policy Delete \
                --driver-name csi.example --topology-key example.com/node";
    let printed = Printed::gather(&args(line), None, &pools).unwrap();
    let found = &objects(&printed)[0];
    assert_eq!(found["metadata"]["name"], "data");
    let spec = &found["spec"];
    assert_eq!(spec["claimRef"]["namespace"], "a");
    assert_eq!(spec["claimRef"]["name"], "b");
    assert_eq!(spec["storageClassName"], "slow");
    assert_eq!(spec["capacity"]["storage"], "7Ki");
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(spec["csi"]["driver"], "csi.example");
    let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(term["key"], "example.com/node");
    assert_eq!(term["values"], json!(["n9"]));
    let mistakes = [
        "",
        "--all pvc-1",
        "--all --pv x",
        "pvc-1 --claim orders",
        "pvc-1 --claim A/b",
        "pvc-1 --policy Recycle",
        "pvc-1 --size 0",
        "pvc-1 --size 7KB",
        "pvc-1 --claim-uid u --claims",
        "pvc-1 --claim-uid u --known -",
    ];
    for line in mistakes {
        let words = ["manifest"].into_iter().chain(line.split_whitespace());
        assert!(Line::try_parse_from(words).is_err(), "{line}");
    }
}

/// Proves: T12.
#[test]
fn an_image_names_its_filesystem_and_a_device_has_none() {
    use linux::image::Allocation;
    use pool::{Image, ImageContent};
    let cases = [
        (ImageContent::Ext4, "Filesystem", Some("ext4")),
        (ImageContent::Xfs, "Filesystem", Some("xfs")),
        (ImageContent::Block, "Block", None),
    ];
    for (content, mode, fs_type) in cases {
        let mut record = with_class(record("pvc-1", None));
        record.image = Some(Image::new(content, Allocation::Thick));
        let printed = Printed::gather(&args("--all"), None, &pool_of(vec![record])).unwrap();
        let spec = &objects(&printed)[0]["spec"];
        assert_eq!(spec["volumeMode"], mode);
        assert_eq!(spec["csi"]["fsType"].as_str(), fs_type);
    }
}

/// Proves: T12.
#[test]
fn an_object_that_would_bind_wrongly_is_refused() {
    let complete = || with_class(record("pvc-1", None));
    let known = |text: &str| Known::parse(CLAIM.replace("\"pvc-1\"", text).as_bytes()).unwrap();
    let other = known("\"pvc-7\"");
    let terminating = Known::parse(
        CLAIM
            .replace(r#""uid": "u1""#, r#""uid": "u1", "deletionTimestamp": "t""#)
            .as_bytes(),
    )
    .unwrap();
    let change = |change: fn(&mut VolumeRecord)| {
        let mut record = complete();
        change(&mut record);
        record
    };
    let cases = [
        (record("pvc-1", None), None, "give --class"),
        (
            change(|record| record.claim.claim = None),
            None,
            "give --claim",
        ),
        (
            change(|record| record.claim.volume = Some("a/b".into())),
            None,
            "give --pv",
        ),
        (
            change(|record| record.size_bytes = Bytes::ZERO),
            None,
            "give --size",
        ),
        (complete(), Some(&other), "pvc-7"),
        (complete(), Some(&terminating), "being deleted"),
    ];
    for (record, known, fragment) in cases {
        let name = format!("volume pvc-1 ({})", record.id);
        let printed = Printed::gather(&args("--all"), known, &pool_of(vec![record])).unwrap();
        assert!(printed.objects.is_empty(), "{fragment}");
        let [refusal] = &printed.refusals[..] else {
            panic!("{:?}", printed.refusals)
        };
        assert!(
            refusal.starts_with(&name) && refusal.contains(fragment),
            "{refusal}"
        );
    }
    // Of two volumes of one claim it would get an arbitrary one.
    let two = pool_of(vec![complete(), with_class(record("pvc-2", None))]);
    let printed = Printed::gather(&args("--all"), None, &two).unwrap();
    assert_eq!((printed.objects.len(), printed.refusals.len()), (0, 2));
    assert!(
        printed.refusals[0].contains("claim shop/orders"),
        "{:?}",
        printed.refusals
    );
    let known = Known::parse(CLAIM.as_bytes()).unwrap();
    let printed = Printed::gather(&args("--all"), Some(&known), &two).unwrap();
    assert_eq!((printed.objects.len(), printed.refusals.len()), (1, 1));
    assert!(Known::parse(b"[]").is_err());
}

/// Proves: T12.
#[test]
fn snapshots_and_quarantined_volumes_are_not_forgotten() {
    let mut pools = pools();
    pools[0]
        .volumes
        .retain(|held| held.entry.record.name.as_str() == "pvc-1");
    let printed = Printed::gather(&args("--all --snapshots --class fast"), None, &pools).unwrap();
    let [quarantined] = &printed.refusals[..] else {
        panic!("{:?}", printed.refusals)
    };
    assert!(quarantined.contains("volumes/x"), "{quarantined}");
    let found = objects(&printed);
    let kinds: Vec<&str> = found
        .iter()
        .filter_map(|object| object["kind"].as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "PersistentVolume",
            "VolumeSnapshotContent",
            "VolumeSnapshot"
        ]
    );
    assert_eq!(found[1]["spec"]["deletionPolicy"], "Retain");

    let printed = Printed::gather(&args("pvc-1 --snapshots --class fast"), None, &pools).unwrap();
    assert_eq!((objects(&printed).len(), printed.refusals.len()), (3, 0));
}
