//! The limits of volumes, and the bytes that stay charged to them because copies on btrfs reference them.
//!
//! A record says which limit a volume should have, and the kernel has the limit in force. They are compared when a pool
//! is opened. Only the holder of `Pool::limiting` changes a record together with its limit.
//!
//! Simple quota charges an extent to the subvolume that wrote it first, and to the qgroup of that subvolume. The charge
//! ends with the last reference to the extent, in any subvolume. A snapshot of a subvolume references its extents and is
//! charged for none of them. So a volume V of size S stays charged for a deleted extent while a copy references it, and
//! the copy is charged only for data that is written into it. `state/retained.rs` sums these charges of V.
//!
//! V must be able to write S bytes, and its charge is at most its own data plus the retained bytes. So its limit is
//!
//! ```text
//! limit(V) = S + retained(V)
//! ```
//!
//! The limit is raised before a copy is made, because V may replace its data at once. It is lowered when the copy was
//! reclaimed, or when its construction failed (`PendingCharges`). A power-off in between leaves a limit too high, and the
//! next opening sets it from the records. A restore or a clone has a limit by the same formula. A snapshot is read-only
//! and has none.
//!
//! A pool must be able to give every volume its size, so it reserves
//!
//! ```text
//! the sizes of the volumes
//! + retained(V) of each existing volume V
//! + the part of each snapshot's size that no retained charge covers
//! ```
//!
//! If an existing volume is charged for extents of a snapshot, they count once, as its retained charge. For a deleted
//! volume nothing is reserved: it writes no more, and its extents are used space already.

pub(crate) mod pending;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linux::fault::{Fault, InContext};
use linux::os;
use linux::quota::{Charge, Quota};
use linux::sync::lock;
use objects::{Bytes, VolumeId};
use rustix::io::Errno;

use crate::disk::dirs::RecordDirs;
use crate::disk::entry::Entry;
use crate::disk::error::{Error, Result};
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{Record, VolumeRecord};
use crate::ledger::index::{Index, Resource};
use crate::ledger::retained::Retained;
use crate::op::pool::Pool;

pub const READ_LIMITS: &str = "read the limits of the disk";

/// The result of comparing a limit with its record.
#[derive(Debug, Clone, Copy)]
pub enum LimitState {
    AsRecorded,
    /// The limit is missing or different.
    Differs {
        id: u32,
        limit: Bytes,
        has: Charge,
    },
    /// The owner of the quota id is not certain, so nothing is changed.
    Conflict(QuotaConflict),
}

/// The reason why the owner of a quota id is not certain.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum QuotaConflict {
    #[error("another record has the same quota_id, {0}")]
    Twin(u32),
    #[error(
        "its data is charged to {}, and its record says quota_id {recorded}; `rootcellar check` \
         says how to mend it", described(*.found)
    )]
    Elsewhere { found: Option<u32>, recorded: u32 },
}

/// A quota id for messages; `None` is one that this driver did not choose.
pub fn described(id: Option<u32>) -> String {
    id.map_or("no quota id of this driver".to_owned(), |id| id.to_string())
}

impl Pool {
    /// Restores the kernel's limits from the records. A volume whose quota id may belong to another is
    /// quarantined, and the limit is not touched. A limit without a charge and without a record remains
    /// from an interrupted create or delete, and is removed.
    pub(crate) fn reconcile(&self, disk: &Disk, index: &mut Index) -> Result<(), Fault> {
        if !disk.accounts() {
            return Ok(());
        }
        let recorded = recorded(index);
        let charges = disk.quota.charges_nearby(&mut recorded.keys().copied());
        let charges = charges.context(READ_LIMITS)?.into_iter().collect();
        for id in recorded.keys() {
            disk.quota.note(*id);
        }
        let ledger = RecordedLimits {
            recorded,
            retained: index.retained().clone(),
            charges,
        };
        let mut raised: usize = 0;
        let volumes: Vec<Arc<Entry>> = index.volumes().cloned().collect();
        for entry in &volumes {
            raised += usize::from(self.reconcile_entry(disk, index, &ledger, entry)?);
        }
        let snapshots: Vec<_> = index.snapshots().cloned().collect();
        for entry in &snapshots {
            self.reconcile_entry(disk, index, &ledger, entry)?;
        }
        if raised > 0 {
            tracing::info!(pool = %self.name(), raised, "raised the limits of copies to their sizes");
        }
        self.clear_leftovers(disk, &ledger)
    }

