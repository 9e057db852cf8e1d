//! Sets in the running server, which sees its mounts as in the driver's pod.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tonic::Code;

use support::disk::FILESYSTEMS;
use support::messages::{create_with, publish, refused};
use support::page::{free_address, page};
use support::pod::PodNode;
use support::server::Server;
use support::tree::{Extent, Walked, nasty};
use support::{Node, directory_of, eventually, require, rootcellar};

/// A disk that is mounted while the server runs serves a volume within five seconds. A missing one is
/// reported by every page and by the command line, with its name.
///
/// Proves: PS4.
#[tokio::test]
async fn a_disk_is_found_while_the_server_runs() {
    require!(loop_devices);
    let node = PodNode::new();
    let address = free_address();
    let mut command = Server::command(&node, &[]);
    let set = format!("set={},init,reserve=0", node.path("pools").display());
    command.args(["--pool-set", &set]);
    command.arg("--http").arg(address.to_string());
    let server = node.spawn(&command).await;
    let mut clients = server.clients().await;
    assert_eq!(clients.capacity(&[("pool", "set")]).await, 0);
    let disks = FILESYSTEMS.map(|filesystem| {
        let disk = node.disk(filesystem, filesystem);
        std::fs::create_dir(disk.path()).unwrap();
        disk
    });
    let ready = |text: &str| {
        let body = page(address, "/readyz").unwrap().1;
        body.lines().any(|line| line.starts_with(text))
    };
    for (n, (disk, name)) in disks.iter().zip(FILESYSTEMS).enumerate() {
        let mounted = Instant::now();
        disk.mount(&[]);
        eventually(format!("{name} is served"), || {
            ready(&format!("pool set/{name}: healthy"))
        });
        let request = create_with(&format!("v{n}"), 64 << 20, &[("pool", "set")]);
        clients.create(request).await.unwrap();
        // Measured, because the promise is a time.
        let took = mounted.elapsed();
        assert!(took < Duration::from_secs(5), "{name}: {took:?}");
    }
    let metrics = page(address, "/metrics").unwrap().1;
    for name in FILESYSTEMS {
        let line = format!("rootcellar_pool_volumes{{pool=\"set\",member=\"{name}\"}} 1");
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }

    disks[0].unmount();
    eventually("the disk is missing", || {
        ready("pool set/ext4: unavailable: nothing is mounted at its path")
    });
    let metrics = page(address, "/metrics").unwrap().1;
    let line = "rootcellar_pool_healthy{pool=\"set\",member=\"ext4\"} 0";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let listed = Command::new(rootcellar())
        .args(["pool", "list", "--pool-set", &set, "--state-dir"])
        .arg(node.path("state"))
        .output()
        .unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.status.code(), Some(1), "{text}");
    let states = text.lines().skip(1).take(3);
    let states: Vec<Vec<&str>> = states
        .map(|line| line.split_whitespace().take(2).collect())
        .collect();
    let expected = [
        ["set/btrfs", "healthy"],
        ["set/ext4", "unavailable"],
        ["set/xfs", "healthy"],
    ];
    assert_eq!(states, expected, "{text}");
}

fn is_done(output: &Output, says: &str) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success() && text.contains(says), "{output:?}");
}

/// The command moves a volume with all its content between filesystems, and reports a repeated move. A
/// refusal ends with 1.
///
/// Proves: MV1, MV7.
#[tokio::test]
async fn the_command_moves_a_volume_between_filesystems() {
    require!(loop_devices);
    moves_between([("one", "ext4"), ("two", "xfs")]).await;
}

/// The same where the kernel may enforce sizes, so that `check` compares the limits as well.
///
/// Proves: MV1.
#[tokio::test]
async fn the_command_moves_a_volume_between_disks_with_quota() {
    require!(loop_devices);
    moves_between([("one", "btrfs"), ("two", "btrfs")]).await;
}

