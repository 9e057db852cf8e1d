//! The cluster as its watches show it: one map for each kind of object.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use crate::answer::Page;
use crate::difference::Difference;
use crate::objects::{
    Cache, Capacity, Claim, Class, DriverSet, Key, Machine, Node, Pod, Registration, Snapshot,
    SnapshotContent, Volume,
};
use crate::settings::Delays;
use crate::wire::Kind;

/// Objects without a namespace have their name as the key.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) claims: Cache<Key, Claim>,
    pub(crate) volumes: Cache<String, Volume>,
    pub(crate) nodes: Cache<String, Node>,
    /// By the name of the node.
    pub(crate) registrations: Cache<String, Registration>,
    pub(crate) classes: Cache<String, Class>,
    pub(crate) capacities: Cache<Key, Capacity>,
    pub(crate) snapshots: Cache<Key, Snapshot>,
    pub(crate) contents: Cache<String, SnapshotContent>,
    /// The pods of the driver.
    pub(crate) pods: Cache<Key, Pod>,
    /// The names of objects that cannot be read, by the plural of their kind.
    pub(crate) unread: BTreeMap<&'static str, BTreeSet<String>>,
    /// The `DaemonSet`s of the driver; none before they were listed.
    pub(crate) driver_sets: Option<Vec<DriverSet>>,
    /// The machines that the places with volumes have or had.
    pub(crate) machines: BTreeMap<String, Vec<Machine>>,
    /// The answers of their pages, by the name of the node.
    pub(crate) pages: BTreeMap<String, Page>,
    /// Whether the pages have been read. Without the key they never are.
    pub(crate) pages_read: bool,
    /// The differences that the last two comparisons show.
    pub(crate) differences: Vec<Difference>,
    /// When the last comparison was.
    pub(crate) compared: Option<Instant>,
}

/// The kinds that a tenant writes. A decision about one of their objects finds it missing, and is not made.
const OF_TENANTS: [Kind; 2] = [Kind::CLAIM, Kind::SNAPSHOT];

impl View {
    /// Whether everything that can show that a node or its data is still there has been read.
    pub(crate) fn shows_all_nodes(&self) -> bool {
        self.unread.iter().all(|(kind, names)| {
            names.is_empty() || OF_TENANTS.iter().any(|tenants| tenants.plural == *kind)
        })
    }

    /// The places of the nodes that are in the cluster, by their names and by their labels.
    pub(crate) fn present(&self) -> HashSet<&str> {
        let nodes = self.nodes.values();
        let places = nodes.flat_map(|node| [Some(&*node.place), node.label.as_deref()]);
        places.flatten().collect()
    }

    /// The differences whose object is still the one that was compared.
    pub(crate) fn current_differences(&self) -> impl Iterator<Item = &Difference> {
        self.differences.iter().filter(|difference| {
            let object = &difference.about.object;
            let found = match difference.about.kind {
                Kind::NODE => self.nodes.get(&object.name).map(|node| &node.identity),
                _ => self
                    .volumes
                    .get(&object.name)
                    .map(|volume| &volume.identity),
            };
            found.is_some_and(|found| found.uid == object.uid)
        })
    }

    /// Drops differences that no comparison has shown for a long time.
    pub(crate) fn drop_old_differences(&mut self, now: Instant, delays: &Delays) {
        let limit = delays.compare_every * 3;
        let is_old = |at| now.saturating_duration_since(at) > limit;
        if self.compared.is_some_and(is_old) {
            self.differences.clear();
        }
    }
}
