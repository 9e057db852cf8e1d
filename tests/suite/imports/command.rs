//! `volume import` and `volume export`, while a server runs.

use std::path::Path;
use std::process::{Command, Output};

use rootcellar::admin::admin_client::AdminClient;
use rootcellar::admin::{CheckImportRequest, ExportVolumeRequest};
use support::messages::publish;
use support::pod::PodNode;
use support::server::Server;
use support::tree::{Extent, Walked, nasty};
use support::{directory_of, names, require, rootcellar};
use tonic::transport::Endpoint;

fn is_done(output: &Output, said: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(said), "{output:?}");
}

/// The commands report the result, can be repeated, and keep every attribute of the tree. A refusal is one
/// sentence, with exit code 1.
///
/// Proves: IM1, IM2.
#[tokio::test]
async fn the_commands_take_a_directory_there_and_back() {
    require!(loop_devices);
    let node = PodNode::new();
    let disk = node.disk("one", "xfs");
    std::fs::create_dir(disk.path()).unwrap();
    disk.mount(&[]);
    let pool = node.place("one").join("pool");
    let old = node.place("one").join("old");
    std::fs::create_dir(&old).unwrap();
    nasty(&old, Extent::default());
    let mut command = Server::command(&node, &[]);
    let option = format!("p={},init,reserve=0", pool.display());
    command.args(["--pool", &option]);
    let server = node.spawn(&command).await;
    let mut clients = server.clients().await;
    let run = |arguments: &[&str]| {
        let endpoint = node.path("run/csi.sock");
        let mut command = Command::new(rootcellar());
        command.arg("volume").args(arguments);
        command.arg(format!("--endpoint=unix://{}", endpoint.display()));
        command.output().unwrap()
    };
    let path = old.to_str().unwrap();
    let flags = ["--pool=p", "--name=pvc-1", "--size=64Mi", "--claim=shop/db"];
    let import = |more: &[&str]| run(&[&["import", path], &flags[..], more].concat());
    let tree = Walked::new(&old);
    is_done(&import(&["--dry-run"]), "can become volume v1-");
    let imported = import(&["--class=old", "--policy=Delete", "--mount-option=noatime"]);
    is_done(&imported, &format!("{path} is volume v1-"));
    is_done(&import(&[]), &format!("{path} is volume v1-"));
    let volume = directory_of(&pool.join("volumes"), "shop_db_pvc-1");
    assert_same(&tree, &volume.join("data"));
    let record = std::fs::read(volume.join("volume.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["origin"]["path"], path);
    assert_eq!(record["kubernetes"]["class"], "old");
    let id = record["id"].as_str().unwrap().to_owned();
    let (target, export) = (node.target("pod"), || run(&["export", &id]));
    clients.publish(publish(&id, &target)).await.unwrap();
    let refused = export();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains(target.to_str().unwrap()), "{text}");
    clients.unpublish_soon(&id, &target).await;
    let dry_run = run(&["export", &id, "--dry-run"]);
    is_done(&dry_run, "can become the directory");
    let said = format!("volume {id} is the directory {path} now");
    is_done(&export(), &said);
    is_done(&export(), "was exported before");
    assert_same(&tree, &old);
    let other = node.place("one").join("other");
    is_done(&import(&[]), &format!("{path} is volume {id} now"));
    let said = format!("volume {id} is the directory {} now", other.display());
    is_done(
        &run(&["export", &id, &format!("--to={}", other.display())]),
        &said,
    );
    assert_same(&tree, &other);
    assert_eq!(names(&pool.join("volumes")), [""; 0]);
    server.stop();
}

/// A command of an earlier version renames as this one, and is refused before it copies. Such a command is in the plan
/// of a claim that was made before an upgrade of the driver.
///
/// Proves: IM1, IM2.
#[tokio::test]
async fn a_command_of_an_earlier_version_renames_and_does_not_copy() {
    require!(mount_namespace);
    let node = PodNode::new();
    let pool = node.path("disk/pool");
    std::fs::create_dir(node.path("disk")).unwrap();
    let mut command = Server::command(&node, &[]);
    let option = format!("p={},init,any-filesystem,reserve=0", pool.display());
    command.args(["--pool", &option]);
    let server = node.spawn(&command).await;
    let socket = format!("unix://{}", node.path("run/csi.sock").display());
    let channel = Endpoint::try_from(socket).unwrap().connect_lazy();
    let mut admin = AdminClient::new(channel);
    let mut asked = CheckImportRequest {
        name: "pvc-1".into(),
        pool: "p".into(),
        size_bytes: 1 << 20,
        ..Default::default()
    };
    let place = admin.check_import(asked.clone()).await.unwrap();
    assert!(place.into_inner().renames);
    asked.copy = true;
    let refused = admin.check_import(asked).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("earlier version"), "{refused}");
    let mut clients = server.clients().await;
    let created = clients.create(support::messages::create("pvc-2", 1 << 20));
    let volume_id = created.await.unwrap().volume_id;
    let dry_run = true;
    let exported = admin.export_volume(ExportVolumeRequest { volume_id, dry_run });
    assert!(exported.await.unwrap().into_inner().renames);
    server.stop();
}

fn assert_same(tree: &Walked, at: &Path) {
    let differences = tree.differences(&Walked::new(at));
    assert_eq!(differences, <Vec<String>>::new(), "{}", at.display());
}
