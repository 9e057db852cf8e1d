//! Places that are lost: their node is missing, or somebody retired their pool.
//!
//! Neither an absent Node nor one that is new proves that its disks are lost. So everything that follows from a lost place
//! either finishes a deletion that somebody asked for, or leaves the data where it is. The times are those that this
//! process has watched, by a clock that nobody can set.
//!
//! A wrong list of nodes, as of an API server that was restored, shows many absences that begin together. So nothing is
//! done while too many began lately.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use objects::{NodeName, ObjectId, VolumeId};

use crate::answer;
use crate::due::Due;
use crate::objects::{Machine, Node, Phase, Volume};
use crate::report::Report;
use crate::settings::{Delays, Functions};
use crate::step::Live;
use crate::view::View;

/// How long an absence counts as one that began lately.
const LATELY: Duration = Duration::from_hours(24);

/// Since when this process has seen what it sees now.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    absent: BTreeMap<String, Instant>,
    /// Volumes of a retired pool that no other pool has, and the node that calls it retired.
    retired: BTreeMap<(VolumeId, String), Retired>,
}

/// The knowledge about a retired pool.
#[derive(Debug, Clone, Copy)]
struct Retired {
    since: Instant,
    /// Whether the last answer of the node says so. Without an answer nothing is done, and the time goes on.
    seen: bool,
}

/// Whether a place, or a pool at a place, is present or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
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
    /// The volumes without their place or pool that a page lists, with the node.
    listed: HashMap<VolumeId, &'a str>,
    pub(crate) delays: &'a Delays,
    now: Instant,
    /// How many places with bound volumes became absent lately, of how many, if that is too many.
    too_many: Option<(usize, usize)>,
    /// The names of the nodes of the view.
    known: OnceCell<Arc<BTreeSet<String>>>,
}

impl Watched {
    /// Forgets everything, because the process could not watch.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes note of the view.
    pub(crate) fn observe<'a>(
        &'a mut self,
        view: &'a View,
        functions: &Functions,
        delays: &'a Delays,
        now: Instant,
    ) -> Lost<'a> {
        let present = view.present();
        let places = absent_places(view, functions, &present);
        note(&mut self.absent, places, now);
        let mut retired = retired(view, now, delays);
        let absent = view.volumes.values();
        let absent = absent.filter(|volume| !present.contains(&*volume.place));
        let unknown = absent.map(|volume| volume.id);
        let unknown = unknown.chain(retired.iter().map(|(id, _)| *id)).collect();
        let listed = listed(view, &unknown);
        retired.retain(|(id, _)| !listed.contains_key(id));
        self.note_retired(retired, view, delays, now);
        let too_many = self.too_many(view, now);
        Lost {
            view,
            watched: self,
            present,
            listed,
            delays,
            now,
            too_many,
            known: OnceCell::new(),
        }
    }

    /// A node that does not answer may still call the pool retired.
    fn note_retired(
        &mut self,
        found: BTreeSet<(VolumeId, String)>,
        view: &View,
        delays: &Delays,
        now: Instant,
    ) {
        let silent = |node: &String| {
            let page = view.pages.get(node);
            let answers = page.is_some_and(|page| page.fresh(now, delays).is_some());
            view.nodes.contains_key(node) && !answers
        };
        self.retired
            .retain(|key, _| found.contains(key) || silent(&key.1));
        for (key, retired) in &mut self.retired {
            retired.seen = found.contains(key);
        }
        for key in found {
            let seen = Retired {
                since: now,
                seen: true,
            };
            self.retired.entry(key).or_insert(seen);
        }
    }

    /// Volumes without a claim do not count, because their nodes may have been removed years ago.
    fn too_many(&self, view: &View, now: Instant) -> Option<(usize, usize)> {
        let volumes = view.volumes.values();
        let bound = volumes.filter(|volume| volume.phase == Phase::Bound);
        let all: BTreeSet<&str> = bound.map(|volume| &*volume.place).collect();
        let lately = all.iter().filter(|place| {
            let since = self.absent.get(**place);
            since.is_some_and(|since| now.duration_since(*since) < LATELY)
        });
        let lately = lately.count();
        (lately > 1 && lately * 10 > all.len()).then_some((lately, all.len()))
    }
}

