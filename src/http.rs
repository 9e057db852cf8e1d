//! The pages for health, metrics and the inventory.

mod inventory;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderMap};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use linux::quota::Enforcement;
use linux::sync::lock;
use objects::{Audience, PoolName};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::metrics::{self, Metrics, Scrape};
use crate::volume::Volumes;
use pool::{PartMount, Pool, PoolView};

use inventory::Gate;

/// The time that a pool has to report its status; a dead disk may take forever.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time that the registrar has to accept a connection.
const REGISTRAR_TIMEOUT: Duration = Duration::from_secs(1);

/// The address of the pages, and the files that they read.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) files: Files,
}

#[derive(Debug, Default)]
pub(crate) struct Files {
    /// The file with the key of the inventory.
    pub(crate) key: Option<PathBuf>,
    /// The socket by which kubelet finds the driver.
    pub(crate) registration: PathBuf,
}

#[derive(Debug, Clone)]
struct Page {
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
    turns: Turns,
    /// None: there is no inventory.
    gate: Option<Gate>,
    registration: Arc<Path>,
    lost: Lost,
}

/// The reason why the socket's path does not lead to this server, if it does not.
pub(crate) type Lost = watch::Receiver<Option<String>>;

/// One lock for each pool that was scraped. It is locked during a report, so that a dead disk blocks one
/// thread and not one for every request.
type Turns = Arc<std::sync::Mutex<BTreeMap<PoolName, Arc<Mutex<()>>>>>;

#[derive(Debug, Clone)]
struct Scraped {
    pool: Arc<Pool>,
    turn: Arc<Mutex<()>>,
}

/// Serves the pages forever; the inventory only with the key in a file.
pub(crate) async fn serve(
    Server { listener, files }: Server,
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
    lost: Lost,
) {
    let page = Page::new(volumes, metrics, files, lost);
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .route("/inventory", get(inventory))
        .with_state(page);
    page::serve(listener, router).await;
}

impl Page {
    fn new(volumes: Arc<Volumes>, metrics: Arc<Metrics>, files: Files, lost: Lost) -> Self {
        Self {
            volumes,
            metrics,
            turns: Turns::default(),
            gate: files.key.map(Gate::new),
            registration: files.registration.into(),
            lost,
        }
    }

    fn scraped(&self) -> Vec<Scraped> {
        let mut turns = lock(&self.turns);
        let pools = self.volumes.pools();
        turns.retain(|name, _| pools.iter().any(|pool| pool.name() == name));
        let scraped = pools.iter().map(|pool| Scraped {
            pool: Arc::clone(pool),
            turn: Arc::clone(turns.entry(pool.name().clone()).or_default()),
        });
        scraped.collect()
    }
}

impl Scraped {
    /// The view with the free space of now; without an answer of its disk, only the part that is in memory.
    async fn measured_view(self) -> PoolView {
        let Self { pool, turn } = self;
        if pool.silence().is_some() {
            return pool.view();
        }
        let reported = Arc::clone(&pool);
        let view = async {
            let turn = turn.lock_owned().await;
            let report = move || {
                let _turn = turn;
                reported.measured_view()
            };
            tokio::task::spawn_blocking(report).await
        };
        match tokio::time::timeout(TIMEOUT, view).await {
            Ok(Ok(view)) => view,
            Ok(Err(_)) | Err(_) => pool.view(),
        }
    }
}

/// Fails only while no new call can reach the server, so that the kubelet restarts it.
async fn healthz(State(page): State<Page>) -> (StatusCode, String) {
    match &*page.lost.borrow() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("no call reaches the driver: {reason}\n"),
        ),
    }
}

async fn readyz(State(page): State<Page>) -> (StatusCode, String) {
    // No pool's disk is asked, because a dead one would not answer.
    let pools = page.volumes.pools();
    let pools: Vec<_> = { pools.iter() }
        .map(|pool| (pool.name().clone(), pool.view()))
        .collect();
    let parts = page.volumes.part_mounts();
    readiness(page.volumes.is_loaded(), &pools, &parts)
}

