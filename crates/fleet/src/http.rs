//! The pages for the probes of the kubelet, for people and for Prometheus.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::cluster::{Cluster, lock};
use crate::status::{self, Status};

/// The time without a round or a step after which the controller counts as hung. A request ends long before.
const HUNG: Duration = Duration::from_mins(5);

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

pub(crate) async fn serve(listener: TcpListener, cluster: Arc<Cluster>, pulse: Pulse) {
    let (of_nodes, of_metrics) = (Arc::clone(&cluster), Arc::clone(&cluster));
    let ready = async move || match cluster.missing().as_slice() {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        kinds => {
            let text = format!("has no current list of {}\n", kinds.join(", "));
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    };
    let nodes = async move || Json(Status::of(&of_nodes.view(), Instant::now()));
    let metrics = async move || {
        let status = Status::of(&of_metrics.view(), Instant::now());
        match status::metrics(&status) {
            Ok(text) => ([(CONTENT_TYPE, status::CONTENT_TYPE)], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    let alive = async move || {
        if pulse.is_alive() {
            (StatusCode::OK, "ok\n")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "hung\n")
        }
    };
    let router = Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/nodes", get(nodes))
        .route("/metrics", get(metrics));
    page::serve(listener, router).await;
}
