//! The server: a Unix socket for the CO, optional pages for health and metrics, and the order in which
//! they start and stop.

mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::map_response;
use linux::mount::MountWatch;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_stream::StreamExt as _;
use tonic::Status;
use tonic::transport::Server;

use crate::admin::admin_server::{self, AdminServer};
use crate::config::{Config, Configured};
use crate::csi::controller_server::{self, ControllerServer};
use crate::csi::identity_server::{self, IdentityServer};
use crate::csi::node_server::{self, NodeServer};
use crate::error::{Error, Result};
use crate::http;
use crate::metrics::Metrics;
use crate::rpc::{
    AdminService, ControllerService, Edge, IdentityService, NodeService, Plugin, Topology,
    until_sent,
};
use crate::volume::{MEMBER_WAIT, Settings, TIMEOUT, Volumes};
use pool::{CALLS_AT_ONCE, COPIES_WAITING, Pool};

use socket::{Check, Connections, Endpoint};

/// Threads for the sockets; the work is done on the blocking pool. With a second one, every call would
/// wake it for nothing.
const WORKERS: usize = 1;

/// Threads for each pool, all of which its disk may block: one for each call, one for health checks, one for metrics and
/// one for trims. Those of copies that wait for their turn come in addition.
const THREADS_OF_POOL: usize = CALLS_AT_ONCE + COPIES_WAITING + 3;

/// Threads for the work that needs no disk: loading, unpublishing, and calls that are answered from memory.
const OTHER_THREADS: usize = 64;

/// The number of members for which a set has threads, if their disks all hang.
const MEMBERS: usize = 128;

/// The interval of two rounds of health checks, and of two checks of the socket.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The most pools in a round, so that many cost no more than twenty.
const CHECKS: usize = 20;

/// The interval of trims: long, because they can wait, and each delays the writes of pods for a moment.
const TRIM_EVERY: Duration = Duration::from_hours(1);

/// The longest time between two searches for members of sets: a member that was retired leaves without
/// a change of a mount.
const DISCOVER_EVERY: Duration = Duration::from_mins(1);

/// The pause after a search, because pods mount and unmount often.
const DISCOVER_PAUSE: Duration = Duration::from_secs(1);

/// The directory below kubelet's in which it finds the sockets of registrars.
const REGISTRATIONS: &str = "plugins_registry";

/// The time that calls have to end when the server stops.
const DRAIN: Duration = Duration::from_secs(30);

/// The time that the last responses have to reach their clients.
const FLUSH: Duration = Duration::from_secs(1);

/// Serves the pools of the configuration until a signal, or until no pool can be served.
pub fn run(config: Config, Configured { pools, sets }: Configured) -> Result<()> {
    let (key, value) = (config.driver.topology_key, config.node.topology_value());
    let topology = format!("{key}={value}");
    let socket = format!("{}-reg.sock", config.driver.driver_name);
    let registration = config.kubelet_dir.join(REGISTRATIONS).join(socket);
    let plugin = Plugin {
        driver_name: config.driver.driver_name,
        topology: Topology { key, value },
        node: config.node.clone(),
    };
    let most_pools = pools.len() + MEMBERS * sets.len();
    let volumes = Arc::new(Volumes::new(Settings {
        node: config.node,
        topology,
        kubelet_dir: config.kubelet_dir,
        processes: config.processes,
        cgroup: config.cgroup.place(),
        state_dir: config.state.state_dir,
        pools,
        sets,
        member_wait: MEMBER_WAIT,
        lock_wait: Duration::from_secs(config.lock_wait),
        timeout: TIMEOUT,
    })?);
    let runtime = runtime(most_pools)?;
    let served = runtime.block_on(async {
        let stop = stop_signal()?;
        let http = config.http.map(bind_http).transpose()?;
        let files = http::Files {
            key: config.inventory_key,
            registration,
        };
        let http = http.map(|listener| http::Server { listener, files });
        let (endpoint, listener) = Endpoint::bind(&config.endpoint).await?;
        tracing::info!(endpoint = %config.endpoint.display(), "serving");
        let endpoint = Arc::new(endpoint);
        let socket = (Arc::clone(&endpoint), listener);
        let served = serve(socket, http, plugin, Arc::clone(&volumes), stop).await;
        endpoint.remove().await;
        served
    });
    volumes.stop();
    // Nothing waits for calls that outlast the drain, or for a thread that waits for a pool's lock.
    runtime.shutdown_background();
    served
}

