//! Measurements of the disk, and the free space by them.
//!
//! The disk is measured without the lock of the pool's state, so that a filesystem that hangs stops only the
//! calls that measure. A reservation is granted under that lock, by a measurement made just before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::fault::{Fault, InContext};
use linux::sync::lock;
use objects::Bytes;

use crate::disk::error::Result;
use crate::disk::open::Disk;
use crate::disk::unavailable::Unavailable;
use crate::ledger::free_space::{FreeSpace, Policy};
use crate::ledger::index::Index;
use crate::ledger::reservations::{Charged, Measurement, MemberSpace};
use crate::op::pool::Pool;

/// The marker records the bytes that others use again when they changed by this many.
const OTHER_GRAIN: u64 = 16 << 20;

/// The age at which an inspection measures the disk of a set's member again.
const MEASURE_AGAIN: Duration = Duration::from_secs(4);

impl Pool {
    /// The largest size of the next volume; zero while the pool is unavailable or its disk does not answer.
    pub fn available(&self) -> Result<Bytes> {
        if self.why_unusable().is_some() {
            return Ok(Bytes::ZERO);
        }
        let _work = self.begin()?;
        let free = self.free_space();
        Ok(free.as_ref().map_or(Bytes::ZERO, FreeSpace::available))
    }

    /// The space by which a set places a volume in one of its members; `whole` if the volume takes the disk of its own.
    /// `None` while the member is unavailable or its disk does not answer. No disk is asked, because one may hang.
    pub fn member_space(&self, whole: bool) -> Option<MemberSpace> {
        if self.silence().is_some() {
            return None;
        }
        self.state.member_space(whole, |disk| self.policy(disk))
    }

    /// The free space of [`Pool::member_space`] with that of kept objects, or zero.
    pub fn inspected_space(&self, whole: bool) -> Bytes {
        let member_space = self.member_space(whole);
        member_space.map_or(Bytes::ZERO, |member_space| member_space.reported)
    }

    /// Measures the disk of a set's member. Failures are left to the inspections.
    pub(super) fn measure_member(&self, disk: &Disk) {
        if self.name().member().is_none() {
            return;
        }
        let _ = self.report(disk, &self.policy(disk));
    }

    /// As [`Pool::measure_member`], unless that was done a moment ago.
    pub(super) fn inspect_member(&self, disk: &Disk) {
        let policy = self.policy(disk);
        if self.state.remembered(&policy, MEASURE_AGAIN).is_none() {
            self.measure_member(disk);
        }
    }

    /// Measures the space of a member's disk after a new directory, whose record takes some. The charges stay
    /// those of the last measurement, because reading them takes time for each volume; a grant reads them.
    pub(super) fn measure_space_of_member(&self, disk: &Disk) {
        if self.name().member().is_some()
            && let Ok(space) = disk.space()
        {
            self.state.set_space(space);
        }
    }

    /// The free space, by charges that are at most [`MAX_AGE`] old: reading them takes time for each
    /// volume.
    pub(crate) fn free_space(&self) -> Option<FreeSpace> {
        let disk = self.disk().ok()?;
        let policy = self.policy(&disk);
        let known = self.state.known(&policy);
        known.or_else(|| self.report(&disk, &policy).ok())
    }

    /// Measures the free space for a report.
    fn report(&self, disk: &Disk, policy: &Policy) -> Result<FreeSpace, Fault> {
        let mut measurement = self.measure(disk)?;
        self.measure_kept(disk, &mut measurement)?;
        Ok(self.state.measured(policy, &measurement))
    }

    pub(crate) fn policy(&self, disk: &Disk) -> Policy {
        Policy::new(&self.options, disk.accounts(), disk.is_on_root_disk())
    }

    /// Measures the charges of all volumes that have a size, then the filesystem. The bytes that a pod deletes in
    /// between count as charged and as free.
    fn measure(&self, disk: &Disk) -> Result<Measurement, Fault> {
        let at = Instant::now();
        let sums = self.state.read(|index| index.sums);
        let mut charged = if disk.accounts() {
            let charged = |index: &Index| index.volumes().filter_map(Charged::of).collect();
            self.state.read(charged)
        } else {
            Vec::new()
        };
        read_charges(disk, &mut charged)?;
        let space = disk.space()?;
        Ok(Measurement {
            at,
            changes: sums.changes,
            freed: sums.freed,
            space,
            charged,
            kept: BTreeMap::new(),
        })
    }

    /// Adds the charges of kept objects to a measurement.
    pub(super) fn measure_kept(&self, disk: &Disk, to: &mut Measurement) -> Result<(), Fault> {
        if disk.accounts() {
            for (name, entry) in self.state.kept() {
                to.kept.insert(name, disk.charged(&entry.entry)?);
            }
        }
        Ok(())
    }

    /// As [`Pool::measure`], for a grant. A pod may write or delete meanwhile, so each charge is read again and
    /// the smaller value counts: a charge adds to the free space.
    pub(super) fn measure_for_grant(&self, disk: &Disk) -> Result<Measurement, Fault> {
        let mut measurement = self.measure(disk)?;
        read_charges(disk, &mut measurement.charged)?;
        Ok(measurement)
    }

    /// Counts the bytes of a tree that became a volume no longer as other data. It is only for pools that
    /// do not count usage.
    pub(super) fn move_from_others(&self, disk: &Arc<Disk>, bytes: u64) {
        self.change_others(disk, |other| other.saturating_sub(bytes));
    }

    /// Counts the bytes of a volume that became a tree of the host as other data.
    pub(super) fn move_to_others(&self, disk: &Arc<Disk>, bytes: u64) {
        self.change_others(disk, |other| other.saturating_add(bytes));
    }

    pub(super) fn change_others(&self, disk: &Arc<Disk>, change: impl Fn(u64) -> u64) {
        let _marking = lock(&self.marking);
        let other = Bytes(change(self.state.other().0));
        match disk.record_other(other) {
            Ok(_) => self.state.set_other(disk, other),
            Err(unavailable) => self.mark_unavailable(&unavailable),
        }
    }

    /// Measures the use of the filesystem by others while the pool is empty. Filesystems return
    /// freed space late, so only an idle pool may find that others use more than before.
    ///
    /// Returns whether the pool is empty.
    pub(super) fn measure_if_empty(&self, disk: &Arc<Disk>, idle: bool) -> bool {
        let _marking = lock(&self.marking);
        let Some(before) = self.state.empty() else {
            return false;
        };
        let outcome = disk.used(idle).map_err(Unavailable::from).and_then(|used| {
            // A volume that was made meanwhile may be part of the measurement, even if it was deleted.
            if self.state.empty() != Some(before) {
                return Ok(before.other);
            }
            let other = if idle { used } else { used.min(before.other) };
            // A full disk has no free space either way, and is measured again later.
            if other.0.abs_diff(before.other.0) >= OTHER_GRAIN && !disk.record_other(other)? {
                return Ok(before.other);
            }
            Ok(other)
        });
        match outcome {
            Ok(other) => self.state.set_other(disk, other),
            Err(unavailable) => self.mark_unavailable(&unavailable),
        }
        true
    }
}

/// Reads charges, and keeps the smaller of each value and the one before.
fn read_charges(disk: &Disk, charged: &mut [Charged]) -> Result<(), Fault> {
    for volume in charged {
        let bytes = disk.quota.usage(volume.quota_id);
        let bytes = bytes.context("ask what a volume uses")?;
        volume.bytes = volume.bytes.min(bytes);
    }
    Ok(())
}
