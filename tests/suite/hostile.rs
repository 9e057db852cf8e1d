//! Requests that no client should send. Each gets the right code and a message, nothing panics, and
//! nothing outside the pool changes.

mod fields;
mod names;
mod paths;
mod trees;

use std::fs;
use std::os::unix::fs::symlink;

use tonic::{Code, Status};

use support::Node;
use support::messages::assert_well_formed;
use support::picture::{Picture, picture};
use support::server::{Clients, Server};

/// A served node with foreign files around the pool, and a picture of them.
struct HostileNode {
    clients: Clients,
    server: Server,
    before: Picture,
    node: Node,
}

impl HostileNode {
    async fn new() -> Self {
        let node = Node::new();
        prepare(&node);
        let server = Server::start(&node).await;
        let clients = server.clients().await;
        let before = picture_outside_pool(&node);
        Self {
            clients,
            server,
            before,
            node,
        }
    }

    /// As [`HostileNode::new`], with a volume and its id.
    async fn with_volume() -> (Self, String) {
        let mut scene = Self::new().await;
        let id = scene.clients.make("a", 1000).await;
        (scene, id)
    }

    /// Asserts that the server runs, that nothing in it panicked, and that nothing outside the pool
    /// changed.
    #[track_caller]
    fn assert_untouched(&self, case: &str) {
        assert_eq!(picture_outside_pool(&self.node), self.before, "{case}");
        let log = self.server.log();
        assert!(!log.contains("panicked"), "{case}: {log}");
    }
}

/// Creates foreign files and directories outside, and links to them at the targets.
fn prepare(node: &Node) {
    fs::create_dir_all(node.path("outside/directory")).unwrap();
    fs::write(node.path("outside/directory/file"), "precious").unwrap();
    fs::write(node.path("outside/file"), "precious").unwrap();
    fs::create_dir_all(node.path("kubelet/pods/pod/full")).unwrap();
    fs::write(node.path("kubelet/pods/pod/full/file"), "precious").unwrap();
    fs::write(node.path("kubelet/pods/pod/file"), "precious").unwrap();
    let links = [
        ("out", "outside"),
        ("into-pool", "pool/volumes"),
        ("to-file", "outside/file"),
        ("to-directory", "outside/directory"),
        ("to-nothing", "nothing"),
        ("to-itself", "kubelet/pods/pod/to-itself"),
    ];
    for (name, to) in links {
        symlink(node.path(to), node.path("kubelet/pods/pod").join(name)).unwrap();
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        node.path("kubelet/pods/pod/fifo"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
}

/// Everything on the node except the pool and the log.
fn picture_outside_pool(node: &Node) -> Picture {
    picture(&node.path(""), &[node.pool(), node.path("server.log")])
}

/// Asserts that an answer is a success or one of these codes, and well formed.
#[track_caller]
fn assert_one_of(case: &str, code: Result<(), &Status>, allowed: &[Code]) {
    if let Err(status) = code {
        assert_well_formed(case, status);
        assert!(allowed.contains(&status.code()), "{case}: {status}");
    }
}
