//! What copies on a btrfs with quota still have of others, counted anew as they rewrite it: it was
//! taken off their limits, for they are not charged for it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::os;
use crate::quota::Enforcement;
use crate::types::{Bytes, VolumeId};

use super::fault::During;
use super::record::Record;
use super::{Entry, Pool, layout};

/// A copy is looked at again when it is charged for so small a part of its limit more.
const PART: u64 = 16;

/// What is less is not worth a new record.
const GRAIN: u64 = 1 << 20;

/// What copies were charged for when they were looked at last.
#[derive(Debug, Default)]
pub(super) struct Recounted(Mutex<BTreeMap<VolumeId, u64>>);

impl Pool {
    /// A copy that was charged for much since it was looked at last.
    pub(crate) fn to_recount(&self) -> Option<Arc<Entry>> {
        let disk = self.disk().ok()?;
        if disk.quota.enforcement() != Enforcement::Squota {
            return None;
        }
        let copies: Vec<Arc<Entry>> = {
            let state = self.lock();
            let copies = state.index.volumes().filter(|entry| {
                let record = &entry.record;
                record.inherited_bytes > Bytes::ZERO && record.enforcement == Enforcement::Squota
            });
            copies.cloned().collect()
        };
        let mut recounted = self
            .recounted
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        recounted.retain(|id, _| copies.iter().any(|entry| entry.record.id == *id));
        let _work = self.begin_own();
        let has_written = |entry: &Arc<Entry>| {
            let charge = entry.record.number().map(|id| disk.quota.charge(id));
            // What cannot be asked is told by whoever needs it.
            let Some(Ok(charge)) = charge else {
                return false;
            };
            let before = recounted.entry(entry.record.id).or_default();
            let much = charge.bytes.abs_diff(*before) > charge.byte_limit / PART;
            if much {
                *before = charge.bytes;
            }
            much
        };
        copies.into_iter().find(has_written)
    }

    /// Counts what a copy still has of others, and raises its limit by what it has not. The caller
    /// holds its id.
    pub(crate) fn recount(&self, entry: &Arc<Entry>) -> Result<()> {
        let _work = self.begin_own();
        let home_sick = |sickness| self.home_sick(sickness);
        let (disk, _) = self.attached().map_err(home_sick)?;
        let before = entry.record.inherited_bytes.0;
        let data = disk.open_below(&entry.path().join(layout::DATA));
        let counted = data.and_then(|data| {
            let data = os::open_dir(data, ".")?;
            disk.quota.inherited(data.as_fd())
        });
        let counted = counted.during("count what a copy has of others");
        let now = counted.map_err(|fault| self.judge(fault, Self::home_sick))?;
        let grain = GRAIN.min(entry.record.limit(0).0 / PART);
        if now.saturating_add(grain) >= before {
            return Ok(());
        }
        let mut record = entry.record.clone();
        record.inherited_bytes = Bytes(now);
        // What it has no more it keeps no more.
        for pin in &mut record.pins {
            pin.bytes = pin.bytes.min(Bytes(now));
        }
        self.change(&disk, entry, record)?;
        for pin in &entry.record.pins {
            let lowered = self.refresh_limit(&disk, pin.volume);
            let lowered = lowered.during("lower a volume's limit");
            lowered.map_err(|fault| self.judge(fault, Self::home_sick))?;
        }
        let (volume, inherited) = (entry.record.id, Bytes(now));
        tracing::info!(pool = %self.name(), %volume, %inherited, "raised the limit of a copy");
        Ok(())
    }
}
