//! Differences between the volumes on the nodes and the objects of the cluster.
//!
//! A comparison lists the objects first and reads the pages then. A volume exists before its `PersistentVolume` and is deleted
//! before it, so one that comes or goes meanwhile looks different once at most, in one of the two ways. Two looks, with
//! the delay between them, have to agree. An unavailable pool, and a page that does not answer, show nothing.

use std::collections::{BTreeMap, BTreeSet};

use objects::inventory::{Inventory, PoolInventory};
use objects::{DriverArgs, NameHash, ObjectId, PoolId, SnapshotId, VolumeId};

use crate::answer::{self, Page};
use crate::difference::{Difference, Differences};
use crate::objects::{Content, Data, Phase, Policy, Volume};
use crate::report::{Report, Spot};
use crate::step::About;
use crate::view::View;
use crate::wire::{Kind, Object};

/// The objects of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) contents: Vec<Content>,
    /// The ids that objects name, those included that are of another driver or cannot be read: a person who believes that
    /// nothing names a volume deletes it.
    pub(crate) named_volumes: BTreeSet<VolumeId>,
    pub(crate) named_snapshots: BTreeSet<SnapshotId>,
}

impl Objects {
    pub(crate) fn add_volume(&mut self, volume: Object, driver: &DriverArgs) {
        self.named_volumes.extend(Volume::handle(&volume));
        self.volumes.extend(Volume::read(volume, driver));
    }

    pub(crate) fn add_content(&mut self, content: Object, driver: &DriverArgs) {
        self.named_snapshots.extend(Content::handles(&content));
        self.contents.extend(Content::read(content, driver));
    }
}

/// Compares the objects with the pages.
pub(crate) fn compare(objects: &Objects, view: &View) -> Differences {
    let look = Look::new(objects, view);
    let mut found = Differences::new();
    for (node, inventory) in &look.pages {
        for pool in &inventory.pools {
            look.alone(node, pool, &mut found);
        }
    }
    for volume in &objects.volumes {
        look.without_data(volume, &mut found);
    }
    look.twice(&mut found);
    found
}

struct Look<'a> {
    view: &'a View,
    objects: &'a Objects,
    /// The complete answers.
    pages: BTreeMap<&'a str, &'a Inventory>,
    /// The pools in which a snapshot is made whose id no object names yet.
    making: BTreeSet<PoolId>,
    /// The ids that the pages have.
    there: BTreeSet<VolumeId>,
}

impl<'a> Look<'a> {
    fn new(objects: &'a Objects, view: &'a View) -> Self {
        let answers = view.pages.iter();
        let pages: BTreeMap<&str, &Inventory> = answers
            .filter_map(|(node, page)| Some((&**node, complete(page)?)))
            .collect();
        let pools = pages.values().flat_map(|page| &page.pools);
        let there = pools.flat_map(|pool| pool.volumes.iter().map(|volume| volume.id));
        let making = objects
            .contents
            .iter()
            .filter_map(|content| match content.data {
                Data::Volume(id) => Some(id.pool()),
                Data::Snapshot(_) | Data::Malformed => None,
            });
        Self {
            view,
            objects,
            there: there.collect(),
            pages,
            making: making.collect(),
        }
    }

    /// The volumes and snapshots of a pool that no object names.
    fn alone(&self, node: &str, pool: &PoolInventory, found: &mut Differences) {
        if !pool.complete {
            return;
        }
        let place = || Spot {
            node: node.to_owned(),
            pod: self.pod(node),
            pool: pool.name.clone(),
        };
        for item in &pool.volumes {
            if !self.objects.named_volumes.contains(&item.id) {
                let report = Report::VolumeWithoutPersistentVolume {
                    id: item.id,
                    bytes: item.bytes,
                    place: place(),
                };
                self.on_node(node, item.id.hash(), report, found);
            }
        }
        for item in &pool.snapshots {
            let known = self.objects.named_snapshots.contains(&item.id)
                || self.making.contains(&item.id.pool());
            if !known {
                let report = Report::SnapshotWithoutContent {
                    id: item.id,
                    bytes: item.bytes,
                    place: place(),
                };
                self.on_node(node, item.id.hash(), report, found);
            }
        }
    }

