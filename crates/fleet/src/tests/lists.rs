//! Lists from API servers of all kinds.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::http::header::ACCEPT;
use axum::http::{Request, Response, StatusCode};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::{Body, DynBody};

use super::*;
use crate::api::Unconfirmed;
use crate::cluster::Cluster;
use crate::wire::{Careful, Kind, LONGEST};
use crate::write::Writer;

/// The claims of the cluster.
const CLAIMS: usize = 12;

/// An API server.
#[derive(Debug, Clone, Copy)]
struct Server {
    stream: Stream,
    claims: usize,
    /// The bytes of `managedFields` of each claim.
    managed: usize,
    /// The megabytes of each claim.
    megabytes: usize,
    /// A claim that is longer than an answer may be.
    long: Option<usize>,
    /// The trouble with the second page, when it is asked for the first time.
    trouble: Option<Trouble>,
}

/// The answer to a request for a streamed list.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Whole,
    /// As from a cache that is behind: a claim that was there is deleted before the mark.
    Behind,
    Refused(u16),
    /// 200, and then one event with an error.
    Error,
    Cut,
    Stalled,
}

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Expired,
    Closed,
    Stalled,
}

const PLAIN: Server = Server {
    stream: Stream::Refused(422),
    claims: CLAIMS,
    managed: 0,
    megabytes: 0,
    long: None,
    trouble: None,
};

type Part = io::Result<Bytes>;

impl Server {
    /// The claim in parts, of which the long ones are spaces.
    fn claim(self, claim: usize) -> Vec<Part> {
        let managed = "f".repeat(self.managed);
        let object = json!({"metadata": {"namespace": "shop", "name": format!("claim{claim:02}"),
            "uid": format!("00000000-0000-4000-8000-{claim:012}"), "resourceVersion": "7",
            "managedFields": [{"manager": managed}]}, "spec": {"storageClassName": "fast",
            "volumeName": format!("pvc-00000000-0000-4000-8000-{claim:012}")}, "status": {"phase": "Bound"}});
        let megabytes = if self.long == Some(claim) {
            (LONGEST >> 20) + 1
        } else if self.claims > CLAIMS && claim % (self.claims / 3) == 7 {
            8
        } else {
            self.megabytes
        };
        let spaces = Bytes::from(vec![b' '; 1 << 20]);
        let spaces = (0..megabytes).map(|_| Ok(spaces.clone()));
        spaces.chain([Ok(object.to_string().into())]).collect()
    }

