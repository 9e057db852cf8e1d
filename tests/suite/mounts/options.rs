//! Mount options, and publishing twice.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use super::{mount_tmpfs, mounts_at, one_volume, umount};
use support::Node;
use support::disk::{Disk, FILESYSTEMS};
use support::loops::run;
use support::messages::{capability, publish, publish_with, refused};
use support::require;
use support::server::Server;

/// The requested options, and the options that mountinfo shows on a disk mounted with the defaults.
#[rustfmt::skip]
const OPTIONS: &[(&[&str], &str)] = &[
    (&[], "rw,relatime"),
    (&["rw"], "rw,relatime"),
    (&["ro"], "ro,relatime"),
    (&["ro", "ro"], "ro,relatime"),
    (&["nosuid"], "rw,nosuid,relatime"),
    (&["nodev"], "rw,nodev,relatime"),
    (&["noexec"], "rw,noexec,relatime"),
    (&["nosymfollow"], "rw,relatime,nosymfollow"),
    (&["noatime"], "rw,noatime"),
    (&["nodiratime"], "rw,nodiratime,relatime"),
    (&["relatime"], "rw,relatime"),
    (&["strictatime"], "rw"),
    (&["noatime", "nodiratime"], "rw,noatime,nodiratime"),
    (
        &["ro", "nosuid", "nodev", "noexec", "nosymfollow", "noatime", "nodiratime"],
        "ro,nosuid,nodev,noexec,noatime,nodiratime,nosymfollow",
    ),
];

fn options(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::to_owned).collect()
}

/// Every accepted mount option is on the mount, and no other. The kernel's mount table shows it on
/// every filesystem, and `ValidateVolumeCapabilities` confirms it.
///
/// Proves: M1.
#[tokio::test]
async fn every_mount_option_is_honoured() {
    require!(loop_devices);
    for filesystem in FILESYSTEMS {
        let (node, _disk, _server, mut clients) = Server::on_new_disk(Disk::new(filesystem)).await;
        let id = clients.make("pvc-1", 1 << 20).await;
        let target = node.target("pod");
        for (flags, expected) in OPTIONS {
            let case = format!("{filesystem} {flags:?}");
            let asked = capability(Mode::SingleNodeMultiWriter, flags);
            assert_eq!(clients.validate(&id, asked).await.unwrap(), None, "{case}");
            clients.publish_as(&id, &target, flags).await;
            assert_eq!(mounts_at(&target), [options(expected)], "{case}");
            clients.unpublish_soon(&id, &target).await;
            assert_eq!(mounts_at(&target), [], "{case}");
        }
    }
}

/// An option of the pool's own mount stays unless the request sets it. The request wins.
///
/// Proves: M1.
#[tokio::test]
async fn the_pools_own_options_stay_unless_asked() {
    require!(loop_devices);
    let node = Node::new();
    let disk = node.make_disk(Disk::new("ext4"));
    disk.unmount();
    disk.mount(&["nosuid", "noatime"]);
    let server = Server::start_with(&node, &[disk.option()]).await;
    let mut clients = server.clients().await;
    let id = clients.make("pvc-1", 1 << 20).await;
    let target = node.target("pod");
    let cases: [(&[&str], &str); 4] = [
        (&[], "rw,nosuid,noatime"),
        (&["nodev"], "rw,nosuid,nodev,noatime"),
        (&["relatime"], "rw,nosuid,relatime"),
        (&["strictatime"], "rw,nosuid"),
    ];
    for (flags, expected) in cases {
        for _ in 0..2 {
            clients.publish_as(&id, &target, flags).await;
            assert_eq!(mounts_at(&target), [options(expected)], "{flags:?}");
        }
        clients.unpublish_soon(&id, &target).await;
    }
}

