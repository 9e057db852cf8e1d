//! Lists from an API server.

use std::convert::Infallible;

use axum::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use kube::Client;
use kube::client::{Body, DynBody};

use super::*;
use crate::cluster::Cluster;
use crate::wire::{Careful, Kind};
use crate::write::Writer;

/// The claims of the cluster, and the megabytes of each.
const CLAIMS: usize = 12;
const MEGABYTES: usize = 3;

/// Answers a list with `limit` claims, large ones, and with no object of another kind. A watch has no event.
async fn api(request: Request<Body>) -> Result<Response<Box<DynBody>>, Infallible> {
    let query: Vec<_> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .collect();
    let number = |key: &str| {
        let value = query.iter().find_map(|part| part.strip_prefix(key))?;
        value.parse::<usize>().ok()
    };
    if query.contains(&"watch=true") {
        std::future::pending::<()>().await;
    }
    let all = if request.uri().path().ends_with("claims") {
        CLAIMS
    } else {
        0
    };
    let begin = number("continue=").unwrap_or(0);
    let end = all.min(begin + number("limit=").unwrap());
    let items: Vec<_> = (begin..end)
        .map(|claim| {
            let object = json!({"metadata": {"namespace": "shop", "name": format!("claim{claim}"), "uid": "u",
                "resourceVersion": "7"}, "spec": {"storageClassName": "fast"}});
            format!("{object}{}", " ".repeat(MEGABYTES << 20))
        })
        .collect();
    let meta = json!({"resourceVersion": "7", "continue": (end < all).then(|| end.to_string())});
    let list = format!(
        r#"{{"kind": "List", "apiVersion": "v1", "metadata": {meta}, "items": [{}]}}"#,
        items.join(",")
    );
    let body = Full::from(list).map_err(|never| match never {});
    Ok(Response::new(Box::new(body)))
}

/// Proves: F8.
#[tokio::test]
async fn large_objects_fill_no_memory_and_hide_no_other() {
    let World {
        settings, driver, ..
    } = World::empty();
    let client = Client::new(Careful(tower::service_fn(api)), "default");
    let cluster = Cluster::start(&client, &settings.functions, &driver, "rootcellar-system");
    while !cluster.missing().is_empty() {
        cluster.changed().await;
    }
    assert_eq!(cluster.view().claims.len(), CLAIMS);
    let mut found = 0;
    let count = |_| {
        found += 1;
        false
    };
    let writer = Writer::new(client, driver, None);
    assert_eq!(
        writer.server.search(Kind::CLAIM, "", count).await,
        Ok(false)
    );
    assert_eq!(found, CLAIMS);
}
