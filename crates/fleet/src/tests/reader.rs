//! The controller asks drivers, and others that have a driver's address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ::objects::inventory::Inventory;
use ::page::signature::{HEADER, Key, Refusal, Request, SCHEME};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use tokio::task::JoinSet;

use super::{HERE, OTHER, World};
use crate::reader::Reader;

/// A file with the key, which is a line of sixteen or more characters, and a file with another one.
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../rustfmt.toml");
const OTHER_KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

fn key(file: &str) -> Key {
    Key::new(&std::fs::read(file).unwrap()).unwrap()
}

fn inventory() -> String {
    let mut world = World::empty();
    world.page(HERE, |_| {});
    let page = world.view.pages.remove(HERE).unwrap();
    serde_json::to_string(&page.answer.unwrap()).unwrap()
}

/// Answers a request with a body, signed as the driver of [`HERE`] signs it at a time.
fn signed(given: &HeaderMap, body: &str, now: SystemTime) -> Response {
    let key = key(KEY);
    let (request, status) = match Request::read(&key, given[AUTHORIZATION].as_bytes(), HERE, now) {
        Ok(request) => (request, StatusCode::OK),
        Err(Refusal::Clock(request)) => (request, StatusCode::UNAUTHORIZED),
        Err(Refusal::Unsigned) => return refused(),
    };
    let signature = request.signature(&key, body.as_bytes(), now);
    (status, [(HEADER, signature)], body.to_owned()).into_response()
}

fn refused() -> Response {
    let scheme = [(WWW_AUTHENTICATE, SCHEME)];
    (StatusCode::UNAUTHORIZED, scheme).into_response()
}

/// Asks the page of a node with a key, which is at an address that gives these answers.
async fn ask(
    node: &str,
    file: &str,
    answer: impl Fn(&HeaderMap) -> Response + Clone + Send + Sync + 'static,
) -> Result<Inventory, String> {
    let listener = ::page::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let respond = async move |headers: HeaderMap| answer(&headers);
    let mut serving = JoinSet::new();
    serving.spawn(::page::serve(listener, Router::new().fallback(respond)));
    Reader::new(PathBuf::from(file)).page(node, address).await
}

/// The one who answers, the answer, and the problem.
type Case = (
    &'static str,
    fn(&HeaderMap) -> Response,
    Option<&'static str>,
);

async fn check(cases: &[Case]) {
    for (who, answer, problem) in cases {
        let found = ask(HERE, KEY, *answer).await;
        assert_eq!(found.err().as_deref(), *problem, "{who}");
    }
}

/// Proves: F12, SV10.
#[tokio::test]
async fn a_driver_answers_or_its_problem_is_named() {
    let cases: [Case; 9] = [
        (
            "the driver",
            |given| signed(given, &inventory(), SystemTime::now()),
            None,
        ),
        (
            "a newer driver",
            |given| {
                let text = inventory().replace("{\"node\"", "{\"new\":[1],\"node\"");
                signed(given, &text, SystemTime::now())
            },
            None,
        ),
        (
            "an older driver whose inventory lacks a fact",
            |given| {
                let text = inventory().replace("\"loaded\"", "\"old\"");
                signed(given, &text, SystemTime::now())
            },
            Some("the answer is not an inventory"),
        ),
        (
            "a driver whose clock is seven minutes and a half ahead",
            |given| signed(given, "", SystemTime::now() + Duration::from_secs(450)),
            Some(
                "node node1 has a clock that is 7 minutes ahead of the controller's; set both to the same time",
            ),
        ),
        (
            "a driver whose clock is behind",
            |given| signed(given, "", SystemTime::now() - Duration::from_secs(450)),
            Some(
                "node node1 has a clock that is 7 minutes behind the controller's; set both to the same time",
            ),
        ),
        (
            "a driver with another key",
            |_| refused(),
            Some("the driver has another key, or another name of its node"),
        ),
        (
            "an old driver, which wants the key itself",
            |_| StatusCode::UNAUTHORIZED.into_response(),
            Some("the driver is of a version that signs no inventory; update it"),
        ),
        (
            "a driver without a key",
            |_| StatusCode::NOT_FOUND.into_response(),
            Some("the driver has no inventory"),
        ),
        (
            "a driver whose state directory hangs",
            |_| StatusCode::SERVICE_UNAVAILABLE.into_response(),
            Some("the answer has status 503"),
        ),
    ];
    check(&cases).await;
}

/// Proves: F12, SV10.
#[tokio::test]
async fn an_answer_is_believed_if_the_driver_of_the_node_signed_it() {
    let cases: [Case; 3] = [
        (
            "another pod",
            |_| inventory().into_response(),
            Some("the answer is not signed with the key"),
        ),
        (
            "another pod that repeats an old answer of the driver",
            |_| {
                let (old, key) = (Request::new(HERE, SystemTime::now()), key(KEY));
                let signature = old.signature(&key, inventory().as_bytes(), SystemTime::now());
                ([(HEADER, signature)], inventory()).into_response()
            },
            Some("the answer is not signed with the key"),
        ),
        (
            "a pod that changes the driver's answer",
            |given| {
                let mut answer = signed(given, &inventory(), SystemTime::now());
                *answer.body_mut() = inventory().replace("true", "null").into();
                answer.headers_mut().remove("content-length");
                answer
            },
            Some("the answer is not signed with the key"),
        ),
    ];
    check(&cases).await;
    let to_other = |given: &HeaderMap| signed(given, &inventory(), SystemTime::now());
    let found = ask(OTHER, KEY, to_other).await.unwrap_err();
    assert!(found.contains("another name"), "{found}");
    let found = ask(HERE, OTHER_KEY, to_other).await.unwrap_err();
    assert!(found.contains("another key"), "{found}");
    let short = ask(HERE, "/dev/null", to_other).await.unwrap_err();
    assert_eq!(short, "the key has fewer than 16 characters");
    let none = ask(HERE, "/nowhere", to_other).await.unwrap_err();
    assert!(none.starts_with("the key cannot be read: "), "{none}");
}

/// Proves: SV10.
#[tokio::test]
async fn a_request_has_no_key() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let found = ask(HERE, KEY, move |headers| {
        notes.lock().unwrap().push(headers.clone());
        StatusCode::NOT_FOUND.into_response()
    });
    found.await.unwrap_err();
    let key = std::fs::read_to_string(KEY).unwrap();
    let seen = seen.lock().unwrap();
    let values = seen.iter().flat_map(HeaderMap::values);
    let values: Vec<&str> = values.map(|value| value.to_str().unwrap()).collect();
    assert!(values.iter().any(|value| value.starts_with(SCHEME)));
    for value in values {
        assert!(
            !key.lines()
                .any(|line| line.len() > 8 && value.contains(line))
        );
    }
}