    /// Returns whether the limit was that of a copy made by an older driver, and was raised.
    fn reconcile_entry<R: Resource>(
        &self,
        disk: &Disk,
        index: &mut Index,
        ledger: &RecordedLimits,
        entry: &Entry<R>,
    ) -> Result<bool, Fault> {
        match examine(&disk.homes, &*disk.quota, entry, ledger)? {
            LimitState::AsRecorded => {}
            LimitState::Differs { id, limit, has } => {
                let less = Bytes(limit.0.saturating_sub(entry.record.inherited()).max(1));
                if limit > less && disk.quota.has_limit(&has, less) {
                    // Restoring meets the same error and reports it.
                    if disk.quota.limit(&self.context.os, id, limit).is_ok() {
                        return Ok(true);
                    }
                }
                self.restore(disk, &entry.record.id().to_string(), id, limit, has)?;
            }
            LimitState::Conflict(conflict) => {
                index.distrust(entry, conflict.to_string());
            }
        }
        Ok(false)
    }

    /// Limits a volume to its recorded size and the charges that copies retain for it, if the pool
    /// enforces sizes. The caller holds [`Pool::limiting`], or another thread might set the limit of
    /// an older record.
    pub(crate) fn set_limit(&self, disk: &Disk, record: &VolumeRecord) -> Result<(), Errno> {
        let Some(id) = record.quota_id().filter(|_| disk.accounts()) else {
            return Ok(());
        };
        let limit = record.limit(self.state.retained(record.id));
        disk.quota.limit(&self.context.os, id, limit)
    }

    /// Refuses a volume or snapshot whose data is charged elsewhere, as the next opening of the pool would.
    pub(super) fn check_charged<R: Resource>(&self, disk: &Disk, entry: &Entry<R>) -> Result<()> {
        let home = disk.homes.of::<R>();
        self.check_charged_at(disk, home, &entry.path(), &entry.record)
    }

    /// As [`Pool::check_charged`], for the object in a directory of `home`; `path` is its path below the pool's.
    pub(super) fn check_charged_at<R: Resource>(
        &self,
        disk: &Disk,
        home: &OwnedFd,
        path: &Path,
        record: &R,
    ) -> Result<()> {
        let directory = path.file_name().unwrap_or_default();
        if !disk.accounts() {
            return Ok(());
        }
        match charged_elsewhere(home, directory, &*disk.quota, record) {
            Ok(None) => Ok(()),
            Ok(Some(conflict)) => Err(Error::Quarantined {
                path: self.path().join(path),
                reason: conflict.to_string(),
            }),
            Err(fault) => Err(self.classify_directory(path, "its data", fault)),
        }
    }

    /// Sets the limit of a volume again, if the volume exists.
    pub(crate) fn refresh_limit(&self, disk: &Disk, volume: VolumeId) -> Result<(), Errno> {
        let _limiting = lock(&self.limiting);
        let entry = self.state.get::<VolumeRecord>(volume);
        entry.map_or(Ok(()), |entry| self.set_limit(disk, &entry.record))
    }

    fn restore(
        &self,
        disk: &Disk,
        volume: &str,
        id: u32,
        limit: Bytes,
        has: Charge,
    ) -> Result<(), Fault> {
        let restored = disk.quota.limit(&self.context.os, id, limit);
        let outcome = match restored.context("restore a volume's limit") {
            Ok(()) => {
                self.limits_restored.fetch_add(1, Ordering::Relaxed);
                "restored"
            }
            // A full disk must be served, or nobody could delete volumes from it.
            Err(fault) if fault.is_full() => "not restored, because the disk is full",
            Err(fault) => return Err(fault),
        };
        tracing::warn!(
            pool = %self.options.name,
            volume,
            limit = %Bytes(has.byte_limit),
            recorded = %limit,
            outcome,
            "a volume's limit differed from its record"
        );
        Ok(())
    }

