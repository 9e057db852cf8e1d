//! The commands for volumes and snapshots. They list the content of pools without a server, and
//! delete through it.

use std::fs;
use std::process::Output;

use objects::{ObjectId, VolumeId};
use rootcellar::csi;
use rootcellar::csi::volume_content_source::{SnapshotSource, Type};
use serde_json::Value;

use super::rootcellar;
use support::messages::{create_with, map, publish};
use support::picture::with_times;
use support::server::{Clients, Server};
use support::{Fakes, Node, create};

const MIB: i64 = 1 << 20;

/// Runs a command of the program with the node's pools in the environment, as in the container.
fn run(node: &Node, arguments: &[&str]) -> Output {
    let mut command = rootcellar(arguments);
    command.env("ROOTCELLAR_POOLS", node.pool_option());
    command.env("CSI_ENDPOINT", endpoint(node));
    command.output().unwrap()
}

fn endpoint(node: &Node) -> String {
    format!("unix://{}", node.path("run/csi.sock").display())
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[track_caller]
fn assert_refused(output: &Output, code: i32, says: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(
        stderr.starts_with("rootcellar: ") && stderr.lines().count() == 1,
        "{stderr}"
    );
    assert!(stderr.contains(says), "{says:?} is not in {stderr}");
}

/// Creates a volume of a claim, a snapshot of it, and a volume from that snapshot. Returns their
/// ids.
async fn fill(clients: &mut Clients) -> [String; 3] {
    let claim = [
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pvc/name", "orders"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
    ];
    let request = create_with("pvc-1", 3 * MIB, &claim);
    let volume = clients.create(request).await.unwrap().volume_id;
    let object = [
        ("copy", "allowed"),
        ("csi.storage.k8s.io/volumesnapshot/namespace", "shop"),
        ("csi.storage.k8s.io/volumesnapshot/name", "before"),
    ];
    let request = csi::CreateSnapshotRequest {
        source_volume_id: volume.clone(),
        name: "snapshot-1".into(),
        parameters: map(&object),
        ..Default::default()
    };
    let made = clients.controller.create_snapshot(request).await.unwrap();
    let snapshot = made.into_inner().snapshot.unwrap().snapshot_id;
    let source = Type::Snapshot(SnapshotSource {
        snapshot_id: snapshot.clone(),
    });
    let request = csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(source),
        }),
        ..create_with("pvc-2", 4 * MIB, &[("copy", "allowed")])
    };
    let copy = clients.create(request).await.unwrap().volume_id;
    [volume, snapshot, copy]
}

