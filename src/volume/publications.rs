//! The targets of all published volumes, and how they are found. The mount table is too slow for a lookup in each request.
//!
//! A volume is known by the hash in its id, which the name of its directory contains in every pool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::fault::PathFault;
use crate::image::loops::{self, Stranger};
use crate::mount::{Found, MountEntry, Target};
use crate::os::FileId;
use crate::pool::{AccessMode, Disk, Entry, Index, Pool, VolumeRecord};
use crate::sync::lock;
use crate::types::{NameHash, ObjectId, VolumeId};

use super::Volumes;
use super::publish::refuse_published;

/// The access mode at one target; `None` for a target that was read from the mount table.
pub(crate) type Use = Option<AccessMode>;

/// The targets of every published volume.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    targets: Mutex<BTreeMap<PathBuf, (NameHash, Use)>>,
    /// The images of block volumes, because an unpublish must not ask their disk.
    devices: Mutex<BTreeMap<NameHash, FileId>>,
    /// The devices with files of others that were reported.
    strangers: Mutex<BTreeSet<Stranger>>,
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

    /// Takes the present devices with files of others, and returns those that were not reported yet.
    fn new_strangers(&self, present: Vec<Stranger>) -> Vec<Stranger> {
        let present: BTreeSet<Stranger> = present.into_iter().collect();
        let reported = std::mem::replace(&mut *lock(&self.strangers), present.clone());
        present.difference(&reported).cloned().collect()
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

impl Volumes {
    /// Refuses a volume that is published, or whose image a loop device shows for somebody else: a mount
    /// may be copied into another namespace.
    pub(super) fn check_unpublished(&self, pool: &Pool, entry: &Entry) -> Result<()> {
        refuse_published(entry, self.published(entry)?)?;
        if entry.record.image.is_none() {
            return Ok(());
        }
        match self.mounter.loops_of(pool.data_id(entry)?)?.first() {
            None => Ok(()),
            Some(device) => Err(Error::Precondition(format!(
                "the image of volume {} is in use by {}; unmount and detach it first",
                entry.record.id,
                device.path.display()
            ))),
        }
    }

    /// The targets of a volume that are still mounts; the others are forgotten. Another mount on top
    /// of a target may hide the volume's, so that every mount counts.
    pub(super) fn published(&self, entry: &Entry) -> Result<Vec<(PathBuf, Use)>> {
        let known = self.publications.of(entry.record.id.hash());
        let mut still = Vec::with_capacity(known.len());
        for (path, usage) in known {
            let found = match Target::open_known(&path)? {
                Some(target) => self.mounter.inspect(&target)?,
                None => Found::Nothing,
            };
            if let Found::Mount(_) = found {
                still.push((path, usage));
            } else {
                self.publications.remove(entry.record.id.hash(), &path);
            }
        }
        Ok(still)
    }

    /// Reads from the mount table where a pool's volumes are published.
    pub(super) fn learn_publications(&self, disk: &Disk, index: &Index) -> std::io::Result<()> {
        let images = disk.images(index);
        let mut devices = BTreeMap::new();
        let mut shown = BTreeSet::new();
        if !images.is_empty() {
            for (device, file) in self.mounter.loops()? {
                if let Some(id) = images.get(&file) {
                    devices.insert(device, *id);
                    let entry = index.get::<VolumeRecord>(*id);
                    if entry.is_some_and(|entry| entry.record.is_device()) {
                        self.publications.add_device(id.hash(), file);
                    }
                }
            }
        }
        for mount in self.mounter.table()?.entries {
            let image = || {
                // A bind mount of a directory in it is no publication.
                let is_whole = mount.device.0 == loops::MAJOR && mount.root == Path::new("/");
                let device = Some(mount.device).filter(|_| is_whole);
                let device = device.or_else(|| self.device_at(&mount))?;
                shown.insert(device);
                devices.get(&device).map(VolumeId::hash)
            };
            if let Some(volume) = disk.volume_of(&mount).or_else(image) {
                self.publications.add(volume, &mount.mount_point, None);
            }
        }
        for (device, id) in devices {
            if !shown.contains(&device) && self.publications.device(id.hash()).is_some() {
                // The server before ended between an unmount and this.
                if let Err(error) = self.detach_unused(id.hash(), None) {
                    tracing::warn!(%id, %error, "left a device attached");
                }
            }
        }
        if !images.is_empty() {
            self.tidy_devices();
        }
        Ok(())
    }

    /// Detaches the devices of a block volume that no target shows, the one at `leaving` included. A pod
    /// may have detached them already, and their numbers may be another volume's since.
    pub(super) fn detach_unused(&self, volume: NameHash, leaving: Option<&Path>) -> Result<()> {
        let Some(image) = self.publications.device(volume) else {
            return Ok(());
        };
        let mut shown = BTreeSet::new();
        for (path, _) in self.publications.of(volume) {
            if leaving == Some(&path) {
                continue;
            }
            if let Some(other) = Target::open_known(&path)?
                && let Found::Mount(other) = self.mounter.inspect(&other)?
            {
                shown.insert(other.rdev);
            }
        }
        for device in self.mounter.loops_of(image)? {
            if !shown.contains(&device.device) {
                let failed = PathFault::at("detach", &device.path);
                device.detach().map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Removes the devices that nobody uses any more, and reports those with files of others.
    pub(super) fn tidy_devices(&self) {
        match self.mounter.tidy_loops() {
            Ok(strangers) => {
                for Stranger { path, file } in self.publications.new_strangers(strangers) {
                    let (device, file) = (path.display(), file.display());
                    tracing::warn!(%device, %file, "somebody attached a file to a device of the driver");
                }
            }
            Err(error) => tracing::warn!(%error, "left unused devices"),
        }
    }

    /// The number of the loop device whose node a mount shows, if it shows one.
    fn device_at(&self, mount: &MountEntry) -> Option<loops::Number> {
        let name = mount.root.file_name()?.to_str()?;
        if !name.starts_with("loop") {
            return None;
        }
        let target = Target::open_known(&mount.mount_point).ok()??;
        match self.mounter.inspect(&target) {
            Ok(Found::Mount(found)) => Some(found.rdev),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: B3.
    #[test]
    fn a_device_with_the_file_of_somebody_else_is_reported_once() {
        let publications = Publications::default();
        let stranger = |path: &str| Stranger {
            path: path.into(),
            file: "/own".into(),
        };
        let (one, other) = (stranger("/dev/loop2048"), stranger("/dev/loop2049"));
        for (present, new) in [
            (vec![one.clone()], vec![one.clone()]),
            (vec![one.clone()], Vec::new()),
            (vec![one.clone(), other.clone()], vec![other]),
            (Vec::new(), Vec::new()),
            (vec![one.clone()], vec![one]),
        ] {
            assert_eq!(publications.new_strangers(present), new);
        }
    }
}
