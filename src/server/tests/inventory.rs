//! The page `/inventory`.

use std::time::SystemTime;

use objects::inventory::Inventory;
use page::signature::{Distrust, HEADER, Key, Request, SCHEME};

use super::*;

const LONG: &str = "0123456789abcdef";

/// A server with a pool, and one that is missing.
async fn serve() -> Running {
    let dir = tempfile::tempdir().unwrap();
    let (path, gone) = (dir.path().join("pool"), dir.path().join("gone"));
    std::fs::create_dir(&path).unwrap();
    let pools = [
        format!("fast={},init,any-filesystem", path.display()),
        format!("gone={}", gone.display()),
    ];
    let pools = pools.iter().map(|pool| pool.parse().unwrap()).collect();
    let volumes = volumes(dir.path(), pools);
    let server = Running::serve(dir, volumes).await;
    until_ready(&server.connect().await).await;
    server
}

impl Running {
    /// Writes the key; `None` removes its file.
    fn set_key(&self, text: Option<&str>) {
        let file = self.dir.path().join("key");
        let _ = std::fs::remove_file(&file);
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
    }

    async fn ask(&self, authorization: &str) -> String {
        let header = format!("/inventory HTTP/1.1\r\nAuthorization: {authorization}\r\nX:");
        self.get(&header).await
    }

    /// The answer to a controller with the key and a clock that shows this time.
    async fn hear(&self, at: SystemTime) -> (Result<(), Distrust>, String) {
        let key = Key::new(LONG.as_bytes()).unwrap();
        let request = Request::new("n1", at);
        let answer = self.ask(&request.authorization(&key)).await;
        let (headers, body) = answer.split_once("\r\n\r\n").unwrap();
        let start = format!("{HEADER}: ");
        let signature = headers.lines().find_map(|line| line.strip_prefix(&start));
        let signature = signature.unwrap().as_bytes();
        let heard = request.verify(&key, signature, body.as_bytes(), at);
        (heard, body.to_owned())
    }
}

/// Proves: SV10.
#[tokio::test]
async fn the_inventory_answers_requests_that_are_signed_with_the_key_of_the_file() {
    let server = serve().await;
    let now = SystemTime::now();
    let sign = |key: &str, node: &str| {
        let key = Key::new(key.as_bytes()).unwrap();
        Request::new(node, now).authorization(&key)
    };
    let another = "another-0123456789";
    let cases: [(Option<&str>, String, &str); 9] = [
        (None, sign(LONG, "n1"), "503"),
        (Some("short"), "Bearer short".into(), "503"),
        (Some(""), "Bearer ".into(), "503"),
        (Some("0123456789abcdef\n"), sign(LONG, "n1"), "200"),
        (Some(LONG), sign(another, "n1"), "401"),
        (Some(LONG), sign(LONG, "n2"), "401"),
        (Some(LONG), format!("Bearer {LONG}"), "401"),
        (Some(LONG), String::new(), "401"),
        (Some(another), sign(another, "n1"), "200"),
    ];
    for (text, given, code) in cases {
        server.set_key(text);
        let answer = server.ask(&given).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{text:?}, {given:?}: {answer}"
        );
        assert!(code == "200" || !answer.contains("fast"), "{answer}");
        let names_scheme = answer.contains(&format!("www-authenticate: {SCHEME}\r\n"));
        assert_eq!(names_scheme, code == "401", "{answer}");
    }
    server.stop.send(()).unwrap();
}

/// Proves: SV10, SV11.
#[tokio::test]
async fn the_inventory_is_signed_and_so_is_a_wrong_clock() {
    let server = serve().await;
    server.set_key(Some(LONG));
    let now = SystemTime::now();
    let hour = Duration::from_hours(1);
    for (at, is_ahead) in [(now - hour, true), (now + hour, false)] {
        let (heard, body) = server.hear(at).await;
        match heard {
            Err(Distrust::Ahead(_)) => assert!(is_ahead),
            Err(Distrust::Behind(_)) => assert!(!is_ahead),
            _ => panic!("{heard:?}"),
        }
        assert!(!body.contains("fast"), "{body}");
    }
    let (heard, body) = server.hear(now).await;
    assert_eq!(heard, Ok(()));
    let inventory: Inventory = serde_json::from_str(&body).unwrap();
    assert_eq!(inventory.node.as_str(), "n1");
    let pools: Vec<_> = inventory
        .pools
        .iter()
        .map(|pool| {
            (
                pool.name.as_str(),
                pool.id.is_some(),
                pool.complete,
                pool.empty,
            )
        })
        .collect();
    assert_eq!(
        pools,
        [("fast", true, true, false), ("gone", false, false, true)]
    );
    server.stop.send(()).unwrap();
}