    fn clear_leftovers(&self, disk: &Disk, ledger: &RecordedLimits) -> Result<(), Fault> {
        for (id, charge) in &ledger.charges {
            if ledger.recorded.contains_key(id) || !charge.is_empty() {
                continue;
            }
            match disk.quota.release(&self.context.os, *id) {
                Ok(()) => {
                    tracing::info!(pool = %self.options.name, id, "removed a limit that no record has");
                }
                Err(errno @ (Errno::IO | Errno::ROFS)) => {
                    return Err(Fault::new("clear a limit", errno));
                }
                Err(errno) => {
                    tracing::warn!(pool = %self.options.name, id, %errno, "cannot remove a limit that no record has");
                }
            }
        }
        Ok(())
    }
}

/// The records and the kernel's limits, for the comparison.
#[derive(Debug, Default)]
pub struct RecordedLimits {
    /// The number of records with each quota id.
    pub recorded: BTreeMap<u32, usize>,
    /// The bytes that stay charged to each volume for its copies.
    pub retained: Retained,
    pub charges: BTreeMap<u32, Charge>,
}

/// The number of records with each quota id, those of deleted objects included.
pub fn recorded(index: &Index) -> BTreeMap<u32, usize> {
    let mut recorded = BTreeMap::new();
    let volumes = index.volumes().filter_map(|entry| entry.record.quota_id());
    let snapshots = index
        .snapshots()
        .filter_map(|entry| entry.record.quota_id());
    let trashed = index.trash().values().filter_map(|entry| entry.quota_id);
    let kept = index.kept().iter();
    let kept = kept.filter_map(|(_, kept)| kept.entry.quota_id);
    for id in volumes.chain(snapshots).chain(trashed).chain(kept) {
        *recorded.entry(id).or_default() += 1;
    }
    recorded
}

/// Whether the data of a volume or snapshot is charged to another quota id than its record says, as after its `data/` was
/// replaced by hand.
fn charged_elsewhere<R: Record>(
    home: &OwnedFd,
    directory: &OsStr,
    quota: &dyn Quota,
    record: &R,
) -> Result<Option<QuotaConflict>, Fault> {
    let Some(recorded) = record.quota_id().filter(|_| record.is_limited()) else {
        return Ok(None);
    };
    let path = Path::new(directory).join(layout::DATA);
    let data = os::open_dir(home, path).context("open a limited directory")?;
    let found = quota.charged_to(data.as_fd()).context(READ_LIMITS)?;
    let is_here = found == Some(recorded);
    Ok((!is_here).then_some(QuotaConflict::Elsewhere { found, recorded }))
}

/// Compares the limit of a volume or snapshot with its record.
pub fn examine<R: Resource>(
    homes: &RecordDirs,
    quota: &dyn Quota,
    entry: &Entry<R>,
    ledger: &RecordedLimits,
) -> Result<LimitState, Fault> {
    let Some(id) = entry
        .record
        .quota_id()
        .filter(|_| entry.record.is_limited())
    else {
        return Ok(LimitState::AsRecorded);
    };
    if ledger.recorded.get(&id).is_some_and(|count| *count > 1) {
        return Ok(LimitState::Conflict(QuotaConflict::Twin(id)));
    }
    let (home, directory) = (homes.of::<R>(), entry.directory.as_ref());
    if let Some(conflict) = charged_elsewhere(home, directory, quota, &entry.record)? {
        return Ok(LimitState::Conflict(conflict));
    }
    let retained = R::volume(entry.record.id());
    let retained = retained.map_or(0, |volume| ledger.retained.of(volume));
    let limit = entry.record.limit(retained);
    let has = ledger.charges.get(&id).copied().unwrap_or_default();
    if quota.has_limit(&has, limit) {
        Ok(LimitState::AsRecorded)
    } else {
        Ok(LimitState::Differs { id, limit, has })
    }
}