/// The places that objects name and no node has.
fn absent_places(view: &View, functions: &Functions, present: &HashSet<&str>) -> BTreeSet<String> {
    let volumes = view.volumes.values();
    let mut places: BTreeSet<String> = volumes.map(|one| one.place.clone()).collect();
    if functions.finish {
        let names = view.contents.values().filter(|one| one.deleting);
        let names = names.filter_map(|content| content.label.as_deref());
        places.extend(names.filter_map(place_of));
        let names = view.claims.values().filter(|claim| !claim.bound);
        let names = names.filter_map(|claim| claim.selected.as_ref());
        places.extend(names.map(NodeName::topology_value));
    }
    places.retain(|place| !present.contains(&**place));
    places
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

/// Those volumes that a page lists, with its node.
fn listed<'a>(view: &'a View, of: &HashSet<VolumeId>) -> HashMap<VolumeId, &'a str> {
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
            found.extend(ids.map(|id| (id, &**node)));
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
    /// Whether a place is present or lost.
    pub(crate) fn place(&self, place: &str, due: &mut Due) -> Presence {
        if self.present.contains(place) {
            return Presence::Here;
        }
        let since = self.watched.absent.get(place).copied();
        self.after(since, self.delays.absent_for, Loss::Absent, due)
    }

    /// Whether the place of a volume is present or lost.
    pub(crate) fn volume(&self, volume: &Volume, due: &mut Due) -> Presence {
        match self.place(&volume.place, due) {
            Presence::Here => {
                let Some((_, since)) = self.retired(volume) else {
                    return Presence::Here;
                };
                self.after(Some(since), self.delays.retired_for, Loss::Retired, due)
            }
            standing => standing,
        }
    }

    /// Whether the node of a volume, which is in the cluster, did not call the pool retired when it answered last.
    pub(crate) fn is_back(&self, volume: &Volume) -> bool {
        // Before the pages were read, nobody knows that.
        if !self.view.pages_read {
            return false;
        }
        self.of_id(volume).next().is_none()
    }

    /// The nodes that call the pool of a volume retired, or did so when they answered last.
    fn of_id(&self, volume: &Volume) -> impl Iterator<Item = (&str, &Retired)> {
        let of_id = self.watched.retired.range((volume.id, String::new())..);
        let of_id = of_id.take_while(move |((found, _), _)| *found == volume.id);
        of_id.map(|((_, node), retired)| (&**node, retired))
    }

    /// The node of the volume, if the volume's pool is retired there and no other pool has the volume.
    pub(crate) fn retired_on(&self, volume: &Volume) -> Option<&str> {
        self.retired(volume).map(|(node, _)| node)
    }

    /// That node, and since when it says so.
    fn retired(&self, volume: &Volume) -> Option<(&str, Instant)> {
        let mut seen = self.of_id(volume).filter(|(_, retired)| retired.seen);
        seen.find_map(|(node, retired)| {
            let place = &self.view.nodes.get(node)?.place;
            (*place == volume.place).then_some((node, retired.since))
        })
    }

    fn after(
        &self,
        since: Option<Instant>,
        delay: Duration,
        loss: Loss,
        due: &mut Due,
    ) -> Presence {
        match since {
            Some(since) if due.has_come(since + delay, self.now) => Presence::Lost(loss),
            _ => Presence::Doubtful,
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

    /// Also that no node joined that the view does not have, because the disk may be there.
    pub(crate) fn confirm_everywhere(
        &self,
        loss: Loss,
        volume: &Volume,
    ) -> Result<Vec<Live>, Report> {
        // The name is asked for too, because a list may lack a node that the API server knows by it.
        let mut facts = self.confirm(loss, &volume.place)?;
        if let Some(node) = self.retired_on(volume).filter(|_| loss == Loss::Retired) {
            let pods = self.view.pods.values().filter(|pod| pod.node == node);
            facts.push(Live::Retired {
                node: node.to_owned(),
                pages: pods.filter_map(|pod| pod.page).collect(),
                volume: volume.id,
            });
        }
        let place = (loss == Loss::Absent).then(|| volume.place.clone());
        let names = || Arc::new(self.view.nodes.keys().cloned().collect());
        let known = Arc::clone(self.known.get_or_init(names));
        facts.push(Live::NoOtherNode { place, known });
        Ok(facts)
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
                let (_, since) = self.retired(volume)?;
                Some(since + self.delays.retired_for)
            }
        }
    }

    /// Whether the pool of a lost volume may be on another node. So it may if the node's page does not answer in full, or
    /// shows the pool or the volume, and if the node has no driver and may be the lost machine.
    pub(crate) fn elsewhere(&self, volume: &Volume, loss: Loss) -> Elsewhere {
        let retired_on = self.retired_on(volume);
        // Without a moment, no page is new enough.
        let lost_at = self.lost_at(volume, loss).unwrap_or(self.now);
        let mut elsewhere = Elsewhere::No;
        for (node, found) in &self.view.nodes {
            let page = self.view.pages.get(node);
            let problem = match page.map(|page| (page, &page.answer)) {
                // The first reading of all pages may take a while.
                None if self.view.pods.values().any(|pod| pod.node == *node) => {
                    elsewhere = Elsewhere::Unread;
                    None
                }
                None => self.without_driver(found, volume, loss),
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
        if let Some(node) = self.listed.get(&volume.id) {
            let why = format!("node {node} has the volume in another pool");
            return Elsewhere::Maybe(Report::ReleaseWaits { why });
        }
        elsewhere
    }

    /// Why a node without a driver may have the disk of a volume. It has none if nothing runs the driver there, and it is
    /// not the lost machine under another name.
    fn without_driver(&self, node: &Node, volume: &Volume, loss: Loss) -> Option<String> {
        if node.label.is_some() {
            return Some(
                "had a driver, which does not run; start it, because it may have the disk"
                    .to_owned(),
            );
        }
        match &self.view.driver_sets {
            Some(sets) if sets.iter().any(|set| set.selects(node)) => {
                return Some(
                    "has no driver, although a DaemonSet of the driver selects it; if it should have none, exclude it there"
                        .to_owned(),
                );
            }
            Some(sets) if !sets.is_empty() => {}
            _ => {
                return Some(
                    "has no driver, and the controller found no DaemonSet of the driver".to_owned(),
                );
            }
        }
        if loss == Loss::Retired {
            return None;
        }
        match (self.view.machines.get(&volume.place), &node.machine) {
            (Some(before), Some(machine)) => self.is_one_of(before, machine).then(|| {
                "may be the lost machine under another name, because its machineID or systemUUID is the same; label it, so \
                 that the driver runs there"
                    .to_owned()
            }),
            _ => Some(
                "has no driver and may be the lost machine under another name, because the controller did not see the \
                 machineID of the lost one; if it is not, see `rootcellar-fleet plan`"
                    .to_owned(),
            ),
        }
    }

    /// Whether a machine has an id of one of the others. A new installation changes one id, and another chassis the other.
    /// An id that several nodes with a driver have is one of a template, and proves nothing.
    fn is_one_of(&self, machines: &[Machine], machine: &Machine) -> bool {
        let nodes = self.view.nodes.values();
        let nodes = nodes.filter(|node| node.label.is_some());
        let known: Vec<&Machine> = nodes.filter_map(|node| node.machine.as_ref()).collect();
        let ids: [fn(&Machine) -> &str; 2] = [|one| &one.machine_id, |one| &one.system_uuid];
        ids.iter().any(|id| {
            let same = |other: &Machine| id(other) == id(machine);
            machines.iter().any(same) && !known.iter().any(|other| same(other))
        })
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
