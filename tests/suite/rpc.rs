//! The calls of the CO over the real socket: accepted requests, answers, and refusals with their
//! codes.
//!
//! A new call is taken out of the UNIMPLEMENTED lists of `rpc/surface.rs` and `fuzz.rs`, which gets a generator and
//! the codes. It needs a method of `Clients`, and lines in `rpc/ids.rs`, `hostile/fields.rs` and
//! `src/rpc/tests/services.rs`.

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
