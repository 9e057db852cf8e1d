use std::path::{Path, PathBuf};

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
use crate::pool::PoolOptions;

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
            topology_key: "topology.example/node".into(),
        };
        let (_endpoint, listener) = Endpoint::bind(&socket_in(dir.path())).await.unwrap();
        let address = Some("127.0.0.1:0".parse().unwrap());
        let http = bind_http(address).await.unwrap().unwrap();
        let address = http.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { stopped.await.unwrap() };
        let ended = tokio::spawn(serve(listener, Some(http), plugin, volumes, shutdown));
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
    let settings = Settings {
        node: "n1".parse().unwrap(),
        topology: "topology.example/node=n1".into(),
        kubelet_dir: dir.to_owned(),
        state_dir: dir.join("state"),
        pools,
        lock_wait: Duration::ZERO,
    };
    Arc::new(Volumes::new(settings).unwrap())
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

/// Makes volumes until the server refuses; returns the ids of those it acknowledged.
async fn create_until_stopped(channel: Channel, client: usize) -> Vec<String> {
    let mut controller = ControllerClient::new(channel);
    let mut acknowledged = Vec::new();
    loop {
        let mode = csi::volume_capability::AccessMode { mode: 1 };
        let mount = csi::volume_capability::MountVolume::default();
        let request = csi::CreateVolumeRequest {
            name: format!("{client}-{}", acknowledged.len()),
            volume_capabilities: vec![csi::VolumeCapability {
                access_mode: Some(mode),
                access_type: Some(csi::volume_capability::AccessType::Mount(mount)),
            }],
            ..Default::default()
        };
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
    assert!(
        server
            .get("/readyz")
            .await
            .ends_with("no pool is configured\n")
    );
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

#[tokio::test]
async fn what_is_not_declared_is_unimplemented_without_details() {
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
async fn a_peer_that_says_nothing_does_not_keep_the_server() {
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

#[tokio::test]
async fn what_was_acknowledged_before_a_stop_is_there_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    std::fs::create_dir(&pool).unwrap();
    let options: PoolOptions = format!("default={},init,any-filesystem", pool.display())
        .parse()
        .unwrap();
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
