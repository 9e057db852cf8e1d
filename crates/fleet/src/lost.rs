//! Places that are lost: their node is missing, or somebody retired their pool.
//!
//! Neither an absent Node nor one that is new proves that its disks are lost. So everything that follows from a lost place
//! either finishes a deletion that somebody asked for, or leaves the data where it is. The times are those that this
//! process has watched, by a clock that nobody can set.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use objects::{NodeName, ObjectId, VolumeId};

use crate::answer;
use crate::due::Due;
use crate::objects::Volume;
use crate::report::Report;
use crate::settings::{Delays, Functions};
use crate::step::Live;
use crate::view::View;

/// Since when this process has seen what it sees now.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    absent: BTreeMap<String, Instant>,
    /// Volumes of a retired pool that no other pool has, and the node that calls it retired.
    retired: BTreeMap<(VolumeId, String), Instant>,
    /// Nodes without a pod and a label of the driver.
    without: BTreeMap<String, Instant>,
}

/// The standing of a place or of a pool at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The node is in the cluster. The pool is not known to be retired there, or another pool has the volume, or may.
    Here,
    /// Lost, but not for long enough.
    Doubtful,
    Lost(Loss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// No node has the place.
    Absent,
    /// The node is there, and its pool was declared lost.
    Retired,
}

/// The lost places of a view.
#[derive(Debug)]
pub(crate) struct Lost<'a> {
    view: &'a View,
    watched: &'a Watched,
    present: HashSet<&'a str>,
    /// The volumes without their place or pool that a page lists, with the node and the pool.
    listed: HashMap<VolumeId, (&'a str, &'a str)>,
    pub(crate) delays: &'a Delays,
    now: Instant,
    /// How many places with volumes are absent, of how many, if that is too many.
    too_many: Option<(usize, usize)>,
}

impl Watched {
    /// Forgets everything, because the process could not watch.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes note of the view.
    pub(crate) fn look<'a>(
        &'a mut self,
        view: &'a View,
        functions: &Functions,
        delays: &'a Delays,
        now: Instant,
    ) -> Lost<'a> {
        let present = view.present();
        let with_volumes: BTreeSet<&str> = view.volumes.values().map(|one| &*one.place).collect();
        let gone = with_volumes
            .iter()
            .filter(|place| !present.contains(**place));
        let (gone, all) = (gone.count(), with_volumes.len());
        let mut places: BTreeSet<String> = with_volumes.into_iter().map(str::to_owned).collect();
        if functions.finish {
            let names = view.contents.values().filter(|one| one.deleting);
            let names = names.filter_map(|content| content.label.as_deref());
            places.extend(names.filter_map(place_of));
            let names = view.claims.values().filter(|claim| !claim.bound);
            let names = names.filter_map(|claim| claim.selected.as_ref());
            places.extend(names.map(NodeName::topology_value));
        }
        places.retain(|place| !present.contains(&**place));
        note(&mut self.absent, places, now);
        let mut retired = retired(view, now, delays);
        let absent = view.volumes.values();
        let absent = absent.filter(|volume| !present.contains(&*volume.place));
        let unknown = absent.map(|volume| volume.id);
        let unknown = unknown.chain(retired.iter().map(|(id, _)| *id)).collect();
        let listed = listed(view, &unknown);
        retired.retain(|(id, _)| !listed.contains_key(id));
        note(&mut self.retired, retired, now);
        let without = view.nodes.iter();
        let without = without.filter(|(_, node)| node.label.is_none());
        let pods: HashSet<&str> = view.pods.values().map(|pod| &*pod.node).collect();
        let without = without.filter(|(name, _)| !pods.contains(&***name));
        note(
            &mut self.without,
            without.map(|(name, _)| name.clone()).collect(),
            now,
        );
        Lost {
            view,
            watched: self,
            present,
            listed,
            delays,
            now,
            too_many: (gone > 1 && gone * 10 > all).then_some((gone, all)),
        }
    }
}

/// Keeps the times of those that are still there, and notes the others.
fn note<K: Ord>(since: &mut BTreeMap<K, Instant>, found: BTreeSet<K>, now: Instant) {
    since.retain(|key, _| found.contains(key));
    for key in found {
        since.entry(key).or_insert(now);
    }
}

/// The volumes of pools that their node calls retired, while no pool of that node may have them unseen: the id of a volume
/// that was moved still names the first pool.
fn retired(view: &View, now: Instant, delays: &Delays) -> BTreeSet<(VolumeId, String)> {
    let mut pages = HashMap::new();
    for (name, page) in &view.pages {
        let inventory = page.fresh(now, delays);
        let inventory =
            inventory.filter(|page| !page.retired.is_empty() && answer::lists_all(page));
        if let (Some(node), Some(inventory)) = (view.nodes.get(name), inventory) {
            pages.insert(&*node.place, (name, inventory));
        }
    }
    let mut found = BTreeSet::new();
    for volume in view.volumes.values() {
        if let Some((node, page)) = pages.get(&*volume.place)
            && page.retired.contains(&volume.id.pool())
        {
            found.insert((volume.id, (*node).clone()));
        }
    }
    found
}

/// Those volumes that a page lists, with its node and pool.
fn listed<'a>(view: &'a View, of: &HashSet<VolumeId>) -> HashMap<VolumeId, (&'a str, &'a str)> {
    let mut found = HashMap::new();
    if of.is_empty() {
        return found;
    }
    for (node, page) in &view.pages {
        let Ok(inventory) = &page.answer else {
            continue;
        };
        let pools = inventory.pools.iter();
        for pool in pools.filter(|pool| !answer::has_none(pool, inventory)) {
            let ids = pool.volumes.iter().map(|volume| volume.id);
            let ids = ids.filter(|id| of.contains(id));
            found.extend(ids.map(|id| (id, (&**node, &*pool.name))));
        }
    }
    found
}