/// Serves on sockets that are bound already until `shutdown` ends; returns when the calls have ended.
async fn serve(
    (endpoint, listener): (Arc<Endpoint>, UnixListener),
    http: Option<http::Server>,
    plugin: Plugin,
    volumes: Arc<Volumes>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let metrics = Arc::new(Metrics::new(plugin.node.clone()));
    let edge = Arc::new(Edge::new(
        plugin,
        Arc::clone(&volumes),
        Arc::clone(&metrics),
    ));
    let (stop, stopped) = oneshot::channel();
    let (remaking, remade) = mpsc::channel(1);
    let connections = Connections { listener, remade };
    let mut grpc = tokio::spawn(serve_grpc(connections, Arc::clone(&edge), stopped));
    let (losing, lost) = watch::channel(None);
    let pages = |server| http::serve(server, Arc::clone(&volumes), metrics, lost);
    let http = http.map(|server| tokio::spawn(pages(server)));
    let served = tokio::select! {
        () = shutdown => Ok(()),
        error = check_pools(Arc::clone(&volumes)) => Err(error),
        error = check_socket(endpoint, remaking, losing) => Err(error),
        ended = &mut grpc => Err(closed(ended)),
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

/// The error of a socket that does not accept connections any more.
fn closed(ended: Result<Result<(), tonic::transport::Error>, JoinError>) -> Error {
    let why = match ended {
        Ok(Ok(())) => "nobody stopped it".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic.to_string(),
    };
    Error::Internal(format!("the socket is closed: {why}"))
}

async fn serve_grpc(
    connections: Connections,
    edge: Arc<Edge>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), tonic::transport::Error> {
    // Without free file descriptors, the same connection fails again and again.
    let incoming = connections.then(async |accepted| {
        if accepted.is_err() {
            tokio::time::sleep(page::ACCEPT_PAUSE).await;
        }
        accepted
    });
    let stopped = async {
        // An error says that the sender was dropped, which means the same.
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
        .layer(map_response(until_sent))
}

/// Checks the socket forever, each time in a thread that its directory's disk may block. Sends a listener that
/// has replaced the last one, and the reason why the path does not lead to this server. Returns the reason to stop.
async fn check_socket(
    endpoint: Arc<Endpoint>,
    remaking: mpsc::Sender<UnixListener>,
    losing: watch::Sender<Option<String>>,
) -> Error {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let (endpoint, handle) = (Arc::clone(&endpoint), Handle::current());
        let check = move || handle.block_on(endpoint.check());
        let reason = match tokio::task::spawn_blocking(check).await {
            Ok(Check::Ours) => None,
            Ok(Check::Remade(listener)) => {
                tracing::warn!(
                    "no server listened at the endpoint any more, so this server made its socket again"
                );
                if remaking.send(listener).await.is_err() {
                    return Error::Internal("nobody accepts connections any more".into());
                }
                None
            }
            Ok(Check::Lost(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("the check of the socket failed: {panic}")),
        };
        losing.send_if_modified(|known| {
            let is_new = *known != reason;
            match &reason {
                Some(reason) if is_new => tracing::error!(reason, "the socket is lost"),
                None if is_new => tracing::info!("the socket is this server's again"),
                _ => {}
            }
            *known = reason;
            is_new
        });
    }
}

/// Loads the records, then checks the health of the pools and finds members of sets forever. Returns
/// the reason to stop.
async fn check_pools(volumes: Arc<Volumes>) -> Error {
    let loading = Arc::clone(&volumes);
    match tokio::task::spawn_blocking(move || loading.load()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return error,
        Err(panic) => return Error::Internal(format!("loading: {panic}")),
    }
    tokio::select! {
        () = check_in_turn(&volumes) => Error::Internal("the health checks ended".into()),
        () = trim_regularly(&volumes, TRIM_EVERY) => Error::Internal("the trims ended".into()),
        error = discover(&volumes) => error,
    }
}

/// Checks the pools in rounds, and those of a round one after the other in one thread, because a thread
/// for each would cost more than its check. A disk that hangs delays the others once: the next round
/// passes over it.
async fn check_in_turn(volumes: &Arc<Volumes>) {
    let mut turn = 0_usize;
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let pools = volumes.pools();
        let count = pools.len().min(CHECKS);
        let first = turn.checked_rem(pools.len()).unwrap_or_default();
        let due = pools.iter().cycle().skip(first).take(count);
        check(volumes, due.cloned().collect());
        turn = first + count;
    }
}

/// Begins the check of pools. A pool that is being checked is passed over.
fn check(volumes: &Arc<Volumes>, pools: Vec<Arc<Pool>>) {
    let volumes = Arc::clone(volumes);
    tokio::spawn(async move {
        let check = move || pools.iter().for_each(|pool| volumes.check_pool(pool));
        if let Err(panic) = tokio::task::spawn_blocking(check).await {
            tracing::error!(%panic, "the health check of a pool failed");
        }
    });
}

/// Trims images, those of each pool in a thread of its own, which its disk may block.
async fn trim_regularly(volumes: &Arc<Volumes>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        for pool in volumes
            .pools()
            .iter()
            .filter(|pool| volumes.has_trims(pool))
        {
            let (volumes, pool) = (Arc::clone(volumes), Arc::clone(pool));
            tokio::spawn(async move {
                let trim = move || volumes.trim_images(&pool);
                if let Err(panic) = tokio::task::spawn_blocking(trim).await {
                    tracing::error!(%panic, "the trim of a pool failed");
                }
            });
        }
    }
}

/// Finds members of sets whenever a mount changes, and checks those that changed. Returns the reason
/// to stop.
async fn discover(volumes: &Arc<Volumes>) -> Error {
    if !volumes.has_sets() {
        return std::future::pending().await;
    }
    let watch = match MountWatch::new() {
        Ok(watch) => Arc::new(watch),
        Err(error) => return Error::Internal(format!("cannot watch the mounts: {error}")),
    };
    loop {
        let (searching, watch) = (Arc::clone(volumes), Arc::clone(&watch));
        match tokio::task::spawn_blocking(move || searching.discover()).await {
            Ok(Ok(changed)) => {
                for pool in changed {
                    check(volumes, vec![pool]);
                }
            }
            Ok(Err(error)) => tracing::error!(%error, "cannot find the members of pool sets"),
            Err(panic) => tracing::error!(%panic, "cannot find the members of pool sets"),
        }
        tokio::time::sleep(DISCOVER_PAUSE).await;
        let waited = tokio::task::spawn_blocking(move || watch.wait(DISCOVER_EVERY)).await;
        if let Err(panic) = waited {
            return Error::Internal(format!("cannot wait for mounts: {panic}"));
        }
    }
}

/// Waits for the calls and for their responses to leave, but not for idle peers.
async fn drain(grpc: JoinHandle<Result<(), tonic::transport::Error>>, edge: &Edge) {
    if tokio::time::timeout(DRAIN, edge.close()).await.is_err() {
        let seconds = DRAIN.as_secs();
        tracing::warn!(
            seconds,
            "calls are still running, and the driver stops without waiting for them"
        );
    }
    // An error says that the time is over.
    let _ = tokio::time::timeout(FLUSH, grpc).await;
}

fn runtime(pools: usize) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(OTHER_THREADS + THREADS_OF_POOL * pools)
        .enable_all()
        .build()
        .map_err(|error| Error::Internal(format!("cannot start threads: {error}")))
}

fn bind_http(address: SocketAddr) -> Result<TcpListener> {
    page::listen(address)
        .map_err(|error| Error::invalid("--http", format!("cannot listen on {address}: {error}")))
}

/// Catches SIGTERM and SIGINT, which kill the process no more, and waits for one of them.
fn stop_signal() -> Result<impl Future<Output = ()>> {
    let catch = |kind| {
        signal(kind).map_err(|error| Error::Internal(format!("cannot catch signals: {error}")))
    };
    let mut terminate = catch(SignalKind::terminate())?;
    let mut interrupt = catch(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
    })
}

#[cfg(test)]
mod tests;