async fn moves_between(disks: [(&str, &'static str); 2]) {
    let node = PodNode::new();
    let _disks = disks.map(|(name, filesystem)| {
        let disk = node.disk(name, filesystem);
        std::fs::create_dir(disk.path()).unwrap();
        disk.mount(&[]);
        disk
    });
    let set = format!("set={},init,reserve=0", node.path("pools").display());
    let mut command = Server::command(&node, &[]);
    command.args(["--pool-set", &set]);
    let server = node.spawn(&command).await;
    let mut clients = server.clients().await;
    let request = create_with("v", 64 << 20, &[("pool", "set")]);
    let id = clients.create(request).await.unwrap().volume_id;
    let volumes = |member: &str| node.place(member).join("volumes");
    let has = |member: &&str| !support::names(&volumes(member)).is_empty();
    let data = |member: &str| directory_of(&volumes(member), "v").join("data");
    let moved = |to: &str| {
        let endpoint = node.path("run/csi.sock");
        let mut command = Command::new(rootcellar());
        command.args(["volume", "move", &id, "--to", to]);
        command.arg(format!("--endpoint=unix://{}", endpoint.display()));
        command.output().unwrap()
    };
    let reads = |command: &[&str]| {
        let mut reads = Command::new(rootcellar());
        reads.args(command).args(["--pool-set", &set]);
        reads.arg("--state-dir").arg(node.path("state"));
        reads.output().unwrap()
    };
    let mut place = ["one", "two"].into_iter().find(has).unwrap();
    nasty(&data(place), Extent::default());
    let tree = Walked::new(&data(place));
    for to in ["one", "two", "one"] {
        if to == place {
            is_done(&moved(to), &format!("volume {id} is in set/{to} already"));
            continue;
        }
        let said = format!("volume {id} was moved from set/{place} to set/{to}");
        is_done(&moved(to), &said);
        assert!(!has(&place), "{place}");
        place = to;
        let differences = tree.differences(&Walked::new(&data(place)));
        assert_eq!(differences, <Vec<String>>::new(), "{place}");
        let shown = format!("set/{place}, at ");
        is_done(&reads(&["volume", "show", "v"]), &shown);
    }
    // Only now, because it reads the top of the tree, which has a time of access.
    is_done(&reads(&["check"]), "every record is sound");
    let target = node.target("pod");
    clients.publish(publish(&id, &target)).await.unwrap();
    let other = if place == "one" { "two" } else { "one" };
    let refused = moved(other);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains(target.to_str().unwrap()), "{text}");
    clients.unpublish_soon(&id, &target).await;
    server.stop();
}

/// A bind mount of a directory is named with the way out, because the person who made it takes it for a member.
///
/// Proves: PS1.
#[tokio::test]
async fn a_bind_mount_that_is_no_member_is_named() {
    require!(mount_namespace);
    let (node, address) = (Node::new(), free_address());
    let (from, at) = (node.path("from"), node.path("disks/one"));
    for dir in [&from, &at] {
        std::fs::create_dir_all(dir).unwrap();
    }
    rustix::mount::mount_bind(&from, &at).unwrap();
    let set = format!("set={},init", node.path("disks").display());
    let mut command = Server::command(&node, &[]);
    command.args(["--pool-set", &set]);
    command.arg("--http").arg(address.to_string());
    let server = Server::spawn(&node, &mut command);
    server.wait_ready().await;
    let reason = format!(
        "{} is a bind mount of a directory, or a btrfs subvolume, and not the root of a filesystem, so it is not a \
         member; mount the disk itself there, or serve the directory by --pool",
        at.display()
    );
    let named = format!("pool set set: {reason}");
    eventually("it is on the page", || {
        let (_, text) = page(address, "/readyz").unwrap();
        text.lines().any(|line| line == named)
    });
    assert!(server.log().contains(&reason), "{}", server.log());
    let refusal = format!("pool set set has no member on this node; {reason}");
    let new = create_with("v", 1 << 20, &[("pool", "set")]);
    let answer = server.clients().await.create(new).await;
    refused("create", answer, Code::ResourceExhausted, &refusal);
    for inspect in [&["pool", "list"][..], &["check"]] {
        let mut command = Command::new(rootcellar());
        command.args(inspect).args(["--pool-set", &set]);
        let shown = command.arg("--state-dir").arg(node.path("state"));
        let shown = String::from_utf8(shown.output().unwrap().stderr).unwrap();
        let line = format!("rootcellar: {named}");
        assert!(shown.lines().any(|found| found == line), "{shown}");
    }
    assert_eq!(server.stop(), Some(0));
    support::unmount(&at);
}
