//! The loop devices of published images, and the limits of the I/O of pods with them.
//!
//! The kernel has the limits in the top cgroup of pods, by the number of the device. The driver's own I/O is limited too,
//! because it is a pod. So a limit is lifted while the driver waits for writes of pods: before an unmount, a copy, a growth,
//! a trim and a detachment.
//!
//! A change of a limit may wait until the operations of the device have ended, and its disk may hang. So only the lock of that
//! one device is held meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use linux::image::loops::{self, Number};
use linux::io::{CgroupFault, CgroupPlace, IoLimits, PodsCgroup, Statistics};
use linux::sync::lock;
use objects::{NameHash, ObjectId};

use pool::VolumeRecord;

/// The I/O of a published volume by one of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageStatistics {
    /// The end of the volume's id.
    pub volume: NameHash,
    pub device: Number,
    pub done: Statistics,
}

#[derive(Debug)]
pub(crate) struct ImageDevices {
    place: CgroupPlace,
    all: Mutex<BTreeMap<Number, Arc<Device>>>,
    /// Whether the kernel gets no limits any more, because an older driver is about to run, or none.
    are_lifted: AtomicBool,
    /// The volumes without their limits that were reported.
    unlimited: Mutex<BTreeSet<NameHash>>,
}

#[derive(Debug)]
struct Device {
    number: Number,
    volume: NameHash,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: IoLimits,
    /// The number of calls that need the device without a limit.
    lifts: usize,
}

impl State {
    /// The limits that the kernel must have now, unless all are lifted.
    fn wanted(&self, are_lifted: bool) -> IoLimits {
        if are_lifted || self.lifts > 0 {
            return IoLimits::NONE;
        }
        self.limits
    }
}

/// Devices without limits, which return when this is dropped.
#[derive(Debug)]
pub(crate) struct Lifted<'a> {
    of: &'a ImageDevices,
    devices: Vec<Arc<Device>>,
}

impl ImageDevices {
    pub(super) fn new(place: CgroupPlace) -> Self {
        Self {
            place,
            all: Mutex::default(),
            are_lifted: AtomicBool::new(false),
            unlimited: Mutex::default(),
        }
    }

    /// Fails if this node limits no I/O.
    pub(super) fn check(&self) -> Result<(), CgroupFault> {
        PodsCgroup::find(&self.place)?.check_writable()
    }

    /// Adds a device that shows the image of a volume. The kernel has its limits already, or gets them by
    /// [`ImageDevices::apply`].
    pub(super) fn add(&self, number: Number, record: &VolumeRecord) {
        let (volume, limits) = (record.id.hash(), record.io_limits);
        let mut all = lock(&self.all);
        if all.get(&number).is_some_and(|known| known.volume == volume) {
            return;
        }
        let state = Mutex::new(State { limits, lifts: 0 });
        let device = Device {
            number,
            volume,
            state,
        };
        all.insert(number, Arc::new(device));
    }

    /// Limits a device before a pod can use it.
    pub(super) fn limit_new(
        &self,
        number: Number,
        record: &VolumeRecord,
    ) -> Result<(), CgroupFault> {
        let known = lock(&self.all).get(&number).cloned();
        match known.filter(|known| known.volume == record.id.hash()) {
            Some(known) => self.apply_to(&known).map(drop),
            None if record.io_limits.is_none() => Ok(()),
            None => self.set(number, record.io_limits).map(drop),
        }
    }

    /// Changes the limits of a volume, also in the kernel. While they are lifted, the kernel gets them afterwards.
    pub(super) fn change(&self, volume: NameHash, limits: IoLimits) -> Result<(), CgroupFault> {
        let mut outcome = Ok(());
        for device in self.of(volume) {
            let mut state = lock(&device.state);
            let before = mem::replace(&mut state.limits, limits);
            let set = self.set(device.number, state.wanted(self.are_lifted()));
            if let Err(error) = set
                && !(before.is_none() && limits.is_none())
            {
                if limits.is_none() {
                    // Otherwise nobody would remove those that the kernel has.
                    state.limits = before;
                }
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Sets the limits of the devices of a volume in the kernel. Returns whether it had others.
    pub(super) fn apply(&self, volume: NameHash) -> Result<bool, CgroupFault> {
        let mut changed = false;
        for device in self.of(volume) {
            changed |= self.apply_to(&device)?;
        }
        Ok(changed)
    }

    /// Lifts the limits of a volume.
    pub(super) fn lift(&self, volume: NameHash) -> Lifted<'_> {
        self.lift_devices(self.of(volume))
    }

    /// Lifts the limits of one device of a volume.
    pub(super) fn lift_device(&self, volume: NameHash, number: Number) -> Lifted<'_> {
        let mut devices = self.of(volume);
        devices.retain(|device| device.number == number);
        self.lift_devices(devices)
    }

    fn lift_devices(&self, devices: Vec<Arc<Device>>) -> Lifted<'_> {
        for device in &devices {
            let mut state = lock(&device.state);
            state.lifts += 1;
            if !state.limits.is_none()
                && let Err(error) = self.set(device.number, IoLimits::NONE)
            {
                tracing::warn!(volume = %device.volume, %error, "cannot lift a limit of I/O, so writing back takes longer");
            }
        }
        Lifted { of: self, devices }
    }

    /// Removes the limits that the kernel has for a device. A device of a pool that was not opened yet gets them again when it
    /// is opened.
    pub(super) fn remove(&self, number: Number) {
        if loops::may_be_own(number)
            && let Err(error) = self.set(number, IoLimits::NONE)
        {
            tracing::debug!(?number, %error, "found no limits of I/O");
        }
    }

