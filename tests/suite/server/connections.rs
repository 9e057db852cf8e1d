//! The connections to the pages, which every pod that reaches the driver's pod can open.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio::net::TcpSocket;

use support::page::{free_address, page};
use support::server::Server;
use support::{Node, eventually};

/// The most connections of the pages.
const MOST: usize = 64;

/// A server with pages at an address.
struct Pages {
    _node: Node,
    server: Server,
    address: SocketAddr,
    /// The descriptors that it has open without any connection.
    descriptors: usize,
}

impl Pages {
    async fn start() -> Self {
        let node = Node::new();
        let address = free_address();
        let mut command = Server::command(&node, &[node.pool_option()]);
        command.arg("--http").arg(address.to_string());
        let server = Server::spawn(&node, &mut command);
        server.wait_ready().await;
        // The first one opens a file of the server, too.
        page(address, "/metrics").unwrap();
        let mut pages = Self {
            _node: node,
            server,
            address,
            descriptors: 0,
        };
        // The last client of the socket has left when nothing changes any more.
        eventually("the descriptors stay", || {
            let open = pages.open();
            let before = std::mem::replace(&mut pages.descriptors, open);
            std::thread::sleep(Duration::from_millis(50));
            before == pages.open()
        });
        pages
    }

    fn open(&self) -> usize {
        let files = format!("/proc/{}/fd", self.server.pid());
        std::fs::read_dir(files).unwrap().count()
    }

    /// Another host of the loopback network connects, with small buffers.
    async fn connect(&self, host: u8) -> Option<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        socket.set_send_buffer_size(2048).unwrap();
        socket
            .bind(SocketAddr::from(([127, 0, 0, host], 0)))
            .unwrap();
        let stream = socket.connect(self.address).await.ok()?;
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(true).unwrap();
        Some(stream)
    }
}

/// Sends as much as the peer takes now.
fn send(stream: &mut TcpStream, text: &str) {
    // The server may have closed the connection.
    let _ = stream.write(text.as_bytes());
}

/// Whether the server has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

/// One peer opens connections as fast as it can, each with a part of a request, and closes none.
/// The server has a bounded number of them, and every probe of another peer succeeds meanwhile.
///
/// Proves: SV8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_succeeds_while_a_peer_takes_every_connection() {
    let pages = Pages::start().await;
    let part = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(64 << 10));
    let mut held = Vec::new();
    for _ in 0..400 {
        let mut stream = pages.connect(2).await.unwrap();
        send(&mut stream, &part);
        held.push(stream);
    }
    let most = pages.descriptors + MOST + 1;
    eventually("the server closes connections", || pages.open() <= most);
    for probe in 0..100 {
        for _ in 0..20 {
            let mut stream = pages.connect(2).await.unwrap();
            send(&mut stream, &part);
            held.push(stream);
        }
        let address = pages.address;
        let probed = tokio::task::spawn_blocking(move || page(address, "/readyz"));
        let mut stream = pages.connect(2).await.unwrap();
        send(&mut stream, &part);
        held.push(stream);
        assert_eq!(probed.await.unwrap().unwrap().0, 200, "probe {probe}");
    }
    eventually("the server closes connections", || pages.open() <= most);
    assert_eq!(page(pages.address, "/healthz").unwrap().0, 200);
    assert!(held.len() > 400);
}

/// A connection ends, no matter what its peer does: send nothing, send a byte at a time, read no answer, or
/// keep the connection after the answer.
///
/// Proves: SV8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_peer_keeps_a_connection() {
    let pages = Pages::start().await;
    let mut idle = pages.connect(2).await.unwrap();
    let mut slow = pages.connect(2).await.unwrap();
    let mut unread = pages.connect(2).await.unwrap();
    let mut answered = pages.connect(2).await.unwrap();
    send(&mut unread, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    send(&mut answered, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the peers are connected", || {
        pages.open() >= pages.descriptors + 4
    });
    send(&mut slow, "GET /healthz HTTP/1.1\r\nX: ");
    eventually("the server closes the connections", || {
        send(&mut slow, "x");
        pages.open() <= pages.descriptors
    });
    for (name, stream) in [("idle", &mut idle), ("slow", &mut slow)] {
        assert!(is_closed(stream), "{name}");
    }
    assert_eq!(page(pages.address, "/healthz").unwrap().0, 200);
    drop((unread, answered));
}

/// A peer that sends without end after its request, as a body of a known length or in chunks, gets the answer, and
/// the server takes little more of it.
///
/// Proves: SV8.
#[tokio::test]
async fn a_body_without_end_ends_the_connection() {
    /// More than the server reads, and than the buffers between the two have space for.
    const MUCH: usize = 1 << 20;
    let pages = Pages::start().await;
    let part = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    for body in [
        "Content-Length: 1000000000000",
        "Transfer-Encoding: chunked",
    ] {
        let mut stream = pages.connect(2).await.unwrap();
        stream.set_nonblocking(false).unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{body}\r\n\r\n{part}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[9..], b"200", "{body}");
        let mut sent = 0;
        while sent < MUCH && stream.write_all(part.as_bytes()).is_ok() {
            sent += part.len();
        }
        assert!(sent < MUCH, "{body}");
    }
}

/// A request with a large header is refused, so that none takes much memory.
///
/// Proves: SV8.
#[tokio::test]
async fn a_large_header_is_refused() {
    let pages = Pages::start().await;
    let cases = [(4 << 10, "200"), (9 << 10, "431"), (1 << 20, "431")];
    for (bytes, code) in cases {
        let mut stream = TcpStream::connect(pages.address).unwrap();
        let header = "x".repeat(bytes);
        let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {header}\r\n\r\n");
        // The server does not read the end of a long one.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[9..], code.as_bytes(), "{bytes}");
    }
}
