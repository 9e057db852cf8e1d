//! The server: one Unix socket for the CO, one optional page for health and metrics, and the
//! order in which things start and stop.

mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::Server;

use crate::admin::admin_server::{self, AdminServer};
use crate::config::Config;
use crate::csi::controller_server::{self, ControllerServer};
use crate::csi::identity_server::{self, IdentityServer};
use crate::csi::node_server::{self, NodeServer};
use crate::error::{Error, Result};
use crate::http;
use crate::metrics::Metrics;
use crate::pool::{CALLS_AT_ONCE, Pool};
use crate::rpc::{AdminService, ControllerService, Edge, IdentityService, NodeService, Plugin};
use crate::volume::{PATIENCE, Settings, Volumes};

use socket::Endpoint;

/// Threads for the sockets; the work is done on the blocking pool. A second one would be woken for
/// every call to look for work that the first has done by then.
const WORKERS: usize = 1;

/// Threads for each pool, all of which its disk may keep: one for each call at work, one that looks
/// at it, one that asks it for metrics.
const THREADS_OF_POOL: usize = CALLS_AT_ONCE + 2;

/// Threads for the work that asks no disk: loading, unpublishing, and calls that are answered from memory.
const THREADS_BESIDE: usize = 64;

/// How often the pools are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long calls at work may take to end when the server stops.
const DRAIN: Duration = Duration::from_secs(30);

/// How long the last answers may take to leave.
const FLUSH: Duration = Duration::from_secs(1);

/// Serves until a signal to stop, or until no pool can be served.
pub fn run(config: Config) -> Result<()> {
    let plugin = Plugin {
        driver_name: config.driver_name,
        topology_key: config.topology_key.clone(),
        node: config.node.clone(),
    };
    let topology = format!("{}={}", config.topology_key, config.node.topology_value());
    let volumes = Arc::new(Volumes::new(Settings {
        node: config.node,
        topology,
        kubelet_dir: config.kubelet_dir,
        state_dir: config.state_dir,
        pools: config.pools,
        lock_wait: config.lock_wait,
        patience: PATIENCE,
    })?);
    let runtime = runtime(volumes.pools().len())?;
    let served = runtime.block_on(async {
        let stop = Stop::on_signal()?;
        let http = bind_http(config.http).await?;
        let (endpoint, listener) = Endpoint::bind(&config.endpoint).await?;
        tracing::info!(endpoint = %config.endpoint.display(), "serving");
        let served = serve(listener, http, plugin, Arc::clone(&volumes), stop.wait()).await;
        endpoint.remove();
        served
    });
    volumes.stop();
    // What is still at work after the drain, or waits for a pool's lock, waits for nobody.
    runtime.shutdown_background();
    served
}

/// Serves on sockets that are bound already until `shutdown` ends; returns when the calls at work
/// have ended.
pub async fn serve(
    listener: UnixListener,
    http: Option<TcpListener>,
    plugin: Plugin,
    volumes: Arc<Volumes>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let metrics = Arc::new(Metrics::new());
    let edge = Arc::new(Edge::new(
        plugin,
        Arc::clone(&volumes),
        Arc::clone(&metrics),
    ));
    let (stop, stopped) = oneshot::channel();
    let mut grpc = tokio::spawn(serve_grpc(listener, Arc::clone(&edge), stopped));
    let http =
        http.map(|listener| tokio::spawn(http::serve(listener, Arc::clone(&volumes), metrics)));
    let served = tokio::select! {
        () = shutdown => Ok(()),
        error = keep_pools(Arc::clone(&volumes)) => Err(error),
        ended = &mut grpc => Err(Error::Internal(format!("the socket is closed: {ended:?}"))),
    };
    volumes.stop_copies();
    if stop.send(()).is_ok() {
        drain(grpc, &edge).await;
    }
    if let Some(http) = http {
        http.abort();
    }
    served
}

async fn serve_grpc(
    listener: UnixListener,
    edge: Arc<Edge>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), tonic::transport::Error> {
    // Without file descriptors the same connection is refused again and again.
    let incoming = UnixListenerStream::new(listener).then(async |accepted| {
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    });
    let stopped = async {
        // An error says that the sender is gone, which means the same.
        let _ = stopped.await;
    };
    Server::builder()
        .serve_with_incoming_shutdown(services(&edge), incoming, stopped)
        .await
}

/// Tonic's own router would refuse an unknown service without the message that CSI requires.
fn services(edge: &Arc<Edge>) -> Router {
    let edge = || Arc::clone(edge);
    let path = |service| format!("/{service}/{{*rpc}}");
    Router::new()
        .route_service(
            &path(identity_server::SERVICE_NAME),
            IdentityServer::new(IdentityService(edge())),
        )
        .route_service(
            &path(controller_server::SERVICE_NAME),
            ControllerServer::new(ControllerService(edge())),
        )
        .route_service(
            &path(node_server::SERVICE_NAME),
            NodeServer::new(NodeService(edge())),
        )
        .route_service(
            &path(admin_server::SERVICE_NAME),
            AdminServer::new(AdminService(edge())),
        )
        .fallback(async || Status::unimplemented("unknown service").into_http::<Body>())
}

/// Loads the records, then looks at the pools for ever, at each by itself so that a disk that
/// hangs holds up no other; returns the reason not to go on.
async fn keep_pools(volumes: Arc<Volumes>) -> Error {
    let loading = Arc::clone(&volumes);
    match tokio::task::spawn_blocking(move || loading.load()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return error,
        Err(panic) => return Error::Internal(format!("loading: {panic}")),
    }
    let mut keepers = JoinSet::new();
    for pool in volumes.pools() {
        keepers.spawn(keep_pool(Arc::clone(&volumes), Arc::clone(pool)));
    }
    match keepers.join_next().await {
        Some(ended) => Error::Internal(format!("a pool is not looked at any more: {ended:?}")),
        None => std::future::pending().await,
    }
}

async fn keep_pool(volumes: Arc<Volumes>, pool: Arc<Pool>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let (volumes, pool) = (Arc::clone(&volumes), Arc::clone(&pool));
        let checked = tokio::task::spawn_blocking(move || volumes.check_pool(&pool)).await;
        if let Err(panic) = checked {
            tracing::error!(%panic, "a pool was not looked at");
        }
    }
}

/// Waits for the calls at work and for their answers to leave; not for peers that just sit there.
async fn drain(grpc: JoinHandle<Result<(), tonic::transport::Error>>, edge: &Edge) {
    if tokio::time::timeout(DRAIN, edge.close()).await.is_err() {
        tracing::warn!(
            seconds = DRAIN.as_secs(),
            "calls are still at work; stopping without them"
        );
    }
    // An error says that the time is over.
    let _ = tokio::time::timeout(FLUSH, grpc).await;
}

fn runtime(pools: usize) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(THREADS_BESIDE + THREADS_OF_POOL * pools)
        .enable_all()
        .build()
        .map_err(|error| Error::Internal(format!("cannot start threads: {error}")))
}

async fn bind_http(address: Option<SocketAddr>) -> Result<Option<TcpListener>> {
    let Some(address) = address else {
        return Ok(None);
    };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => Err(Error::invalid(
            "--http",
            format!("cannot listen on {address}: {error}"),
        )),
    }
}

/// The signals that stop the server.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From here on the signals no longer kill the process.
    fn on_signal() -> Result<Self> {
        let on = |kind| {
            signal(kind).map_err(|error| Error::Internal(format!("cannot catch signals: {error}")))
        };
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    async fn wait(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
    }
}

#[cfg(test)]
mod tests;
