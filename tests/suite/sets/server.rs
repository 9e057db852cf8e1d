//! Sets in the running server, which sees its mounts as in the driver's pod.

use std::process::Command;
use std::time::{Duration, Instant};

use support::disk::FILESYSTEMS;
use support::messages::create_with;
use support::page::{free_address, page};
use support::pod::PodNode;
use support::server::Server;
use support::{eventually, require, rootcellar};

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

    disks[0].unmount_soon();
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
        ["set/btrfs", "ok"],
        ["set/ext4", "missing"],
        ["set/xfs", "ok"],
    ];
    assert_eq!(states, expected, "{text}");
}