/// The lists show every volume and snapshot, and the JSON has every field of the records. They work
/// with and without a running server, and change nothing.
///
/// Proves: T1.
#[tokio::test]
async fn the_lists_show_the_contents_of_pools_and_change_nothing() {
    let node = Node::new();
    let server = Server::start(&node).await;
    let [volume, snapshot, copy] = fill(&mut server.clients().await).await;
    let before = with_times(&node.pool());

    let volumes = said(&run(&node, &["volume", "list"]));
    let rows: Vec<&str> = volumes.lines().collect();
    assert_eq!(rows.len(), 3, "{volumes}");
    assert!(rows[0].starts_with("NAME ") && rows[0].ends_with(" COPY OF"));
    let row = |name: &str| *rows.iter().find(|row| row.starts_with(name)).unwrap();
    let words: Vec<&str> = row("pvc-1").split_whitespace().collect();
    assert_eq!(
        words[..6],
        ["pvc-1", "shop/orders", "default", "directory", "3", "MiB"],
        "{volumes}"
    );
    assert!(row("pvc-2").ends_with(" snapshot snapshot-1"), "{volumes}");
    let snapshots = said(&run(&node, &["snapshot", "list"]));
    let row = snapshots.lines().nth(1).unwrap();
    assert!(row.starts_with("snapshot-1  shop/before  default  3 MiB"));
    assert!(row.ends_with("  claim shop/orders"), "{snapshots}");

    let reported = json(&run(&node, &["volume", "list", "--json"]));
    assert_eq!(reported["volumes"].as_array().unwrap().len(), 2);
    for entry in reported["volumes"].as_array().unwrap() {
        let directory = entry["directory"].as_str().unwrap();
        let record = fs::read(format!("{directory}/volume.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        for (key, value) in record.as_object().unwrap() {
            assert_eq!(&entry[key], value, "{key}");
        }
        assert_eq!(entry["pool"], "default");
    }
    let reported = json(&run(&node, &["snapshot", "list", "--json"]));
    assert_eq!(reported["snapshots"][0]["id"], *snapshot);
    assert_eq!(reported["snapshots"][0]["source_volume_id"], *volume);

    assert_eq!(with_times(&node.pool()), before);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(said(&run(&node, &["volume", "list"])), volumes);
    let shown = json(&run(&node, &["snapshot", "show", &snapshot, "--json"]));
    assert_eq!(shown["copies"][0], *copy);
}

/// One volume or snapshot is shown by its id or by the name that the CO gave it. The output has how
/// its size is enforced, its owner, its source and its copies. A snapshot also has its consistency.
///
/// Proves: T11.
#[tokio::test]
async fn one_is_shown_by_id_or_name() {
    let node = Node::new();
    let server = Server::start(&node).await;
    let [volume, snapshot, copy] = fill(&mut server.clients().await).await;
    let show = |what: &str, id: &str| run(&node, &[what, "show", id]);

    let shown = said(&show("volume", &volume));
    assert_eq!(said(&show("volume", "pvc-1")), shown);
    for words in ["shop/orders", "3145728 bytes (3 MiB)", &snapshot] {
        assert!(shown.contains(words), "{words} is not in {shown}");
    }
    let directory = shown
        .lines()
        .find_map(|line| line.strip_prefix("directory"))
        .unwrap();
    assert!(
        fs::metadata(format!("{}/data", directory.trim()))
            .unwrap()
            .is_dir()
    );
    let shown = said(&show("volume", &copy));
    assert!(shown.contains(&format!("snapshot {snapshot}")), "{shown}");
    let shown = said(&show("snapshot", "snapshot-1"));
    assert_eq!(said(&show("snapshot", &snapshot)), shown);
    let recorded = json(&run(&node, &["snapshot", "show", &snapshot, "--json"]));
    for words in [
        recorded["consistency"].as_str().unwrap(),
        &volume,
        &copy,
        "shop/before",
        "published nowhere",
    ] {
        assert!(shown.contains(words), "{words} is not in {shown}");
    }

    let missing = VolumeId::new(
        VolumeId::parse(&volume).unwrap().pool(),
        &"x".parse().unwrap(),
    );
    for id in ["pvc-3", &missing.to_string(), &snapshot, ""] {
        assert_refused(&show("volume", id), 1, "does not exist");
    }
    assert_refused(&show("snapshot", &volume), 1, "does not exist");
    let without_pools = rootcellar(&["volume", "show", "pvc-1"]).output().unwrap();
    assert_refused(&without_pools, 64, "no pool is here");
}

/// A pool that cannot be read is reported on stderr, and quarantined entries below the table. Both
/// cause exit code 1, and everything else is shown. No object is reported as absent if a pool could
/// not be searched for it.
///
/// Proves: T2.
#[test]
fn an_unreadable_object_is_reported_and_the_rest_is_shown() {
    let node = Node::new();
    let running = node.volumes(&Fakes::default());
    for name in ["pvc-1", "pvc-2"] {
        running.create(&create(name, 1 << 20)).unwrap();
    }
    drop(running);
    let missing = format!("--pool=gone={}", node.path("gone").display());
    let well = format!("--pool={}", node.pool_option());
    let with_missing = |arguments: &[&str]| run(&node, &[arguments, &[&well, &missing]].concat());

    let listed = with_missing(&["volume", "list"]);
    assert_eq!(listed.status.code(), Some(1));
    let text = String::from_utf8_lossy(&listed.stdout);
    assert_eq!(text.lines().count(), 3, "{text}");
    let reported = String::from_utf8_lossy(&listed.stderr);
    assert_eq!(reported.lines().count(), 1, "{reported}");
    assert!(
        reported.starts_with("rootcellar: pool gone: nothing is at its path"),
        "{reported}"
    );
    said(&with_missing(&["volume", "show", "pvc-1"]));
    let missed = with_missing(&["volume", "show", "pvc-3"]);
    assert_eq!(missed.status.code(), Some(1));
    let reported = String::from_utf8_lossy(&missed.stderr);
    assert!(
        reported.contains("is in no pool that can be read"),
        "{reported}"
    );

    let volumes = node.pool().join("volumes");
    let directory = node.names("volumes").remove(0);
    fs::write(volumes.join(&directory).join("volume.json"), "{").unwrap();
    let listed = run(&node, &["volume", "list"]);
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    let text = String::from_utf8_lossy(&listed.stdout);
    let reported = format!("quarantined, not touched: volumes/{directory}: volume.json is damaged");
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().last().unwrap().contains(&reported), "{text}");
    let name = &directory[..5];
    let shown = run(&node, &["volume", "show", name]);
    assert_refused(&shown, 1, "quarantined, not touched");
    said(&run(&node, &["snapshot", "list"]));
}

