use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use linux::os::{Observer, Os, Step};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint as ClientEndpoint};

use super::*;
use crate::csi;
use crate::csi::controller_client::ControllerClient;
use crate::csi::group_controller_client::GroupControllerClient;
use crate::csi::identity_client::IdentityClient;
use crate::csi::node_client::NodeClient;
use crate::volume::Seams;
use pool::PoolOptions;

mod inventory;
mod trims;
mod turns;

/// A server in this process.
struct Running {
    dir: TempDir,
    http: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<()>>,
}

impl Running {
    /// Starts a server without pools.
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volumes = volumes(dir.path(), vec![]);
        Self::serve(dir, volumes).await
    }

    async fn serve(dir: TempDir, volumes: Arc<Volumes>) -> Self {
        let plugin = Plugin {
            driver_name: "csi.example".into(),
            node: "n1".parse().unwrap(),
            topology: Topology {
                key: "topology.example/node".into(),
                value: "n1".into(),
            },
        };
        let (endpoint, listener) = Endpoint::bind(&socket_in(dir.path())).await.unwrap();
        let http = bind_http("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = http.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { stopped.await.unwrap() };
        let files = http::Files {
            key: Some(dir.path().join("key")),
            registration: dir.path().join("registry/csi.example-reg.sock"),
        };
        let http = http::Server {
            listener: http,
            files,
        };
        let ended = tokio::spawn(serve(
            (Arc::new(endpoint), listener),
            Some(http),
            plugin,
            volumes,
            shutdown,
        ));
        Self {
            dir,
            http: address,
            stop,
            ended,
        }
    }

    async fn connect(&self) -> Channel {
        let url = format!("unix://{}", socket_in(self.dir.path()).display());
        ClientEndpoint::try_from(url)
            .unwrap()
            .connect()
            .await
            .unwrap()
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

fn volumes(dir: &Path, pools: Vec<PoolOptions>) -> Arc<Volumes> {
    Arc::new(Volumes::new(settings(dir, pools)).unwrap())
}

fn settings(dir: &Path, pools: Vec<PoolOptions>) -> Settings {
    Settings {
        node: "n1".parse().unwrap(),
        topology: "topology.example/node=n1".into(),
        kubelet_dir: dir.to_owned(),
        processes: "/proc".into(),
        cgroup: linux::io::CgroupPlace::default(),
        state_dir: dir.join("state"),
        pools,
        sets: Vec::new(),
        member_wait: crate::volume::MEMBER_WAIT,
        lock_wait: Duration::ZERO,
        timeout: TIMEOUT,
    }
}

/// A pool in a directory of its own.
fn pool(dir: &Path, name: &str) -> PoolOptions {
    let path = dir.join(name);
    std::fs::create_dir(&path).unwrap();
    let options = format!("{name}={},init,any-filesystem", path.display());
    options.parse().unwrap()
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("csi.sock")
}

async fn until_ready(channel: &Channel) {
    let mut identity = IdentityClient::new(channel.clone());
    while identity
        .probe(csi::ProbeRequest {})
        .await
        .unwrap()
        .into_inner()
        .ready
        != Some(true)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn create(name: String, pool: &str) -> csi::CreateVolumeRequest {
    let mode = csi::volume_capability::AccessMode { mode: 1 };
    let mount = csi::volume_capability::MountVolume::default();
    csi::CreateVolumeRequest {
        name,
        volume_capabilities: vec![csi::VolumeCapability {
            access_mode: Some(mode),
            access_type: Some(csi::volume_capability::AccessType::Mount(mount)),
        }],
        parameters: [("pool".to_owned(), pool.to_owned())].into(),
        ..Default::default()
    }
}

/// Creates volumes until the server refuses; returns the ids of those it acknowledged.
async fn create_until_stopped(channel: Channel, client: usize) -> Vec<String> {
    let mut controller = ControllerClient::new(channel);
    let mut acknowledged = Vec::new();
    loop {
        let request = create(format!("{client}-{}", acknowledged.len()), "default");
        match controller.create_volume(request).await {
            Ok(answer) => acknowledged.push(answer.into_inner().volume.unwrap().volume_id),
            Err(_) => return acknowledged,
        }
    }
}

#[tokio::test]
async fn a_server_serves_from_start_to_stop() {
    let server = Running::start().await;
    let channel = server.connect().await;
    until_ready(&channel).await;
    let info = NodeClient::new(channel.clone())
        .node_get_info(csi::NodeGetInfoRequest {})
        .await;
    let info = info.unwrap().into_inner();
    assert_eq!(info.node_id, "n1");
    assert_eq!(
        info.accessible_topology.unwrap().segments["topology.example/node"],
        "n1"
    );

    assert!(
        server
            .get("/healthz")
            .await
            .starts_with("HTTP/1.1 200 OK\r\n")
    );
    assert!(server.get("/readyz").await.ends_with(
        "no pool is here; configure one, or mount a disk below the directory of a pool set\n"
    ));
    let metrics = server.get("/metrics").await;
    assert!(
        metrics.contains("\ncontent-type: application/openmetrics-text;"),
        "{metrics}"
    );
    assert!(
        metrics.contains("rpc_seconds_count{rpc=\"NodeGetInfo\",code=\"OK\"} 1"),
        "{metrics}"
    );

    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.http).await.is_err());
}

/// Proves: C1.
#[tokio::test]
async fn undeclared_calls_are_unimplemented_without_details() {
    let server = Running::start().await;
    let channel = server.connect().await;
    let undeclared = [
        ControllerClient::new(channel.clone())
            .controller_publish_volume(csi::ControllerPublishVolumeRequest::default())
            .await
            .unwrap_err(),
        NodeClient::new(channel.clone())
            .node_stage_volume(csi::NodeStageVolumeRequest::default())
            .await
            .unwrap_err(),
        GroupControllerClient::new(channel)
            .group_controller_get_capabilities(csi::GroupControllerGetCapabilitiesRequest {})
            .await
            .unwrap_err(),
    ];
    for status in undeclared {
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
        assert!(
            !status.message().is_empty() && status.details().is_empty(),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_silent_peer_does_not_delay_the_stop() {
    let server = Running::start().await;
    let _silent = tokio::net::UnixStream::connect(socket_in(server.dir.path()))
        .await
        .unwrap();
    let _idle = server.connect().await;
    server.stop.send(()).unwrap();
    let ended = tokio::time::timeout(FLUSH * 5, server.ended).await;
    ended
        .expect("it stops long before the drain is over")
        .unwrap()
        .unwrap();
}

/// Proves: D10.
#[tokio::test]
async fn acknowledged_volumes_survive_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let options = pool(dir.path(), "default");
    let first = volumes(dir.path(), vec![options.clone()]);
    let server = Running::serve(dir, Arc::clone(&first)).await;
    let channel = server.connect().await;
    until_ready(&channel).await;

    let clients: Vec<_> = (0..8)
        .map(|client| tokio::spawn(create_until_stopped(channel.clone(), client)))
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
    first.stop();
    drop(first);

    let second = volumes(server.dir.path(), vec![options]);
    second.load().unwrap();
    let mut acknowledged = 0;
    for client in clients {
        for id in client.await.unwrap() {
            second.get(&id).unwrap();
            acknowledged += 1;
        }
    }
    assert!(acknowledged > 0);
    second.stop();
}

/// A disk that blocks the next mkdir until it is released.
#[derive(Debug, Default)]
struct Hang {
    armed: AtomicBool,
    hangs: Mutex<bool>,
    released: Condvar,
}

impl Hang {
    fn release(&self) {
        *self.hangs.lock().unwrap() = false;
        self.released.notify_all();
    }
}

/// Releases the disk, also when the test fails, because its runtime waits for blocked threads.
struct Release(Arc<Hang>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Observer for Hang {
    fn before(&self, step: Step, _name: &OsStr) -> Result<(), rustix::io::Errno> {
        if step == Step::Mkdir && self.armed.swap(false, Ordering::Relaxed) {
            let mut hangs = self.hangs.lock().unwrap();
            *hangs = true;
            drop(self.released.wait_while(hangs, |hangs| *hangs).unwrap());
        }
        Ok(())
    }

    fn after(&self, _step: Step, _name: &OsStr) {}
}

/// Waits until a page has lines that begin with each of these.
async fn until_reported(server: &Running, path: &str, lines: &[&str]) {
    let mut text = String::new();
    for _ in 0..3000 {
        text = server.get(path).await;
        let has = |line: &&str| text.lines().any(|got| got.starts_with(line));
        if lines.iter().all(has) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{lines:?} are never in {path}: {text}");
}

/// Waits until a pool has capacity, or none.
async fn until_capacity(channel: &Channel, pool: &str, some: bool) {
    let mut controller = ControllerClient::new(channel.clone());
    for _ in 0..3000 {
        let request = csi::GetCapacityRequest {
            parameters: [("pool".to_owned(), pool.to_owned())].into(),
            ..Default::default()
        };
        let answer = controller.get_capacity(request).await.unwrap();
        if (answer.into_inner().available_capacity > 0) == some {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("pool {pool} has capacity: {}", !some);
}

/// Proves: DK6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_does_not_answer_is_reported_until_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let pools = vec![pool(dir.path(), "hung")];
    let settings = Settings {
        timeout: Duration::from_millis(500),
        ..settings(dir.path(), pools)
    };
    let disk = Arc::new(Hang::default());
    let release = Release(Arc::clone(&disk));
    let seams = Seams {
        os: Os::observed(Arc::clone(&disk) as Arc<dyn Observer>),
        ..Seams::default()
    };
    let volumes = Arc::new(Volumes::with_seams(settings, seams).unwrap());
    let server = Running::serve(dir, Arc::clone(&volumes)).await;
    let channel = server.connect().await;
    until_ready(&channel).await;
    until_capacity(&channel, "hung", true).await;

    disk.armed.store(true, Ordering::Relaxed);
    let mut controller = ControllerClient::new(channel.clone());
    let call = tokio::spawn(async move {
        let request = create("volume".into(), "hung");
        controller.create_volume(request).await
    });
    let reported = "pool hung: not answering: its disk has not answered for ";
    until_reported(&server, "/readyz", &[reported]).await;
    let lines = [
        "rootcellar_pool_answering{pool=\"hung\"} 0",
        "rootcellar_pool_healthy{pool=\"hung\"} 0",
        "rootcellar_pool_available_bytes{pool=\"hung\"} 0",
    ];
    until_reported(&server, "/metrics", &lines).await;
    until_capacity(&channel, "hung", false).await;
    assert!(!call.is_finished());

    drop(release);
    call.await.unwrap().unwrap();
    until_reported(&server, "/readyz", &["pool hung: healthy"]).await;
    until_capacity(&channel, "hung", true).await;
    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
    volumes.stop();
}
