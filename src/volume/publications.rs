//! Where volumes are published: learned from the mount table when a pool is opened, kept in
//! memory, and looked at again before anything is refused for its sake.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pool::AccessMode;
use crate::types::VolumeId;

/// How a volume is used at one target; `None` where the mount table told of it, which does not
/// say.
pub(crate) type Use = Option<AccessMode>;

/// The targets of every published volume.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    maps: Mutex<Maps>,
}

#[derive(Debug, Default)]
struct Maps {
    by_target: BTreeMap<PathBuf, (VolumeId, Use)>,
    by_volume: BTreeMap<VolumeId, BTreeSet<PathBuf>>,
}

impl Maps {
    fn unlink(&mut self, id: VolumeId, target: &Path) {
        if let Some(targets) = self.by_volume.get_mut(&id) {
            targets.remove(target);
            if targets.is_empty() {
                self.by_volume.remove(&id);
            }
        }
    }
}

impl Publications {
    /// Adds a target; what is known of its use is not forgotten.
    pub(crate) fn add(&self, id: VolumeId, target: &Path, usage: Use) {
        let mut maps = self.lock();
        let other = maps.by_target.get(target).map(|(of, _)| *of);
        if let Some(other) = other.filter(|other| *other != id) {
            maps.unlink(other, target);
        }
        let before = maps
            .by_target
            .get(target)
            .filter(|(of, _)| *of == id)
            .and_then(|(_, u)| *u);
        maps.by_target
            .insert(target.to_owned(), (id, usage.or(before)));
        maps.by_volume
            .entry(id)
            .or_default()
            .insert(target.to_owned());
    }

    /// Removes a target of a volume, if it is still that volume's.
    pub(crate) fn remove(&self, id: VolumeId, target: &Path) {
        let mut maps = self.lock();
        if maps.by_target.get(target).is_some_and(|(of, _)| *of == id) {
            maps.by_target.remove(target);
            maps.unlink(id, target);
        }
    }

    /// Whether something is published above a path.
    pub(crate) fn is_inside(&self, path: &Path) -> bool {
        let maps = self.lock();
        path.ancestors()
            .skip(1)
            .any(|above| maps.by_target.contains_key(above))
    }

    /// The targets of a volume.
    pub(crate) fn of(&self, id: VolumeId) -> Vec<(PathBuf, Use)> {
        let maps = self.lock();
        let targets = maps.by_volume.get(&id).into_iter().flatten();
        targets
            .filter_map(|path| {
                maps.by_target
                    .get(path)
                    .map(|(_, usage)| (path.clone(), *usage))
            })
            .collect()
    }

    /// The volume published at a target, and how it is used there.
    pub(crate) fn at(&self, target: &Path) -> Option<(VolumeId, Use)> {
        self.lock().by_target.get(target).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
