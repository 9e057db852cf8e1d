//! What copies on a btrfs with quota keep of what others stay charged for, and the limits that are
//! raised by it.

use std::sync::Arc;

use crate::fault::InContext;
use crate::pool::disk::Disk;
use crate::pool::error::Result;
use crate::pool::record::RetainedCharge;
use crate::pool::{Entry, Pool, VolumeRecord};
use crate::quota::Enforcement;
use crate::types::Bytes;

use super::{CopyJob, Origin};

impl Pool {
    /// What a copy of a subvolume will pin: what its original pins, and, of a volume, what that is
    /// charged for.
    pub(super) fn pins_of(&self, order: &CopyJob<'_>) -> Result<Vec<RetainedCharge>> {
        let entry = match order.origin {
            Origin::Snapshot(entry) => return Ok(self.existing(&entry.record.pins)),
            Origin::Volume(entry) => self.current(entry),
        };
        let volume = &entry.record;
        // What is gone has no limit to raise.
        let mut pins = self.existing(&volume.pins);
        if let Some(charge) = self.charge(&entry)? {
            let limit = volume.enforcement.limit(volume.size_bytes);
            if limit > Bytes::ZERO && volume.enforcement == Enforcement::Squota {
                pins.push(RetainedCharge {
                    volume: volume.id,
                    origin: order.copy,
                    bytes: limit.min(Bytes(charge.bytes)),
                });
            }
        }
        Ok(pins)
    }

    /// What a volume or snapshot holds: a volume's size where nobody counts.
    pub(super) fn bytes_held(&self, disk: &Disk, origin: &Origin) -> Result<u64> {
        let entry = match origin {
            Origin::Snapshot(entry) => return Ok(entry.record.held_bytes.0),
            Origin::Volume(entry) => self.current(entry),
        };
        let volume = &entry.record;
        let size = volume.size_bytes.0;
        let Some(charge) = self.charge(&entry)? else {
            return Ok(size);
        };
        let charged = match volume.enforcement {
            Enforcement::None => charge.bytes,
            Enforcement::Project | Enforcement::Squota => charge.bytes.min(size),
        };
        Ok(match disk.quota.enforcement() {
            Enforcement::Squota => charged.saturating_add(volume.inherited_bytes.0),
            Enforcement::Project | Enforcement::None => charged,
        })
    }

    /// A volume as it is now: it may have grown meanwhile.
    pub(crate) fn current(&self, entry: &Arc<Entry>) -> Arc<Entry> {
        let state = self.lock();
        let current = state.index.get::<VolumeRecord>(entry.record.id);
        Arc::clone(current.unwrap_or(entry))
    }

    /// The pins of volumes that are there.
    fn existing(&self, pins: &[RetainedCharge]) -> Vec<RetainedCharge> {
        let state = self.lock();
        let lives = |pin: &&RetainedCharge| state.index.get::<VolumeRecord>(pin.volume).is_some();
        pins.iter().filter(lives).copied().collect()
    }

    /// Raises the limits of volumes for charges that a copy under construction retains.
    pub(super) fn pin<'a>(
        &'a self,
        disk: &'a Disk,
        pins: Vec<RetainedCharge>,
    ) -> Result<PendingCharges<'a>> {
        self.lock().pending.extend(&pins);
        let pinned = PendingCharges {
            pool: self,
            disk,
            pins,
        };
        for pin in &pinned.pins {
            let raised = self.refresh_limit(disk, pin.volume);
            if let Err(fault) = raised.context("raise a volume's limit") {
                drop(pinned);
                return Err(self.classify(fault));
            }
        }
        Ok(pinned)
    }
}

/// Charges that a copy under construction retains. When this is dropped, its record accounts for
/// them, or nothing does.
#[derive(Debug)]
pub(in crate::pool) struct PendingCharges<'a> {
    pool: &'a Pool,
    disk: &'a Disk,
    pub(super) pins: Vec<RetainedCharge>,
}

impl<'a> PendingCharges<'a> {
    pub(super) fn none(pool: &'a Pool, disk: &'a Disk) -> Self {
        Self {
            pool,
            disk,
            pins: Vec::new(),
        }
    }
}

impl Drop for PendingCharges<'_> {
    fn drop(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let mut state = self.pool.lock();
        for pin in &self.pins {
            if let Some(at) = state.pending.iter().position(|pending| pending == pin) {
                state.pending.swap_remove(at);
            }
        }
        drop(state);
        for pin in &self.pins {
            if let Err(errno) = self.pool.refresh_limit(self.disk, pin.volume) {
                tracing::warn!(pool = %self.pool.name(), volume = %pin.volume, %errno, "left a limit raised");
            }
        }
    }
}
