//! The connections to the pages of the driver and of the controller. Every pod may open some, so they are few, short, and
//! shared fairly. The driver's page `/inventory` is [signed](signature).

#![forbid(unsafe_code)]

pub mod reference;
pub mod signature;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

/// The pause after a connection that could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most connections at once.
const MOST: usize = 64;

/// The most bytes of a request's header.
const HEADER_BYTES: usize = 8 << 10;

/// The bytes of the kernel's buffers of a connection, for each direction. The kernel doubles them for its own
/// bookkeeping, and would else let them grow to megabytes.
const BUFFER_BYTES: u32 = 32 << 10;

/// The connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// The most bytes that are read after an answer, such as the body of a request, which no page needs.
const DRAINED_BYTES: u64 = 64 << 10;

/// The time of a connection, from its acceptance until the peer has closed it. A page waits for a disk
/// for half of it.
const LIFE: Duration = Duration::from_secs(10);

/// A connection, which ends when this is dropped.
#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listens on an address. Connections have the buffers of the listener.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves forever. A new connection never waits for another.
pub async fn serve(listener: TcpListener, router: Router) {
    let service = TowerToHyperService::new(router);
    // The oldest is the first.
    let mut open: Vec<Connection> = Vec::with_capacity(MOST);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Without free file descriptors, the same connection fails again and again.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        open.retain(|connection| !connection.task.is_finished());
        if open.len() >= MOST {
            let peers: Vec<IpAddr> = open.iter().map(|connection| connection.peer).collect();
            open.remove(least_missed(&peers));
        }
        let task = tokio::spawn(answer(stream, service.clone()));
        let peer = peer.ip().to_canonical();
        open.push(Connection { peer, task });
    }
}

/// The position of the oldest connection of the peer that has the most. So the kubelet's probe is
/// answered while another peer takes all connections.
fn least_missed(peers: &[IpAddr]) -> usize {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for peer in peers {
        *counts.entry(*peer).or_default() += 1;
    }
    // Of several, the last one has the maximum, which is the first peer here.
    let oldest_last = peers.iter().enumerate().rev();
    let found = oldest_last.max_by_key(|(_, peer)| counts.get(peer));
    found.map_or(0, |(position, _)| position)
}

/// Answers one request, and waits until the peer has read the answer and closed the connection.
async fn answer(mut stream: TcpStream, service: TowerToHyperService<Router>) {
    // Otherwise the kernel keeps bytes that the peer does not read, also after the end.
    if stream.set_zero_linger().is_err() {
        return;
    }
    let serving = async {
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(&mut stream), service);
        // An error is the peer's, which has got its answer if there is one.
        let _ = connection.await;
        let _ = stream.shutdown().await;
        let mut rest = stream.take(DRAINED_BYTES);
        while let Ok(1..) = rest.read(&mut [0; 512]).await {}
    };
    // An error says that the time is over.
    let _ = tokio::time::timeout(LIFE, serving).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: SV8.
    #[tokio::test]
    async fn the_kernel_buffers_little_of_a_connection() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = TcpSocket::from_std_stream(accepted.unwrap().0.into_std().unwrap());
        // The kernel reports the doubled number.
        let bytes = 2 * BUFFER_BYTES;
        assert_eq!(accepted.recv_buffer_size().unwrap(), bytes);
        assert_eq!(accepted.send_buffer_size().unwrap(), bytes);
    }

    #[test]
    fn the_peer_with_the_most_connections_loses_its_oldest() {
        let cases: &[(&[u8], usize)] = &[
            // peers from the oldest to the newest, position
            (&[1, 1, 1], 0),
            (&[2, 1, 1], 1),
            (&[1, 2, 1, 2, 2], 1),
            (&[1, 2, 3], 0),
            (&[2, 1, 1, 2], 0),
            (&[3, 2, 2, 1, 1], 1),
            (&[], 0),
        ];
        for (peers, position) in cases {
            let peers: Vec<IpAddr> = peers.iter().map(|host| [127, 0, 0, *host].into()).collect();
            assert_eq!(least_missed(&peers), *position, "{peers:?}");
        }
    }
}
