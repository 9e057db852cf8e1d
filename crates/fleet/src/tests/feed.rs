//! Watches that end, and watches without an event.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{Request, Response, StatusCode};
use futures_util::stream;
use http_body_util::BodyExt;
use kube::Client;
use kube::api::Api;
use kube::client::{Body, DynBody};
use serde_json::json;

use crate::feed::Feed;
use crate::wire::{Kind, Object};

/// The lists of an hour, if each watch is open for so long and has no event.
async fn lists(open: Duration) -> usize {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lists);
    let api = move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let counted = Arc::clone(&counted);
        async move {
            let is_stream = query.contains("sendInitialEvents");
            let is_watch = query.contains("watch=true") && !is_stream;
            let status = if is_stream {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::OK
            };
            let text = if is_stream {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422})
                    .to_string()
            } else if is_watch {
                String::new()
            } else {
                counted.fetch_add(1, Ordering::Relaxed);
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []}).to_string()
            };
            let frames = stream::once(async move {
                if is_watch {
                    tokio::time::sleep(open).await;
                }
                Ok::<_, Infallible>(text)
            });
            let body = axum::body::Body::from_stream(frames).map_err(Into::into);
            let body: Box<DynBody> = Box::new(Box::pin(body));
            let mut answer = Response::new(body);
            *answer.status_mut() = status;
            Ok::<_, Infallible>(answer)
        }
    };
    let client = Client::new(tower::service_fn(api), "default");
    let mut feed = Feed::new(Api::<Object>::all_with(client, &Kind::NODE.resource()));
    let watching = async {
        loop {
            let _ = feed.next().await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_hours(1), watching).await;
    lists.load(Ordering::Relaxed)
}

/// A server or a proxy that ends each watch at once may hide that something changed.
///
/// Proves: F8.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_proves_nothing() {
    assert!(lists(Duration::ZERO).await > 5);
}

/// A kind that does not change may have no bookmark, and reading all of it again and again is expensive.
///
/// Proves: F8.
#[tokio::test(start_paused = true)]
async fn a_watch_that_lasts_without_an_event_needs_no_list() {
    for minutes in [2, 4, 30] {
        assert_eq!(
            lists(Duration::from_mins(minutes)).await,
            1,
            "{minutes} minutes"
        );
    }
}
