//! Where data is: the node of a pool, as the volumes of the cluster and the labels of snapshots show it.
//!
//! The id of every volume and snapshot names its pool, and each volume requires the node on which it was made. So the
//! volumes of a pool name its node. If a disk was moved, or copied, they may name two.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use objects::PoolId;

use crate::objects::{Content, Node, Volume};
use crate::view::View;

/// The answer to the question where a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the node with this name.
    On(String),
    /// On a node that is not in the cluster: its name, or the value of the topology key of a longer name.
    Gone(String),
    /// The volumes of the pool name several nodes of the cluster.
    Several(PoolId, Vec<String>),
    /// No volume of the pool exists, and no label names a node.
    Unknown,
    /// The handle is none of the driver's.
    Malformed,
}

/// The nodes by their place, and the places of each pool.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    nodes: HashMap<&'a str, &'a str>,
    names: &'a BTreeMap<String, Node>,
    pools: HashMap<PoolId, BTreeSet<&'a str>>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        let mut pools: HashMap<_, BTreeSet<_>> = HashMap::new();
        for volume in view.volumes.values() {
            pools.entry(volume.pool).or_default().insert(&*volume.place);
        }
        let nodes = view.nodes.iter();
        Self {
            nodes: nodes.map(|(name, node)| (&*node.place, &**name)).collect(),
            names: &view.nodes,
            pools,
        }
    }

    /// The place of a volume: the node that it requires, unless other volumes say that its pool is elsewhere too.
    pub(crate) fn of_volume(&self, volume: &Volume) -> Place {
        match self.nodes_of(volume.pool).as_slice() {
            [_, _, ..] => self.of_pool(volume.pool),
            _ => match self.nodes.get(&*volume.place) {
                Some(name) => Place::On((*name).to_owned()),
                None => Place::Gone(volume.place.clone()),
            },
        }
    }

    /// The place of a snapshot: the node of the volumes of its pool. Its label decides if these name no node of the
    /// cluster, as after the pool lost its volumes.
    pub(crate) fn of_content(&self, content: &Content) -> Place {
        let Some(pool) = content.pool else {
            return Place::Malformed;
        };
        let place = self.of_pool(pool);
        match (&place, &content.label) {
            (Place::Unknown | Place::Gone(_), Some(label)) if self.names.contains_key(label) => {
                Place::On(label.clone())
            }
            (Place::Unknown, Some(label)) => Place::Gone(label.clone()),
            _ => place,
        }
    }

    /// The place of a pool by its volumes alone.
    pub(crate) fn of_pool(&self, pool: PoolId) -> Place {
        match self.nodes_of(pool).as_slice() {
            [name] => Place::On((*name).to_owned()),
            [] => match self.pools.get(&pool).and_then(BTreeSet::first) {
                Some(place) => Place::Gone((*place).to_owned()),
                None => Place::Unknown,
            },
            names => Place::Several(pool, names.iter().map(|name| (*name).to_owned()).collect()),
        }
    }

    fn nodes_of(&self, pool: PoolId) -> Vec<&'a str> {
        let places = self.pools.get(&pool).into_iter().flatten();
        let mut names: Vec<_> = places
            .filter_map(|place| self.nodes.get(place))
            .copied()
            .collect();
        names.sort_unstable();
        names
    }
}
