//! The pages for the probes of the kubelet, for people and for Prometheus.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::runtime;
use tokio::task::{JoinError, spawn_blocking};

use crate::cluster::{Cluster, lock};
use crate::status::{self, Status};

/// The time without a round or a step after which the controller counts as hung. A request ends long before.
const HUNG: Duration = Duration::from_mins(5);

/// How long a text is shown before it is made again. That takes the lock of the view, which rounds need.
const FRESH: Duration = Duration::from_secs(1);

/// The last sign of life of the loop.
#[derive(Debug, Clone)]
pub(crate) struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    pub(crate) fn beat(&self) {
        *lock(&self.0) = Instant::now();
    }

    fn is_alive(&self) -> bool {
        lock(&self.0).elapsed() < HUNG
    }
}

/// Serves the pages on a thread of their own, where no probe waits for a round. Returns the address.
pub(crate) fn start(
    address: SocketAddr,
    cluster: &Arc<Cluster>,
    pulse: Pulse,
) -> io::Result<SocketAddr> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()?;
    let listener = {
        let _entered = runtime.enter();
        page::listen(address)?
    };
    let address = listener.local_addr()?;
    let router = router(cluster, pulse);
    let pages = thread::Builder::new().name("pages".to_owned());
    pages.spawn(move || runtime.block_on(page::serve(listener, router)))?;
    Ok(address)
}

fn router(cluster: &Arc<Cluster>, pulse: Pulse) -> Router {
    let of_nodes = Texts {
        cluster: Arc::clone(cluster),
        last: Arc::default(),
    };
    let (of_metrics, cluster) = (of_nodes.clone(), Arc::clone(cluster));
    let ready = async move || match cluster.missing().as_slice() {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        kinds => {
            let text = format!("has no current list of {}\n", kinds.join(", "));
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    };
    let nodes = async move || {
        of_nodes
            .answer("application/json", |text| &text.nodes)
            .await
    };
    let metrics = async move || {
        let of_metrics = of_metrics.answer(status::CONTENT_TYPE, |text| &text.metrics);
        of_metrics.await
    };
    let alive = async move || {
        if pulse.is_alive() {
            (StatusCode::OK, "ok\n")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "hung\n")
        }
    };
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/nodes", get(nodes))
        .route("/metrics", get(metrics))
}

/// The texts of the pages that show the view.
#[derive(Debug)]
struct Text {
    made: Instant,
    nodes: Result<Bytes, String>,
    metrics: Result<Bytes, String>,
}

impl Text {
    fn of(cluster: &Cluster) -> Self {
        let status = Status::of(&cluster.view(), Instant::now());
        let nodes = serde_json::to_vec(&status).map(Bytes::from);
        Self {
            nodes: nodes.map_err(|error| error.to_string()),
            metrics: status::metrics(&status)
                .map(Bytes::from)
                .map_err(|error| error.to_string()),
            made: Instant::now(),
        }
    }
}

/// Makes the texts for all requests, at most one at a time and once in [`FRESH`].
#[derive(Debug, Clone)]
struct Texts {
    cluster: Arc<Cluster>,
    last: Arc<tokio::sync::Mutex<Option<Arc<Text>>>>,
}

impl Texts {
    async fn answer(
        &self,
        kind: &'static str,
        of: fn(&Text) -> &Result<Bytes, String>,
    ) -> Response {
        let texts = self.clone();
        // A task of its own goes on after a client that leaves, so no client can have several texts made at once.
        let text = tokio::spawn(async move { texts.text().await }).await;
        match text.as_ref().map(|text| text.as_deref().map(of)) {
            Ok(Ok(Ok(text))) => ([(CONTENT_TYPE, kind)], text.clone()).into_response(),
            Ok(Ok(Err(error))) => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.clone()).into_response()
            }
            Ok(Err(error)) | Err(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
            }
        }
    }

    async fn text(&self) -> Result<Arc<Text>, JoinError> {
        let mut last = self.last.lock().await;
        if let Some(text) = &*last
            && text.made.elapsed() < FRESH
        {
            return Ok(Arc::clone(text));
        }
        let cluster = Arc::clone(&self.cluster);
        let text = Arc::new(spawn_blocking(move || Text::of(&cluster)).await?);
        *last = Some(Arc::clone(&text));
        Ok(text)
    }
}
