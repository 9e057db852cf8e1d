//! Where data is: the node of a pool, as the volumes of the cluster and the labels of snapshots show it.
//!
//! The id of every volume and snapshot names its pool, and each volume requires the node on which it was made. So the
//! volumes of a pool name its node. If a disk was moved or copied they may name two, and then nobody but a person knows
//! which node has the data. A node that is away for a moment does not change that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use objects::PoolId;

use crate::objects::{Content, Node, Volume};
use crate::report::Report;
use crate::view::View;

/// The node that has a source, or the reason why none can be named.
pub(crate) type Place = Result<String, Report>;

/// The facts of a view about places, found once for a round.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    /// The names of the nodes by their place.
    names: HashMap<&'a str, &'a str>,
    nodes: &'a BTreeMap<String, Node>,
    /// The places that the volumes of a pool require.
    pools: HashMap<PoolId, BTreeSet<&'a str>>,
    /// The reported space by class and place.
    free: HashMap<(&'a str, &'a str), u64>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        let mut pools: HashMap<_, BTreeSet<_>> = HashMap::new();
        for volume in view.volumes.values() {
            pools.entry(volume.pool).or_default().insert(&*volume.place);
        }
        let mut free = HashMap::new();
        for found in view.capacities.values() {
            let bytes: &mut u64 = free.entry((&*found.class, &*found.place)).or_default();
            *bytes = found.bytes.max(*bytes);
        }
        let nodes = view.nodes.iter();
        Self {
            names: nodes.map(|(name, node)| (&*node.place, &**name)).collect(),
            nodes: &view.nodes,
            pools,
            free,
        }
    }

    /// The space that a place reported for a class; `None` if it reported none.
    pub(crate) fn free(&self, class: &str, place: &str) -> Option<u64> {
        self.free.get(&(class, place)).copied()
    }

    /// The node of a volume.
    pub(crate) fn of_volume(&self, volume: &Volume) -> Place {
        // The volume is one of its pool's.
        self.of_pool(volume.pool)
            .unwrap_or_else(|| self.node(&volume.place))
    }

    /// The node of a snapshot: that of the volumes of its pool, or of its label if the pool has no volume.
    pub(crate) fn of_content(&self, content: &Content) -> Place {
        let pool = content.pool.ok_or(Report::MalformedHandle)?;
        let label = content.label.as_ref();
        match (self.of_pool(pool), label) {
            (Some(Ok(node)), Some(label)) if *label != node && self.nodes.contains_key(label) => {
                Err(Report::OtherNode {
                    label: label.clone(),
                    node,
                })
            }
            (Some(place), _) => place,
            (None, Some(label)) if self.nodes.contains_key(label) => Ok(label.clone()),
            (None, Some(label)) => Err(Report::NodeGone {
                node: label.clone(),
            }),
            (None, None) => Err(Report::SourceUnknown),
        }
    }

    /// The node of a pool by its volumes; `None` if it has none.
    pub(crate) fn of_pool(&self, pool: PoolId) -> Option<Place> {
        let mut places = self.pools.get(&pool)?.iter();
        match (places.next(), places.next()) {
            (Some(place), None) => Some(self.node(place)),
            (Some(one), Some(other)) => Some(Err(Report::PoolOnTwoNodes {
                pool,
                nodes: [(*one).to_owned(), (*other).to_owned()],
            })),
            (None, _) => None,
        }
    }

    fn node(&self, place: &str) -> Place {
        let name = self.names.get(place);
        name.map(|name| (*name).to_owned())
            .ok_or_else(|| Report::NodeGone {
                node: place.to_owned(),
            })
    }
}
