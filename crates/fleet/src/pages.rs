//! The rounds in which the pages of the drivers are read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use futures_util::{StreamExt, stream};

use crate::answer::Page;
use crate::reader::Reader;
use crate::view::View;

/// How many pages are read at once.
const AT_ONCE: usize = 8;

/// The pages of all nodes with a pod of the driver.
pub(crate) async fn read(
    reader: &Reader,
    pods: Vec<(String, Option<SocketAddr>)>,
) -> BTreeMap<String, Page> {
    let pages = stream::iter(pods).map(|(node, address)| async move {
        let asked = Instant::now();
        let answer = match address {
            Some(address) => reader.page(&node, address).await,
            None => Err("the pod of the driver does not run".to_owned()),
        };
        (node, Page::new(asked, answer))
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

/// The pods of the driver by their nodes.
pub(crate) fn pods(view: &View) -> Vec<(String, Option<SocketAddr>)> {
    let pods = view.pods.values();
    pods.map(|pod| (pod.node.clone(), pod.page)).collect()
}
