//! Enforcing the size of a volume that was made before its pool could enforce any.
//!
//! The record names the quota id before the first file is tagged, and the volume cannot be published
//! until its record says that its size is enforced: in a half-tagged tree renames fail. A repeated
//! request goes on with the same quota id.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::os;
use crate::quota::Enforcement;
use crate::types::Bytes;

use super::disk::Disk;
use super::enforcement::Unenforced;
use super::fault::{During, Fault};
use super::record::Record;
use super::tree::{self, Tagging, Weight};
use super::{Entry, Pool, VolumeRecord, Work, layout};

/// How often long work is reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The directory, in a volume's directory, where links and nodes are made anew.
const SCRATCH: &str = "enforcing";

impl Pool {
    /// Has the kernel enforce the size of a volume that nobody uses; returns whether it did not
    /// before. On failure the volume is as it was, or the request can be repeated.
    pub(crate) fn enforce(&self, work: &Work<'_>, entry: &Arc<Entry>) -> Result<bool> {
        let (disk, _) = self
            .attached()
            .map_err(|sickness| self.home_sick(sickness))?;
        let record = &entry.record;
        if record.enforcement != Enforcement::None {
            return Ok(false);
        }
        self.check_enforceable(&disk, record)?;
        if let Some(id) = counted_by(record) {
            return self.limit_counted(&disk, entry, id);
        }
        let path = [&entry.directory, layout::DATA].join("/");
        let data = os::open_dir(&disk.homes().volumes, path).during("open a volume's data");
        let data = data.map_err(|fault| self.judge_data(entry, fault))?;
        self.check_fits(work, record, &data)?;
        let begun = self.begin_enforcing(&disk, entry)?;
        let id = begun.quota_id.unwrap_or_default();
        let outcome = self
            .tag(work, &disk, entry, &data, id)
            .map_err(|fault| self.judge_enforcing(record, fault))
            .and_then(|()| self.limit_tagged(&disk, &begun, id));
        match outcome {
            Ok(()) => {}
            // The driver ends: a repeated request goes on.
            Err(stopped @ Error::Stopped(_)) => return Err(stopped),
            Err(error) => {
                if let Err(left) = self.give_up(work, &disk, entry, &data, id) {
                    tracing::warn!(pool = %self.name(), fault = %left, "left a tree half tagged");
                }
                return Err(error);
            }
        }
        let enforced = VolumeRecord {
            enforcement: disk.quota.enforcement(),
            enforcing: false,
            ..begun
        };
        self.change(&disk, entry, enforced)?;
        tracing::info!(pool = %self.name(), volume = %record.id, quota_id = id, "size enforced");
        Ok(true)
    }

    /// Limits a volume whose tree has a quota id since it was made, because its class asked for no
    /// enforcement.
    fn limit_counted(&self, disk: &Disk, entry: &Entry, id: u32) -> Result<bool> {
        if let Err(error) = self.limit_tagged(disk, &entry.record, id) {
            let lifted = disk.quota.limit(&self.context.os, id, Bytes::ZERO);
            if let Err(errno) = lifted {
                tracing::warn!(pool = %self.name(), id, %errno, "left a limit");
            }
            return Err(error);
        }
        let enforced = VolumeRecord {
            enforcement: disk.quota.enforcement(),
            ..entry.record.clone()
        };
        self.change(disk, entry, enforced)?;
        Ok(true)
    }

    /// Names the quota id in the record, so that the volume is not published any more.
    fn begin_enforcing(&self, disk: &Disk, entry: &Entry) -> Result<VolumeRecord> {
        let judge = |fault| self.judge(fault, Self::home_sick);
        let id = match entry.record.number() {
            Some(id) => id,
            None => disk.quota.take().during("take a quota id").map_err(judge)?,
        };
        let begun = VolumeRecord {
            quota_id: Some(id),
            enforcing: true,
            ..entry.record.clone()
        };
        if let Err(fault) = disk.amend(&entry.directory, &begun) {
            // A record that names it all the same is read again, because the pool is opened anew.
            if disk.quota.release(&self.context.os, id).is_err() {
                tracing::warn!(pool = %self.name(), id, "left a quota id");
            }
            return Err(judge(fault));
        }
        let (directory, record) = (entry.directory.clone(), begun.clone());
        self.lock().index.insert(Entry { record, directory });
        Ok(begun)
    }

    /// Limits a tagged tree, unless it holds more than the limits allow.
    fn limit_tagged(&self, disk: &Disk, record: &VolumeRecord, id: u32) -> Result<()> {
        let judge = |fault| self.judge(fault, Self::home_sick);
        let limited = disk.quota.limit(&self.context.os, id, record.size_bytes);
        limited.during("limit a volume").map_err(judge)?;
        let charge = disk.quota.charge(id).during("ask what a volume uses");
        let charge = charge.map_err(judge)?;
        if charge.bytes > record.size_bytes.0 {
            return Err(too_much(record, Bytes(charge.bytes)));
        }
        if charge.exceeds() {
            return Err(Error::NotEnforceable(format!(
                "volume {} has {} files, and its size, {}, allows {}; delete files, then repeat this",
                record.id, charge.inodes, record.size_bytes, charge.inode_limit
            )));
        }
        Ok(())
    }