async fn inventory(State(page): State<Page>, headers: HeaderMap) -> Response {
    let Some(gate) = &page.gate else {
        let text = "the driver runs without --inventory-key\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    gate.answer(&headers, Arc::clone(&page.volumes)).await
}

async fn metrics_text(State(page): State<Page>) -> Response {
    // They end with the request, or a peer that hangs up again and again would leave many.
    let mut scrapes = JoinSet::new();
    for scraped in page.scraped() {
        let name = scraped.pool.name().clone();
        scrapes.spawn(async move { (name, scraped.measured_view().await) });
    }
    let mut statuses = BTreeMap::new();
    while let Some(scrape) = scrapes.join_next().await {
        statuses.extend(scrape);
    }
    // Sysfs asks no disk, but a node may have many images.
    let volumes = Arc::clone(&page.volumes);
    let images = tokio::task::spawn_blocking(move || volumes.image_statistics()).await;
    let images = images.unwrap_or_default();
    let scrape = Scrape {
        pools: statuses.into_iter().collect(),
        images,
        registered: registered(&page.registration).await,
    };
    match page.metrics.text(scrape) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Whether the registrar accepts connections on its socket; `None`: kubelet has no directory for sockets there.
async fn registered(socket: &Path) -> Option<bool> {
    // Without the node's own disk, on which the directory is, nothing works here.
    socket.parent().filter(|directory| directory.is_dir())?;
    let connected = tokio::time::timeout(REGISTRAR_TIMEOUT, UnixStream::connect(socket)).await;
    Some(connected.is_ok_and(|connected| connected.is_ok()))
}

/// The driver is ready when it has loaded its records. An unavailable pool does not make it unready,
/// because one dead disk would then stop the rollout of a cluster.
fn readiness(
    loaded: bool,
    pools: &[(PoolName, PoolView)],
    parts: &[PartMount],
) -> (StatusCode, String) {
    let mut text = String::new();
    if !loaded {
        text.push_str("loading\n");
    }
    for (name, pool) in pools {
        // Writing to a string does not fail.
        let _ = match pool.why_unusable() {
            Some(reason) => {
                let (state, cause) = (reason.state(), reason.cause(Audience::Everyone));
                writeln!(text, "pool {name}: {state}: {cause}")
            }
            None if pool.enforcement == Enforcement::None => writeln!(
                text,
                "pool {name}: healthy\npool {name}: sizes are not enforced; `rootcellar check` says why"
            ),
            None => writeln!(text, "pool {name}: healthy"),
        };
        if pool.cordoned {
            let _ = writeln!(
                text,
                "pool {name}: cordoned; `rootcellar pool uncordon {name}` ends that"
            );
        }
    }
    for part in parts {
        let _ = writeln!(text, "pool set {}: {part}", part.set);
    }
    if pools.is_empty() {
        text.push_str(
            "no pool is here; configure one, or mount a disk below the directory of a pool set\n",
        );
    }
    let code = if loaded {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::Settings;
    use pool::Unavailable;

    fn healthy() -> (PoolName, PoolView) {
        let enforcement = Enforcement::Project;
        named(
            "fast",
            PoolView {
                enforcement,
                ..PoolView::default()
            },
        )
    }

    fn unavailable() -> (PoolName, PoolView) {
        let view = PoolView {
            unavailable: Some(Unavailable::ReadOnly),
            cordoned: true,
            ..PoolView::default()
        };
        named("slow", view)
    }

    fn silent() -> (PoolName, PoolView) {
        let silence = Some(Duration::from_secs(31));
        named(
            "hung",
            PoolView {
                silence,
                ..PoolView::default()
            },
        )
    }

    fn named(name: &str, view: PoolView) -> (PoolName, PoolView) {
        (name.parse().unwrap(), view)
    }

    #[test]
    fn readyz_reports_each_pool() {
        let cases = [
            // loaded, pools, code, text
            (
                true,
                vec![],
                200,
                "no pool is here; configure one, or mount a disk below the directory of a pool set\n",
            ),
            (
                false,
                vec![],
                503,
                "loading\nno pool is here; configure one, or mount a disk below the directory of a pool set\n",
            ),
            (true, vec![healthy()], 200, "pool fast: healthy\n"),
            (false, vec![healthy()], 503, "loading\npool fast: healthy\n"),
            (
                true,
                vec![healthy(), unavailable()],
                200,
                "pool fast: healthy\npool slow: unavailable: its filesystem is read-only\n\
                 pool slow: cordoned; `rootcellar pool uncordon slow` ends that\n",
            ),
            (
                true,
                vec![named("big", PoolView::default())],
                200,
                "pool big: healthy\npool big: sizes are not enforced; `rootcellar check` says why\n",
            ),
            (
                true,
                vec![silent()],
                200,
                "pool hung: not answering: its disk has not answered for 31 s; examine the disk and the \
                 kernel's log\n",
            ),
        ];
        for (loaded, pools, code, text) in cases {
            let (got_code, got_text) = readiness(loaded, &pools, &[]);
            assert_eq!((got_code.as_u16(), got_text.as_str()), (code, text));
        }
    }

    /// The page of a server with one pool.
    fn page() -> (tempfile::TempDir, Page) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        std::fs::create_dir(&path).unwrap();
        let pool = format!("fast={},init,any-filesystem", path.display());
        let settings = Settings {
            node: "n1".parse().unwrap(),
            topology: "topology.example/node=n1".into(),
            kubelet_dir: dir.path().to_owned(),
            processes: "/proc".into(),
            cgroup: linux::io::CgroupPlace::default(),
            state_dir: dir.path().join("state"),
            pools: vec![pool.parse().unwrap()],
            sets: Vec::new(),
            member_wait: crate::volume::MEMBER_WAIT,
            lock_wait: Duration::ZERO,
            timeout: crate::volume::TIMEOUT,
        };
        let volumes = Arc::new(Volumes::new(settings).unwrap());
        volumes.load().unwrap();
        (
            dir,
            Page::new(
                volumes,
                Arc::new(Metrics::new("n1".parse().unwrap())),
                Files::default(),
                watch::channel(None).1,
            ),
        )
    }

    /// Proves: SV12.
    #[tokio::test]
    async fn the_registration_is_lost_without_a_listener() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("registry/csi.example-reg.sock");
        assert_eq!(registered(&socket).await, None, "no kubelet");
        std::fs::create_dir(dir.path().join("registry")).unwrap();
        assert_eq!(registered(&socket).await, Some(false), "no socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(registered(&socket).await, Some(true));
        drop(listener);
        assert_eq!(registered(&socket).await, Some(false), "a dead socket");
    }

    /// Proves: SV7.
    #[tokio::test]
    async fn readyz_waits_for_no_disk() {
        let (_dir, page) = page();
        // As a request does that a dead disk blocks.
        let turn = Arc::clone(&page.scraped()[0].turn).lock_owned().await;
        let answer = readyz(State(page)).await;
        let (code, text) = answer;
        assert_eq!(code, StatusCode::OK);
        assert!(text.starts_with("pool fast: healthy\n"), "{text}");
        drop(turn);
    }

    /// Proves: SV8.
    #[tokio::test]
    async fn a_scrape_ends_with_its_request() {
        let (_dir, page) = page();
        let turn = Arc::clone(&page.scraped()[0].turn).lock_owned().await;
        let tasks = tokio::runtime::Handle::current().metrics();
        let before = tasks.num_alive_tasks();
        let mut request = Box::pin(metrics_text(State(page)));
        tokio::select! {
            biased;
            _ = &mut request => panic!("it does not wait for the other scrape"),
            () = tokio::task::yield_now() => {}
        }
        assert!(tasks.num_alive_tasks() > before);
        drop(request);
        while tasks.num_alive_tasks() > before {
            tokio::task::yield_now().await;
        }
        drop(turn);
    }
}
