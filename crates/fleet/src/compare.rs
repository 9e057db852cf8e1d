//! Differences between the volumes on the nodes and the objects of the cluster.
//!
//! A comparison lists the objects first and reads the pages then. A volume exists before its `PersistentVolume` and is deleted
//! before it, so one that comes or goes meanwhile looks different once at most, in one of the two ways. Two comparisons, with
//! the delay between them, have to agree. An unavailable pool, and a page that does not answer, show nothing.

use std::collections::{BTreeMap, BTreeSet};

use objects::inventory::{Inventory, Item, PoolInventory};
use objects::{DriverArgs, ObjectId, PoolId, PoolName, SnapshotId, VolumeId};

use crate::answer::{self, Page};
use crate::command::{Command, Driver, Operation, Target, Unprintable};
use crate::difference::{Difference, Differences};
use crate::objects::{Data, Owner, Phase, Policy, RETAIN, SnapshotContent, Volume};
use crate::report::{Alone, Gone, Many, Remedy, Report};
use crate::step::About;
use crate::view::View;
use crate::wire::{Kind, Object};

/// The objects of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) contents: Vec<SnapshotContent>,
    /// The ids that objects name, those included that are of another driver or cannot be read: a person who believes that
    /// nothing names a volume deletes it.
    pub(crate) named_volumes: BTreeSet<VolumeId>,
    /// `None` without a complete list of contents, as in a cluster whose CRDs of snapshots were removed.
    pub(crate) named_snapshots: Option<BTreeSet<SnapshotId>>,
}

impl Objects {
    pub(crate) fn add_volume(&mut self, volume: Object, driver: &DriverArgs) {
        self.named_volumes.extend(Volume::handle(&volume));
        self.volumes.extend(Volume::read(volume, driver));
    }

    pub(crate) fn add_content(&mut self, content: Object, driver: &DriverArgs) {
        let named = self.named_snapshots.get_or_insert_default();
        named.extend(SnapshotContent::handles(&content));
        self.contents.extend(SnapshotContent::read(content, driver));
    }
}

/// Compares the objects with the pages. `claims_watched` says that the view has all claims.
pub(crate) fn compare(objects: &Objects, view: &View, claims_watched: bool) -> Differences {
    let comparison = Comparison::new(objects, view, claims_watched);
    let mut found = Differences::new();
    comparison.alone(&mut found);
    comparison.gone(&mut found);
    comparison.twice(&mut found);
    found
}

/// The volumes and snapshots of a node that no object names, with their pools.
#[derive(Default)]
struct Lacking<'a> {
    volumes: Vec<(&'a PoolInventory, &'a Item<VolumeId>)>,
    snapshots: Vec<(&'a PoolInventory, &'a Item<SnapshotId>)>,
    /// All of the node.
    all: usize,
}

impl Lacking<'_> {
    fn lack(&self) -> usize {
        self.volumes.len() + self.snapshots.len()
    }
}

struct Comparison<'a> {
    view: &'a View,
    objects: &'a Objects,
    claims_watched: bool,
    /// The complete answers.
    pages: BTreeMap<&'a str, &'a Inventory>,
    /// The pools in which a snapshot is made whose id no object names yet.
    making: BTreeSet<PoolId>,
    /// The ids that the pages have.
    there: BTreeSet<VolumeId>,
    /// The deleted volumes that pools keep, by node.
    kept: BTreeSet<(&'a str, VolumeId)>,
}

