//! Where data is: the node of a pool, as the volumes of the cluster and the labels of snapshots show it.
//!
//! Each volume requires its node, and pods run there. A snapshot requires none, but its id names its pool, and the ids of
//! volumes name theirs. So the volumes of the pool name the node of the snapshot. If a disk was moved or copied they may
//! name two, and then a label or a person decides. A node that is away for a moment does not change that.

use std::collections::{BTreeSet, HashMap};

use objects::{ObjectId, PoolId, VolumeId};

use crate::objects::{Cache, Data, Node, SnapshotContent, Volume};
use crate::report::Report;
use crate::view::View;

/// The node that has a source, or the reason why none can be named.
pub(crate) type Place = Result<String, Report>;

/// The facts of a view about places, found once for a round.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    /// The names of the nodes by their place.
    names: HashMap<&'a str, &'a str>,
    nodes: &'a Cache<String, Node>,
    /// The places that the volumes of a pool require.
    pools: HashMap<PoolId, BTreeSet<&'a str>>,
    /// The places that the volumes with an id require: a move of a disk may leave an object behind.
    volumes: HashMap<VolumeId, BTreeSet<&'a str>>,
    /// The reported space by class and place.
    free: HashMap<(&'a str, &'a str), u64>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        let mut pools: HashMap<_, BTreeSet<_>> = HashMap::new();
        let mut volumes: HashMap<_, BTreeSet<_>> = HashMap::new();
        for volume in view.volumes.values() {
            let of_pool = pools.entry(volume.id.pool()).or_default();
            of_pool.insert(&*volume.place);
            let of_volume = volumes.entry(volume.id).or_default();
            of_volume.insert(&*volume.place);
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
            volumes,
            free,
        }
    }

    /// The space that a place reported for a class; `None` if it reported none.
    pub(crate) fn free(&self, class: &str, place: &str) -> Option<u64> {
        self.free.get(&(class, place)).copied()
    }

    /// The node of a volume.
    pub(crate) fn of_volume(&self, volume: &Volume) -> Place {
        self.node(&volume.place)
    }

    /// The node of the snapshot of a content, or of the volume that it is to be taken of.
    pub(crate) fn of_content(&self, content: &SnapshotContent) -> Place {
        let by_label = content.label.as_ref();
        let by_label = by_label.filter(|label| self.nodes.contains_key(*label));
        match (self.without_label(content), by_label) {
            (Ok(node), Some(label)) if *label != node => Err(Report::OtherNode {
                label: label.clone(),
                node,
            }),
            (Err(Report::SourceUnknown), Some(label)) => Ok(label.clone()),
            (Err(Report::PoolOnTwoNodes { nodes }), Some(label)) if nodes.contains(label) => {
                Ok(label.clone())
            }
            (Err(Report::SourceUnknown), None) => match &content.label {
                Some(label) => Err(Report::NodeGone {
                    node: label.clone(),
                }),
                None => Err(Report::SourceUnknown),
            },
            (place, _) => place,
        }
    }

    /// The node of a content as the volumes name it.
    pub(crate) fn without_label(&self, content: &SnapshotContent) -> Place {
        let places = match content.data {
            Data::Malformed => return Err(Report::MalformedHandle),
            Data::Volume(id) => self.volumes.get(&id),
            Data::Snapshot(id) => self.pools.get(&id.pool()),
        };
        let mut places = places.into_iter().flatten();
        match (places.next(), places.next()) {
            (None, _) => Err(Report::SourceUnknown),
            (Some(place), None) => self.node(place),
            (Some(one), Some(other)) => {
                let name = |place| self.names.get(place).map_or(place, |name| *name).to_owned();
                let nodes = [name(*one), name(*other)];
                Err(Report::PoolOnTwoNodes { nodes })
            }
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
