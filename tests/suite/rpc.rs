//! The calls of the CO over the real socket: what each accepts, answers and refuses, by which code.

mod access;
mod capacity;
mod create;
mod ids;
mod listing;
mod pools;
mod snapshots;
mod surface;

use support::memory::MemoryNode;
use support::server::{Clients, Server};

/// Serves a node's pools.
async fn serve(node: &MemoryNode) -> (Server, Clients) {
    let server = Server::start_with(node, &node.options()).await;
    let clients = server.clients().await;
    (server, clients)
}
