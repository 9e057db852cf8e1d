//! The kernel's limits held against the records when a pool is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::os;
use crate::quota::Charge;
use crate::types::Bytes;

use super::disk::{Binned, Disk};
use super::fault::{During, Fault};
use super::index::Index;
use super::{Entry, Pool, layout};

const LOOK: &str = "ask what limits the disk has";

/// What is to be done about one volume's limit.
enum Finding {
    /// Nothing.
    AsRecorded,
    /// It is missing, or another one.
    Differs { id: u32, limit: Bytes, has: Charge },
    /// Whose number it is cannot be told, so nothing is done.
    Doubtful(String),
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
        let mut recorded: BTreeMap<u32, usize> = BTreeMap::new();
        let trashed = binned.iter().filter_map(|binned| binned.quota_id);
        let served = entries.iter().filter_map(|entry| entry.record.quota_id);
        for id in served.chain(trashed) {
            disk.quota.note(id);
            *recorded.entry(id).or_default() += 1;
        }
        for entry in &entries {
            match examine(disk, entry, &recorded, &charges)? {
                Finding::AsRecorded => {}
                Finding::Differs { id, limit, has } => {
                    self.restore(disk, entry, id, limit, has)?;
                }
                Finding::Doubtful(reason) => {
                    index.distrust(entry, entry.record.size_bytes.0, reason);
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
        tracing::warn!(
            pool = %self.options.name,
            volume = %entry.record.id,
            limit = %Bytes(has.byte_limit),
            recorded = %limit,
            "a volume's limit was not as recorded; restored"
        );
        self.limits_restored.fetch_add(1, Ordering::Relaxed);
        let os = &self.context.os;
        disk.quota
            .limit(os, id, limit)
            .during("restore a volume's limit")
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
            tracing::info!(pool = %self.options.name, id, "cleared a limit that no volume has");
            match disk.quota.release(&self.context.os, *id) {
                Err(Errno::BUSY) => {}
                freed => freed.during("clear a limit")?,
            }
        }
        Ok(())
    }
}

/// Holds one volume's limit against its record.
fn examine(
    disk: &Disk,
    entry: &Entry,
    recorded: &BTreeMap<u32, usize>,
    charges: &BTreeMap<u32, Charge>,
) -> Result<Finding, Fault> {
    let Some((id, limit)) = entry.record.limit() else {
        return Ok(Finding::AsRecorded);
    };
    if recorded.get(&id).is_some_and(|count| *count > 1) {
        let reason = format!("another volume is recorded with its quota_id, {id}");
        return Ok(Finding::Doubtful(reason));
    }
    let path = [&entry.directory, layout::DATA].join("/");
    let data = os::open_dir(disk.volumes(), path).during("open a volume's data")?;
    let charged_to = disk.quota.charged_to(data.as_fd()).during(LOOK)?;
    if charged_to != Some(id) {
        let found = charged_to.map_or("none of ours".to_owned(), |found| found.to_string());
        return Ok(Finding::Doubtful(format!(
            "its data is charged to {found}, and its record says quota_id {id}; \
             `rootcellar check` says how to mend it"
        )));
    }
    let has = charges.get(&id).copied().unwrap_or_default();
    if disk.quota.has_limit(&has, limit) {
        Ok(Finding::AsRecorded)
    } else {
        Ok(Finding::Differs { id, limit, has })
    }
}
