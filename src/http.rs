//! The health and metrics page.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::metrics::{self, Metrics};
use crate::pool::{Pool, PoolStatus, Unavailable};
use crate::quota::Enforcement;
use crate::types::PoolName;
use crate::volume::Volumes;

/// How long the pools may take to say how they are; a dead disk may take for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the page tells of.
#[derive(Debug, Clone)]
struct Page {
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
    pools: Vec<Asked>,
}

/// A pool that is asked how it is.
#[derive(Debug, Clone)]
struct Asked {
    pool: Arc<Pool>,
    /// Held while it is asked, so that a dead disk keeps one thread and not one for every visitor.
    turn: Arc<Mutex<()>>,
}

/// Serves the page for ever.
pub(crate) async fn serve(
    listener: TcpListener,
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
) -> io::Result<()> {
    let page = Page::new(volumes, metrics);
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(page);
    axum::serve(listener, router).await
}

impl Page {
    fn new(volumes: Arc<Volumes>, metrics: Arc<Metrics>) -> Self {
        let asked = |pool| Asked {
            pool: Arc::clone(pool),
            turn: Arc::default(),
        };
        Self {
            pools: volumes.pools().iter().map(asked).collect(),
            volumes,
            metrics,
        }
    }
}

impl Asked {
    /// The pool's status: its own answer, or the part that is known without one.
    async fn status(self) -> PoolStatus {
        let Self { pool, turn } = self;
        if pool.silence().is_some() {
            return pool.remembered();
        }
        let asked = Arc::clone(&pool);
        let answer = async {
            let turn = turn.lock_owned().await;
            let ask = move || {
                let _turn = turn;
                asked.status()
            };
            tokio::task::spawn_blocking(ask).await
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(status)) => status,
            Ok(Err(_)) | Err(_) => pool.remembered(),
        }
    }
}

async fn readyz(State(page): State<Page>) -> (StatusCode, String) {
    // What is known of the pools, for a dead disk would not answer, and many volumes not soon.
    let pools = page.volumes.pools().iter();
    let pools = pools.map(|pool| {
        let unenforced = pool.enforcement() == Enforcement::None;
        let name = pool.name().clone();
        (name, pool.why_unavailable(), pool.silence(), unenforced)
    });
    readiness(page.volumes.is_loaded(), &pools.collect::<Vec<_>>())
}

async fn metrics_text(State(page): State<Page>) -> Response {
    let pools = page.pools.iter();
    let asked: Vec<_> = pools
        .map(|asked| tokio::spawn(asked.clone().status()))
        .collect();
    let mut statuses = Vec::with_capacity(asked.len());
    for (asked, status) in page.pools.iter().zip(asked) {
        statuses.push(status.await.unwrap_or_else(|_| asked.pool.remembered()));
    }
    match page.metrics.text(statuses) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Why a pool cannot be used, how long its disk has not answered, and whether it enforces no sizes.
type Health = (PoolName, Option<Unavailable>, Option<Duration>, bool);

/// Ready is a driver that has loaded its records. An unavailable pool is named and does not make it
/// unready: one dead disk would otherwise hold up the rollout of a whole cluster.
fn readiness(loaded: bool, pools: &[Health]) -> (StatusCode, String) {
    let mut text = String::new();
    if !loaded {
        text.push_str("loading\n");
    }
    for (name, unavailable, silence, unenforced) in pools {
        // Writing to a string does not fail.
        let _ = match (unavailable, silence) {
            (Some(reason), _) => writeln!(text, "pool {name}: unavailable: {reason}"),
            (None, Some(silence)) => writeln!(
                text,
                "pool {name}: not answering: an operation on its disk has not returned for {} s; \
                 look at the disk and at the kernel's log",
                silence.as_secs()
            ),
            (None, None) => writeln!(text, "pool {name}: healthy"),
        };
        if *unenforced && unavailable.is_none() && silence.is_none() {
            let _ = writeln!(
                text,
                "pool {name}: sizes are not enforced; `rootcellar check` says why"
            );
        }
    }
    if pools.is_empty() {
        text.push_str("no pool is configured\n");
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

    #[test]
    fn readyz_tells_the_pools_apart() {
        let healthy = || ("fast".parse().unwrap(), None, None, false);
        let unenforced = || ("big".parse().unwrap(), None, None, true);
        let read_only = Some(Unavailable::ReadOnly);
        let unavailable = || ("slow".parse().unwrap(), read_only.clone(), None, true);
        let long = Some(Duration::from_secs(31));
        let silent = || ("hung".parse().unwrap(), None, long, true);
        let cases = [
            // loaded, pools, code, text
            (true, vec![], 200, "no pool is configured\n"),
            (false, vec![], 503, "loading\nno pool is configured\n"),
            (true, vec![healthy()], 200, "pool fast: healthy\n"),
            (false, vec![healthy()], 503, "loading\npool fast: healthy\n"),
            (
                true,
                vec![healthy(), unavailable()],
                200,
                "pool fast: healthy\npool slow: unavailable: its filesystem is read-only\n",
            ),
            (
                true,
                vec![unenforced()],
                200,
                "pool big: healthy\npool big: sizes are not enforced; `rootcellar check` says why\n",
            ),
            (
                true,
                vec![silent()],
                200,
                "pool hung: not answering: an operation on its disk has not returned for 31 s; \
                 look at the disk and at the kernel's log\n",
            ),
        ];
        for (loaded, pools, code, text) in cases {
            let (got_code, got_text) = readiness(loaded, &pools);
            assert_eq!((got_code.as_u16(), got_text.as_str()), (code, text));
        }
    }

    /// Proves: SV7.
    #[tokio::test]
    async fn readyz_waits_for_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        std::fs::create_dir(&path).unwrap();
        let pool = format!("fast={},init,any-filesystem", path.display());
        let settings = Settings {
            node: "n1".parse().unwrap(),
            topology: "topology.example/node=n1".into(),
            kubelet_dir: dir.path().to_owned(),
            state_dir: dir.path().join("state"),
            pools: vec![pool.parse().unwrap()],
            lock_wait: Duration::ZERO,
            patience: crate::volume::PATIENCE,
        };
        let volumes = Arc::new(Volumes::new(settings).unwrap());
        volumes.load().unwrap();
        let page = Page::new(volumes, Arc::new(Metrics::new()));
        // As a visitor does whom a dead disk keeps.
        let kept = Arc::clone(&page.pools[0].turn).lock_owned().await;
        let answer = readyz(State(page)).await;
        let (code, text) = answer;
        assert_eq!(code, StatusCode::OK);
        assert!(text.starts_with("pool fast: healthy\n"), "{text}");
        drop(kept);
    }
}
