//! `/inventory`: the volumes of the node for the controller. The ids of pools help to forge a disk, so the page answers only
//! requests that are signed with a key, and signs its answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use page::signature::{HEADER, Key, Refusal, Request, SCHEME};
use tokio::sync::Mutex;

use crate::volume::Volumes;

/// The time that the state directory has to answer; a dead disk may take forever.
const TIMEOUT: Duration = Duration::from_secs(5);

const UNSIGNED: &str = "sign the request with the key of the chart's Secret; a rootcellar-fleet that sends the key instead \
                        is too old for this driver\n";
const CLOCK: &str =
    "the request was signed more than five minutes ago, or one of the two clocks is wrong\n";

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
        let given = given.unwrap_or_default().to_owned();
        let gate = self.clone();
        let answer = async move {
            let turn = gate.turn.lock_owned().await;
            let read = move || {
                let _turn = turn;
                let key = std::fs::read(&*gate.key);
                let key = key.map_err(|error| format!("the key cannot be read: {error}\n"))?;
                let key = Key::new(&key).map_err(|error| format!("{error}\n"))?;
                answer(&key, &given, &volumes)
            };
            let read = tokio::task::spawn_blocking(read).await;
            read.unwrap_or_else(|_| Err("the inventory failed\n".to_owned()))
        };
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(problem)) => (StatusCode::SERVICE_UNAVAILABLE, problem).into_response(),
            Err(_) => {
                let text = "the state directory does not answer\n";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }
}

/// The answer to a request with this header.
fn answer(key: &Key, given: &[u8], volumes: &Volumes) -> Result<Response, String> {
    let now = SystemTime::now();
    let (request, status, content, body) =
        match Request::read(key, given, volumes.node().as_str(), now) {
            Ok(request) => {
                let inventory = volumes.inventory();
                let inventory = inventory.map_err(|error| format!("{error}\n"))?;
                let body = serde_json::to_vec(&inventory).map_err(|error| format!("{error}\n"))?;
                (request, StatusCode::OK, "application/json", body)
            }
            // Its signature has the time, so that the controller can name a wrong clock.
            Err(Refusal::Clock(request)) => {
                let body = CLOCK.as_bytes().to_vec();
                (request, StatusCode::UNAUTHORIZED, "text/plain", body)
            }
            Err(Refusal::Unsigned) => {
                let scheme = [(WWW_AUTHENTICATE, SCHEME)];
                return Ok((StatusCode::UNAUTHORIZED, scheme, UNSIGNED).into_response());
            }
        };
    let signature = request.signature(key, &body, SystemTime::now());
    let headers = [
        (CONTENT_TYPE.as_str(), content),
        (HEADER, signature.as_str()),
    ];
    Ok((status, headers, body).into_response())
}