impl<'a> Comparison<'a> {
    fn new(objects: &'a Objects, view: &'a View, claims_watched: bool) -> Self {
        let answers = view.pages.iter();
        let pages: BTreeMap<&str, &Inventory> = answers
            .filter_map(|(node, page)| Some((&**node, complete(page)?)))
            .collect();
        let mut there = BTreeSet::new();
        let mut kept = BTreeSet::new();
        for (node, page) in &pages {
            for pool in &page.pools {
                there.extend(pool.volumes.iter().map(|volume| volume.id));
                kept.extend(pool.kept.iter().map(|volume| (*node, volume.id)));
            }
        }
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
            claims_watched,
            there,
            kept,
            pages,
            making: making.collect(),
        }
    }

    /// The volumes and snapshots of the nodes that no object names. An older backup may lack few of each node and many in
    /// all.
    fn alone(&self, found: &mut Differences) {
        let pages = self.pages.iter();
        let nodes: Vec<_> = pages
            .map(|(node, page)| (*node, self.lacking(page)))
            .collect();
        let lack = nodes.iter().map(|(_, one)| one.lack()).sum();
        let all = nodes.iter().map(|(_, one)| one.all).sum();
        for (node, lacking) in nodes {
            let many = Many::of([lacking.lack(), lacking.all], [lack, all]);
            self.of_node(node, lacking, many, found);
        }
    }

    fn lacking<'b>(&self, inventory: &'b Inventory) -> Lacking<'b> {
        let named = &self.objects.named_volumes;
        let known = self.objects.named_snapshots.as_ref();
        let mut lacking = Lacking::default();
        for pool in inventory.pools.iter().filter(|pool| pool.complete) {
            let lacks = |item: &&Item<VolumeId>| !named.contains(&item.id);
            let of_pool = pool.volumes.iter().filter(lacks);
            lacking.volumes.extend(of_pool.map(|item| (pool, item)));
            lacking.all += pool.volumes.len();
            let Some(known) = known else {
                continue;
            };
            let lacks = |item: &&Item<SnapshotId>| {
                !known.contains(&item.id) && !self.making.contains(&item.id.pool())
            };
            let of_pool = pool.snapshots.iter().filter(lacks);
            lacking.snapshots.extend(of_pool.map(|item| (pool, item)));
            lacking.all += pool.snapshots.len();
        }
        lacking
    }

    fn of_node(
        &self,
        node: &str,
        lacking: Lacking<'_>,
        many: Option<Many>,
        found: &mut Differences,
    ) {
        let Lacking {
            volumes, snapshots, ..
        } = lacking;
        let driver = self.driver(node);
        let remedy = |each: &dyn Fn(&Driver) -> Remedy| {
            let driver = driver.as_ref()?;
            let Some(many) = many else {
                return Some(each(driver));
            };
            let command = driver.restore();
            Some(Remedy::Restore { command, many })
        };
        for (pool, item) in volumes {
            let hash = item.id.hash();
            let remedy = remedy(&|driver| Remedy::Each {
                manifest: Some(driver.run::<VolumeId>("manifest", hash)),
                delete: driver.delete::<VolumeId>(hash),
            });
            let alone = alone_of(node, pool, item, remedy);
            let report = Report::VolumeWithoutPersistentVolume(Box::new(alone));
            self.on_node(node, hash.to_string(), report, found);
        }
        for (pool, item) in snapshots {
            let hash = item.id.hash();
            let remedy = remedy(&|driver| Remedy::Each {
                manifest: None,
                delete: driver.delete::<SnapshotId>(hash),
            });
            let alone = alone_of(node, pool, item, remedy);
            let report = Report::SnapshotWithoutContent(Box::new(alone));
            self.on_node(node, hash.to_string(), report, found);
        }
    }

    fn on_node(&self, node: &str, object: String, report: Report, found: &mut Differences) {
        let Some(of_node) = self.view.nodes.get(node) else {
            return;
        };
        let difference = Difference {
            about: About::of(Kind::NODE, of_node.identity.clone(), ""),
            node: node.to_owned(),
            object,
            report,
        };
        add(difference, found);
    }

    /// The volumes whose data their nodes do not have.
    fn gone(&self, found: &mut Differences) {
        let mut all: BTreeMap<&str, usize> = BTreeMap::new();
        let mut gone: BTreeMap<&str, Vec<&Volume>> = BTreeMap::new();
        let nodes = self.view.nodes.iter();
        let names: BTreeMap<&str, &str> =
            nodes.map(|(name, node)| (&*node.place, &**name)).collect();
        for volume in &self.objects.volumes {
            let Some(node) = names.get(&*volume.place) else {
                continue;
            };
            *all.entry(node).or_default() += 1;
            if self.is_gone(volume, node) {
                gone.entry(node).or_default().push(volume);
            }
        }
        // A person declared the loss of a retired pool.
        let lack = |node: &str, volumes: &[&Volume]| {
            let volumes = volumes.iter();
            volumes
                .filter(|volume| !self.is_retired(volume, node))
                .count()
        };
        let lacks = gone.iter().map(|(node, volumes)| lack(node, volumes));
        let everywhere = [lacks.sum(), all.values().sum()];
        for (node, volumes) in gone {
            let many = Many::of([lack(node, &volumes), all[node]], everywhere);
            let many = many.map(Gone::Many);
            for volume in volumes {
                let gone = self.remedy(volume, node, many.as_ref());
                let difference = Difference {
                    about: About::volume(volume),
                    node: node.to_owned(),
                    object: volume.identity.name.clone(),
                    report: Report::PersistentVolumeWithoutVolume {
                        node: node.to_owned(),
                        gone,
                    },
                };
                add(difference, found);
            }
        }
    }

    /// Whether a node does not have the data of a volume, although it shows all that it has.
    fn is_gone(&self, volume: &Volume, node: &str) -> bool {
        let ends =
            volume.deleting || (volume.phase == Phase::Released && volume.policy == Policy::Delete);
        let Some(inventory) = self.pages.get(node) else {
            return false;
        };
        if ends || self.there.contains(&volume.id) {
            return false;
        }
        let id = volume.id.pool();
        let pools = &inventory.pools;
        let serves = pools.iter().any(|pool| pool.id == Some(id))
            && pools
                .iter()
                .all(|pool| pool.complete && pool.quarantined == 0);
        let is_lost = self.is_retired(volume, node) && self.is_nowhere_else(volume, node);
        // It may have been moved to any pool of the node.
        (serves || is_lost) && answer::lists_all(inventory)
    }

    /// Whether every other node with a driver shows that it does not have the volume's pool. A disk that was retired on
    /// one node may be in another.
    fn is_nowhere_else(&self, volume: &Volume, node: &str) -> bool {
        let pods: BTreeSet<&str> = self.view.pods.values().map(|pod| &*pod.node).collect();
        let nodes = self.view.nodes.iter();
        let drivers = nodes.filter(|(name, of)| of.label.is_some() || pods.contains(&***name));
        let mut others = drivers.filter(|(name, _)| *name != node);
        others.all(|(other, _)| {
            let page = self.pages.get(&**other);
            page.is_some_and(|page| answer::shows(page, volume.id.pool(), false).is_none())
        })
    }

    fn is_retired(&self, volume: &Volume, node: &str) -> bool {
        let inventory = self.pages.get(node);
        inventory.is_some_and(|page| page.retired.contains(&volume.id.pool()))
    }

    fn remedy(&self, volume: &Volume, node: &str, many: Option<&Gone>) -> Gone {
        if self.kept.contains(&(node, volume.id)) {
            let driver = self.driver(node);
            let undelete = |driver: Driver| driver.run::<VolumeId>("undelete", volume.id.hash());
            return Gone::Kept(driver.map(undelete));
        }
        match many {
            Some(many) if !self.is_retired(volume, node) => many.clone(),
            _ => Gone::Lost(self.removal(volume)),
        }
    }

    /// The command that removes the objects of a volume without data: the claim that is bound to it or, without a claim, the
    /// volume. Another claim of its name has other data. Where claims are not watched, the uid in the command decides.
    fn removal(&self, volume: &Volume) -> Option<Result<Command, Unprintable>> {
        let Some(claim) = volume
            .claim
            .as_ref()
            .filter(|_| volume.phase == Phase::Bound)
        else {
            return Some(Self::command(volume, None));
        };
        let key = claim.key();
        let found = self.view.claims.get(&key);
        let is_its_claim = found.is_some_and(|found| {
            claim.is(&key, &found.identity.uid)
                && found.volume.as_ref() == Some(&volume.identity.name)
        });
        (is_its_claim || !self.claims_watched).then(|| Self::command(volume, Some(claim)))
    }

    fn command(volume: &Volume, claim: Option<&Owner>) -> Result<Command, Unprintable> {
        let of_volume = Target::new(Kind::VOLUME, &volume.identity)?;
        let target = match claim {
            Some(claim) => {
                let (namespace, name) = claim.key();
                Target::named(Kind::CLAIM, &namespace, &name, claim.uid())?
            }
            None => of_volume.clone(),
        };
        // The data may be back when a person runs the command.
        let policy = ["spec", "persistentVolumeReclaimPolicy"];
        let retain = of_volume.patch(&[Operation::Replace(&policy, RETAIN.into())]);
        Ok(retain.then(&target.delete()))
    }

    /// Pools whose disk two nodes have. Any node's page may say so of any pool, so the `PersistentVolumes` say which
    /// node has the copy, and their own node hears nothing.
    fn twice(&self, found: &mut Differences) {
        let mut named: BTreeMap<PoolId, BTreeSet<&str>> = BTreeMap::new();
        for volume in &self.objects.volumes {
            named
                .entry(volume.id.pool())
                .or_default()
                .insert(&volume.place);
        }
        let mut holders: BTreeMap<PoolId, BTreeMap<&str, &PoolName>> = BTreeMap::new();
        for (node, inventory) in &self.pages {
            for pool in &inventory.pools {
                let served = pool.id.filter(|_| pool.unavailable.is_none());
                for id in [served, pool.found].into_iter().flatten() {
                    holders.entry(id).or_default().insert(node, &pool.name);
                }
            }
        }
        for (pool, nodes) in holders.into_iter().filter(|(_, nodes)| nodes.len() > 1) {
            let places = named.get(&pool).into_iter().flatten();
            let places: Vec<&&str> = places.collect();
            let is_named = |node: &str| {
                let node = self.view.nodes.get(node);
                node.is_some_and(|node| places == [&&*node.place])
            };
            let genuine = nodes.keys().find(|node| is_named(node));
            for (node, name) in nodes.iter().filter(|(node, _)| Some(*node) != genuine) {
                let other = nodes.keys().find(|other| *other != node);
                let Some(other) = genuine.or(other) else {
                    continue;
                };
                let report = Report::PoolOnTwoPages {
                    name: (*name).clone(),
                    other: (*other).to_owned(),
                    is_copy: genuine.is_some(),
                };
                self.on_node(node, name.to_string(), report, found);
            }
        }
    }

    /// The driver on a node, for the commands of the events.
    fn driver(&self, node: &str) -> Option<Driver> {
        let mut pods = self.view.pods.iter().filter(|(_, pod)| pod.node == node);
        let ((namespace, name), _) = pods.find(|(_, pod)| pod.page.is_some())?;
        Driver::new(namespace, name).ok()
    }
}

fn alone_of<I: ObjectId>(
    node: &str,
    pool: &PoolInventory,
    item: &Item<I>,
    remedy: Option<Remedy>,
) -> Alone {
    Alone {
        hash: item.id.hash(),
        bytes: item.bytes,
        node: node.to_owned(),
        pool: pool.name.clone(),
        remedy: remedy.unwrap_or(Remedy::Nothing),
    }
}

fn add(difference: Difference, found: &mut Differences) {
    found.insert(difference.key(), difference);
}

fn complete(page: &Page) -> Option<&Inventory> {
    page.answer.as_ref().ok().filter(|answer| answer.loaded)
}