    /// Forgets the devices of a volume if a condition holds, before the next device is added.
    pub(super) fn forget_if(&self, volume: NameHash, holds: impl FnOnce() -> bool) {
        let mut all = lock(&self.all);
        if holds() {
            all.retain(|_, device| device.volume != volume);
        }
    }

    /// The devices of a volume.
    pub(super) fn numbers(&self, volume: NameHash) -> BTreeSet<Number> {
        let devices = self.of(volume).into_iter();
        devices.map(|device| device.number).collect()
    }

    /// Forgets these devices of a volume.
    pub(super) fn forget(&self, volume: NameHash, numbers: &BTreeSet<Number>) {
        let is_one =
            |number: &Number, device: &Device| device.volume == volume && numbers.contains(number);
        lock(&self.all).retain(|number, device| !is_one(number, device));
    }

    /// The volumes with devices.
    pub(super) fn volumes(&self) -> BTreeSet<NameHash> {
        lock(&self.all)
            .values()
            .map(|device| device.volume)
            .collect()
    }

    /// The volumes for which the kernel has other limits than it should have.
    pub(super) fn differing(&self) -> Result<BTreeSet<NameHash>, CgroupFault> {
        let has = PodsCgroup::find(&self.place)?.limits()?;
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        let differs = |device: &Arc<Device>| {
            let has = has.get(&device.number).copied().unwrap_or_default();
            // A call that holds the lock may wait for the disk, and sets the limits.
            let state = device.state.try_lock();
            state.is_ok_and(|state| state.wanted(self.are_lifted()) != has)
        };
        let differing = all.into_iter().filter(differs);
        Ok(differing.map(|device| device.volume).collect())
    }

    /// Removes the limits of all devices of the driver but for these from the kernel. Returns their number.
    pub(super) fn clear(&self, but: &BTreeSet<Number>) -> Result<u64, CgroupFault> {
        let pods = PodsCgroup::find(&self.place)?;
        let limited = pods.limits()?.into_keys();
        let is_left = |number: &Number| loops::may_be_own(*number) && !but.contains(number);
        let left: Vec<Number> = limited.filter(is_left).collect();
        for number in &left {
            pods.limit(*number, IoLimits::NONE)?;
        }
        Ok(left.len() as u64)
    }

    /// Removes all limits from the kernel, also those of earlier servers, and sets none any more. Returns their number.
    pub(super) fn lift_all(&self) -> Result<u64, CgroupFault> {
        // Before the list, so that none is set after it.
        self.are_lifted.store(true, Ordering::SeqCst);
        let known: Vec<_> = lock(&self.all).values().cloned().collect();
        // A device that fails keeps its limits, and the others lose theirs.
        let applied: Vec<_> = known.iter().map(|device| self.apply_to(device)).collect();
        let mut lifted = self.clear(&BTreeSet::new())?;
        for changed in applied {
            lifted += u64::from(changed?);
        }
        Ok(lifted)
    }

    /// Whether [`ImageDevices::lift_all`] was called.
    pub(super) fn are_lifted(&self) -> bool {
        self.are_lifted.load(Ordering::SeqCst)
    }

    /// Takes whether a volume lacks its limits, and returns whether that is new.
    pub(super) fn reports(&self, volume: NameHash, is_unlimited: bool) -> bool {
        let mut unlimited = lock(&self.unlimited);
        if is_unlimited {
            unlimited.insert(volume)
        } else {
            unlimited.remove(&volume)
        }
    }

    /// The statistics of all devices that still exist. No disk is asked.
    pub(super) fn statistics(&self) -> Vec<ImageStatistics> {
        let all = lock(&self.all);
        let all: Vec<_> = all
            .iter()
            .map(|(number, device)| (*number, device.volume))
            .collect();
        let statistics = all.into_iter().filter_map(|(device, volume)| {
            let done = Statistics::of(device).inspect_err(|error| {
                tracing::debug!(?device, %error, "cannot read the statistics of a device");
            });
            Some(ImageStatistics {
                volume,
                device,
                done: done.ok()??,
            })
        });
        statistics.collect()
    }

    fn of(&self, volume: NameHash) -> Vec<Arc<Device>> {
        let all = lock(&self.all);
        let of = all.values().filter(|device| device.volume == volume);
        of.cloned().collect()
    }

    fn apply_to(&self, device: &Device) -> Result<bool, CgroupFault> {
        let state = lock(&device.state);
        match self.set(device.number, state.wanted(self.are_lifted())) {
            // There is nothing to limit.
            Err(_) if state.limits.is_none() => Ok(false),
            set => set,
        }
    }

    /// Sets the limits of a device in the kernel. Returns whether it had others.
    fn set(&self, number: Number, wanted: IoLimits) -> Result<bool, CgroupFault> {
        let pods = PodsCgroup::find(&self.place)?;
        let has = pods.limits()?.remove(&number).unwrap_or_default();
        if has == wanted {
            return Ok(false);
        }
        pods.limit(number, wanted)?;
        Ok(true)
    }
}

impl Lifted<'_> {
    /// Whether the volume has no device that is known.
    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        for device in &self.devices {
            lock(&device.state).lifts -= 1;
            // Another volume may have the number of one that was forgotten.
            let known = lock(&self.of.all).get(&device.number).cloned();
            if known.is_some_and(|known| Arc::ptr_eq(&known, device))
                && let Err(error) = self.of.apply_to(device)
            {
                tracing::error!(volume = %device.volume, %error, "the I/O of a volume is not limited");
            }
        }
    }
}
