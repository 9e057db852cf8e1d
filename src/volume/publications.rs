//! The targets of all published volumes, and how they are found. The mount table is too slow for a lookup in each request.
//!
//! A volume is known by the hash in its id, which the name of its directory contains in every pool.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::fault::PathFault;
use crate::image::loops::{self, Loop, Stranger};
use crate::mount::{Found, MountEntry, Target, Tidied};
use crate::os::FileId;
use crate::pool::{AccessMode, Disk, Entry, Index, Pool, VolumeRecord};
use crate::sync::lock;
use crate::types::{NameHash, ObjectId, VolumeId};

use super::publish::refuse_published;
use super::{Volumes, mount_table};

/// The access mode at one target; `None` for a target that was read from the mount table.
pub(crate) type Use = Option<AccessMode>;

/// The targets of every published volume.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    targets: Mutex<BTreeMap<PathBuf, (NameHash, Use)>>,
    /// The devices of published block volumes. While the driver has a device open, it keeps its file and its
    /// number, also if the pod detaches it.
    devices: Mutex<BTreeMap<loops::Number, Held>>,
    /// The devices with files of others that were reported.
    strangers: Mutex<BTreeSet<Stranger>>,
}

/// An open device.
#[derive(Debug)]
struct Held {
    /// `None`: the pod detached it while no driver ran, so that its volume is unknown.
    volume: Option<NameHash>,
    device: Loop,
}

impl Publications {
    /// Adds a target. A known access mode is not replaced by `None`.
    pub(crate) fn add(&self, volume: NameHash, target: &Path, usage: Use) {
        let mut targets = lock(&self.targets);
        let before = targets.get(target).filter(|(of, _)| *of == volume);
        let usage = usage.or(before.and_then(|(_, usage)| *usage));
        targets.insert(target.to_owned(), (volume, usage));
    }

    /// Keeps a device open until it is detached.
    pub(crate) fn hold(&self, volume: Option<NameHash>, device: Loop) {
        let mut devices = lock(&self.devices);
        let number = device.device;
        devices.entry(number).or_insert(Held { volume, device });
    }

    fn holds(&self, number: loops::Number) -> bool {
        lock(&self.devices).contains_key(&number)
    }

    /// Whether a volume is published as a device.
    pub(crate) fn has_devices(&self, volume: NameHash) -> bool {
        let devices = lock(&self.devices);
        devices.values().any(|held| held.volume == Some(volume))
    }

    /// Detaches the devices of a volume but for those that are shown.
    fn detach(&self, volume: NameHash, shown: &BTreeSet<loops::Number>) -> Result<()> {
        self.detach_if(|number, held| held.volume == Some(volume) && !shown.contains(&number))
    }

    /// Detaches a device that was at a target, if it is no volume's.
    pub(crate) fn detach_occupied(&self, number: loops::Number) -> Result<()> {
        self.detach_if(|held_number, held| held_number == number && held.volume.is_none())
    }

    /// Detaches devices. The lock is free meanwhile, because the ioctl and the last close, which writes back,
    /// may wait for the disk.
    fn detach_if(&self, is_unused: impl Fn(loops::Number, &Held) -> bool) -> Result<()> {
        let mut devices = lock(&self.devices);
        let unused = devices.extract_if(.., |number, held| is_unused(*number, held));
        let unused: Vec<_> = unused.collect();
        drop(devices);
        let mut outcome = Ok(());
        for (number, held) in unused {
            if let Err(errno) = held.device.detach() {
                outcome = Err(PathFault::at("detach", &held.device.path)(errno).into());
                lock(&self.devices).insert(number, held);
            }
        }
        outcome
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
        let volume = entry.record.id.hash();
        if self.publications.has_devices(volume) {
            // Its last unpublish may have run while the pool was opened, before the device was known.
            let _devices = self.in_flight.lock_devices(volume)?;
            let table = mount_table(self.mounter.as_ref())?;
            let nodes = table.entries.iter().map(|mount| &mount.root);
            let shown = nodes.filter_map(|root| loops::of_node(root)).collect();
            self.publications.detach(volume, &shown)?;
        }
        let file = pool.open_place(entry)?;
        match self.mounter.loops_of(file.as_fd())?.first() {
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
                    devices.insert(device, (*id, file));
                }
            }
        }
        for mount in self.mounter.table()?.entries {
            let image = || {
                // A bind mount of a directory in it is no publication.
                let is_whole = mount.device.0 == loops::MAJOR && mount.root == Path::new("/");
                let device = Some(mount.device).filter(|_| is_whole);
                let node = loops::of_node(&mount.root);
                // Also at a target that another mount hides.
                shown.extend(device.or(node));
                let device = device.or_else(|| self.device_at(&mount, node?))?;
                devices.get(&device).map(|(id, _)| id.hash())
            };
            if let Some(volume) = disk.volume_of(&mount).or_else(image) {
                self.publications.add(volume, &mount.mount_point, None);
            }
        }
        for (device, (id, file)) in devices {
            let entry = index.get::<VolumeRecord>(id);
            if entry.is_some_and(|entry| entry.record.is_device())
                && let Err(error) = self.adopt(id, device, file, shown.contains(&device))
            {
                tracing::warn!(%id, %error, "left a device as it was");
            }
        }
        if !images.is_empty() {
            self.tidy_devices();
        }
        Ok(())
    }

    /// Takes over a device of a block volume from the server before. That may have ended between an unmount
    /// and a detachment.
    fn adopt(
        &self,
        id: VolumeId,
        device: loops::Number,
        file: FileId,
        is_shown: bool,
    ) -> Result<()> {
        if self.publications.holds(device) {
            return Ok(());
        }
        match self.mounter.loop_at(device, file)? {
            Some(device) if is_shown => self.publications.hold(Some(id.hash()), device),
            Some(device) => {
                let failed = PathFault::at("detach", &device.path);
                device.detach().map_err(failed)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Detaches the devices of a block volume that no target but the one at `leaving` shows.
    pub(super) fn detach_unused(&self, volume: NameHash, leaving: &Path) -> Result<()> {
        let mut shown = BTreeSet::new();
        for (path, _) in self.publications.of(volume) {
            if leaving == path {
                continue;
            }
            if let Some(other) = Target::open_known(&path)?
                && let Found::Mount(other) = self.mounter.inspect(&other)?
            {
                shown.insert(other.rdev);
            }
        }
        self.publications.detach(volume, &shown)
    }

    /// Removes the devices that nobody uses any more, and reports those with files of others.
    pub(super) fn tidy_devices(&self) {
        match self.mounter.tidy_loops() {
            Ok(Tidied {
                occupied,
                strangers,
            }) => {
                for device in occupied {
                    self.publications.hold(None, device);
                }
                for Stranger { path, file } in self.publications.new_strangers(strangers) {
                    let (device, file) = (path.display(), file.display());
                    tracing::warn!(%device, %file, "somebody attached a file to a device of the driver");
                }
            }
            Err(error) => tracing::warn!(%error, "left unused devices"),
        }
    }

    /// The number of a loop device, if a mount shows its node.
    fn device_at(&self, mount: &MountEntry, node: loops::Number) -> Option<loops::Number> {
        let target = Target::open_known(&mount.mount_point).ok()??;
        match self.mounter.inspect(&target) {
            Ok(Found::Mount(found)) if found.rdev == node => Some(node),
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
