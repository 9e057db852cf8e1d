//! The process: its socket, its locks, its configuration, how it starts and how it stops.

mod command_line;
mod endpoint;
mod lifetime;
mod looking;
mod pages;

use std::process::Command;

use rustix::fs::FlockOperation;

use support::server::Server;
use support::{NODE, Node};

/// The binary with these arguments and nothing of the driver's in its environment.
fn rootcellar(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rootcellar"));
    command.args(arguments);
    for variable in ["CSI_ENDPOINT", "NODE_NAME", "ROOTCELLAR_POOLS", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// As [`Server::command`], but waiting for locks as long as said.
fn waiting(node: &Node, pools: &[String], lock_wait: &str) -> Command {
    Server::with(&Server::command(node, pools), "--lock-wait", lock_wait)
}

/// Makes the node's one pool, as an operator would.
fn init_pool(node: &Node) {
    let path = node.pool();
    let path = path.to_str().unwrap();
    let made = rootcellar(&["pool", "init", path, "--node", NODE, "--any-filesystem"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// The pool's lock, taken as another server would, until this is dropped.
fn hold_lock(node: &Node) -> std::fs::File {
    let lock = std::fs::File::open(node.pool().join(".rootcellar/lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    lock
}

/// What a failed command told people: its last line.
fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}
