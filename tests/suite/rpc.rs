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

/// A node with pools in memory, where every byte is accounted for; nothing where there can be none.
fn memory_node(pools: &[&str]) -> Option<MemoryNode> {
    let node = MemoryNode::new(pools);
    node.is_in_memory().then_some(node)
}

/// Why [`memory_node`] gives nothing.
const NO_MEMORY: &str = "mounts need root and a mount namespace; run by `make test`";

/// Serves a node's pools.
async fn serve(node: &MemoryNode) -> (Server, Clients) {
    let server = Server::start_with(node, &node.options()).await;
    let clients = server.clients().await;
    (server, clients)
}