    fn check_enforceable(&self, disk: &Disk, record: &VolumeRecord) -> Result<()> {
        let (pool, id) = (self.name(), record.id);
        if record.size_bytes == Bytes::ZERO {
            return Err(Error::NotEnforceable(format!(
                "volume {id} has no size that could be enforced"
            )));
        }
        let problem = match disk.quota.enforcement() {
            Enforcement::Project => return Ok(()),
            Enforcement::Squota if counted_by(record).is_some() => return Ok(()),
            Enforcement::Squota => {
                "on btrfs the size of an existing directory cannot be enforced; create a new claim \
                 and copy the data there"
                    .to_owned()
            }
            Enforcement::None => match disk.unenforced(self.path()) {
                Ok(Some(Unenforced { reason, remedy })) => format!("{reason}; {remedy}"),
                Ok(None) | Err(_) => "`rootcellar check` says why".to_owned(),
            },
        };
        Err(Error::NotEnforceable(format!(
            "pool {pool} cannot enforce the size of volume {id}: {problem}"
        )))
    }

    /// Refuses a tree that uses more than its size, before anything is changed.
    fn check_fits(&self, work: &Work<'_>, record: &VolumeRecord, data: &OwnedFd) -> Result<()> {
        let judge = |fault| self.judge(fault, Self::home_sick);
        let top = os::open_source_dir(data, ".").during("open a volume's data");
        let weighed = tree::weigh(top.map_err(judge)?, &mut |_| {
            work.advance();
            if self.trash.is_stopped() || self.is_sick() {
                return Err(Errno::CANCELED);
            }
            Ok(())
        });
        let Weight { bytes, unseen, .. } = weighed
            .during("measure a volume")
            .map_err(|fault| self.judge_enforcing(record, fault))?;
        if let Some(errno) = unseen {
            return Err(Error::NotEnforceable(format!(
                "a part of volume {} cannot be read: {errno}",
                record.id
            )));
        }
        if bytes > record.size_bytes.0 {
            return Err(too_much(record, Bytes(bytes)));
        }
        Ok(())
    }

    fn judge_enforcing(&self, record: &VolumeRecord, fault: Fault) -> Error {
        match fault.errno {
            Errno::CANCELED => Error::Stopped(format!("enforcing the size of {}", record.id)),
            _ => self.judge(fault, Self::home_sick),
        }
    }

    /// Tags the tree durably.
    fn tag(
        &self,
        work: &Work<'_>,
        disk: &Disk,
        entry: &Entry,
        data: &OwnedFd,
        id: u32,
    ) -> Result<(), Fault> {
        let os = &self.context.os;
        let dir = os::open_dir(&disk.homes().volumes, &entry.directory);
        let dir = dir.during("open a volume's directory")?;
        remove_scratch(os, &dir)?;
        os.mkdir(&dir, SCRATCH, 0o700).during("make a directory")?;
        let scratch = os::open_dir(&dir, SCRATCH).during("open a directory")?;
        let set = disk.quota.set_tag(os, scratch.as_fd(), Some(id), true);
        set.during("tag a directory")?;
        self.tagging(work, disk, entry, Some(id), Some(&scratch), data)?;
        remove_scratch(os, &dir)?;
        disk.sync()
    }

    /// Takes the tags and the quota id away again. Links and nodes made anew keep theirs.
    fn give_up(
        &self,
        work: &Work<'_>,
        disk: &Disk,
        entry: &Entry,
        data: &OwnedFd,
        id: u32,
    ) -> Result<(), Fault> {
        self.tagging(work, disk, entry, None, None, data)?;
        disk.sync()?;
        let record = VolumeRecord {
            quota_id: None,
            enforcing: false,
            ..entry.record.clone()
        };
        disk.amend(&entry.directory, &record)?;
        let directory = entry.directory.clone();
        self.lock().index.insert(Entry { record, directory });
        let released = disk.quota.release(&self.context.os, id);
        released.during("release a quota id")
    }

    fn tagging(
        &self,
        work: &Work<'_>,
        disk: &Disk,
        entry: &Entry,
        id: Option<u32>,
        scratch: Option<&OwnedFd>,
        data: &OwnedFd,
    ) -> Result<(), Fault> {
        let (count, started) = (AtomicU64::new(0), Instant::now());
        let reported = AtomicU64::new(0);
        let watch = || {
            work.advance();
            let entries = count.fetch_add(1, Ordering::Relaxed) + 1;
            let periods = started.elapsed().as_secs() / REPORT_EVERY.as_secs();
            if periods > reported.swap(periods, Ordering::Relaxed) {
                let (pool, volume) = (self.name(), entry.record.id);
                tracing::info!(%pool, %volume, entries, "enforcing a volume's size");
            }
            if self.trash.is_stopped() || self.is_sick() {
                return Err(Errno::CANCELED);
            }
            Ok(())
        };
        let tagging = Tagging {
            os: &self.context.os,
            quota: &*disk.quota,
            id,
            scratch,
            watch: &watch,
        };
        tagging.tag(data)
    }
}

/// The quota id that a volume has had since it was made.
pub(crate) fn counted_by(record: &VolumeRecord) -> Option<u32> {
    record.number().filter(|_| !record.enforcing)
}

fn too_much(record: &VolumeRecord, used: Bytes) -> Error {
    Error::NotEnforceable(format!(
        "volume {} uses {used}, which is more than its size, {}; delete files or expand its claim, then \
         repeat this",
        record.id, record.size_bytes
    ))
}

fn remove_scratch(os: &os::Os, dir: &OwnedFd) -> Result<(), Fault> {
    match tree::remove(os, dir.as_fd(), SCRATCH) {
        Err(Fault {
            errno: Errno::NOENT,
            ..
        }) => Ok(()),
        removed => removed,
    }
}
