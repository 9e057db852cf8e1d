//! The publications of volumes, as the mount table and the loop devices show them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linux::fault::PathFault;
use linux::image::Allocation;
use linux::image::loops::{self, ForeignLoop, Loop};
use linux::mount::{Found, Target, Tidied};
use linux::os::FileId;
use objects::{NameHash, ObjectId};

use crate::error::{Refusal, Result};
use crate::volume::publications::Use;
use crate::volume::publish::refuse_published;
use crate::volume::volumes::Volumes;
use pool::{Disk, Entry, Index, Pool, VolumeRecord, images};

/// The time for udev, which opens a device when its last user has closed it, and so delays the detachment.
const INSPECTION: Duration = Duration::from_secs(2);

impl Volumes {
    /// Refuses a volume that is published, or whose image a loop device shows for somebody else: a mount
    /// may be copied into another namespace.
    pub(super) fn check_unpublished(&self, pool: &Pool, entry: &Entry) -> Result<()> {
        refuse_published(entry, self.published(entry)?)?;
        if entry.record.image.is_none() || pool.is_emptied(entry)? {
            return Ok(());
        }
        let volume = entry.record.id.hash();
        if self.publications.has_devices(Some(volume)) {
            // Its last unpublish may have run while the pool was opened, before the device was known.
            let _devices = self.in_flight.lock_devices(volume)?;
            self.detach_unused(Some(volume))?;
        }
        let file = pool.open_place(entry)?;
        let mut devices = self.mounter.loops_of(file.as_fd())?;
        let begin = Instant::now();
        while devices.iter().any(Loop::is_own) && begin.elapsed() < INSPECTION {
            drop(devices);
            thread::sleep(INSPECTION / 40);
            devices = self.mounter.loops_of(file.as_fd())?;
        }
        match devices.first() {
            None => Ok(()),
            Some(device) => {
                let (id, device) = (entry.record.id, device.path.clone());
                Err(Refusal::ImageInUse { id, device }.into())
            }
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
        let images = images(disk, index);
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
                let device = self.mounter.loop_shown_by(&mount)?;
                shown.insert(device);
                // A bind mount of a directory in its filesystem is no publication.
                let is_whole = mount.device.0 != loops::MAJOR || mount.root == Path::new("/");
                let (id, _) = devices.get(&device).filter(|_| is_whole)?;
                Some(id.hash())
            };
            if let Some(volume) = disk.volume_of(&mount).or_else(image) {
                self.publications.add(volume, &mount.mount_point, None);
            }
        }
        for (device, (id, file)) in devices {
            let Some(entry) = index.get::<VolumeRecord>(id) else {
                continue;
            };
            let is_shown = shown.contains(&device);
            self.learn_io_limits(&entry.record, device, is_shown);
            if let Err(error) = self.adopt(&entry.record, device, file, is_shown) {
                tracing::warn!(%id, %error, "cannot take over the device of an image from the former server");
            }
        }
        if !images.is_empty() {
            self.tidy_devices();
        }
        Ok(())
    }

    /// Takes over a device of an image from the server before. That may have ended between an unmount and a
    /// detachment, and may have been of a version that let pods discard. A device that no mount shows is somebody
    /// else's if it has no number of the driver.
    pub(super) fn adopt(
        &self,
        record: &VolumeRecord,
        number: loops::Number,
        file: FileId,
        is_shown: bool,
    ) -> Result<()> {
        if self.publications.holds(number) {
            return Ok(());
        }
        let Some(device) = self.mounter.loop_at(number, file)? else {
            return Ok(());
        };
        if !is_shown && !device.is_own() {
            return Ok(());
        }
        let path = device.path.clone();
        let allocation = record.image.map(|image| image.allocation);
        if allocation == Some(Allocation::Thick) {
            device.keep_blocks();
        }
        // The kernel detaches that of a filesystem with its last mount.
        let done = match (record.is_device(), is_shown) {
            (false, _) => Ok(()),
            (true, true) => {
                let kept = device.keep();
                self.publications.hold(Some(record.id.hash()), device);
                kept
            }
            (true, false) => device.detach(),
        };
        Ok(done.map_err(PathFault::at("take over", &path))?)
    }

    /// Detaches the devices of a block volume, or those of no known volume, that no mount shows.
    pub(super) fn detach_unused(&self, volume: Option<NameHash>) -> Result<()> {
        if !self.publications.has_devices(volume) {
            return Ok(());
        }
        self.publications.detach(volume, &self.shown_loops()?)
    }

    /// Detaches a device that was at a target and that no mount shows any more. The driver does not hold one that
    /// did not answer when the pool was opened.
    pub(super) fn detach_unheld(&self, number: loops::Number) -> Result<()> {
        let is_loop = number.0 == loops::MAJOR;
        if !is_loop || self.publications.holds(number) || self.shown_loops()?.contains(&number) {
            return Ok(());
        }
        Ok(self.mounter.detach_loop(number)?)
    }

    /// Gives published thick images the blocks again that they lost, where a device cannot refuse discards.
    pub(super) fn refill_images(&self, pool: &Pool) {
        for entry in pool.state.thick_images() {
            let id = entry.record.id;
            if pool.silence().is_some() || self.publications.of(id.hash()).is_empty() {
                continue;
            }
            if let Err(error) = pool.refill(&entry) {
                tracing::warn!(%id, %error, "cannot give a thick image the blocks that it lacks");
            }
        }
    }

    fn shown_loops(&self) -> Result<BTreeSet<loops::Number>> {
        let shown = self.mounter.shown_loops();
        let failed = PathFault::at("read", Path::new("/proc/self/mountinfo"));
        Ok(shown.map_err(failed)?)
    }

    /// Removes the devices that nobody uses any more, and reports those with files of others.
    pub(super) fn tidy_devices(&self) {
        let released = self.detach_unused(None);
        match self.mounter.tidy_loops() {
            Ok(Tidied {
                occupied,
                strangers,
            }) => {
                for device in occupied {
                    self.publications.hold(None, device);
                }
                for ForeignLoop { path, file } in self.publications.new_strangers(strangers) {
                    let (device, file) = (path.display(), file.display());
                    tracing::warn!(%device, %file, "somebody attached a file to a device of the driver");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot detach unused devices; the driver tries again later");
            }
        }
        // Its target may have been unpublished meanwhile.
        if let Err(error) = released.and_then(|()| self.detach_unused(None)) {
            tracing::warn!(%error, "cannot detach unused devices; the driver tries again later");
        }
    }
}
