//! Snapshots and their copies, on btrfs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use objects::Bytes;
use rootcellar::check::{About, Level};
use rootcellar::volume::{Caller, CreateRequest, SnapshotClass, SnapshotRequest, SourceId};
use serde_json::Value;

use super::{assert_limits_are_well, assert_well, of_level, report_on, wrong};
use crate::sizes::{QuotaRig, SIZE};
use support::disk::Disk;
use support::loops::run;
use support::server::Server;
use support::{Node, create, directory_of, messages, names, require};

const WRITTEN: usize = 8 << 20;

/// A volume with a file in it, a snapshot of the volume, a volume made from the snapshot, and a
/// clone of the volume.
fn copied() -> QuotaRig {
    let rig = QuotaRig::new();
    let volume = rig.make("original", SIZE);
    fs::write(rig.data("original").join("file"), vec![7; WRITTEN]).unwrap();
    let request = SnapshotRequest {
        name: "snapshot".parse().unwrap(),
        source: volume.id.to_string(),
        class: SnapshotClass::default(),
        excludes_node: false,
        caller: Caller::default(),
    };
    let snapshot = rig.driver().create_snapshot(&request).unwrap();
    for (name, source) in [
        ("restored", SourceId::Snapshot(snapshot.id.to_string())),
        ("cloned", SourceId::Volume(volume.id.to_string())),
    ] {
        let request = CreateRequest {
            source: Some(source),
            ..create(name, SIZE.0)
        };
        rig.driver().create(&request).unwrap();
    }
    rig
}

/// The directory of the only snapshot, below the pool.
fn snapshot(rig: &QuotaRig) -> PathBuf {
    let snapshots = names(&rig.node.pool().join("snapshots"));
    assert_eq!(snapshots.len(), 1, "{snapshots:?}");
    PathBuf::from("snapshots").join(&snapshots[0])
}

/// Copies share the bytes that are charged to their original. That is not wrong, also after all of
/// it was written again.
///
/// Proves: T4.
#[test]
fn a_pool_with_snapshots_and_copies_is_well() {
    let rig = require!(loop_devices, copied());
    for written in ["nothing", "original", "restored"] {
        if written != "nothing" {
            fs::write(rig.data(written).join("file"), vec![8; WRITTEN]).unwrap();
        }
        let report = report_on(&rig.node.pool());
        assert_limits_are_well(&report);
        let recorded = report.pool.recorded.unwrap();
        assert_eq!((recorded.volumes, recorded.snapshots), (3, 1));
    }
}

/// A snapshot with a limit is reported like a volume. One without a record is reported with the
/// missing file and the directory from which to move it.
///
/// Proves: T4.
#[test]
fn a_damaged_snapshot_is_reported() {
    let mut rig = require!(loop_devices, copied());
    rig.running = None;
    let directory = snapshot(&rig);
    let path = rig.node.pool().join(&directory).join("snapshot.json");
    let record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    rig.qgroup(&["limit", "1M"], record["quota_id"].as_u64().unwrap());
    let report = report_on(&rig.node.pool());
    let limited = wrong(
        &report,
        About::Limits,
        "is limited to 1048576 bytes (1 MiB), and its record says no limit",
    );
    assert_eq!(limited.volume.as_ref(), Some(&directory));
    rig.start();
    assert_well(&report_on(&rig.node.pool()));

    rig.running = None;
    fs::remove_file(&path).unwrap();
    let report = report_on(&rig.node.pool());
    let found = wrong(&report, About::Records, "snapshot.json");
    assert_eq!(found.volume.as_ref(), Some(&directory));
    let remedy = found.remedy.as_ref().unwrap();
    assert!(remedy.starts_with("write its snapshot.json again, or move "));
    assert!(remedy.contains(" out of snapshots; "), "{remedy}");
    assert_eq!(of_level(&report, Level::Wrong).len(), 1, "{report:#?}");
}

