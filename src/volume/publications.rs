//! The targets of all published volumes. The mount table is too slow for a lookup in each request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::os::FileId;
use crate::pool::AccessMode;
use crate::sync::lock;
use crate::types::VolumeId;

/// The access mode at one target; `None` for a target that was read from the mount table.
pub(crate) type Use = Option<AccessMode>;

/// The targets of every published volume.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    targets: Mutex<BTreeMap<PathBuf, (VolumeId, Use)>>,
    /// The images of block volumes, because an unpublish must not ask their disk.
    devices: Mutex<BTreeMap<VolumeId, FileId>>,
}

impl Publications {
    /// Adds a target. A known access mode is not replaced by `None`.
    pub(crate) fn add(&self, id: VolumeId, target: &Path, usage: Use) {
        let mut targets = lock(&self.targets);
        let before = targets.get(target).filter(|(of, _)| *of == id);
        let usage = usage.or(before.and_then(|(_, usage)| *usage));
        targets.insert(target.to_owned(), (id, usage));
    }

    /// Adds the image of a block volume.
    pub(crate) fn add_device(&self, id: VolumeId, image: FileId) {
        lock(&self.devices).insert(id, image);
    }

    /// The image of a volume, if that was published as a device.
    pub(crate) fn device(&self, id: VolumeId) -> Option<FileId> {
        lock(&self.devices).get(&id).copied()
    }

    /// Removes a target of a volume, unless it is another volume's now.
    pub(crate) fn remove(&self, id: VolumeId, target: &Path) {
        let mut targets = lock(&self.targets);
        if targets.get(target).is_some_and(|(of, _)| *of == id) {
            targets.remove(target);
        }
    }

    /// Whether a volume is published at a directory above a path.
    pub(crate) fn is_inside(&self, path: &Path) -> bool {
        let targets = lock(&self.targets);
        let mut above = path.ancestors().skip(1);
        above.any(|above| targets.contains_key(above))
    }

    pub(crate) fn of(&self, id: VolumeId) -> Vec<(PathBuf, Use)> {
        let targets = lock(&self.targets);
        let own = targets.iter().filter(|(_, (of, _))| *of == id);
        own.map(|(path, (_, usage))| (path.clone(), *usage))
            .collect()
    }

    /// The volume that is published at a target, and its access mode there.
    pub(crate) fn at(&self, target: &Path) -> Option<(VolumeId, Use)> {
        lock(&self.targets).get(target).copied()
    }
}
