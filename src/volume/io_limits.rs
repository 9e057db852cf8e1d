//! When the kernel gets the limits of the I/O of pods with images, and when they are lifted.

use std::path::Path;

use linux::fault::PathFault;
use linux::image::loops::{self, Number};
use linux::io::CgroupFault;
use linux::mount::{Found, MountEntry, MountOptions, Mountable, Prepared, Target};
use linux::os::Status;
use objects::{NameHash, ObjectId};

use crate::error::{Error, Refusal, Result, Unsuitable};
use crate::volume::class::Class;
use crate::volume::image_devices::{ImageStatistics, Lifted};
use crate::volume::volumes::Volumes;
use pool::{Entry, Pool, VolumeRecord};

impl Volumes {
    /// Refuses a class with limits on a node that cannot limit.
    pub(super) fn check_io_limits(&self, class: &Class) -> Result<()> {
        if class.io_limits.is_none() {
            return Ok(());
        }
        let checked = self.image_devices.check();
        checked.map_err(|fault| Unsuitable::NoIoLimits { fault }.into())
    }

    /// Makes the mount for a publication, and sets the limits of its device, which no pod can use before.
    pub(super) fn prepare_limited(
        &self,
        entry: &Entry,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared> {
        if !entry.record.io_limits.is_none() && self.image_devices.are_lifted() {
            let id = entry.record.id;
            return Err(Refusal::LimitsLifted { id }.into());
        }
        let prepared = self.mounter.prepare(source, target, options)?;
        if let Some(number) = prepared.number {
            let limited = self.image_devices.limit_new(number, &entry.record);
            limited.map_err(not_limited(&entry.record))?;
        }
        Ok(prepared)
    }

    /// Remembers the device of a published volume, and makes sure that the kernel limits it: an unpublish elsewhere may have
    /// lifted the limits meanwhile.
    pub(super) fn limit_published(&self, entry: &Entry, number: Option<Number>) -> Result<()> {
        let record = &entry.record;
        if let Some(number) = number {
            self.image_devices.add(number, record);
        }
        if record.io_limits.is_none() {
            return Ok(());
        }
        let applied = self.image_devices.apply(record.id.hash());
        applied.map(drop).map_err(not_limited(record))
    }

    /// Lifts the limits of a volume for its last unmount, and those of a device of a block volume for the last unmount of that,
    /// because both write back. Other unmounts write nothing.
    pub(super) fn lift_for_last(
        &self,
        volume: NameHash,
        target: &Path,
        mounted: Option<Status>,
    ) -> Option<Lifted<'_>> {
        let number = mounted.and_then(number_at);
        let is_last = |number: &Number| self.shown(*number).is_none_or(|mounts| mounts < 2);
        let targets = self.publications.of(volume);
        if targets.iter().any(|(other, _)| other != target) {
            let number = number.filter(|_| mounted.is_some_and(|mounted| is_device(&mounted)));
            let number = number.filter(is_last)?;
            return Some(self.image_devices.lift_device(volume, number));
        }
        let lifted = self.image_devices.lift(volume);
        if lifted.is_empty() {
            // The pool was not opened yet, so that its devices and the other targets are unknown.
            let number = number.filter(is_last);
            number.inspect(|number| self.image_devices.remove(*number));
        }
        Some(lifted)
    }

    /// The number of mounts that show a device; `None` if that cannot be read.
    fn shown(&self, number: Number) -> Option<usize> {
        let entries = self.mounter.table().ok()?.entries.into_iter();
        let shows = |mount: &MountEntry| self.mounter.loop_shown_by(mount) == Some(number);
        Some(entries.filter(shows).count())
    }

    /// Forgets the devices of a volume without a target, and the device of a block volume that was at a target and that no
    /// mount shows any more.
    pub(super) fn forget_unpublished(&self, volume: NameHash, mounted: Option<Status>) {
        let is_unpublished = || self.publications.of(volume).is_empty();
        self.image_devices.forget_if(volume, is_unpublished);
        if let Some(mounted) = mounted.filter(is_device)
            && self.shown(mounted.rdev) == Some(0)
        {
            let devices = [mounted.rdev].into();
            self.image_devices.forget(volume, &devices);
        }
    }