/// The commands show used, charged and retained bytes, as far as the kernel counts them.
///
/// Proves: T11.
#[test]
fn what_is_counted_is_shown() {
    let rig = require!(loop_devices, copied());
    let show = |what: &str, name: &str| -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_rootcellar"))
            .args([what, "show", name, "--json", "--pool"])
            .arg(format!("default={}", rig.node.pool().display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    run(Command::new("sync")
        .arg("--file-system")
        .arg(rig.node.pool()));
    let written = WRITTEN as u64;
    let bytes = |shown: &Value, key: &str| shown[key].as_u64().unwrap_or_else(|| panic!("{shown}"));
    let original = show("volume", "original");
    assert!(bytes(&original, "charged_bytes") >= written, "{original}");
    assert!(bytes(&original, "used_bytes") >= written, "{original}");
    let retained = bytes(&original, "retained_bytes");
    assert!(retained >= written, "{original}");
    assert_eq!(
        bytes(&original, "limit_bytes"),
        SIZE.0 + retained,
        "{original}"
    );
    let restored = show("volume", "restored");
    assert!(bytes(&restored, "charged_bytes") < written, "{restored}");
    assert!(bytes(&restored, "used_bytes") < written, "{restored}");
    assert!(bytes(&restored, "inherited_bytes") >= written, "{restored}");
    let snapshot = show("snapshot", "snapshot");
    assert!(bytes(&snapshot, "held_bytes") >= written, "{snapshot}");
    assert_eq!(snapshot["consistency"], "all of it is of one instant");
    assert_eq!(snapshot["limit_bytes"], Value::Null);
    assert_eq!(snapshot["copies"][0], restored["id"]);
    assert_eq!(Bytes(bytes(&snapshot, "size_bytes")), SIZE);
}

/// Asserts that `snapshot show` reports that a snapshot lacks this many subvolumes.
#[track_caller]
fn assert_lacks(pool: &str, name: &str, expected: Option<u64>) {
    let show = |json: &[&str]| {
        let mut show = Command::new(env!("CARGO_BIN_EXE_rootcellar"));
        show.args(["snapshot", "show", name, "--pool", pool])
            .args(json);
        String::from_utf8(show.output().unwrap().stdout).unwrap()
    };
    let shown: Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(shown["absent"]["subvolumes"].as_u64(), expected, "{shown}");
    let text = show(&[]);
    let lacks = text.lines().find(|line| line.starts_with("lacks "));
    let words = match expected {
        Some(2) => "2 subvolumes, one of them at \"a/first\"",
        _ => "1 subvolume, at \"second\"",
    };
    assert_eq!(lacks.is_some(), expected.is_some(), "{text}");
    assert!(lacks.is_none_or(|lacks| lacks.contains(words)), "{text}");
}

/// A copy lacks the data in the subvolumes of its source. `snapshot show` and the log say so, also of a restore.
///
/// Proves: SN1, T11.
#[tokio::test]
async fn subvolumes_that_a_copy_lacks_are_shown() {
    require!(loop_devices);
    let node = Node::new();
    let _disk = node.make_pool_disk(Disk::new("btrfs").with_simple_quota());
    let option = node.own_pool_option();
    let server = Server::start_with(&node, std::slice::from_ref(&option)).await;
    let mut clients = server.clients().await;
    let volume = clients
        .create(messages::create("pvc", 32 << 20))
        .await
        .unwrap();
    let data = directory_of(&node.pool().join("volumes"), "pvc").join("data");
    fs::create_dir(data.join("a")).unwrap();
    for nested in ["a/first", "second"] {
        run(Command::new("btrfs")
            .args(["-q", "subvolume", "create"])
            .arg(data.join(nested)));
    }
    for (name, expected) in [("two", Some(2)), ("one", Some(1)), ("none", None)] {
        let request = messages::snapshot(name, &volume.volume_id);
        let snapshot = clients.snapshot(request).await.unwrap();
        assert_lacks(&option, name, expected);
        let in_log = |of: &str, copy: &str| {
            let log = server.log();
            let mut lines = log.lines();
            lines.any(|line| {
                let lacks = line.contains("a copy lacks the data of the subvolumes in its source");
                lacks && line.contains(of) && line.contains(copy)
            })
        };
        assert_eq!(
            in_log(&volume.volume_id, &snapshot.snapshot_id),
            expected.is_some()
        );
        let restore = messages::copy(
            &format!("of-{name}"),
            32 << 20,
            messages::of_snapshot(&snapshot.snapshot_id),
        );
        let restored = clients.create(restore).await.unwrap();
        assert_eq!(
            in_log(&snapshot.snapshot_id, &restored.volume_id),
            expected.is_some()
        );
        if let Some(gone) = match name {
            "two" => Some("a/first"),
            "one" => Some("second"),
            _ => None,
        } {
            run(Command::new("btrfs")
                .args(["-q", "subvolume", "delete"])
                .arg(data.join(gone)));
        }
    }
}
