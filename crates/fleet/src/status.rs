//! The state of all disks, as the page, its table and the metrics show it. Any pod can read the page, so it has names and
//! numbers, and neither the ids of pools nor claims.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter::Sum;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use objects::inventory::{Inventory, PoolInventory};
use objects::{Bytes, table};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

use crate::objects::{Node, Policy};
use crate::view::View;

/// The media type of [`metrics`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How many differences are named. The others are counted.
pub(crate) const NAMED: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    nodes: Vec<NodeStatus>,
    /// Whether the pages of the drivers have been read.
    pages_read: bool,
    /// The seconds since the last comparison with the objects of the cluster; none before the first.
    compared: Option<u64>,
    /// The first differences.
    differences: Vec<Found>,
    /// The number of differences by their reason.
    counts: BTreeMap<String, usize>,
    /// The number of objects that are too long to be read, by the plural of their kind.
    unread: BTreeMap<String, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NodeStatus {
    name: String,
    /// Whether it is in the cluster; one that is not still has `PersistentVolume`s.
    exists: bool,
    /// Whether it has the startup taint.
    startup_taint: bool,
    /// The number of `PersistentVolume`s that name it.
    persistent_volumes: usize,
    /// The number of those that a release set to `Retain`.
    #[serde(default)]
    kept_releases: usize,
    /// The version of its driver; none if its page does not answer.
    version: Option<String>,
    /// The reason why its page does not answer.
    problem: Option<String>,
    pools: Vec<PoolStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PoolStatus {
    name: String,
    /// The reason why it cannot be used.
    problem: Option<String>,
    cordoned: bool,
    enforces: bool,
    total: Bytes,
    available: Bytes,
    reserved: Bytes,
    volumes: usize,
    snapshots: usize,
    quarantined: u64,
}

/// A difference between a node and the objects of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Found {
    reason: String,
    node: String,
    object: String,
}

impl Status {
    pub(crate) fn of(view: &View, now: Instant) -> Self {
        let drivers: BTreeSet<&str> = view.pods.values().map(|pod| &*pod.node).collect();
        let nodes = view.nodes.iter();
        let nodes = nodes.filter(|(name, node)| {
            node.label.is_some() || node.startup.is_some() || drivers.contains(&***name)
        });
        let mut volumes: BTreeMap<&str, Counts> = BTreeMap::new();
        for volume in view.volumes.values() {
            let counts = volumes.entry(&volume.place).or_default();
            counts.all += 1;
            let is_kept = matches!(volume.policy, Policy::Released | Policy::ReleasedBefore);
            counts.kept += usize::from(is_kept);
        }
        let mut nodes: Vec<NodeStatus> = nodes
            .map(|(name, node)| {
                // A node may have a second place by its label.
                let label = node.label.as_deref().filter(|label| *label != node.place);
                let places = [Some(&*node.place), label].into_iter().flatten();
                let volumes = places.filter_map(|place| volumes.get(place));
                NodeStatus::of(name, node, volumes.copied().sum(), view)
            })
            .collect();
        let present = view.present();
        let absent = volumes
            .into_iter()
            .filter(|(place, _)| !present.contains(place));
        nodes.extend(absent.map(|(place, volumes)| NodeStatus::gone(place, volumes)));
        let compared = view.compared.map(|at| now.saturating_duration_since(at));
        let mut counts = BTreeMap::new();
        for difference in view.current_differences() {
            *counts
                .entry(difference.report.reason().to_owned())
                .or_default() += 1;
        }
        let differences = view.current_differences().take(NAMED);
        Self {
            nodes,
            pages_read: view.pages_read,
            compared: compared.map(|age| age.as_secs()),
            differences: differences
                .map(|difference| Found {
                    reason: difference.report.reason().to_owned(),
                    node: difference.node.clone(),
                    object: difference.object.clone(),
                })
                .collect(),
            counts,
            unread: view
                .unread
                .iter()
                .filter(|(_, names)| !names.is_empty())
                .map(|(kind, names)| ((*kind).to_owned(), names.len()))
                .collect(),
        }
    }

    /// The table for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let heads = [
            "NODE",
            "POOL",
            "STATE",
            "FREE",
            "SIZE",
            "VOLUMES",
            "SNAPSHOTS",
        ];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for node in &self.nodes {
            if let Some(problem) = &node.problem {
                rows.push(vec![node.name.clone(), "-".into(), problem.clone()]);
            }
            rows.extend(node.pools.iter().map(|pool| pool.row(&node.name)));
        }
        let mut lines = table::lines(&rows);
        for (kind, count) in &self.unread {
            lines.push(format!(
                "{count} {kind} are too long to be read; the controller's log names them"
            ));
        }
        for Found {
            reason,
            node,
            object,
        } in &self.differences
        {
            lines.push(format!("node {node}: {reason}: {object}"));
        }
        let all: usize = self.counts.values().sum();
        if all > self.differences.len() {
            lines.push(format!("and {} more", all - self.differences.len()));
        }
        if all > 0 {
            lines.push("kubectl get events -n default shows the command for each".to_owned());
        }
        lines
    }
}

/// Numbers of `PersistentVolume`s.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    all: usize,
    kept: usize,
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, one| Self {
            all: sum.all + one.all,
            kept: sum.kept + one.kept,
        })
    }
}

