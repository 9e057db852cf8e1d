//! The process: its socket, its locks, its configuration, its start and its stop.

mod command_line;
mod connections;
mod endpoint;
mod inspecting;
mod lifetime;
mod pages;

use std::net::SocketAddr;
use std::process::Command;

use rustix::fs::FlockOperation;

use support::server::Server;
use support::{NODE, Node};

/// The binary with these arguments and without the driver's environment variables.
fn rootcellar(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rootcellar"));
    command.args(arguments);
    for variable in ["CSI_ENDPOINT", "NODE_NAME", "ROOTCELLAR_POOLS", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// As [`Server::command`], with this `--lock-wait`.
fn waiting(node: &Node, pools: &[String], lock_wait: &str) -> Command {
    Server::with(&Server::command(node, pools), "--lock-wait", lock_wait)
}

/// The command with the pages at an address.
fn with_page(mut command: Command, address: SocketAddr) -> Command {
    command.arg("--http").arg(address.to_string());
    command
}

/// Initializes the node's only pool, as an operator would.
fn init_pool(node: &Node) {
    let path = node.pool();
    let path = path.to_str().unwrap();
    let made = rootcellar(&["pool", "init", path, "--node", NODE, "--any-filesystem"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// Takes the pool's lock as another server would. It is held until the file is dropped.
fn hold_lock(node: &Node) -> std::fs::File {
    let lock = std::fs::File::open(node.pool().join(".rootcellar/lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    lock
}

/// The error message of a failed command: its last line.
fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}