    /// Takes over a device from the server before, or after the pool was opened again, with the limits of the record: a change
    /// of it may have failed after the commit. One that no mount shows is about to be detached.
    pub(super) fn learn_io_limits(&self, record: &VolumeRecord, number: Number, is_shown: bool) {
        if !is_shown {
            self.image_devices.remove(number);
            return;
        }
        let (id, limits) = (record.id, record.io_limits);
        self.image_devices.add(number, record);
        if let Err(error) = self.image_devices.change(id.hash(), limits) {
            tracing::error!(%id, %error, "the I/O of a published volume is not limited");
        }
    }

    /// Removes the limits that an earlier server left for devices which no volume has any more. Nobody has a volume
    /// published before this server is loaded.
    pub(super) fn clear_io_limits(&self) {
        let shown = match self.mounter.shown_loops() {
            Ok(shown) => shown,
            Err(error) => {
                tracing::warn!(%error, "cannot remove limits of I/O that no volume has");
                return;
            }
        };
        match self.image_devices.clear(&shown) {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "removed limits of I/O that no volume has"),
            Err(CgroupFault::Io(error)) => {
                tracing::warn!(%error, "cannot remove limits of I/O that no volume has");
            }
            // A node that cannot limit has no limits.
            Err(error) => tracing::debug!(%error, "there are no limits of I/O"),
        }
    }

    /// The I/O of the published images.
    pub fn image_statistics(&self) -> Vec<ImageStatistics> {
        self.image_devices.statistics()
    }

    /// Sets the limits of the published volumes of a pool again that the kernel lost, such as when somebody has disabled
    /// the controller for a moment.
    pub(super) fn restore_io_limits(&self, pool: &Pool) {
        let published = self.image_devices.volumes();
        let mut limited = pool.state.limited_images();
        limited.retain(|entry| published.contains(&entry.record.id.hash()));
        if limited.is_empty() || pool.silence().is_some() {
            return;
        }
        let differing = self.image_devices.differing();
        for entry in limited {
            let (id, volume) = (entry.record.id, entry.record.id.hash());
            let restored = match &differing {
                Ok(differing) if !differing.contains(&volume) => Ok(false),
                Ok(_) => self.restored(volume).map_err(|error| error.to_string()),
                Err(fault) => Err(fault.to_string()),
            };
            match restored {
                Ok(false) => {}
                Ok(true) if self.image_devices.are_lifted() => {
                    tracing::info!(%id, "lifted the limits of I/O of a volume, which had failed before");
                }
                Ok(true) => {
                    tracing::warn!(%id, "the kernel had lost the limits of I/O of a volume, and the driver has set them again");
                }
                Err(error) => {
                    if self.image_devices.reports(volume, true) {
                        tracing::error!(%id, error, "the I/O of a published volume is not limited");
                    }
                    continue;
                }
            }
            self.image_devices.reports(volume, false);
        }
    }

    fn restored(&self, volume: NameHash) -> Result<bool, CgroupFault> {
        // Before the mounts, because a device that is added after them is shown.
        let mut hidden = self.image_devices.numbers(volume);
        let shown = self.mounter.shown_loops();
        let failed = PathFault::at("read", Path::new("/proc/self/mountinfo"));
        let shown = shown.map_err(failed)?;
        hidden.retain(|number| !shown.contains(number));
        // Somebody has unmounted their target, so that another volume may have their numbers now.
        self.image_devices.forget(volume, &hidden);
        self.image_devices.apply(volume)
    }
}

/// The number of the device of a publication, whose mount was there or was made.
pub(super) fn number_of(found: Found, prepared: Option<&Prepared>) -> Option<Number> {
    match (found, prepared) {
        (_, Some(prepared)) => prepared.number,
        (Found::Mount(mounted), None) => number_at(mounted),
        _ => None,
    }
}

/// Whether a mount is of the node of a loop device.
fn is_device(mounted: &Status) -> bool {
    mounted.rdev.0 == loops::MAJOR
}

/// The number of the driver's device that a mount shows: the one of its node, or the one below its filesystem.
fn number_at(mounted: Status) -> Option<Number> {
    let shown = [mounted.rdev, mounted.id.device];
    shown.into_iter().find(|number| loops::may_be_own(*number))
}

/// The error of a volume whose limits cannot be set.
fn not_limited(record: &VolumeRecord) -> impl Fn(CgroupFault) -> Error {
    let id = record.id;
    move |fault| Refusal::NoIoLimits { id, fault }.into()
}
