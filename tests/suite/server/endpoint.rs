//! The socket, and the server that owns it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::{last_line, with_page};
use support::page::{free_address, page};
use support::picture::picture;
use support::server::{Server, with_umask};
use support::{Node, eventually, names};

/// The server's command in a shell with umask 0.
fn without_umask(node: &Node) -> Command {
    with_umask("0", &Server::command(node, &[]))
}

/// At the first successful connection the socket already has mode 0600, under any umask.
///
/// Proves: SV3.
#[test]
fn the_socket_is_private_whenever_it_can_be_reached() {
    // Each start has one such first moment, and the test may miss it.
    for _ in 0..30 {
        let node = Node::new();
        let path = node.path("run/csi.sock");
        let server = Server::spawn(&node, &mut without_umask(&node));
        let mut mode = None;
        eventually("it can be reached", || {
            for _ in 0..100_000 {
                // Nothing in between: the moment after `listen(2)` is the critical one.
                if UnixStream::connect(&path).is_ok() {
                    let found = fs::symlink_metadata(&path).unwrap();
                    mode = Some(found.permissions().mode() & 0o7777);
                    return true;
                }
            }
            false
        });
        assert_eq!(mode, Some(0o600));
        assert_eq!(server.stop(), Some(0));
    }
}

/// A socket that a killed server left is replaced.
///
/// Proves: SV3.
#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let node = Node::new();
    let killed = Server::start(&node).await;
    let path = killed.socket.clone();
    killed.kill();
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    let server = Server::start(&node).await;
    assert!(server.clients().await.ready().await);
}

/// A file, directory or link at the socket's path is refused with exit code 64 and a sentence that
/// names the flag. It stays unchanged.
///
/// Proves: SV3.
#[test]
fn what_is_no_socket_is_refused_and_untouched() {
    type Prepare = fn(&Path);
    let cases: &[(&str, Prepare)] = &[
        ("a file", |path| fs::write(path, "precious").unwrap()),
        ("an empty file", |path| fs::write(path, "").unwrap()),
        ("a directory", |path| fs::create_dir(path).unwrap()),
        ("a link to a stale socket", |path| {
            let stale = path.with_file_name("stale.sock");
            drop(UnixListener::bind(&stale).unwrap());
            symlink(stale, path).unwrap();
        }),
        ("a dangling link", |path| symlink("nothing", path).unwrap()),
    ];
    for (case, prepare) in cases {
        let node = Node::new();
        prepare(&node.path("run/csi.sock"));
        let before = picture(&node.path("run"), &[]);
        let server = Server::spawn(&node, &mut Server::command(&node, &[]));
        let (code, log) = server.end();
        assert_eq!(code, Some(64), "{case}: {log}");
        let sentence = last_line(&log);
        assert!(
            sentence.starts_with("rootcellar: --endpoint: "),
            "{case}: {log}"
        );
        assert_eq!(picture(&node.path("run"), &[]), before, "{case}");
    }
}

/// A second server on the same socket is refused with exit code 64 and a sentence, and the first
/// continues to serve.
///
/// Proves: SV3.
#[tokio::test]
async fn a_second_server_on_the_same_socket_is_refused() {
    let node = Node::new();
    let first = Server::start(&node).await;
    let before = picture(&node.path("run"), &[]);
    let second = Server::spawn(&node, &mut Server::command(&node, &[]));
    let (code, log) = second.end();
    assert_eq!(code, Some(64), "{log}");
    assert!(last_line(&log).contains("running server"), "{log}");
    assert_eq!(picture(&node.path("run"), &[]), before);
    assert!(first.clients().await.ready().await);
}

/// A second server on the same pool ends with exit code 75 and a sentence and leaves no socket. The
/// first continues to serve.
///
/// Proves: P3.
#[tokio::test]
async fn a_second_server_on_the_same_pool_is_refused() {
    let (node, other) = (Node::new(), Node::new());
    let first = Server::start(&node).await;
    let second = Server::spawn(&other, &mut Server::command(&other, &[node.pool_option()]));
    let (code, log) = second.end();
    assert_eq!(code, Some(75), "{log}");
    assert!(
        last_line(&log).starts_with("rootcellar: another server holds"),
        "{log}"
    );
    assert!(picture(&other.path("run"), &[]).is_empty());
    let mut clients = first.clients().await;
    clients
        .create(support::messages::create("goes-on", 1 << 20))
        .await
        .unwrap();
}

/// Bytes that are not HTTP/2, on many connections, do not disturb other clients.
///
/// Proves: SV3.
#[tokio::test]
async fn garbage_on_the_socket_harms_nobody() {
    use std::io::Write as _;
    let node = Node::new();
    let server = Server::start(&node).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let endless = vec![0xff; 1 << 20];
    for garbage in [b"GET / HTTP/1.1\r\n\r\n", preface, b"\0\0\0", &endless, b""] {
        let mut stream = UnixStream::connect(&server.socket).unwrap();
        // The server may close the connection before everything is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(server.clients().await.ready().await);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// The stop succeeds if somebody removed the socket before.
///
/// Proves: SV5.
#[tokio::test]
async fn a_socket_removed_by_hand_does_not_disturb_the_stop() {
    let node = Node::new();
    let server = Server::start(&node).await;
    fs::remove_file(&server.socket).unwrap();
    assert_eq!(server.stop(), Some(0));
}

/// A removed socket is made again as a start makes it, and the connections of before go on. The stop removes
/// the new one.
///
/// Proves: SV3, SV5, SV7.
#[tokio::test]
async fn a_removed_socket_is_made_again() {
    let (node, address) = (Node::new(), free_address());
    let command = Server::command(&node, &[node.pool_option()]);
    let server = Server::spawn(&node, &mut with_page(command, address));
    server.wait_ready().await;
    let mut before = server.clients().await;
    for times in 1..=2 {
        fs::remove_file(&server.socket).unwrap();
        eventually("it is served again", || {
            UnixStream::connect(&server.socket).is_ok()
        });
        let mode = fs::symlink_metadata(&server.socket).unwrap().permissions();
        assert_eq!(mode.mode() & 0o7777, 0o600);
        assert!(server.clients().await.ready().await);
        assert!(before.ready().await);
        assert_eq!(page(address, "/healthz").unwrap().0, 200);
        let log = server.log();
        assert_eq!(log.matches("made its socket again").count(), times, "{log}");
    }
    server.signal(Signal::TERM);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(names(&node.path("run")), Vec::<String>::new());
}

/// A socket that another server has put in the place of this one's is not removed.
///
/// Proves: SV5.
#[tokio::test]
async fn a_stopping_server_does_not_remove_anothers_socket() {
    let node = Node::new();
    let first = Server::start(&node).await;
    let command = Server::command(&node, &[]);
    let other = format!("unix://{}", node.path("run/other.sock").display());
    let mut second = Server::spawn(&node, &mut Server::with(&command, "--endpoint", &other));
    eventually("the second one listens", || {
        UnixStream::connect(node.path("run/other.sock")).is_ok()
    });
    fs::rename(node.path("run/other.sock"), &first.socket).unwrap();
    second.socket.clone_from(&first.socket);
    assert_eq!(first.stop(), Some(0));
    assert!(second.clients().await.ready().await);
}
