//! The targets of all published volumes, and how they are found. The mount table is too slow for a lookup in each request.
//!
//! A volume is known by the hash in its id, which the name of its directory contains in every pool.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use linux::fault::PathFault;
use linux::image::loops::{self, ForeignLoop, Loop};
use linux::sync::lock;
use objects::{AccessMode, NameHash};

use crate::error::Result;

/// The access mode at one target; `None` for a target that was read from the mount table.
pub(crate) type Use = Option<AccessMode>;

#[derive(Debug, Default)]
pub(crate) struct Publications {
    /// Not ordered, because every publish asks for all directories above its target, and an order compares paths.
    targets: Mutex<HashMap<PathBuf, (NameHash, Use)>>,
    /// The devices of published block volumes. While the driver has a device open, it keeps its file and its
    /// number, also if the pod detaches it.
    devices: Mutex<BTreeMap<loops::Number, Held>>,
    /// The devices with files of others that were reported.
    strangers: Mutex<BTreeSet<ForeignLoop>>,
}

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

    pub(super) fn holds(&self, number: loops::Number) -> bool {
        lock(&self.devices).contains_key(&number)
    }

    /// Whether a volume is published as a device; `None`: whether there is a device of no known volume.
    pub(crate) fn has_devices(&self, volume: Option<NameHash>) -> bool {
        let devices = lock(&self.devices);
        devices.values().any(|held| held.volume == volume)
    }

    /// Keeps the devices of volumes attached when the driver ends. A pod may have detached one, which the kernel
    /// does as soon as nobody has it open.
    pub(crate) fn keep_devices(&self) {
        let devices = lock(&self.devices);
        let held = devices.values().filter(|held| held.volume.is_some());
        let paths = held.map(|held| held.device.path.clone()).collect();
        drop(devices);
        for (device, errno) in loops::keep_all(paths) {
            let device = device.display();
            tracing::warn!(%device, %errno, "cannot keep a device of a volume attached while no driver runs");
        }
    }

    /// Detaches the devices of a volume, or those of no known one, but for those that are shown. The lock is free
    /// meanwhile, because the disk may hang.
    pub(super) fn detach(
        &self,
        volume: Option<NameHash>,
        shown: &BTreeSet<loops::Number>,
    ) -> Result<()> {
        let mut devices = lock(&self.devices);
        let is_unused = |number: &loops::Number, held: &mut Held| {
            held.volume == volume && !shown.contains(number)
        };
        let unused: Vec<_> = devices.extract_if(.., is_unused).collect();
        drop(devices);
        let mut outcome = Ok(());
        for (number, held) in unused {
            // The kernel writes back at the last close only, and drops the rest when the device is detached. One without
            // a volume shows nothing that is to be kept.
            if volume.is_some()
                && let Err(errno) = held.device.write_back()
            {
                let device = held.device.path.display();
                tracing::warn!(%device, %errno, "cannot write back everything that a pod has written to its block volume, so its last writes may be lost");
            }
            if let Err(errno) = held.device.detach() {
                outcome = Err(PathFault::at("detach", &held.device.path)(errno).into());
                lock(&self.devices).insert(number, held);
            }
        }
        outcome
    }

    /// Takes the present devices with files of others, and returns those that were not reported yet.
    pub(super) fn new_strangers(&self, present: Vec<ForeignLoop>) -> Vec<ForeignLoop> {
        let present: BTreeSet<ForeignLoop> = present.into_iter().collect();
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

    /// The targets of a volume, in the order of their paths.
    pub(crate) fn of(&self, volume: NameHash) -> Vec<(PathBuf, Use)> {
        let targets = lock(&self.targets);
        let own = targets.iter().filter(|(_, (of, _))| *of == volume);
        let mut own: Vec<_> = own
            .map(|(path, (_, usage))| (path.clone(), *usage))
            .collect();
        own.sort_by(|(one, _), (other, _)| one.cmp(other));
        own
    }

    /// The volume that is published at a target, and its access mode there.
    pub(crate) fn at(&self, target: &Path) -> Option<(NameHash, Use)> {
        lock(&self.targets).get(target).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: B3.
    #[test]
    fn a_device_with_the_file_of_somebody_else_is_reported_once() {
        let publications = Publications::default();
        let stranger = |path: &str| ForeignLoop {
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
