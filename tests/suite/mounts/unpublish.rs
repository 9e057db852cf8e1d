//! `NodeUnpublishVolume`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use support::require;

use tonic::Code;

use super::{mount_tmpfs, mounts_at, one_published, one_volume, umount};
use support::loops::run;
use support::messages::{publish, refused};
use support::server::Server;
use support::skip;
use support::{Node, fuse, names};

/// Unpublishing can be repeated. A target that was never published, or was removed already, is
/// accepted.
///
/// Proves: U1.
#[tokio::test]
async fn an_unpublish_that_is_repeated_is_fine() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let target = node.target("pod");
    clients.unpublish(&id, &target).await.unwrap();
    clients.publish(publish(&id, &target)).await.unwrap();
    fs::write(target.join("file"), "kept").unwrap();
    for _ in 0..2 {
        clients.unpublish(&id, &target).await.unwrap();
        assert!(fs::symlink_metadata(&target).is_err());
    }
    fs::create_dir(&target).unwrap();
    clients.unpublish(&id, &target).await.unwrap();
    assert!(
        fs::symlink_metadata(&target).is_err(),
        "an empty leaf is removed"
    );
    fs::write(&target, "").unwrap();
    clients.unpublish(&id, &target).await.unwrap();
    assert!(
        fs::symlink_metadata(&target).is_err(),
        "an empty file is removed"
    );
    fs::remove_dir(target.parent().unwrap()).unwrap();
    clients.unpublish(&id, &target).await.unwrap();
    clients
        .publish(publish(&id, &node.target("pod")))
        .await
        .unwrap();
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
}

/// Adds an obstacle to unmounting a target.
type Burden = fn(&Path);

/// All mounts on the target or below it, by the pod or by others, are unmounted with it.
///
/// Proves: U1.
#[tokio::test]
async fn everything_mounted_at_and_below_the_target_goes() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let target = node.target("pod");
    let burdens: [(&str, Burden); 4] = [
        ("stacked", |target| {
            mount_tmpfs(target);
            mount_tmpfs(target);
        }),
        ("below", |target| {
            fs::create_dir_all(target.join("a/b")).unwrap();
            mount_tmpfs(&target.join("a"));
            fs::create_dir(target.join("a/b")).unwrap();
            mount_tmpfs(&target.join("a/b"));
        }),
        ("stacked, with one below", |target| {
            mount_tmpfs(target);
            fs::create_dir(target.join("c")).unwrap();
            mount_tmpfs(&target.join("c"));
        }),
        ("below, with a bind of the volume itself", |target| {
            fs::create_dir_all(target.join("self")).unwrap();
            run(Command::new("mount")
                .arg("--bind")
                .arg(target)
                .arg(target.join("self")));
        }),
    ];
    for (case, burden) in burdens {
        clients.publish(publish(&id, &target)).await.unwrap();
        burden(&target);
        clients.unpublish(&id, &target).await.unwrap();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(target.to_str().unwrap()), "{case}: {table}");
        assert!(names(target.parent().unwrap()).is_empty(), "{case}");
    }
    clients.delete(&id).await.unwrap();
}

/// Files in the target beneath the mount are not deleted: `ALREADY_EXISTS`, until somebody removes
/// them.
///
/// Proves: U4.
#[tokio::test]
async fn a_leaf_that_is_not_empty_is_not_deleted() {
    require!(loop_devices);
    let (_node, _server, mut clients, id, target) = one_published().await;
    umount(&target);
    fs::write(target.join("file"), "not of the volume").unwrap();
    for _ in 0..2 {
        let answer = clients.unpublish(&id, &target).await;
        refused(
            "not empty",
            answer,
            Code::AlreadyExists,
            "files that are not the volume's",
        );
        assert_eq!(
            fs::read_to_string(target.join("file")).unwrap(),
            "not of the volume"
        );
    }
    fs::remove_file(target.join("file")).unwrap();
    clients.unpublish(&id, &target).await.unwrap();
    clients.delete(&id).await.unwrap();
}

/// A target in use is `UNAVAILABLE` and stays published. When it is free, unpublishing works.
///
/// Proves: U4.
#[tokio::test]
async fn a_busy_target_is_unavailable_until_it_is_free() {
    require!(loop_devices);
    let (_node, _server, mut clients, id, target) = one_published().await;
    let open = fs::File::create(target.join("file")).unwrap();
    for _ in 0..2 {
        let answer = clients.unpublish(&id, &target).await;
        refused("busy", answer, Code::Unavailable, "Device or resource busy");
        assert_eq!(mounts_at(&target).len(), 1);
    }
    clients
        .assert_in_use("published", &id, "is published at")
        .await;
    drop(open);
    clients.unpublish_soon(&id, &target).await;
    clients.delete(&id).await.unwrap();
}

