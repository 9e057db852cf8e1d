//! `/healthz`, `/readyz` and `/metrics`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{hold_lock, init_pool, rootcellar, waiting, with_page};
use support::messages::create;
use support::page::{free_address, page};
use support::server::Server;
use support::{Node, eventually};

/// `/readyz` names an unavailable pool but stays successful, and `/metrics` distinguishes it from
/// the healthy one. Probe and `/healthz` also succeed.
///
/// Proves: SV7.
#[tokio::test]
async fn readyz_and_metrics_distinguish_an_unavailable_pool() {
    let node = Node::new();
    let address = free_address();
    let pools = [
        node.pool_option(),
        format!("gone={}", node.path("gone").display()),
    ];
    let server = Server::spawn(
        &node,
        &mut with_page(Server::command(&node, &pools), address),
    );
    server.wait_ready().await;
    let mut clients = server.clients().await;
    clients.create(create("counted", 5 << 20)).await.unwrap();

    assert_eq!(page(address, "/healthz").unwrap().0, 200);
    let (code, text) = page(address, "/readyz").unwrap();
    assert_eq!(code, 200, "{text}");
    assert!(text.contains("pool default: healthy\n"), "{text}");
    assert!(
        text.contains("pool gone: unavailable: nothing is at its path"),
        "{text}"
    );
    let (code, text) = page(address, "/metrics").unwrap();
    assert_eq!(code, 200, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    for line in [
        "rootcellar_pool_healthy{pool=\"default\"} 1",
        "rootcellar_pool_healthy{pool=\"gone\"} 0",
        "rootcellar_pool_available_bytes{pool=\"gone\"} 0",
        "rootcellar_pool_volumes{pool=\"default\"} 1",
        "rootcellar_pool_reserved_bytes{pool=\"default\"} 5242880",
        "rootcellar_rpc_seconds_count{rpc=\"CreateVolume\",code=\"OK\"} 1",
    ] {
        assert!(lines.contains(&line), "{line} is not in\n{text}");
    }
    assert_eq!(page(address, "/nothing").unwrap().0, 404);
    assert!(clients.ready().await);
}

/// `/readyz` answers 503 while records load, and 200 when all are loaded.
///
/// Proves: SV6.
#[tokio::test]
async fn readyz_is_503_while_loading_and_200_after() {
    let node = Node::new();
    init_pool(&node);
    let lock = hold_lock(&node);
    let address = free_address();
    let command = waiting(&node, &[node.pool_option()], "600");
    let server = Server::spawn(&node, &mut with_page(command, address));
    eventually("the page is there", || page(address, "/healthz").is_some());
    assert_eq!(page(address, "/healthz").unwrap().0, 200);
    let (code, text) = page(address, "/readyz").unwrap();
    assert_eq!(code, 503, "{text}");
    assert!(text.starts_with("loading\n"), "{text}");
    drop(lock);
    eventually("it is ready", || page(address, "/readyz").unwrap().0 == 200);
    assert_eq!(server.stop(), Some(0));
}

/// `/healthz` says why no call reaches the server, while the path of its socket leads elsewhere.
///
/// Proves: SV7.
#[tokio::test]
async fn healthz_fails_while_the_socket_is_lost() {
    type Make = fn(&Path) -> Option<UnixListener>;
    // The file that takes the socket's place; without one, the directory above is missing.
    let cases: [(&str, Option<Make>, &str); 4] = [
        (
            "another server",
            Some(|path| Some(UnixListener::bind(path).unwrap())),
            "csi.sock belongs to a running server",
        ),
        (
            "a file",
            Some(|path| fs::write(path, "").map(|()| None).unwrap()),
            "csi.sock is not a socket",
        ),
        (
            "a directory",
            Some(|path| fs::create_dir(path).map(|()| None).unwrap()),
            "csi.sock is not a socket",
        ),
        ("no directory above", None, "No such file or directory"),
    ];
    let mut started = Vec::new();
    for (case, make, about) in cases {
        let (node, address) = (Node::new(), free_address());
        let command = with_page(Server::command(&node, &[]), address);
        let server = Server::spawn(&node, &mut { command });
        server.wait_ready().await;
        let (run, other) = (node.path("run"), node.path("run/other"));
        let listener = make.and_then(|make| make(&other));
        let lose = move || {
            if make.is_some() {
                let socket = run.join("csi.sock");
                renameat_with(CWD, &other, CWD, &socket, RenameFlags::EXCHANGE).unwrap();
            } else if run.is_dir() {
                fs::rename(&run, run.with_file_name("away")).unwrap();
            } else {
                fs::rename(run.with_file_name("away"), &run).unwrap();
            }
        };
        lose();
        started.push((case, about, node, address, server, lose, listener));
    }
    let healthz = |address| page(address, "/healthz").unwrap();
    for (case, about, node, address, server, mend, _listener) in started {
        eventually("it is lost", || healthz(address).0 == 503);
        let (_, text) = healthz(address);
        assert!(text.contains(about), "{case}: {text}");
        assert_eq!(page(address, "/readyz").unwrap().0, 200, "{case}");
        assert!(server.log().contains(about), "{case}: {}", server.log());
        mend();
        eventually("it is found again", || healthz(address).0 == 200);
        assert!(server.clients().await.ready().await, "{case}");
        let log = server.log();
        for (change, times) in [("is lost", 1), ("again", 1), ("made its", 0)] {
            assert_eq!(log.matches(change).count(), times, "{case}: {log}");
        }
        assert_eq!(server.stop(), Some(0), "{case}");
        drop(node);
    }
}

/// An address in use is a mistake that is reported in one sentence with exit code 64, and no socket
/// is left.
///
/// Proves: SV1.
#[test]
fn a_taken_address_is_a_mistake_in_the_flags() {
    let node = Node::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, log) =
        Server::spawn(&node, &mut with_page(Server::command(&node, &[]), address)).end();
    assert_eq!(code, Some(64), "{log}");
    assert!(super::last_line(&log).contains("--http"), "{log}");
    assert!(support::names(&node.path("run")).is_empty());
    assert!(
        rootcellar(&["--version"])
            .output()
            .unwrap()
            .status
            .success()
    );
}
