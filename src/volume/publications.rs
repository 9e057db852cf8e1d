//! The targets of all published volumes. The mount table is too slow for a lookup in each request.
//!
//! A volume is known by the hash in its id, which the name of its directory contains in every pool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::os::FileId;
use crate::pool::AccessMode;
use crate::sync::lock;
use crate::types::NameHash;

/// The access mode at one target; `None` for a target that was read from the mount table.
pub(crate) type Use = Option<AccessMode>;

/// The targets of every published volume.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    targets: Mutex<BTreeMap<PathBuf, (NameHash, Use)>>,
    /// The images of block volumes, because an unpublish must not ask their disk.
    devices: Mutex<BTreeMap<NameHash, FileId>>,
}

impl Publications {
    /// Adds a target. A known access mode is not replaced by `None`.
    pub(crate) fn add(&self, volume: NameHash, target: &Path, usage: Use) {
        let mut targets = lock(&self.targets);
        let before = targets.get(target).filter(|(of, _)| *of == volume);
        let usage = usage.or(before.and_then(|(_, usage)| *usage));
        targets.insert(target.to_owned(), (volume, usage));
    }

    /// Adds the image of a block volume.
    pub(crate) fn add_device(&self, volume: NameHash, image: FileId) {
        lock(&self.devices).insert(volume, image);
    }

    /// The image of a volume, if that was published as a device.
    pub(crate) fn device(&self, volume: NameHash) -> Option<FileId> {
        lock(&self.devices).get(&volume).copied()
    }

    /// Removes a target of a volume, unless it is another volume's now.
    pub(crate) fn remove(&self, volume: NameHash, target: &Path) {
        let mut targets = lock(&self.targets);
        if targets.get(target).is_some_and(|(of, _)| *of == volume) {
            targets.remove(target);
        }
    }

    /// Whether a volume is published at a directory above a path.
    pub(crate) fn is_inside(&self, path: &Path) -> bool {
        let targets = lock(&self.targets);
        let mut above = path.ancestors().skip(1);
        above.any(|above| targets.contains_key(above))
    }

    pub(crate) fn of(&self, volume: NameHash) -> Vec<(PathBuf, Use)> {
        let targets = lock(&self.targets);
        let own = targets.iter().filter(|(_, (of, _))| *of == volume);
        own.map(|(path, (_, usage))| (path.clone(), *usage))
            .collect()
    }

    /// The volume that is published at a target, and its access mode there.
    pub(crate) fn at(&self, target: &Path) -> Option<(NameHash, Use)> {
        lock(&self.targets).get(target).copied()
    }
}