    fn event(self, kind: &str, claim: usize) -> Vec<Part> {
        let mut parts = vec![Ok(format!(r#"{{"type": "{kind}", "object": "#).into())];
        parts.extend(self.claim(claim));
        parts.push(Ok("}\n".into()));
        parts
    }

    fn streams(self, claims: usize) -> Response<Box<DynBody>> {
        let mark = json!({"type": "BOOKMARK", "object": {"kind": "", "apiVersion": "v1", "metadata":
            {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}}});
        let mark = || vec![Ok(format!("{mark}\n").into())];
        let added = |claims| (0..claims).flat_map(move |claim| self.event("ADDED", claim));
        let parts: Vec<Part> = match self.stream {
            Stream::Whole => {
                let parts = stream::iter(added(claims).chain(mark()));
                return answer(parts.chain(stream::pending()));
            }
            Stream::Behind if claims > 0 => {
                let behind = self.event("DELETED", claims);
                added(claims + 1).chain(behind).chain(mark()).collect()
            }
            Stream::Behind => mark(),
            Stream::Refused(code) => return refusal(code),
            Stream::Error => {
                let event = json!({"type": "ERROR", "object": status(500)});
                vec![Ok(format!("{event}\n").into())]
            }
            Stream::Cut => return answer(stream::iter(added(claims / 2))),
            Stream::Stalled => added(claims / 2).collect(),
        };
        answer(stream::iter(parts).chain(stream::pending()))
    }

    fn page(self, begin: usize, limit: usize, claims: usize, table: bool) -> Vec<Part> {
        let end = claims.min(begin + limit);
        let meta =
            json!({"resourceVersion": "7", "continue": (end < claims).then(|| end.to_string())});
        if table {
            let name =
                (begin < claims).then(|| json!({"cells": ["1d", format!("claim{begin:02}")]}));
            let table = json!({"kind": "Table", "metadata": meta, "rows": name.as_slice(),
                "columnDefinitions": [{"name": "Age", "format": ""}, {"name": "Name", "format": "name"}]});
            return vec![Ok(table.to_string().into())];
        }
        let head =
            format!(r#"{{"kind": "List", "apiVersion": "v1", "metadata": {meta}, "items": ["#);
        let mut parts = vec![Ok(head.into())];
        for claim in begin..end {
            if claim > begin {
                parts.push(Ok(",".into()));
            }
            parts.extend(self.claim(claim));
        }
        parts.push(Ok("]}".into()));
        parts
    }

    /// Answers a request.
    fn api(self, request: &Request<Body>, troubles: &AtomicUsize) -> Response<Box<DynBody>> {
        let query = request.uri().query().unwrap_or_default();
        let value = |key: &str| query.split('&').find_map(|part| part.strip_prefix(key));
        let number = |key: &str| value(key).map(|number| number.parse::<usize>().unwrap());
        let is_claims = request.uri().path().ends_with("claims");
        let claims = if is_claims { self.claims } else { 0 };
        if value("sendInitialEvents=").is_some() {
            assert_eq!(value("resourceVersion="), Some(""), "as new as the request");
            return self.streams(claims);
        }
        if value("watch=").is_some() {
            assert_eq!(value("resourceVersion="), Some("7"));
            return answer(stream::pending());
        }
        let begin = number("continue=").unwrap_or(0);
        let table = request.headers().get(ACCEPT);
        let table = table.is_some_and(|accept| accept.to_str().unwrap().contains("as=Table"));
        let parts = self.page(begin, number("limit=").unwrap(), claims, table);
        let trouble = self.trouble.filter(|_| begin > 0);
        let first = || troubles.fetch_add(1, Ordering::Relaxed) == 0;
        match trouble.filter(|_| first()) {
            None => answer(stream::iter(parts)),
            Some(Trouble::Expired) => refusal(410),
            Some(Trouble::Closed) => {
                let closed = Err(io::ErrorKind::ConnectionReset.into());
                answer(stream::iter(parts.into_iter().take(1).chain([closed])))
            }
            Some(Trouble::Stalled) => answer(stream::pending()),
        }
    }
}

fn answer(
    parts: impl futures_util::Stream<Item = Part> + Send + 'static,
) -> Response<Box<DynBody>> {
    let body = axum::body::Body::from_stream(parts).map_err(Into::into);
    Response::new(Box::new(body))
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "", "message": "no", "code": code})
}

fn refusal(code: u16) -> Response<Box<DynBody>> {
    let mut refusal = answer(stream::iter([Ok(status(code).to_string().into())]));
    *refusal.status_mut() = StatusCode::from_u16(code).unwrap();
    refusal
}

fn client(server: Server) -> Client {
    let troubles = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request| {
        let answer = server.api(&request, &troubles);
        async { Ok::<_, Infallible>(answer) }
    });
    Client::new(Careful(service), "default")
}

/// The view once it is complete. Its watches end with the runtime.
fn view(server: Server) -> View {
    let World {
        settings, driver, ..
    } = World::empty();
    let filled = async {
        let client = client(server);
        let cluster = Cluster::start(&client, &settings.functions, &driver, "rootcellar-system");
        while !cluster.missing().is_empty() {
            cluster.changed().await;
        }
        std::mem::take(&mut *cluster.view())
    };
    // The time passes when nothing else can happen.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(filled)
}

/// With any server, the view is complete, but for an object that cannot be read and is named.
///
/// Proves: F8.
#[test]
fn every_server_fills_the_view() {
    let stream = |stream| Server { stream, ..PLAIN };
    let trouble = |trouble| Server {
        megabytes: 3,
        trouble: Some(trouble),
        ..PLAIN
    };
    let long = |long, stream| Server {
        long: Some(long),
        stream,
        ..PLAIN
    };
    let servers = [
        stream(Stream::Whole),
        stream(Stream::Behind),
        stream(Stream::Refused(422)),
        stream(Stream::Refused(400)),
        stream(Stream::Refused(403)),
        stream(Stream::Error),
        stream(Stream::Cut),
        stream(Stream::Stalled),
        Server {
            megabytes: 3,
            ..PLAIN
        },
        Server {
            megabytes: 3,
            stream: Stream::Whole,
            ..PLAIN
        },
        trouble(Trouble::Expired),
        trouble(Trouble::Closed),
        trouble(Trouble::Stalled),
        long(0, Stream::Refused(422)),
        long(5, Stream::Refused(422)),
        long(CLAIMS - 1, Stream::Refused(422)),
        long(5, Stream::Whole),
    ];
    for server in servers {
        let view = view(server);
        let unread = server.long.map(|long| format!("claim{long:02}"));
        assert_eq!(
            view.claims.len() + unread.iter().count(),
            CLAIMS,
            "{server:?}"
        );
        let found: Vec<_> = view.unread[Kind::CLAIM.plural].iter().collect();
        assert_eq!(found, unread.iter().collect::<Vec<_>>(), "{server:?}");
    }
}

/// Proves: F8.
#[tokio::test]
async fn a_question_reads_pages_of_any_size_and_has_no_answer_without_an_object() {
    let count = async |server| {
        let writer = Writer::new(client(server), World::empty().driver, None);
        let mut found = 0;
        let count = |_| {
            found += 1;
            false
        };
        (writer.server.search(Kind::CLAIM, "", count).await, found)
    };
    let large = Server {
        megabytes: 3,
        ..PLAIN
    };
    assert_eq!(count(large).await, (Ok(false), CLAIMS));
    let long = Server {
        long: Some(5),
        ..PLAIN
    };
    let (answer, found) = count(long).await;
    assert_eq!(answer, Err(Unconfirmed::Ended(Outcome::Unanswered)));
    assert_eq!(found, 5);
}

/// An object that cannot be read may be the node that seems to be missing, or say so. Those of tenants stop nobody.
///
/// Proves: F8.
#[test]
fn nothing_is_lost_while_an_object_of_the_cluster_cannot_be_read() {
    let kinds = [
        (Kind::NODE, false),
        (Kind::VOLUME, false),
        (Kind::POD, false),
        (Kind::CLAIM, true),
        (Kind::SNAPSHOT, true),
    ];
    for (kind, goes_on) in kinds {
        let mut world = super::lost::lost();
        let unread = world.view.unread.entry(kind.plural).or_default();
        unread.insert("long".into());
        let steps = world.wait(32);
        assert_eq!(!steps.is_empty(), goes_on, "{kind:?}: {steps:?}");
        world.view.unread.clear();
        // The absence counts from the moment at which all is seen.
        let steps = world.wait(29);
        assert!(goes_on || steps.is_empty(), "{kind:?}: {steps:?}");
    }
}

/// The time until the view is complete and the peak of the memory, next to a client that only reads the bytes:
///
///     CLAIMS=100000 cargo test --release -p rootcellar-fleet many_claims -- --nocapture --test-threads 1
///
/// The server is in this process, and makes each part when it is read, so the peak is above that of the controller.
#[test]
fn many_claims_with_three_large_ones_are_read() {
    let claims = std::env::var("CLAIMS").map_or(3000, |claims| claims.parse().unwrap());
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.unwrap().trim().to_owned()
    };
    for stream in [Stream::Whole, Stream::Refused(422)] {
        let server = Server {
            stream,
            claims,
            managed: 1500,
            ..PLAIN
        };
        let begun = std::time::Instant::now();
        let bytes: usize = (0..server.claims)
            .flat_map(|claim| server.event("ADDED", claim))
            .map(|part| part.unwrap().len())
            .sum();
        let (read, begun) = (begun.elapsed(), std::time::Instant::now());
        let before = peak();
        let view = view(server);
        eprintln!(
            "{stream:?}: {bytes} bytes are made in {read:?}; complete after {:?}; peak {before} before, {} after",
            begun.elapsed(),
            peak()
        );
        assert_eq!(view.claims.len(), server.claims);
    }
}
