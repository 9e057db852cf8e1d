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
use crate::pool::PoolStatus;
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
    let loaded = page.volumes.is_loaded();
    let pools = page.ask(|page| {
        let pools = page.volumes.pools();
        pools.iter().map(|pool| pool.status()).collect::<Vec<_>>()
    });
    readiness(loaded, pools.await.as_deref())
}

async fn metrics_text(State(page): State<Page>) -> Response {
    match page.ask(|page| page.metrics.text()).await {
        Some(Ok(text)) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, no_answer()).into_response(),
    }
}

fn no_answer() -> String {
    format!(
        "the pools did not say within {} s how they are\n",
        PATIENCE.as_secs()
    )
}

/// Ready is a driver that has loaded its records. A sick pool is named and does not make it
/// unready: one dead disk would otherwise hold up the rollout of a whole cluster.
fn readiness(loaded: bool, pools: Option<&[PoolStatus]>) -> (StatusCode, String) {
    let mut text = String::new();
    if !loaded {
        text.push_str("loading\n");
    }
    for pool in pools.unwrap_or_default() {
        let name = &pool.name;
        // Writing to a string does not fail.
        let _ = match &pool.sickness {
            None => writeln!(text, "pool {name}: healthy"),
            Some(reason) => writeln!(text, "pool {name}: sick: {reason}"),
        };
    }
    match pools {
        Some([]) => text.push_str("no pool is configured\n"),
        Some(_) => {}
        None => text.push_str(&no_answer()),
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
    use crate::pool::Sickness;
    use crate::types::Bytes;

    fn pool(name: &str, sickness: Option<Sickness>) -> PoolStatus {
        PoolStatus {
            name: name.parse().unwrap(),
            path: format!("/pools/{name}").into(),
            id: None,
            sickness,
            filesystem: String::new(),
            total: Bytes::ZERO,
            available: Bytes::ZERO,
            reserved: Bytes::ZERO,
            enforcement: crate::quota::Enforcement::None,
            unheld: 0,
            limits_restored: 0,
            volumes: 0,
            snapshots: 1,
            quarantined: 0,
            trash: 0,
            resisting: 0,
            copies: 1,
            copied_entries: 7,
            copied_bytes: Bytes(4096),
            reclaimed: 0,
        }
    }

    #[test]
    fn readyz_tells_the_pools_apart() {
        let healthy = || pool("fast", None);
        let sick = || pool("slow", Some(Sickness::ReadOnly));
        let cases = [
            // loaded, pools, code, text
            (true, Some(vec![]), 200, "no pool is configured\n"),
            (false, Some(vec![]), 503, "loading\nno pool is configured\n"),
            (true, Some(vec![healthy()]), 200, "pool fast: healthy\n"),
            (
                false,
                Some(vec![healthy()]),
                503,
                "loading\npool fast: healthy\n",
            ),
            (
                true,
                None,
                200,
                "the pools did not say within 5 s how they are\n",
            ),
            (
                true,
                Some(vec![healthy(), sick()]),
                200,
                "pool fast: healthy\npool slow: sick: its filesystem is read-only\n",
            ),
        ];
        for (loaded, pools, code, text) in cases {
            let (got_code, got_text) = readiness(loaded, pools.as_deref());
            assert_eq!((got_code.as_u16(), got_text.as_str()), (code, text));
        }
    }
}
