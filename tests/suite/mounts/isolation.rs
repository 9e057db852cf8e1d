//! Visibility: data is visible at every target of the volume, mounts only at their own place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{mount_tmpfs, mounts_at, one_published, one_volume, umount};
use support::disk::Disk;
use support::loops::run;
use support::messages::publish;
use support::require;
use support::server::Server;
use support::{Node, names};

/// Data that is written through one target can be read through the other, and is in the volume's
/// `data/`.
///
/// Proves: M5.
#[tokio::test]
async fn data_is_the_same_at_every_target() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let (first, second) = (node.target("first"), node.target("second"));
    for target in [&first, &second] {
        clients.publish(publish(&id, target)).await.unwrap();
    }
    fs::write(first.join("file"), "from the first").unwrap();
    assert_eq!(
        fs::read_to_string(second.join("file")).unwrap(),
        "from the first"
    );
    fs::rename(second.join("file"), second.join("renamed")).unwrap();
    assert_eq!(names(&first), ["renamed"]);
    assert_eq!(names(&data_of(&node.pool())), ["renamed"]);
    clients.unpublish_soon(&id, &first).await;
    assert_eq!(
        names(&second),
        ["renamed"],
        "the other target is not disturbed"
    );
}

/// The `data/` of a pool's only volume.
fn data_of(pool: &Path) -> PathBuf {
    let volumes = pool.join("volumes");
    volumes.join(names(&volumes).remove(0)).join("data")
}

/// A mount that a pod makes inside its volume appears neither in the pool nor at another target. A
/// mount that the host makes in the pool appears at no target. This is true even if both mounts are
/// shared.
///
/// Proves: M5.
#[tokio::test]
async fn mounts_inside_a_volume_stay_where_they_are() {
    require!(loop_devices);
    let node = Node::new();
    let disk = node.make_disk(Disk::new("ext4"));
    let kubelet = node.path("kubelet");
    mount_tmpfs(&kubelet);
    for shared in [disk.path(), &kubelet] {
        run(Command::new("mount").arg("--make-shared").arg(shared));
    }
    let server = Server::start_with(&node, &[disk.option()]).await;
    let mut clients = server.clients().await;
    let id = clients.make("pvc-1", 1 << 20).await;
    let (first, second) = (node.target("first"), node.target("second"));
    for target in [&first, &second] {
        clients.publish(publish(&id, target)).await.unwrap();
    }
    let data = data_of(disk.path());
    fs::create_dir(first.join("inner")).unwrap();
    let places = [&data, &first, &second].map(|place| place.join("inner"));
    let counts = || places.each_ref().map(|place| mounts_at(place).len());
    assert_eq!(counts(), [0, 0, 0]);
    mount_tmpfs(&places[1]);
    fs::write(places[1].join("hidden"), "").unwrap();
    assert_eq!(
        counts(),
        [0, 1, 0],
        "the pod's mount is at its target alone"
    );
    assert_eq!(names(&places[0]), Vec::<String>::new());
    assert_eq!(names(&places[2]), Vec::<String>::new());
    mount_tmpfs(&places[0]);
    assert_eq!(counts(), [1, 1, 0], "the host's mount is in the pool alone");
    umount(&places[0]);
    for target in [&first, &second] {
        clients.unpublish_soon(&id, target).await;
    }
    clients.delete(&id).await.unwrap();
    assert_eq!(counts(), [0, 0, 0]);
    drop(server);
    umount(&kubelet);
}

/// A mount in a volume's `data/` at the time of the publish is not visible at the target.
///
/// Proves: M5.
#[tokio::test]
async fn a_mount_in_the_pool_is_not_published() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let inner = data_of(&node.pool()).join("inner");
    fs::create_dir(&inner).unwrap();
    mount_tmpfs(&inner);
    fs::write(inner.join("of-the-host"), "").unwrap();
    let target = node.target("pod");
    clients.publish(publish(&id, &target)).await.unwrap();
    assert_eq!(names(&target.join("inner")), Vec::<String>::new());
    clients.unpublish_soon(&id, &target).await;
    umount(&inner);
}

/// The kubelet's bind mount of a directory inside a volume is not a publication. It delays no
/// delete, and the reclaimer does not follow it.
///
/// Proves: R1.
#[tokio::test]
async fn a_subpath_bind_is_no_publication() {
    require!(loop_devices);
    let (node, server, mut clients, id, target) = one_published().await;
    fs::create_dir(target.join("sub")).unwrap();
    let bind = node.path("kubelet/pods/pod/subpath");
    fs::create_dir(&bind).unwrap();
    run(Command::new("mount")
        .arg("--bind")
        .arg(target.join("sub"))
        .arg(&bind));
    clients.unpublish_soon(&id, &target).await;
    drop((server, clients));
    let server = Server::start(&node).await;
    let mut clients = server.clients().await;
    clients.delete(&id).await.unwrap();
    umount(&bind);
}
