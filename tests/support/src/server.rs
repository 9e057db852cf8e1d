//! The real server, as its own process, called over its real socket.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rootcellar::csi;
use rootcellar::csi::controller_client::ControllerClient;
use rootcellar::csi::identity_client::IdentityClient;
use rootcellar::csi::node_client::NodeClient;
use rustix::process::{Pid, Signal};
use tonic::transport::{Channel, Endpoint};

use super::disk::Disk;
use super::loops::LoopMount;
use super::{NODE, Node, rootcellar};

/// A running driver; killed when dropped.
pub struct Server {
    child: Child,
    /// The path of its socket.
    pub socket: PathBuf,
    /// The path of its log.
    pub log: PathBuf,
}

impl Server {
    /// The command that serves on a node's directories with these `--pool` texts.
    pub fn command(node: &Node, pools: &[String]) -> Command {
        let mut command = Command::new(rootcellar());
        command
            .arg("serve")
            .arg("--endpoint")
            .arg(format!("unix://{}", node.path("run/csi.sock").display()))
            .args(["--node", NODE, "--lock-wait", "0"])
            .arg("--state-dir")
            .arg(node.path("state"))
            .arg("--kubelet-dir")
            .arg(node.path("kubelet"))
            .env_remove("CSI_ENDPOINT")
            .env_remove("NODE_NAME")
            .env_remove("ROOTCELLAR_POOLS")
            .env_remove("ROOTCELLAR_POOL_SETS");
        for pool in pools {
            command.args(["--pool", pool]);
        }
        command
    }

    /// The same command with another value for a flag that it has.
    pub fn with(command: &Command, flag: &str, value: &str) -> Command {
        let mut changed = Command::new(command.get_program());
        let mut is_value = false;
        for argument in command.get_args() {
            changed.arg(if is_value { value.as_ref() } else { argument });
            is_value = argument == flag;
        }
        changed
    }

    /// Starts serving the node's one pool and waits until it is ready.
    pub async fn start(node: &Node) -> Self {
        Self::start_with(node, &[node.pool_option()]).await
    }

    /// Starts serving these pools and waits until it is ready.
    pub async fn start_with(node: &Node, pools: &[String]) -> Self {
        let server = Self::spawn(node, &mut Self::command(node, pools));
        server.wait_ready().await;
        server
    }

    /// A new node, a driver that serves its one pool, and clients of that driver.
    pub async fn on_new_node() -> (Node, Self, Clients) {
        let node = Node::new();
        let server = Self::start(&node).await;
        let clients = server.clients().await;
        (node, server, clients)
    }

    /// As [`Server::on_new_node`], with the pool on a disk of its own.
    pub async fn on_new_disk(disk: Disk) -> (Node, LoopMount, Self, Clients) {
        let node = Node::new();
        let disk = node.make_disk(disk);
        let server = Self::start_with(&node, &[disk.option()]).await;
        let clients = server.clients().await;
        (node, disk, server, clients)
    }

    /// Stops it, which must succeed, and starts another on the node with these pools.
    pub async fn restart(self, node: &Node, pools: &[String]) -> (Self, Clients) {
        assert_eq!(self.stop(), Some(0));
        let server = Self::start_with(node, pools).await;
        let clients = server.clients().await;
        (server, clients)
    }

    /// Waits until it is ready.
    pub async fn wait_ready(&self) {
        for _ in 0..6000 {
            if self.is_ready().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server is not ready: {}", self.log());
    }

    /// Starts a command whose standard error becomes the log.
    pub fn spawn(node: &Node, command: &mut Command) -> Self {
        let log = node.path("server.log");
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command.stdin(Stdio::null()).stderr(file).spawn().unwrap();
        Self {
            child,
            socket: node.path("run/csi.sock"),
            log,
        }
    }

    async fn is_ready(&self) -> bool {
        let Ok(channel) = connect(&self.socket).await else {
            return false;
        };
        let probe = IdentityClient::new(channel)
            .probe(csi::ProbeRequest {})
            .await;
        probe.is_ok_and(|answer| answer.into_inner().ready == Some(true))
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Clients of all three services on one connection.
    pub async fn clients(&self) -> Clients {
        Clients::connect(&self.socket).await.unwrap()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Asks it to stop and returns its exit code.
    pub fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        let status = self.wait("the server stops");
        assert_eq!(status.signal(), None, "{}", self.log());
        status.code()
    }

    /// Waits until it ends by itself; returns its exit code and its log.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.wait("the server gives up");
        (status.code(), self.log())
    }

    fn wait(&mut self, what: &str) -> ExitStatus {
        super::eventually(what, || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    /// Kills it without warning; it must not have ended before.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        let status = self.child.wait().unwrap();
        let killed = Some(Signal::KILL.as_raw());
        assert_eq!(status.signal(), killed, "{}", self.log());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// The outer command with the command as its last arguments, as for env(1), and with the changes
/// that the command makes to the environment.
pub fn run_by(mut outer: Command, command: &Command) -> Command {
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// The command in a shell that first sets the umask.
pub fn with_umask(umask: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
    run_by(shell, command)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Clients of the three services.
pub struct Clients {
    pub identity: IdentityClient<Channel>,
    pub controller: ControllerClient<Channel>,
    pub node: NodeClient<Channel>,
}

impl Clients {
    /// Clients of a driver that serves on this socket.
    pub async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let channel = connect(socket).await?;
        Ok(Self {
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
        })
    }
}

/// Connects to the server at a socket.
pub async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::try_from(format!("unix://{}", socket.display()))?
        .connect()
        .await
}
