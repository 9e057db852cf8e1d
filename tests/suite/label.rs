//! The claim in a volume's record, which `volume label` changes.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use linux::mount::Users;
use objects::{Bytes, ClaimLabel, ObjectId, PoolId, VolumeId};
use rootcellar::error::{Code, Operation};
use rootcellar::volume::{Caller, CreateRequest, ExpandRequest, UndeleteRequest, Volumes};
use serde_json::Value;

use support::memory::MemorySet;
use support::messages::{create_with, publish as publication};
use support::server::Server;
use support::{Fakes, Node, Running, create, name, names, publish, require, rootcellar, snapshot};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

fn claim(namespace: &str, claim: &str) -> ClaimLabel {
    ClaimLabel {
        namespace: Some(namespace.to_owned()),
        claim: Some(claim.to_owned()),
        volume: Some("pvc-1".to_owned()),
    }
}

/// A request for a volume of the temporary claim of a plan.
fn temporary() -> CreateRequest {
    let mut request = create("pvc-1", SIZE);
    request.class.claim = claim("rootcellar-system", "rootcellar-move-1");
    request
}

/// A node with a set of two members that keeps deleted volumes.
fn keeping() -> MemorySet {
    MemorySet::new(&[("a", 96 * MIB), ("b", 64 * MIB)])
}

fn start(node: &MemorySet, fakes: &Fakes) -> Running {
    let mut settings = node.settings();
    settings.sets = vec![node.option(",keep=1h").parse().unwrap()];
    node.volumes_with(settings, fakes)
}

/// Asserts that the one volume of the node has one directory, in this member, and that its record and the answer to
/// a repeated request are those of the volume.
#[track_caller]
fn assert_alone(node: &MemorySet, driver: &Running, id: VolumeId, member: &str) {
    let found = driver.create(&temporary()).unwrap();
    assert_eq!(
        (found.id, found.pool.member()),
        (id, Some(member)),
        "the repeated request"
    );
    for other in ["a", "b"] {
        let expected = usize::from(other == member);
        let volumes = names(&node.member(other).join("volumes"));
        assert_eq!(volumes.len(), expected, "{volumes:?} in {other}");
    }
    let record = only_record(&node.member(member).join("volumes"), "volume.json");
    assert_eq!(record["claim"], claim_value("shop", "data"));
}

fn claim_value(namespace: &str, name: &str) -> Value {
    serde_json::to_value(claim(namespace, name)).unwrap()
}

