//! Questions to an API server before a write.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::Client;
use kube::client::{Body, DynBody};

use super::*;
use crate::api::Unconfirmed;
use crate::live::Shared;
use crate::step::Live;
use crate::wire::Careful;
use crate::write::Writer;

type Requests = Arc<Mutex<Vec<String>>>;

fn answer(request: &Request<Body>, nodes: &[Value]) -> (StatusCode, Value) {
    if let Some((_, name)) = request.uri().path().rsplit_once("/nodes/") {
        let node = nodes.iter().find(|node| node["metadata"]["name"] == name);
        return node.map_or_else(
            || {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": "NotFound", "code": 404});
                (StatusCode::NOT_FOUND, status)
            },
            |node| (StatusCode::OK, node.clone()),
        );
    }
    let query = request.uri().query().unwrap_or_default();
    let is_asked = |node: &&Value| {
        let label = node["metadata"]["labels"]["topology.rootcellar.dev/node"].as_str();
        !query.contains("labelSelector") || query.contains(&format!("%3D{}", label.unwrap()))
    };
    let items: Vec<_> = nodes.iter().filter(is_asked).collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
    (StatusCode::OK, list)
}

/// A server with the nodes `node1` and `renamed`, which has the label of `place`. It notes the requests.
fn server(requests: &Requests) -> Writer {
    let requests = Arc::clone(requests);
    let api = move |request: Request<Body>| {
        let path = request.uri().path_and_query().unwrap().to_string();
        requests.lock().unwrap().push(path);
        let nodes = [("node1", "node1"), ("renamed", "place")];
        let nodes = nodes.map(|(name, label)| {
            json!({"metadata": {"name": name, "labels": {"topology.rootcellar.dev/node": label}}})
        });
        let (status, answer) = answer(&request, &nodes);
        let body = Full::from(answer.to_string()).map_err(|never| match never {});
        let body: Box<DynBody> = Box::new(body);
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(answer))
    };
    let client = Client::new(Careful(tower::service_fn(api)), "default");
    Writer::new(client, World::empty().driver, None)
}

fn known(names: &[&str]) -> Arc<BTreeSet<String>> {
    let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Arc::new(names)
}

/// Proves: F8, F9, F11.
#[tokio::test]
async fn a_node_that_the_watches_do_not_show_yet_is_found() {
    let requests = Requests::default();
    let writer = server(&requests);
    let long = "x".repeat(63);
    let both = known(&["node1", "renamed"]);
    let other = |place: Option<&str>, known: &Arc<BTreeSet<String>>| Live::NoOtherNode {
        place: place.map(str::to_owned),
        known: Arc::clone(known),
    };
    let silent = Live::Retired {
        node: "node1".into(),
        pages: Vec::new(),
        volume: VolumeId::new(PoolId::random(), &"pv".parse().unwrap()),
    };
    for (fact, holds) in [
        (silent, false),
        (Live::NoNode("node1".into()), false),
        (Live::NoNode("renamed".into()), false),
        (Live::NoNode("node3".into()), true),
        (Live::NoPlace("node1".into()), false),
        (Live::NoPlace("place".into()), false),
        (Live::NoPlace("node3".into()), true),
        (Live::NoPlace(long), true),
        (other(Some("node3"), &both), true),
        (other(Some("place"), &both), false),
        (other(None, &both), true),
        (other(Some("node3"), &known(&["node1"])), false),
        (other(None, &known(&["node1"])), false),
    ] {
        let answer = writer.server.confirm(&fact, &Shared::default()).await;
        let expected = if holds {
            Ok(())
        } else {
            Err(Unconfirmed::Ended(Outcome::Changed))
        };
        assert_eq!(answer, expected, "{fact:?}");
    }
}

/// A made-up name costs no list of all nodes.
///
/// Proves: F8.
#[tokio::test]
async fn the_steps_of_a_round_share_the_answers() {
    let requests = Requests::default();
    let writer = server(&requests);
    let long = "x".repeat(63);
    let shared = Shared::default();
    let other = Live::NoOtherNode {
        place: Some("node3".into()),
        known: known(&["node1", "renamed"]),
    };
    for fact in [
        Live::NoPlace("node3".into()),
        Live::NoPlace("node3".into()),
        Live::NoPlace(long.clone()),
        Live::NoPlace(long),
        other,
    ] {
        writer.server.confirm(&fact, &shared).await.unwrap();
    }
    let requests = requests.lock().unwrap().clone();
    let count = |is: fn(&str) -> bool| requests.iter().filter(|path| is(path)).count();
    assert_eq!(
        count(|path| path.contains("labelSelector")),
        1,
        "{requests:?}"
    );
    assert_eq!(count(|path| path.contains("/nodes/")), 2, "{requests:?}");
    assert_eq!(requests.len(), 4, "{requests:?}");
}
