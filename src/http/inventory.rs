//! `/inventory`: the volumes of the node for the controller. The ids of pools help to forge a disk, so the page asks for a
//! key.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

use crate::volume::Volumes;

/// The time that the state directory has to answer; a dead disk may take forever.
const PATIENCE: Duration = Duration::from_secs(5);

/// The fewest bytes of a key.
const MIN_KEY: usize = 16;

/// The key, and one lock, so that a dead disk of the state directory blocks one thread and not one for every request.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    key: Arc<PathBuf>,
    turn: Arc<Mutex<()>>,
}

impl Gate {
    /// The key is in a file, which a Secret may replace at any time.
    pub(super) fn new(key: PathBuf) -> Self {
        Self {
            key: Arc::new(key),
            turn: Arc::default(),
        }
    }

    pub(super) async fn answer(&self, headers: &HeaderMap, volumes: Arc<Volumes>) -> Response {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
        let given = given.unwrap_or_default().to_owned();
        let gate = self.clone();
        let answer = async move {
            let turn = gate.turn.lock_owned().await;
            let read = move || {
                let _turn = turn;
                let key = std::fs::read(&*gate.key);
                let key = key.map_err(|error| format!("the key cannot be read: {error}\n"))?;
                let key = key.trim_ascii();
                if key.len() < MIN_KEY {
                    return Err(format!("the key has fewer than {MIN_KEY} characters\n"));
                }
                if !same(key, &given) {
                    return Ok(None);
                }
                let inventory = volumes.inventory();
                inventory.map(Some).map_err(|error| format!("{error}\n"))
            };
            let read = tokio::task::spawn_blocking(read).await;
            read.unwrap_or_else(|_| Err("the inventory failed\n".to_owned()))
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(Some(inventory))) => Json(inventory).into_response(),
            Ok(Ok(None)) => {
                let text = "give the key of the chart's Secret as Authorization: Bearer KEY\n";
                (StatusCode::UNAUTHORIZED, text).into_response()
            }
            Ok(Err(problem)) => (StatusCode::SERVICE_UNAVAILABLE, problem).into_response(),
            Err(_) => {
                let text = "the state directory does not answer\n";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }
}

/// Compares in a time that does not depend on the place of the first difference.
fn same(key: &[u8], given: &[u8]) -> bool {
    let different = key.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
    key.len() == given.len() && different == 0
}