/// By each way to publish a volume read-only, a write through that mount fails with EROFS, while
/// another target can write.
///
/// Proves: M1.
#[tokio::test]
async fn a_read_only_publish_refuses_a_write() {
    require!(loop_devices);
    let (node, _server, mut clients) = Server::on_new_node().await;
    let request = support::messages::create_with("pvc-1", 1 << 20, &[("sharing", "node")]);
    let id = clients.create(request).await.unwrap().volume_id;
    let (writer, reader) = (node.target("writer"), node.target("reader"));
    clients.publish(publish(&id, &writer)).await.unwrap();
    let asked = |read_only, mode, flags| csi::NodePublishVolumeRequest {
        readonly: read_only,
        volume_capability: Some(capability(mode, flags)),
        ..publish(&id, &reader)
    };
    let cases = [
        ("readonly", asked(true, Mode::SingleNodeMultiWriter, &[])),
        (
            "readonly and rw",
            asked(true, Mode::SingleNodeMultiWriter, &["rw"]),
        ),
        ("ro", asked(false, Mode::SingleNodeMultiWriter, &["ro"])),
        (
            "a mode for readers",
            asked(false, Mode::MultiNodeReaderOnly, &[]),
        ),
    ];
    for (case, request) in cases {
        clients.publish(request).await.unwrap();
        fs::write(writer.join("file"), case).unwrap();
        assert_eq!(fs::read_to_string(reader.join("file")).unwrap(), case);
        let error = fs::write(reader.join("file"), "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{case}");
        clients.unpublish_soon(&id, &reader).await;
    }
}

/// The restrictions apply to the pod: no program runs, and no link is followed.
///
/// Proves: M1.
#[tokio::test]
async fn restrictions_bind_the_pod() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let (free, bound) = (node.target("free"), node.target("bound"));
    clients.publish(publish(&id, &free)).await.unwrap();
    clients
        .publish_as(&id, &bound, &["noexec", "nosymfollow"])
        .await;
    fs::copy("/bin/true", free.join("program")).unwrap();
    fs::set_permissions(free.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/etc/passwd", free.join("link")).unwrap();
    assert!(
        Command::new(free.join("program"))
            .status()
            .unwrap()
            .success()
    );
    assert!(fs::read(free.join("link")).is_ok());
    let error = Command::new(bound.join("program")).status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(fs::read(bound.join("link")).is_err());
}

/// Proves: M3.
#[tokio::test]
async fn a_publish_that_is_repeated_mounts_once() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    for (pod, made_before) in [("missing", false), ("empty", true)] {
        let target = node.target(pod);
        if made_before {
            fs::create_dir(&target).unwrap();
        }
        for _ in 0..3 {
            clients.publish_as(&id, &target, &["nosuid"]).await;
            assert_eq!(mounts_at(&target).len(), 1, "{pod}");
        }
        clients.unpublish_soon(&id, &target).await;
        assert!(fs::symlink_metadata(&target).is_err(), "{pod}");
    }
}

/// An administrator may remount the disk of a pool with other options at any time, for example because a hardening
/// guide says so. The mounts of running pods keep their options, and the kubelet repeats their publications: they
/// succeed, also after a restart of the driver, because a request is compared with the options that it lists.
///
/// Proves: M3.
#[tokio::test]
async fn a_repeated_publish_succeeds_after_the_disk_was_remounted() {
    const REMOUNTS: [&str; 5] = [
        "noatime",
        "nodev,nosuid,noexec",
        "relatime,dev,suid,exec",
        "strictatime",
        "nodiratime",
    ];
    require!(loop_devices);
    for filesystem in FILESYSTEMS {
        let (node, disk, server, mut clients) = Server::on_new_disk(Disk::new(filesystem)).await;
        let id = clients.make("pvc-1", 1 << 20).await;
        let (plain, listed) = (node.target("plain"), node.target("listed"));
        let options = ["nosuid", "noatime"];
        clients.publish(publish(&id, &plain)).await.unwrap();
        clients.publish_as(&id, &listed, &options).await;
        let before = [mounts_at(&plain), mounts_at(&listed)];
        for remount in REMOUNTS {
            run(Command::new("mount")
                .args(["-o", &format!("remount,{remount}")])
                .arg(disk.path()));
            clients.publish(publish(&id, &plain)).await.unwrap();
            clients.publish_as(&id, &listed, &options).await;
        }
        let (_server, mut clients) = server.restart(&node, &[disk.option()]).await;
        clients.publish(publish(&id, &plain)).await.unwrap();
        clients.publish_as(&id, &listed, &options).await;
        assert_eq!(
            [mounts_at(&plain), mounts_at(&listed)],
            before,
            "{filesystem}"
        );
        for target in [plain, listed] {
            clients.unpublish_soon(&id, &target).await;
        }
    }
}

