//! Reads the page of a driver. Request and answer are signed, so a pod that gets the address of a driver learns no key and is
//! not believed.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use objects::inventory::Inventory;
use page::signature::{self, Distrust, HEADER, Key, SCHEME};
use tokio::time::timeout;

use crate::answer::TIMEOUT;

/// The longest page: one of 100,000 volumes has 12 MB.
const MAX_BYTES: usize = 24 << 20;

#[derive(Clone)]
pub(crate) struct Reader {
    client: Client<HttpConnector, Body>,
    key: Arc<PathBuf>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// Reads with the key in a file, which a Secret may replace at any time.
    pub(crate) fn new(key: PathBuf) -> Self {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let key = Arc::new(key);
        Self { client, key }
    }

    /// The inventory of a node, as its driver at this address has signed it.
    pub(crate) async fn page(&self, node: &str, address: SocketAddr) -> Result<Inventory, String> {
        let key = tokio::fs::read(&*self.key).await;
        let key = key.map_err(|error| format!("the key cannot be read: {error}"))?;
        let key = Key::new(&key).map_err(|error| error.to_string())?;
        let answer = timeout(TIMEOUT, self.ask(&key, node, address)).await;
        answer.unwrap_or_else(|_| Err("the driver does not answer".to_owned()))
    }

    async fn ask(&self, key: &Key, node: &str, address: SocketAddr) -> Result<Inventory, String> {
        let signed = signature::Request::new(node, SystemTime::now());
        let request = Request::get(format!("http://{address}/inventory"));
        let request = request.header(AUTHORIZATION, signed.authorization(key));
        let request = request.body(Body::empty());
        let request = request.map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await;
        let (answer, body) = answer.map_err(|error| error.to_string())?.into_parts();
        let body = Limited::new(body, MAX_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        let value = answer.headers.get(HEADER);
        let value = value.map(HeaderValue::as_bytes).unwrap_or_default();
        match signed.verify(key, value, &body, SystemTime::now()) {
            Ok(()) if answer.status == StatusCode::OK => serde_json::from_slice(&body)
                .map_err(|_| "the answer is not an inventory".to_owned()),
            Ok(()) => Err(
                "the driver says that the request is too old; set both clocks to the same time"
                    .to_owned(),
            ),
            Err(Distrust::Unsigned) => Err(unsigned(answer.status, &answer.headers)),
            Err(Distrust::Ahead(by)) => Err(clock(node, by, "ahead of")),
            Err(Distrust::Behind(by)) => Err(clock(node, by, "behind")),
        }
    }
}

/// Why an answer has no inventory. Anybody may have given it, so nothing but its kind is repeated.
fn unsigned(status: StatusCode, headers: &HeaderMap) -> String {
    let knows_scheme = headers.get(WWW_AUTHENTICATE).is_some_and(|it| it == SCHEME);
    match status {
        StatusCode::OK => "the answer is not signed with the key".to_owned(),
        StatusCode::NOT_FOUND => "the driver has no inventory".to_owned(),
        StatusCode::UNAUTHORIZED if knows_scheme => {
            "the driver has another key, or another name of its node".to_owned()
        }
        StatusCode::UNAUTHORIZED => {
            "the driver is of a version that signs no inventory; update it".to_owned()
        }
        status => format!("the answer has status {}", status.as_u16()),
    }
}

fn clock(node: &str, by: Duration, side: &str) -> String {
    let minutes = by.as_secs() / 60;
    format!(
        "node {node} has a clock that is {minutes} minutes {side} the controller's; set both to the same time"
    )
}