impl NodeStatus {
    fn of(name: &str, node: &Node, volumes: Counts, view: &View) -> Self {
        let answer = view.pages.get(name).map(|page| &page.answer);
        let (inventory, problem) = match answer {
            Some(Ok(inventory)) if inventory.loaded => (Some(inventory), None),
            Some(Ok(inventory)) => (
                Some(inventory),
                Some("the driver loads its records".to_owned()),
            ),
            Some(Err(problem)) => (None, Some(format!("unknown: {problem}"))),
            None if view.pages_read => (None, Some("unknown: the node has no driver".to_owned())),
            None => (
                None,
                Some("unknown: the controller has not read the pages".to_owned()),
            ),
        };
        let pools = inventory.map_or(&[][..], |inventory: &Inventory| &inventory.pools);
        Self {
            name: name.to_owned(),
            exists: true,
            startup_taint: node.startup.is_some(),
            persistent_volumes: volumes.all,
            kept_releases: volumes.kept,
            version: inventory.map(|inventory| inventory.version.clone()),
            problem,
            pools: pools.iter().map(PoolStatus::of).collect(),
        }
    }

    fn gone(place: &str, volumes: Counts) -> Self {
        Self {
            name: place.to_owned(),
            exists: false,
            startup_taint: false,
            persistent_volumes: volumes.all,
            kept_releases: volumes.kept,
            version: None,
            problem: Some("the node is not in the cluster".to_owned()),
            pools: Vec::new(),
        }
    }
}

impl PoolStatus {
    fn of(pool: &PoolInventory) -> Self {
        Self {
            name: pool.name.to_string(),
            // The other text has ids of pools.
            problem: pool.unavailable.as_ref().map(|_| {
                let reason = pool.reason.clone();
                reason.unwrap_or_else(|| "the log of its driver has the reason".to_owned())
            }),
            cordoned: pool.cordoned,
            enforces: pool.enforces,
            total: pool.total,
            available: pool.available,
            reserved: pool.reserved,
            volumes: pool.volumes.len(),
            snapshots: pool.snapshots.len(),
            quarantined: pool.quarantined,
        }
    }

    fn row(&self, node: &str) -> Vec<String> {
        let state = match &self.problem {
            Some(problem) => format!("unavailable: {problem}"),
            None if self.quarantined > 0 => format!("{} quarantined", self.quarantined),
            None if self.cordoned => "cordoned".to_owned(),
            None if !self.enforces => "sizes not enforced".to_owned(),
            None => "healthy".to_owned(),
        };
        vec![
            node.to_owned(),
            self.name.clone(),
            state,
            self.available.rounded(),
            self.total.rounded(),
            self.volumes.to_string(),
            self.snapshots.to_string(),
        ]
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfObject {
    reason: String,
    node: String,
    object: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

/// The metrics for Prometheus.
pub(crate) fn metrics(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("rootcellar_fleet");
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The version of the controller", build);
    of_nodes(status, &mut registry);
    of_differences(status, &mut registry);
    let unread = Family::<OfKind, Gauge<u64, AtomicU64>>::default();
    for (kind, count) in &status.unread {
        let kind = kind.clone();
        let count = u64::try_from(*count).unwrap_or(u64::MAX);
        unread.get_or_create(&OfKind { kind }).set(count);
    }
    let help = "How many objects are too long to be read";
    registry.register("unread_objects", help, unread);
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

fn of_nodes(status: &Status, registry: &mut Registry) {
    let answers = Family::<OfNode, Gauge<u64, AtomicU64>>::default();
    let absent = Family::<OfNode, Gauge<u64, AtomicU64>>::default();
    let tainted = Family::<OfNode, Gauge<u64, AtomicU64>>::default();
    let kept = Family::<OfNode, Gauge<u64, AtomicU64>>::default();
    for node in &status.nodes {
        let label = OfNode {
            node: node.name.clone(),
        };
        if !node.exists {
            let volumes = u64::try_from(node.persistent_volumes).unwrap_or(u64::MAX);
            absent.get_or_create(&label).set(volumes);
        } else if status.pages_read {
            let answered = u64::from(node.problem.is_none());
            answers.get_or_create(&label).set(answered);
        }
        if node.startup_taint {
            tainted.get_or_create(&label).set(1);
        }
        if node.kept_releases > 0 {
            let volumes = u64::try_from(node.kept_releases).unwrap_or(u64::MAX);
            kept.get_or_create(&label).set(volumes);
        }
    }
    let help = "Whether the driver on a node answers the controller, with its records loaded";
    registry.register("page_answers", help, answers);
    let help = "How many PersistentVolumes name a node that is not in the cluster";
    registry.register("absent_node_volumes", help, absent);
    let help = "How many PersistentVolumes of a node have the policy Retain because the controller set it to release their claims";
    registry.register("kept_releases", help, kept);
    let help = "1 for each node that has the startup taint";
    registry.register("startup_taint", help, tainted);
}

fn of_differences(status: &Status, registry: &mut Registry) {
    let counts = Family::<OfReason, Gauge<u64, AtomicU64>>::default();
    for (reason, count) in &status.counts {
        let reason = reason.clone();
        let count = u64::try_from(*count).unwrap_or(u64::MAX);
        counts.get_or_create(&OfReason { reason }).set(count);
    }
    let help = "How many differences there are between the nodes and the objects of the cluster";
    registry.register("differences", help, counts);
    let named = Family::<OfObject, Gauge<u64, AtomicU64>>::default();
    for Found {
        reason,
        node,
        object,
    } in &status.differences
    {
        let label = OfObject {
            reason: reason.clone(),
            node: node.clone(),
            object: object.clone(),
        };
        named.get_or_create(&label).set(1);
    }
    let help =
        format!("1 for each of the first {NAMED} differences; the events have their commands");
    registry.register("difference", help, named);
    if let Some(age) = status.compared {
        let seconds = Gauge::<u64, AtomicU64>::default();
        seconds.set(age);
        let help = "The time since the last comparison";
        registry.register("compared_age_seconds", help, seconds);
    }
}