    fn on_node(&self, node: &str, object: NameHash, report: Report, found: &mut Differences) {
        let Some(of_node) = self.view.nodes.get(node) else {
            return;
        };
        let difference = Difference {
            about: About::of(Kind::NODE, of_node.identity.clone(), ""),
            node: node.to_owned(),
            object: object.to_string(),
            report,
        };
        add(difference, found);
    }

    /// A volume whose data its node does not have, although the node shows all that it has.
    fn without_data(&self, volume: &Volume, found: &mut Differences) {
        let ends =
            volume.deleting || (volume.phase == Phase::Released && volume.policy == Policy::Delete);
        let mut nodes = self.view.nodes.iter();
        let node = nodes.find(|(_, node)| node.place == volume.place);
        let Some((node, _)) = node.filter(|_| !ends && !self.there.contains(&volume.id)) else {
            return;
        };
        let Some(inventory) = self.pages.get(&**node) else {
            return;
        };
        // It may have been moved to any pool of the node.
        if !answer::lists_all(inventory) {
            return;
        }
        let id = volume.id.pool();
        let pools = &inventory.pools;
        let serves = pools.iter().any(|pool| pool.id == Some(id))
            && pools
                .iter()
                .all(|pool| pool.complete && pool.quarantined == 0);
        if !serves && !inventory.retired.contains(&id) {
            return;
        }
        let name = volume.identity.name.clone();
        let difference = Difference {
            about: About::volume(volume),
            node: node.clone(),
            object: name.clone(),
            report: Report::PersistentVolumeWithoutVolume {
                node: node.clone(),
                name,
                claim: volume.claim.as_ref().map(ToString::to_string),
            },
        };
        add(difference, found);
    }

    /// Pools whose disk two nodes have.
    fn twice(&self, found: &mut Differences) {
        let mut holders: BTreeMap<PoolId, BTreeMap<&str, &str>> = BTreeMap::new();
        for (node, inventory) in &self.pages {
            for pool in &inventory.pools {
                let served = pool.id.filter(|_| pool.unavailable.is_none());
                for id in [served, pool.found].into_iter().flatten() {
                    let nodes = holders.entry(id).or_default();
                    nodes.insert(node, &pool.name);
                }
            }
        }
        for (pool, nodes) in holders.into_iter().filter(|(_, nodes)| nodes.len() > 1) {
            for (node, name) in &nodes {
                let other = nodes.keys().find(|other| *other != node);
                let (Some(other), Some(of_node)) = (other, self.view.nodes.get(*node)) else {
                    continue;
                };
                let difference = Difference {
                    about: About::of(Kind::NODE, of_node.identity.clone(), ""),
                    node: (*node).to_owned(),
                    object: (*name).to_owned(),
                    report: Report::PoolOnTwoPages {
                        id: pool,
                        name: (*name).to_owned(),
                        other: (*other).to_owned(),
                    },
                };
                add(difference, found);
            }
        }
    }

    /// The pod of the driver on a node, for the commands of the events.
    fn pod(&self, node: &str) -> String {
        let mut pods = self.view.pods.iter().filter(|(_, pod)| pod.node == node);
        let pod = pods.find(|(_, pod)| pod.page.is_some());
        pod.map_or_else(String::new, |((namespace, name), _)| {
            format!("-n {namespace} {name}")
        })
    }
}

fn add(difference: Difference, found: &mut Differences) {
    found.insert(difference.key(), difference);
}

fn complete(page: &Page) -> Option<&Inventory> {
    page.answer.as_ref().ok().filter(|answer| answer.loaded)
}
