//! The connections to the pages. Every pod may open some, so they are few, short, and shared fairly.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::ACCEPT_PAUSE;

/// The most connections at once.
const MOST: usize = 64;

/// The most bytes of a request's header.
const HEADER_BYTES: usize = 8 << 10;

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

/// Serves forever. A new connection never waits for another.
pub(super) async fn serve(listener: TcpListener, router: Router) {
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
        while let Ok(1..) = stream.read(&mut [0; 512]).await {}
    };
    // An error says that the time is over.
    let _ = tokio::time::timeout(LIFE, serving).await;
}

#[cfg(test)]
mod tests {
    use super::*;

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
