//! The calls of the CO over the real socket: accepted requests, answers, and refusals with their
//! codes.

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

/// A node with these pools in memory, where every byte is counted, and its driver.
async fn serve(pools: &[&str]) -> (MemoryNode, Server, Clients) {
    let node = MemoryNode::new(pools);
    let server = Server::start_with(&node, &node.options()).await;
    let clients = server.clients().await;
    (node, server, clients)
}