/// The target of one volume is not unpublished with the id of another: `NOT_FOUND`, and it stays.
///
/// Proves: U4.
#[tokio::test]
async fn anothers_target_is_not_unpublished() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let other = clients.make("other", 1000).await;
    let target = node.target("pod");
    clients.publish(publish(&id, &target)).await.unwrap();
    for wrong in [other.as_str(), "v1-x"] {
        let answer = clients.unpublish(wrong, &target).await;
        refused(wrong, answer, Code::NotFound, "not published at");
        assert_eq!(mounts_at(&target).len(), 1);
    }
    clients.unpublish(&id, &target).await.unwrap();
}

/// A filesystem that hangs every access, mounted over the target or below it, does not make
/// unpublishing hang.
///
/// Proves: U2.
#[tokio::test]
async fn a_hanging_filesystem_is_asked_nothing() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let target = node.target("pod");
    for (below, dead) in [("", false), ("", true), ("inner", false), ("inner", true)] {
        clients.publish(publish(&id, &target)).await.unwrap();
        let at = target.join(below);
        fs::create_dir_all(&at).unwrap();
        let Some(daemon) = fuse::mount_hanging(&at) else {
            skip!("no FUSE");
        };
        let _daemon = Some(daemon).filter(|_| !dead);
        clients.unpublish(&id, &target).await.unwrap();
        assert!(names(target.parent().unwrap()).is_empty());
    }
    clients.delete(&id).await.unwrap();
}

/// Targets of any spelling are known again after a restart: their volumes are not deleted, and they
/// can be unpublished.
///
/// Proves: U5.
#[tokio::test]
async fn odd_targets_are_known_after_a_restart() {
    require!(loop_devices);
    let (node, server, mut clients) = Server::on_new_node().await;
    let pods = [
        "a b",
        "tab\tnewline\n",
        "back\\040slash",
        "→",
        "#hash",
        "..x",
        &"n".repeat(255),
    ];
    let mut published = Vec::new();
    for pod in pods {
        let id = clients.make(&format!("for {pod:.10}"), 1000).await;
        let target = node.target(pod);
        clients.publish(publish(&id, &target)).await.unwrap();
        published.push((id, target));
    }
    let (_server, mut clients) = server.restart(&node, &[node.pool_option()]).await;
    for (id, target) in published {
        let case = format!("{target:?}");
        clients.assert_in_use(&case, &id, "is published at").await;
        clients.unpublish(&id, &target).await.unwrap();
        clients.delete(&id).await.unwrap();
    }
}

/// If the kubelet's directory is reached by a link, a target can be spelled by the link or by its
/// destination. Both mean the same target.
///
/// Proves: M6.
#[tokio::test]
async fn a_linked_kubelet_directory_has_two_spellings() {
    require!(loop_devices);
    let node = Node::new();
    let link = node.path("link");
    symlink(node.path("kubelet"), &link).unwrap();
    let real = node.target("pod");
    let spelled = link.join("pods/pod/mount");
    for dir in [&link, &node.path("kubelet")] {
        let command = Server::command(&node, &[node.pool_option()]);
        let command = Server::with(&command, "--kubelet-dir", dir.to_str().unwrap());
        for (published, unpublished) in [(&real, &spelled), (&spelled, &real)] {
            let start = || Server::spawn(&node, &mut Server::with(&command, "--lock-wait", "0"));
            let server = start();
            server.wait_ready().await;
            let mut clients = server.clients().await;
            let id = clients.make("linked", 1000).await;
            clients.publish(publish(&id, published)).await.unwrap();
            clients.publish(publish(&id, unpublished)).await.unwrap();
            assert_eq!(mounts_at(&real).len(), 1, "it is one target");
            drop(clients);
            assert_eq!(server.stop(), Some(0));
            let server = start();
            server.wait_ready().await;
            let mut clients = server.clients().await;
            let says = real.to_str().unwrap();
            clients.assert_in_use("published", &id, says).await;
            clients.unpublish(&id, unpublished).await.unwrap();
            clients.delete(&id).await.unwrap();
        }
    }
}
