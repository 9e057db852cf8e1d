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
use crate::pool::Sickness;
use crate::types::PoolName;
use crate::volume::Volumes;

/// How long the pools may take to say how they are; a dead disk may take for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the page tells of.
#[derive(Debug, Clone)]
struct Page {
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
    /// Held while the pools are asked, so that a dead disk holds one thread and not one for
    /// every visitor.
    asking: Arc<Mutex<()>>,
}

/// Serves the page for ever.
pub(crate) async fn serve(
    listener: TcpListener,
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
) -> io::Result<()> {
    let page = Page {
        volumes,
        metrics,
        asking: Arc::default(),
    };
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(page);
    axum::serve(listener, router).await
}

impl Page {
    /// Runs something that asks the pools; nothing if they do not answer.
    async fn ask<T, F>(self, question: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(&Page) -> T + Send + 'static,
    {
        let answer = async {
            let turn = Arc::clone(&self.asking).lock_owned().await;
            tokio::task::spawn_blocking(move || {
                let _turn = turn;
                question(&self)
            })
            .await
        };
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    }
}

async fn readyz(State(page): State<Page>) -> (StatusCode, String) {
    // What is known of the pools, for a dead disk would not answer, and many volumes not soon.
    let pools = page.volumes.pools().iter();
    let pools = pools.map(|pool| (pool.name().clone(), pool.sickness()));
    readiness(page.volumes.is_loaded(), &pools.collect::<Vec<_>>())
}

async fn metrics_text(State(page): State<Page>) -> Response {
    match page.ask(|page| page.metrics.text()).await {
        Some(Ok(text)) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        None => {
            let patience = PATIENCE.as_secs();
            let text = format!("the pools did not say within {patience} s how they are\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// Ready is a driver that has loaded its records. A sick pool is named and does not make it
/// unready: one dead disk would otherwise hold up the rollout of a whole cluster.
fn readiness(loaded: bool, pools: &[(PoolName, Option<Sickness>)]) -> (StatusCode, String) {
    let mut text = String::new();
    if !loaded {
        text.push_str("loading\n");
    }
    for (name, sickness) in pools {
        // Writing to a string does not fail.
        let _ = match sickness {
            None => writeln!(text, "pool {name}: healthy"),
            Some(reason) => writeln!(text, "pool {name}: sick: {reason}"),
        };
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
        let healthy = || ("fast".parse().unwrap(), None);
        let sick = || ("slow".parse().unwrap(), Some(Sickness::ReadOnly));
        let cases = [
            // loaded, pools, code, text
            (true, vec![], 200, "no pool is configured\n"),
            (false, vec![], 503, "loading\nno pool is configured\n"),
            (true, vec![healthy()], 200, "pool fast: healthy\n"),
            (false, vec![healthy()], 503, "loading\npool fast: healthy\n"),
            (
                true,
                vec![healthy(), sick()],
                200,
                "pool fast: healthy\npool slow: sick: its filesystem is read-only\n",
            ),
        ];
        for (loaded, pools, code, text) in cases {
            let (got_code, got_text) = readiness(loaded, &pools);
            assert_eq!((got_code.as_u16(), got_text.as_str()), (code, text));
        }
    }

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
        };
        let volumes = Arc::new(Volumes::new(settings).unwrap());
        volumes.load().unwrap();
        let page = Page {
            metrics: Arc::new(Metrics::new(Arc::clone(&volumes))),
            volumes,
            asking: Arc::default(),
        };
        // As a visitor does whom a dead disk keeps.
        let kept = Arc::clone(&page.asking).lock_owned().await;
        let answer = readyz(State(page)).await;
        assert_eq!(answer, (StatusCode::OK, "pool fast: healthy\n".to_owned()));
        drop(kept);
    }
}