/// The only name in a directory.
#[track_caller]
fn only(dir: &Path) -> String {
    let mut all = names(dir);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The record `file` of the only object in a directory.
fn only_record(home: &Path, file: &str) -> Value {
    let record = home.join(only(home)).join(file);
    serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap()
}

/// The volume keeps the directory that is named after the claim before, and every later call finds it there: after a
/// restart, to expand, copy, move, delete and bring it back.
///
/// Proves: V12.
#[test]
fn a_volume_with_the_name_of_another_claim_is_used_as_before() {
    require!(mount_namespace);
    let (node, fakes) = (keeping(), Fakes::default());
    let mut driver = start(&node, &fakes);
    let id = driver.create(&temporary()).unwrap().id;
    let text = id.to_string();
    let target = node.target("pod");
    driver.publish(&publish(&text, &target)).unwrap();
    let before = names(&node.member("a").join("volumes"));
    let data = |member: &str| {
        let volumes = node.member(member).join("volumes");
        volumes.join(only(&volumes)).join("data")
    };
    std::fs::write(data("a").join("file"), "content").unwrap();
    for was in [false, true] {
        let labelled = driver.label(&text, "shop", "data").unwrap();
        assert_eq!(
            (labelled.label, labelled.before),
            (claim("shop", "data"), was)
        );
        assert_alone(&node, &driver, id, "a");
    }
    assert_eq!(names(&node.member("a").join("volumes")), before);

    drop(driver);
    driver = start(&node, &fakes);
    assert_alone(&node, &driver, id, "a");
    driver.publish(&publish(&text, &target)).unwrap();
    let expand = ExpandRequest {
        id: text.clone(),
        path: target.clone(),
        required: Bytes(2 * SIZE),
        limit: None,
    };
    assert_eq!(driver.expand(&expand).unwrap(), Bytes(2 * SIZE));
    driver.unpublish(&text, &target).unwrap();
    driver.create_snapshot(&snapshot("s", &text)).unwrap();
    let taken = only_record(&node.member("a").join("snapshots"), "snapshot.json");
    assert_eq!(taken["source_claim"], claim_value("shop", "data"));
    for to in ["b", "a"] {
        let moved = driver.move_to(&text, to, Users::Check, &Caller::default());
        moved.unwrap();
        let record = only_record(&node.member(to).join("volumes"), "volume.json");
        assert_eq!(record["claim"], claim_value("shop", "data"));
        driver.delete(&text).unwrap();
        assert_eq!(names(&node.member(to).join("volumes")), [""; 0]);
        let undelete = UndeleteRequest {
            id: text.clone(),
            ..UndeleteRequest::default()
        };
        assert_eq!(driver.undelete(&undelete).unwrap().id, text);
        drop(driver);
        driver = start(&node, &fakes);
        driver.publish(&publish(&text, &target)).unwrap();
        assert_eq!(std::fs::read(data(to).join("file")).unwrap(), b"content");
        driver.unpublish(&text, &target).unwrap();
        driver.label(&text, "shop", "data").unwrap();
        only(&node.member(to).join("volumes"));
    }
}

/// Proves: V12.
#[test]
fn wrong_ids_and_names_are_refused() {
    let node = Node::new();
    let driver = node.volumes(&Fakes::default());
    let id = driver.create(&temporary()).unwrap().id.to_string();
    let pool = driver.pools()[0].id().unwrap();
    let unknown = VolumeId::new(pool, &name("other")).to_string();
    let elsewhere = VolumeId::new(PoolId::random(), &name("pvc-1")).to_string();
    let long = "a".repeat(254);
    let cases = [
        (&*unknown, "shop", "data", Code::NotFound),
        (&elsewhere, "shop", "data", Code::NotFound),
        ("", "shop", "data", Code::NotFound),
        ("../volumes", "shop", "data", Code::NotFound),
        (&id, "", "data", Code::InvalidArgument),
        (&id, "shop", "", Code::InvalidArgument),
        (&id, "Shop", "data", Code::InvalidArgument),
        (&id, "a.b", "data", Code::InvalidArgument),
        (&id, &long[..64], "data", Code::InvalidArgument),
        (&id, "shop", "../data", Code::InvalidArgument),
        (&id, "shop", "data\n", Code::InvalidArgument),
        (&id, "shop", &long, Code::InvalidArgument),
    ];
    for (id, namespace, claim, expected) in cases {
        let refused = driver.label(id, namespace, claim).unwrap_err();
        let code = refused.code(Operation::Volume);
        assert_eq!(code, expected, "{id} {namespace} {claim}: {refused}");
    }
    let record = only_record(&node.pool().join("volumes"), "volume.json");
    let before = claim_value("rootcellar-system", "rootcellar-move-1");
    assert_eq!(record["claim"], before);
    driver.delete(&id).unwrap();
    let deleted = driver.label(&id, "shop", "data").unwrap_err();
    assert_eq!(deleted.code(Operation::Volume), Code::NotFound);
}

/// A volume that is being moved or deleted would get the name in a copy that is not the volume.
///
/// Proves: V12.
#[test]
fn a_volume_that_is_being_moved_or_deleted_is_refused() {
    require!(mount_namespace);
    let asked: Arc<OnceLock<(Arc<Volumes>, String)>> = <_>::default();
    let codes: Arc<Mutex<Vec<Code>>> = <_>::default();
    let (at_a_step, seen, here) = (
        Arc::clone(&asked),
        Arc::clone(&codes),
        thread::current().id(),
    );
    let fakes = Fakes::planned(move |_, _| {
        // The reclaimer works after the call has ended.
        if let Some((volumes, id)) = at_a_step.get().filter(|_| thread::current().id() == here) {
            let labelled = volumes.label(id, "shop", "data");
            let code = labelled.map_or_else(|error| error.code(Operation::Volume), |_| Code::Ok);
            seen.lock().unwrap().push(code);
        }
        Ok(())
    });
    let node = keeping();
    let driver = start(&node, &fakes);
    let id = driver.create(&temporary()).unwrap().id.to_string();
    asked.set((Arc::clone(&driver.0), id.clone())).unwrap();
    driver
        .move_to(&id, "b", Users::Check, &Caller::default())
        .unwrap();
    let moving = std::mem::take(&mut *codes.lock().unwrap());
    driver.delete(&id).unwrap();
    let deleting = std::mem::take(&mut *codes.lock().unwrap());
    for codes in [moving, deleting] {
        assert!(
            !codes.is_empty() && codes.iter().all(|code| *code == Code::Aborted),
            "{codes:?}"
        );
    }
}

/// The command changes what the other commands print, while a pod uses the volume.
///
/// Proves: V12.
#[tokio::test]
async fn the_command_names_the_claim_in_lists_and_manifests() {
    let (node, server, mut clients) = Server::on_new_node().await;
    let label = [
        ("class", "fast"),
        ("csi.storage.k8s.io/pvc/namespace", "rootcellar-system"),
        ("csi.storage.k8s.io/pvc/name", "rootcellar-move-1"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
    ];
    let request = create_with("pvc-1", 1 << 20, &label);
    let volume = clients.create(request.clone()).await.unwrap();
    let id = volume.volume_id.clone();
    let target = node.target("pod");
    clients.publish(publication(&id, &target)).await.unwrap();
    let endpoint = format!("--endpoint=unix://{}", server.socket.display());
    let run = |arguments: &[&str]| {
        let output = Command::new(rootcellar()).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let labels = |claim: &str| run(&["volume", "label", &id, "--claim", claim, &endpoint]);
    for when in ["now", "already"] {
        let said = format!("the record of volume {id} names the claim shop/data {when}\n");
        assert_eq!(labels("shop/data"), (Some(0), said));
    }
    let (code, said) = labels("shop");
    assert_eq!(code, Some(64), "{said}");
    let pool = format!("--pool={}", node.pool_option());
    let state = format!("--state-dir={}", node.path("state").display());
    for command in ["list", "show", "manifest"] {
        let mut arguments = vec!["volume", command, &pool, &state];
        arguments.extend((command != "list").then_some(&*id));
        let (code, printed) = run(&arguments);
        assert_eq!(code, Some(0), "{printed}");
        let names = match command {
            "manifest" => ["namespace: shop", "name: data", "name: pvc-1"],
            _ => ["shop/data", "pvc-1", ""],
        };
        assert!(names.iter().all(|name| printed.contains(name)), "{printed}");
        assert!(!printed.contains("rootcellar-move-1-"), "{printed}");
    }
    assert_eq!(clients.create(request).await.unwrap(), volume);
    clients.unpublish_soon(&id, &target).await;
    clients.delete(&id).await.unwrap();
    let (code, said) = labels("shop/data");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&id), "{said}");
}
