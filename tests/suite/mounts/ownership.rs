//! Mode and owner of a volume as a pod sees it, and access by others.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use super::one_published;
use support::disk::{Disk, FILESYSTEMS};
use support::messages::{create_with, publish};
use support::require;
use support::server::{Server, with_umask};
use support::{Node, names};

/// The parameters of a class.
type Class = &'static [(&'static str, &'static str)];

/// A volume has exactly the mode, uid and gid of its class, by default 0777 and root. The umask of
/// the server changes nothing, on any filesystem.
///
/// Proves: P4.
#[tokio::test]
async fn mode_and_owner_are_exact_whatever_the_umask() {
    require!(loop_devices);
    let cases: [(Class, u32, u32, u32); 8] = [
        (&[], 0o777, 0, 0),
        (&[("mode", "0700")], 0o700, 0, 0),
        (&[("mode", "0")], 0, 0, 0),
        (&[("mode", "1777")], 0o1777, 0, 0),
        (&[("mode", "2775"), ("gid", "2000")], 0o2775, 0, 2000),
        (&[("mode", "3777"), ("uid", "1000")], 0o3777, 1000, 0),
        (&[("uid", "65534"), ("gid", "65534")], 0o777, 65534, 65534),
        (
            &[("uid", "4294967294"), ("gid", "4294967294")],
            0o777,
            4_294_967_294,
            4_294_967_294,
        ),
    ];
    for filesystem in FILESYSTEMS {
        let node = Node::new();
        let disk = node.make_disk(Disk::new(filesystem));
        let command = Server::command(&node, &[disk.option()]);
        let server = Server::spawn(&node, &mut with_umask("0777", &command));
        server.wait_ready().await;
        let mut clients = server.clients().await;
        let target = node.target("pod");
        for (index, (parameters, mode, uid, gid)) in cases.iter().enumerate() {
            let case = format!("{filesystem} {parameters:?}");
            let request = create_with(&format!("pvc-{index}"), 1000, parameters);
            let id = clients.create(request).await.unwrap().volume_id;
            clients.publish(publish(&id, &target)).await.unwrap();
            let found = fs::metadata(&target).unwrap();
            assert_eq!(
                (found.mode() & 0o7777, found.uid(), found.gid()),
                (*mode, *uid, *gid),
                "{case}"
            );
            clients.unpublish_soon(&id, &target).await;
        }
    }
}

/// Runs a command as nobody and returns whether it succeeded.
fn as_nobody(script: &str, path: &Path) -> bool {
    let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let output = Command::new("setpriv")
        .args(ids)
        .args(["sh", "-c", script, "sh"])
        .arg(path)
        .output()
        .unwrap();
    output.status.success()
}

/// Any uid in a pod can write to a volume of a class without a mode. On the node, that uid reaches
/// nothing in the pool, even if it knows every name.
///
/// Proves: P4.
#[tokio::test]
async fn any_uid_writes_in_the_pod_and_none_on_the_node() {
    require!(loop_devices);
    let (node, _server, _clients, _id, target) = one_published().await;
    // Only root can enter the test's directory. It is opened because the test is about the pool's
    // own modes.
    fs::set_permissions(node.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(as_nobody("echo mine >\"$1/file\"", &target));
    assert_eq!(fs::metadata(target.join("file")).unwrap().uid(), 65534);
    assert!(
        as_nobody("ls \"$1\"", &node.pool()),
        "the way to the pool is open"
    );
    let volume = format!("volumes/{}", node.names("volumes")[0]);
    for below in [
        "volumes",
        "snapshots",
        ".rootcellar",
        &volume,
        &format!("{volume}/data"),
    ] {
        let path = node.pool().join(below);
        assert!(!as_nobody("ls \"$1\"", &path), "{below}");
        assert!(!as_nobody("cd \"$1\"", &path), "{below}");
    }
    assert!(!as_nobody(
        "cat \"$1\"",
        &node.pool().join(&volume).join("data/file")
    ));
    assert_eq!(names(&target), ["file"]);
}

/// Only root can enter the driver's own directories, with any umask.
///
/// Proves: P4.
#[tokio::test]
async fn the_pools_directories_are_closed() {
    let node = Node::new();
    let command = Server::command(&node, &[node.pool_option()]);
    let server = Server::spawn(&node, &mut with_umask("0", &command));
    server.wait_ready().await;
    let request = create_with("pvc-1", 1000, &[]);
    server.clients().await.create(request).await.unwrap();
    let volume = format!("volumes/{}", node.names("volumes")[0]);
    let record = format!("{volume}/volume.json");
    let own = [
        "volumes",
        "snapshots",
        ".rootcellar",
        ".rootcellar/staging",
        ".rootcellar/trash",
        &volume,
    ];
    for below in own {
        let mode = fs::metadata(node.pool().join(below)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700, "{below}");
    }
    for below in [".rootcellar/pool.json", ".rootcellar/lock", &record] {
        let mode = fs::metadata(node.pool().join(below)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600, "{below}");
    }
}