/// The place of the node with a name.
pub(crate) fn place_of(name: &str) -> Option<String> {
    let name: NodeName = name.parse().ok()?;
    Some(name.topology_value())
}

impl Lost<'_> {
    /// The standing of a place.
    pub(crate) fn place(&self, place: &str, due: &mut Due) -> Standing {
        if self.present.contains(place) {
            return Standing::Here;
        }
        let since = self.watched.absent.get(place).copied();
        self.after(since, self.delays.absent_for, Loss::Absent, due)
    }

    /// The standing of a volume.
    pub(crate) fn volume(&self, volume: &Volume, due: &mut Due) -> Standing {
        match self.place(&volume.place, due) {
            Standing::Here => {
                let Some(node) = self.retired_on(volume) else {
                    return Standing::Here;
                };
                let key = (volume.id, node.to_owned());
                let since = self.watched.retired.get(&key).copied();
                self.after(since, self.delays.retired_for, Loss::Retired, due)
            }
            standing => standing,
        }
    }

    /// Whether the node of a volume is there and says which pools are retired.
    pub(crate) fn answers(&self, volume: &Volume) -> bool {
        let mut nodes = self.view.nodes.iter();
        let node = nodes.find(|(_, node)| node.place == volume.place);
        let page = node.and_then(|(name, _)| self.view.pages.get(name));
        page.is_some_and(|page| page.fresh(self.now, self.delays).is_some())
    }

    /// The node of the volume, if the volume's pool is retired there and no other pool has the volume.
    pub(crate) fn retired_on(&self, volume: &Volume) -> Option<&str> {
        let of_id = self.watched.retired.range((volume.id, String::new())..);
        let mut of_id = of_id.take_while(|((found, _), _)| *found == volume.id);
        of_id.find_map(|((_, node), _)| {
            let place = &self.view.nodes.get(node)?.place;
            (*place == volume.place).then_some(&**node)
        })
    }

    fn after(
        &self,
        since: Option<Instant>,
        delay: Duration,
        loss: Loss,
        due: &mut Due,
    ) -> Standing {
        match since {
            Some(since) if due.has_come(since + delay, self.now) => Standing::Lost(loss),
            _ => Standing::Doubtful,
        }
    }

    /// The facts to confirm before a write that follows from a loss, unless too many nodes are absent that the view or the
    /// cluster is not to be trusted.
    pub(crate) fn confirm(&self, loss: Loss, place: &str) -> Result<Vec<Live>, Report> {
        match (loss, self.too_many) {
            (Loss::Absent, Some((absent, all))) => Err(Report::TooManyNodesAbsent { absent, all }),
            (Loss::Absent, None) => Ok(vec![Live::NoPlace(place.to_owned())]),
            (Loss::Retired, _) => Ok(Vec::new()),
        }
    }

    /// The moment from which a volume counts as lost.
    fn lost_at(&self, volume: &Volume, loss: Loss) -> Option<Instant> {
        let watched = self.watched;
        match loss {
            Loss::Absent => {
                let since = watched.absent.get(&volume.place)?;
                Some(*since + self.delays.absent_for)
            }
            Loss::Retired => {
                let key = (volume.id, self.retired_on(volume)?.to_owned());
                let since = watched.retired.get(&key)?;
                Some(*since + self.delays.retired_for)
            }
        }
    }

    /// Whether the pool of a lost volume may be on a living node: one whose page does not answer in full, or shows the
    /// pool or the volume. A node that has had no driver for the whole delay has none of its pools.
    pub(crate) fn elsewhere(&self, volume: &Volume, loss: Loss) -> Elsewhere {
        let retired_on = self.retired_on(volume);
        // Without a moment, no page is new enough.
        let lost_at = self.lost_at(volume, loss).unwrap_or(self.now);
        let mut elsewhere = Elsewhere::No;
        for node in self.view.nodes.keys() {
            let without = self.watched.without.get(node);
            if without.is_some_and(|since| *since + self.delays.absent_for <= self.now) {
                continue;
            }
            let page = self.view.pages.get(node);
            let problem = match page.map(|page| (page, &page.answer)) {
                // The first reading of all pages may take a while.
                None if self.view.pods.values().any(|pod| pod.node == *node) => {
                    elsewhere = Elsewhere::Unread;
                    None
                }
                None => Some("has no driver yet".to_owned()),
                Some((_, Err(problem))) => Some(format!("does not say what it has: {problem}")),
                Some((page, Ok(inventory))) => {
                    let fresh = page.fresh(self.now, self.delays).is_some();
                    if !fresh || page.asked < lost_at {
                        elsewhere = Elsewhere::Unread;
                    }
                    let retired = retired_on == Some(&**node);
                    answer::shows(inventory, volume.id.pool(), retired)
                }
            };
            if let Some(problem) = problem {
                let why = format!("node {node} {problem}");
                return Elsewhere::Maybe(Report::ReleaseWaits { why });
            }
        }
        if let Some((node, pool)) = self.listed.get(&volume.id) {
            let why = format!("node {node} has the volume in pool {pool}");
            return Elsewhere::Maybe(Report::ReleaseWaits { why });
        }
        elsewhere
    }
}

/// Whether a pool or a volume is on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    No,
    /// A page has not been read since the volume is lost.
    Unread,
    Maybe(Report),
}
