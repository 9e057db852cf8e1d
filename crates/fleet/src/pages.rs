//! The pages of the drivers: their answers, and the rounds in which they are read.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::header::AUTHORIZATION;
use axum::http::{Request, StatusCode};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use objects::inventory::Inventory;
use tokio::time::timeout;

use crate::answer::{PATIENCE, Page};
use crate::view::View;

/// How many pages are read at once, and the longest one: a page of 100,000 volumes has 12 MB.
const AT_ONCE: usize = 8;
const MAX_BYTES: usize = 24 << 20;

/// Reads pages.
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

    /// The pages of all nodes with a pod of the driver.
    pub(crate) async fn read(
        &self,
        pods: Vec<(String, Option<SocketAddr>)>,
    ) -> BTreeMap<String, Page> {
        let key = tokio::fs::read_to_string(&*self.key).await;
        let key = key.map_err(|error| format!("the key cannot be read: {error}"));
        let pages = stream::iter(pods).map(|(node, page)| {
            let key = key.clone();
            async move {
                let asked = Instant::now();
                let answer = match (key, page) {
                    (Ok(key), Some(page)) => self.page(&node, page, key.trim()).await,
                    (Err(problem), _) => Err(problem),
                    (_, None) => Err("the pod of the driver does not run".to_owned()),
                };
                (node, Page::new(asked, answer))
            }
        });
        let mut found = BTreeMap::new();
        let mut pages = pages.buffer_unordered(AT_ONCE);
        while let Some((node, page)) = pages.next().await {
            // During an update a node has two pods.
            if page.answer.is_ok() || !found.contains_key(&node) {
                found.insert(node, page);
            }
        }
        found
    }

    async fn page(&self, node: &str, page: SocketAddr, key: &str) -> Result<Inventory, String> {
        let request = Request::get(format!("http://{page}/inventory"));
        let request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        let request = request.body(Body::empty());
        let request =
            request.map_err(|_| "the key has characters that no header has".to_owned())?;
        let answer = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            read(node, status, &body)
        };
        let answer = timeout(PATIENCE, answer).await;
        answer.unwrap_or_else(|_| Err("does not answer".to_owned()))
    }
}

/// The inventory in an answer.
pub(crate) fn read(node: &str, status: StatusCode, body: &Bytes) -> Result<Inventory, String> {
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err("the driver has no inventory".to_owned()),
        StatusCode::UNAUTHORIZED => return Err("the driver has another key".to_owned()),
        status => return Err(format!("answers with status {}", status.as_u16())),
    }
    let inventory: Inventory =
        serde_json::from_slice(body).map_err(|_| "answers with no inventory".to_owned())?;
    if inventory.node.as_str() != node {
        return Err(format!("calls itself node {}", inventory.node));
    }
    Ok(inventory)
}

/// The pods of the driver by their nodes.
pub(crate) fn pods(view: &View) -> Vec<(String, Option<SocketAddr>)> {
    let pods = view.pods.values();
    pods.map(|pod| (pod.node.clone(), pod.page)).collect()
}
