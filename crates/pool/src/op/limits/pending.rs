//! The charges that a copy under construction will retain, and the limits that it raises.

use std::sync::Arc;

use linux::fault::InContext;
use linux::quota::Enforcement;
use objects::Bytes;

use crate::disk::entry::Entry;
use crate::disk::error::Result;
use crate::disk::open::Disk;
use crate::disk::record::RetainedCharge;
use crate::op::copies::origin::Origin;
use crate::op::copies::plan::CopyJob;
use crate::op::pool::Pool;

impl Pool {
    /// The charges that a copy of a subvolume will retain: those that its source retains, and, of a
    /// volume, its own charge.
    pub(crate) fn retained_by(&self, job: &CopyJob<'_>) -> Result<Vec<RetainedCharge>> {
        let entry = match job.plan.origin {
            Origin::Snapshot(entry) => return Ok(self.state.existing(&entry.record.retains)),
            Origin::Volume(entry) => self.current(entry),
        };
        let volume = &entry.record;
        // A deleted volume has no limit to raise.
        let mut retains = self.state.existing(&volume.retains);
        if let Some(charge) = self.charge(&entry)? {
            let limit = volume.enforcement.limit(volume.size_bytes);
            if limit > Bytes::ZERO && volume.enforcement == Enforcement::Squota {
                let own = limit.min(Bytes(charge.bytes));
                // A deleted copy of the same name has blocks of another instant.
                let before = self.state.retained_before(volume.id, job.copy);
                retains.push(RetainedCharge {
                    volume: volume.id,
                    origin: job.copy,
                    bytes: Bytes(own.0.saturating_add(before)),
                });
            }
        }
        Ok(retains)
    }

    /// The bytes of the content of a volume or snapshot; the size of a volume whose usage is not counted.
    pub(crate) fn content_bytes(&self, disk: &Disk, origin: &Origin) -> Result<u64> {
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

    /// The present entry of a volume, which may have grown meanwhile.
    pub fn current(&self, entry: &Arc<Entry>) -> Arc<Entry> {
        let current = self.state.get(entry.record.id);
        current.unwrap_or_else(|| Arc::clone(entry))
    }

    /// Raises the limits of volumes for charges that a copy under construction retains.
    pub(crate) fn retain<'a>(
        &'a self,
        disk: &'a Disk,
        retains: Vec<RetainedCharge>,
    ) -> Result<PendingCharges<'a>> {
        self.state.add_pending(&retains);
        let pending = PendingCharges {
            pool: self,
            disk,
            retains,
        };
        for retained in &pending.retains {
            let raised = self.refresh_limit(disk, retained.volume);
            if let Err(fault) = raised.context("raise a volume's limit") {
                drop(pending);
                return Err(self.classify(fault));
            }
        }
        Ok(pending)
    }
}

/// Charges that a copy under construction retains. When this is dropped, its record accounts for
/// them, or nothing does.
#[derive(Debug)]
pub(crate) struct PendingCharges<'a> {
    pool: &'a Pool,
    disk: &'a Disk,
    pub(crate) retains: Vec<RetainedCharge>,
}

impl Drop for PendingCharges<'_> {
    fn drop(&mut self) {
        self.pool.state.remove_pending(&self.retains);
        for retained in &self.retains {
            if let Err(errno) = self.pool.refresh_limit(self.disk, retained.volume) {
                let (pool, volume) = (self.pool.name(), retained.volume);
                tracing::warn!(%pool, %volume, %errno, "cannot lower a volume's limit again; it stays too high until the pool is opened again");
            }
        }
    }
}
