//! The states that the objects of one client may have: each answer leaves one of them, and a call without an answer
//! leaves several, of which the disks then show one.

use std::collections::BTreeMap;

/// A volume, or a deleted one that its pool keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    pub id: String,
    /// The number of the pool with its directory. A moved volume is not in the pool that its id names.
    pub place: usize,
    /// The content, which is empty after the creation.
    pub token: String,
}

/// The objects of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    pub live: Option<Object>,
    /// In the order of the deletions.
    pub kept: Vec<Object>,
}

impl Held {
    /// The kept objects with an id, and the number of pools that have one.
    pub fn with_id(&self, id: &str) -> (Vec<&Object>, usize) {
        let kept: Vec<_> = self.kept.iter().filter(|kept| kept.id == id).collect();
        let mut places: Vec<_> = kept.iter().map(|kept| kept.place).collect();
        places.sort_unstable();
        places.dedup();
        (kept, places.len())
    }

    /// The tokens that each pool keeps, in the order of the deletions: only a pool compares the times of its own deletions.
    fn by_place(&self) -> BTreeMap<usize, Vec<&str>> {
        let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for kept in &self.kept {
            places
                .entry(kept.place)
                .or_default()
                .push(kept.token.as_str());
        }
        places
    }

    /// Whether the disks can have this, if they show `seen`. If `ends`, the pools may have ended their oldest objects.
    fn allows(&self, seen: &Self, ends: bool) -> bool {
        let (mine, shown) = (self.by_place(), seen.by_place());
        let left = |place: &usize, kept: &Vec<&str>| {
            let is = shown.get(place).map_or(&[][..], Vec::as_slice);
            if ends { kept.ends_with(is) } else { kept == is }
        };
        self.live == seen.live
            && mine.iter().all(|(place, kept)| left(place, kept))
            && shown.keys().all(|place| mine.contains_key(place))
    }
}

/// All objects of a client, by name.
pub type World = BTreeMap<String, Held>;

/// Whether the disks can have this, if they show `seen`.
pub fn allows(world: &World, seen: &World, ends: bool) -> bool {
    let empty = Held::default();
    world.iter().all(|(name, held)| {
        let shown = seen.get(name).unwrap_or(&empty);
        held.allows(shown, ends)
    })
}

/// The state from which a client goes on if the disks show `seen`: the known one without the kept objects that have ended.
pub fn in_order_of(world: &World, seen: &World) -> World {
    let empty = Held::default();
    let mut world = world.clone();
    for (name, held) in &mut world {
        let mut left = seen.get(name).unwrap_or(&empty).by_place();
        let newest_first = std::mem::take(&mut held.kept).into_iter().rev();
        held.kept = newest_first
            .filter(|kept| {
                left.get_mut(&kept.place)
                    .is_some_and(|left| left.pop().is_some())
            })
            .collect();
        held.kept.reverse();
    }
    world
}
