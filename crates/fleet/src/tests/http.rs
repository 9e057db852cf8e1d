//! The pages of the controller.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use super::*;
use crate::cluster::Cluster;
use crate::http::{Pulse, start};

/// The answer to a request, with its head.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: fleet\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The head has the time of the answer.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn a_probe_is_answered_while_others_wait_for_the_view() {
    let cluster = Arc::new(Cluster::default());
    let address = start("127.0.0.1:0".parse().unwrap(), &cluster, Pulse::new()).unwrap();
    let view = cluster.view();
    let pages: Vec<_> = ["/nodes", "/metrics", "/metrics"]
        .map(|path| thread::spawn(move || get(address, path)))
        .into();
    for _ in 0..10 {
        assert!(get(address, "/healthz").starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").starts_with("HTTP/1.1 200"));
    }
    assert!(pages.iter().all(|page| !page.is_finished()));
    drop(view);
    let pages: Vec<_> = pages.into_iter().map(|page| page.join().unwrap()).collect();
    assert!(pages.iter().all(|page| page.starts_with("HTTP/1.1 200")));
    assert_eq!(body(&pages[1]), body(&pages[2]));
}

#[test]
fn a_page_is_made_at_most_once_a_second() {
    let cluster = Arc::new(Cluster::default());
    let address = start("127.0.0.1:0".parse().unwrap(), &cluster, Pulse::new()).unwrap();
    let begun = Instant::now();
    let first = get(address, "/nodes");
    cluster.view().pages_read = true;
    while body(&get(address, "/nodes")) == body(&first) {}
    assert!(begun.elapsed() >= Duration::from_secs(1));
}
