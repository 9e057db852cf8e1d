//! The kernel's limits held against the records when a pool is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::os;
use crate::quota::{Charge, Quota};
use crate::types::Bytes;

use super::disk::Disk;
use super::fault::{During, Fault};
use super::index::Index;
use super::trash::Binned;
use super::{Entry, Pool, layout};

pub(super) const LOOK: &str = "ask what limits the disk has";

/// What is to be done about one volume's limit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finding {
    /// Nothing.
    AsRecorded,
    /// It is missing, or another one.
    Differs { id: u32, limit: Bytes, has: Charge },
    /// Whose number it is cannot be told, so nothing is done.
    Doubtful(Doubt),
}

/// Why it cannot be told whose number a volume's is.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(super) enum Doubt {
    #[error("another volume is recorded with its quota_id, {0}")]
    Twin(u32),
    #[error(
        "its data is charged to {}, and its record says quota_id {recorded}; `rootcellar check` \
         says how to mend it", told(*.found)
    )]
    Elsewhere { found: Option<u32>, recorded: u32 },
}

/// A number that something is charged to, if it is one of ours.
pub(super) fn told(number: Option<u32>) -> String {
    number.map_or("none of ours".to_owned(), |number| number.to_string())
}

impl Pool {
    /// Makes the kernel's limits what the records say. A number that may be another's is not
    /// touched: its volume is quarantined. What is limited and neither used nor recorded is left
    /// of a create or a delete that did not end, and is freed.
    pub(super) fn reconcile(
        &self,
        disk: &Disk,
        index: &mut Index,
        binned: &[Binned],
    ) -> Result<(), Fault> {
        if !disk.accounts() {
            return Ok(());
        }
        let charges: BTreeMap<u32, Charge> =
            disk.quota.charges().during(LOOK)?.into_iter().collect();
        let entries: Vec<Arc<Entry>> = index.after(None).cloned().collect();
        let recorded = recorded(index, binned);
        for id in recorded.keys() {
            disk.quota.note(*id);
        }
        for entry in &entries {
            match examine(disk.volumes(), &*disk.quota, entry, &recorded, &charges)? {
                Finding::AsRecorded => {}
                Finding::Differs { id, limit, has } => {
                    self.restore(disk, entry, id, limit, has)?;
                }
                Finding::Doubtful(doubt) => {
                    index.distrust(entry, entry.record.size_bytes.0, doubt.to_string());
                }
            }
        }
        self.clear_leftovers(disk, &recorded.into_keys().collect(), &charges)
    }

    fn restore(
        &self,
        disk: &Disk,
        entry: &Entry,
        id: u32,
        limit: Bytes,
        has: Charge,
    ) -> Result<(), Fault> {
        let restored = disk.quota.limit(&self.context.os, id, limit);
        let outcome = match restored.during("restore a volume's limit") {
            Ok(()) => {
                self.limits_restored.fetch_add(1, Ordering::Relaxed);
                "restored"
            }
            // A full disk must be served, or nothing on it could be deleted.
            Err(fault) if fault.is_full() => "not restored, for the disk is full",
            Err(fault) => return Err(fault),
        };
        tracing::warn!(
            pool = %self.options.name,
            volume = %entry.record.id,
            limit = %Bytes(has.byte_limit),
            recorded = %limit,
            outcome,
            "a volume's limit was not as recorded"
        );
        Ok(())
    }

    fn clear_leftovers(
        &self,
        disk: &Disk,
        recorded: &BTreeSet<u32>,
        charges: &BTreeMap<u32, Charge>,
    ) -> Result<(), Fault> {
        for (id, charge) in charges {
            if recorded.contains(id) || !charge.is_empty() {
                continue;
            }
            match disk.quota.release(&self.context.os, *id) {
                Ok(()) => {
                    tracing::info!(pool = %self.options.name, id, "cleared a limit of nobody's");
                }
                Err(errno @ (Errno::IO | Errno::ROFS)) => {
                    return Err(Fault::new("clear a limit", errno));
                }
                Err(errno) => {
                    tracing::warn!(pool = %self.options.name, id, %errno, "left a limit of nobody's");
                }
            }
        }
        Ok(())
    }
}

/// How many records claim each number, those of what is served and of what waits in the trash.
pub(super) fn recorded(index: &Index, binned: &[Binned]) -> BTreeMap<u32, usize> {
    let mut recorded = BTreeMap::new();
    let served = index.after(None).filter_map(|entry| entry.record.quota_id);
    let trashed = binned.iter().filter_map(|binned| binned.quota_id);
    for id in served.chain(trashed) {
        *recorded.entry(id).or_default() += 1;
    }
    recorded
}

/// Holds one volume's limit against its record.
pub(super) fn examine(
    volumes: &OwnedFd,
    quota: &dyn Quota,
    entry: &Entry,
    recorded: &BTreeMap<u32, usize>,
    charges: &BTreeMap<u32, Charge>,
) -> Result<Finding, Fault> {
    let Some((id, limit)) = entry.record.limit() else {
        return Ok(Finding::AsRecorded);
    };
    if recorded.get(&id).is_some_and(|count| *count > 1) {
        return Ok(Finding::Doubtful(Doubt::Twin(id)));
    }
    let path = [&entry.directory, layout::DATA].join("/");
    let data = os::open_dir(volumes, path).during("open a volume's data")?;
    let found = quota.charged_to(data.as_fd()).during(LOOK)?;
    if found != Some(id) {
        let recorded = id;
        return Ok(Finding::Doubtful(Doubt::Elsewhere { found, recorded }));
    }
    let has = charges.get(&id).copied().unwrap_or_default();
    if quota.has_limit(&has, limit) {
        Ok(Finding::AsRecorded)
    } else {
        Ok(Finding::Differs { id, limit, has })
    }
}