/// A target where the volume lacks a requested option, is read-only although the request is not, or where something
/// else is mounted, is `ALREADY_EXISTS`, and the message names the option. The present mount stays.
///
/// Proves: M3.
#[tokio::test]
async fn another_mount_at_the_target_is_already_exists() {
    require!(loop_devices);
    let (node, _server, mut clients, id) = one_volume().await;
    let other = clients.make("pvc-2", 1 << 20).await;
    let target = node.target("pod");
    clients.publish_as(&id, &target, &["nosuid"]).await;
    let read_only = csi::NodePublishVolumeRequest {
        readonly: true,
        ..publish_with(&id, &target, &["nosuid"])
    };
    let cases = [
        ("nodev", publish_with(&id, &target, &["nosuid", "nodev"])),
        ("noatime", publish_with(&id, &target, &["noatime"])),
        ("strictatime", publish_with(&id, &target, &["strictatime"])),
        ("ro", read_only),
    ];
    let before = mounts_at(&target);
    for (option, request) in cases {
        let says = format!("lacks the option {option},");
        let answer = clients.publish(request).await;
        refused(option, answer, Code::AlreadyExists, &says);
        assert_eq!(mounts_at(&target), before, "{option}");
    }
    let request = publish_with(&other, &target, &["nosuid"]);
    let answer = clients.publish(request).await;
    refused("another volume", answer, Code::AlreadyExists, "show volume");
    assert_eq!(mounts_at(&target), before);
    clients.publish(publish(&id, &target)).await.unwrap();
    clients.unpublish_soon(&id, &target).await;
    clients.publish_as(&id, &target, &["ro"]).await;
    let answer = clients.publish(publish(&id, &target)).await;
    refused("rw", answer, Code::AlreadyExists, "it is read-only,");
    clients.delete(&other).await.unwrap();
    clients.unpublish_soon(&id, &target).await;

    fs::create_dir(&target).unwrap();
    mount_tmpfs(&target);
    let answer = clients.publish(publish(&id, &target)).await;
    refused(
        "a mount of others",
        answer,
        Code::AlreadyExists,
        "does not show volume",
    );
    umount(&target);
    assert_unpublished(&target);
    clients.delete(&id).await.unwrap();
}

/// If two volumes are published to one target at the same time, one is mounted there, once, and the
/// call for the other says so.
///
/// Proves: M3.
#[tokio::test]
async fn two_volumes_never_share_a_target() {
    require!(loop_devices);
    let (node, server, mut clients, id) = one_volume().await;
    let ids = [id, clients.make("pvc-2", 1 << 20).await];
    let target = node.target("pod");
    for round in 0..16 {
        let mut calls = Vec::new();
        for id in &ids {
            let (mut clients, request) = (server.clients().await, publish(id, &target));
            calls.push(tokio::spawn(async move { clients.publish(request).await }));
        }
        let mut owners = Vec::new();
        for (call, id) in calls.into_iter().zip(&ids) {
            match call.await.unwrap() {
                Ok(()) => owners.push(id),
                Err(status) => assert!(
                    [Code::Aborted, Code::AlreadyExists].contains(&status.code()),
                    "{status}"
                ),
            }
        }
        assert_eq!(
            (owners.len(), mounts_at(&target).len()),
            (1, 1),
            "round {round}"
        );
        clients.unpublish_soon(owners[0], &target).await;
    }
}

fn assert_unpublished(target: &Path) {
    assert_eq!(support::names(target), Vec::<String>::new());
}