/// An incomplete set of objects is printed only if that is asked for, because workloads without their
/// volumes get empty ones.
///
/// Proves: T12.
#[test]
fn manifests_are_printed_for_all_volumes_or_for_none() {
    let node = Node::new();
    let running = node.volumes(&Fakes::default());
    for name in ["pvc-1", "pvc-2"] {
        let mut request = create(name, 1 << 20);
        request.class.claim.namespace = Some("shop".into());
        request.class.claim.claim = Some(format!("data-{name}"));
        let is_complete = name == "pvc-1";
        request.class.kubernetes.class = is_complete.then(|| "fast".into());
        running.create(&request).unwrap();
    }
    drop(running);
    let manifest = |arguments: &[&str]| run(&node, &[&["volume", "manifest"], arguments].concat());

    assert_refused(&manifest(&["--all"]), 1, "give --class");
    let partial = manifest(&["--all", "--partial"]);
    assert_eq!(partial.status.code(), Some(1));
    let text = String::from_utf8_lossy(&partial.stdout);
    assert!(
        text.contains("name: data-pvc-1") && !text.contains("data-pvc-2"),
        "{text}"
    );

    let all = said(&manifest(&["--all", "--claims", "--class", "slow"]));
    let kinds: Vec<&str> = all
        .lines()
        .filter(|line| line.starts_with("kind: "))
        .collect();
    assert_eq!(kinds.len(), 4, "{all}");
    assert!(all.contains("storageClassName: fast") && all.contains("storageClassName: slow"));
    let list = json(&manifest(&["pvc-1", "--json"]));
    assert_eq!(list["items"][0]["metadata"]["name"], "pvc-1");
    let handle = list["items"][0]["spec"]["csi"]["volumeHandle"].as_str();
    let (_, hash) = handle.unwrap().rsplit_once('-').unwrap();
    assert_eq!(json(&manifest(&[hash, "--json"])), list);

    assert_refused(&manifest(&["pvc-3"]), 1, "does not exist");
    assert_refused(&manifest(&["pvc-1", "--known", "/nowhere"]), 1, "/nowhere");
    assert_refused(&manifest(&["pvc-1", "--policy", "Recycle"]), 64, "--policy");
}

/// A copy that is being made is in no list, also with the file in which an earlier version wrote its progress. That file
/// is removed with its directory.
///
/// Proves: T11.
#[test]
fn a_copy_that_is_being_made_is_not_listed() {
    let node = Node::new();
    drop(node.volumes(&Fakes::default()));
    let lists = || {
        ["snapshot", "volume"].map(|what| {
            let listed = json(&run(&node, &[what, "list", "--json"]));
            (said(&run(&node, &[what, "list"])), listed)
        })
    };
    let before = lists();
    let staged = node.pool().join(".rootcellar/staging/a");
    fs::create_dir(&staged).unwrap();
    fs::write(staged.join("progress.json"), "{\"format\":1}").unwrap();
    assert_eq!(lists(), before);
    let _running = node.volumes(&Fakes::default());
    assert!(node.names(".rootcellar/staging").is_empty());
    node.wait_for_trash();
}

/// The server performs a manual deletion, and refuses it while the volume is published. An unknown
/// id and an unreachable server are reported.
///
/// Proves: T15.
#[tokio::test]
async fn delete_goes_through_the_server() {
    let (node, server, mut clients) = Server::on_new_node().await;
    let [volume, snapshot, copy] = fill(&mut clients).await;
    let target = node.target("pod");
    clients.publish(publish(&volume, &target)).await.unwrap();
    let delete = |what: &str, id: &str| run(&node, &[what, "delete", id]);

    assert_refused(&delete("volume", &volume), 1, "is published at");
    clients.unpublish_soon(&volume, &target).await;
    for id in ["pvc-1", &snapshot, ""] {
        assert_refused(&delete("volume", id), 64, "is not the id of a volume");
    }
    assert_refused(
        &delete("snapshot", &volume),
        64,
        "is not the id of a snapshot",
    );
    let unknown = "0".repeat(32);
    for (what, id) in [("volume", &volume), ("snapshot", &snapshot)] {
        assert_refused(&delete(what, &unknown), 1, "this hash");
        let (_, hash) = id.rsplit_once('-').unwrap();
        let shown = said(&run(&node, &[what, "show", hash]));
        assert!(shown.contains(&**id), "{shown}");
        let said = said(&delete(what, hash));
        assert_eq!(
            said,
            format!(
                "{what} {id} is deleted; its space comes back in the background, later if its pool has keep=\n"
            )
        );
        assert_refused(&delete(what, id), 1, "does not exist");
    }
    let left = json(&run(&node, &["volume", "list", "--json"]));
    assert_eq!(left["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(left["volumes"][0]["id"], *copy);
    assert_eq!(node.names("snapshots"), [""; 0]);

    assert_eq!(server.stop(), Some(0));
    let socket = node.path("run/csi.sock");
    let nobody = format!("cannot reach a server at the socket {socket:?}");
    assert_refused(&delete("volume", &copy), 1, &nobody);
    let badly = ["volume", "delete", &copy, "--endpoint=tcp://x"];
    assert_refused(&run(&node, &badly), 64, "--endpoint");
}
