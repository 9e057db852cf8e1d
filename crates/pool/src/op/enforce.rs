//! Enforcing the size of a volume that was made before its pool could enforce any.
//!
//! The record names the quota id before the first file is tagged, and the volume cannot be published
//! until its record says that its size is enforced: in a half-tagged tree renames fail. A repeated
//! request continues with the same quota id.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::os;
use linux::quota::{Enforcement, Quota};
use linux::tree::{self, LinkCount, Tagging, Weight};
use objects::{Bytes, VolumeId};
use rustix::io::Errno;

use crate::disk::entry::Entry;
use crate::disk::error::{Error, Result};
use crate::disk::open::Disk;
use crate::disk::record::{Source, VolumeRecord};
use crate::disk::refusal::{Refusal, Stopped};
use crate::op::copies::is_of_the_tree;
use crate::op::pool::Pool;
use crate::op::progress::{Progress, Running, Unit};
use crate::op::work::Work;

/// The directory, in a volume's directory, where links and nodes are recreated.
const SCRATCH: &str = "enforcing";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    /// The size is enforced from now on.
    Now,
    /// It was enforced before.
    Before,
    /// The class of the volume asked for no enforcement, and the volume stays as it is.
    Declined,
}

/// A volume whose size is being enforced.
struct Job<'a> {
    work: &'a Work<'a>,
    disk: &'a Disk,
    entry: &'a Arc<Entry>,
    data: OwnedFd,
    /// The files and directories that this step has visited.
    progress: Running<'a>,
}

impl Pool {
    /// Has the kernel enforce the size of a volume that nobody uses. On failure the volume is as it
    /// was, or the request can be repeated. The size of an imported volume is enforced before the
    /// volume is published, so the request must be repeated.
    pub fn enforce(&self, work: &Work<'_>, entry: &Arc<Entry>) -> Result<()> {
        let (disk, _) = self.attached()?;
        let record = &entry.record;
        self.check_enforceable(&disk, record)?;
        let job = self.job(work, &disk, entry)?;
        let begun = self
            .check_fits(&job)
            .and_then(|()| self.begin_enforcing(&job));
        let tagged = begun.and_then(|begun| {
            let id = begun.quota_id.unwrap_or_default();
            let tagged = self.tag(&job, Some(id));
            tagged.map_err(|fault| self.classify_enforcing(&job, fault))?;
            self.limit_tagged(&job, id)?;
            Ok(begun)
        });
        let begun = match tagged {
            Ok(begun) => begun,
            // A repeated request continues.
            Err(stopped @ Error::Stopped(_)) => return Err(stopped),
            Err(error) if record.is_unfinished_import() => {
                return Err(with_way_back(error, record.id));
            }
            Err(error) => {
                self.give_up(&job);
                return Err(error);
            }
        };
        let enforced = VolumeRecord {
            enforcement: disk.quota.enforcement(),
            enforcing: false,
            ..begun
        };
        self.change(&disk, entry, enforced)?;
        tracing::info!(pool = %self.name(), volume = %record.id, "size enforced");
        Ok(())
    }

    fn job<'a>(
        &'a self,
        work: &'a Work<'a>,
        disk: &'a Disk,
        entry: &'a Arc<Entry>,
    ) -> Result<Job<'a>> {
        let data = os::open_dir(&disk.homes.volumes, entry.data_path());
        let data = data.context("open a volume's data");
        Ok(Job {
            work,
            disk,
            entry,
            data: data.map_err(|fault| self.classify_data(entry, fault))?,
            progress: self.advances.begin(
                Source::Volume(entry.record.id),
                Progress::new(Unit::Objects, None),
            ),
        })
    }

    /// The outcome of a request that has nothing to do.
    pub fn is_enforced(&self, record: &VolumeRecord) -> Option<Enforced> {
        if record.declines_enforcement() {
            return Some(Enforced::Declined);
        }
        if record.image.is_some() {
            return Some(Enforced::Before);
        }
        let enforced = record.enforcement != Enforcement::None;
        (enforced && record.enforcement == self.enforcement()).then_some(Enforced::Before)
    }

    /// Writes the record durably, without a change of limits.
    fn write_record(&self, job: &Job<'_>, record: &VolumeRecord) -> Result<(), Fault> {
        let directory = &job.entry.directory;
        job.disk.amend(directory, record)?;
        self.state.insert(record.clone(), directory.clone());
        Ok(())
    }

    /// Writes the quota id into the record, so that the volume is not published any more.
    fn begin_enforcing(&self, job: &Job<'_>) -> Result<VolumeRecord> {
        let (record, quota) = (&job.entry.record, &job.disk.quota);
        if record.enforcing {
            return Ok(record.clone());
        }
        let classify = |fault| self.classify(fault);
        let id = quota.take().context("take a quota id").map_err(classify)?;
        let begun = VolumeRecord {
            quota_id: Some(id),
            enforcing: true,
            ..record.clone()
        };
        if let Err(fault) = self.write_record(job, &begun) {
            // The pool is opened again, which reads a record that has the id in spite of the error.
            if quota.release(&self.context.os, id).is_err() {
                let pool = self.name();
                tracing::warn!(%pool, id, "cannot release a quota id; it stays in use until the pool is opened again");
            }
            return Err(classify(fault));
        }
        Ok(begun)
    }

    /// Limits a tagged tree, unless it contains more than the limits allow.
    fn limit_tagged(&self, job: &Job<'_>, id: u32) -> Result<()> {
        let classify = |fault| self.classify(fault);
        let (record, quota) = (&job.entry.record, &job.disk.quota);
        let charge = quota.charge(id).context("ask what a volume uses");
        let charge = charge.map_err(classify)?;
        refuse_if_larger(record, &**quota, charge.bytes, charge.inodes)?;
        let limited = quota.limit(&self.context.os, id, record.size_bytes);
        limited.context("limit a volume").map_err(classify)
    }

    fn check_enforceable(&self, disk: &Disk, record: &VolumeRecord) -> Result<()> {
        let (pool, id) = (self.name().clone(), record.id);
        if record.size_bytes == Bytes::ZERO {
            return Err(Refusal::NoSize { id }.into());
        }
        let refusal = match disk.quota.enforcement() {
            Enforcement::Project => return Ok(()),
            Enforcement::Squota => Refusal::OnlyNewSizes { pool, id },
            Enforcement::None => match disk.unenforced(self.path()) {
                Ok(Some(lack)) => Refusal::NoQuota { pool, id, lack },
                Ok(None) | Err(_) => Refusal::NoEnforcement { pool, id },
            },
        };
        Err(refusal.into())
    }

    /// Refuses a tree that uses more than its size, before anything is changed.
    fn check_fits(&self, job: &Job<'_>) -> Result<()> {
        let record = &job.entry.record;
        if record.enforcing {
            // An earlier request, or the import, has measured it, and nobody has used it since.
            return Ok(());
        }
        let weighed = os::open_source_dir(&job.data, ".")
            .and_then(|top| tree::weigh(top, LinkCount::InParts, &mut |_| self.go_on(job)))
            .context("measure a volume");
        let Weight {
            bytes,
            inodes,
            unseen,
        } = weighed.map_err(|fault| self.classify_enforcing(job, fault))?;
        if let Some(errno) = unseen {
            let id = record.id;
            return Err(Refusal::UnreadableVolume { id, errno }.into());
        }
        job.progress.expect(inodes);
        refuse_if_larger(record, &*job.disk.quota, bytes, inodes)
    }

    /// Ends the work when the driver stops or the pool is closed.
    fn go_on(&self, job: &Job<'_>) -> Result<(), Errno> {
        job.work.step();
        job.progress.count();
        if self.copies.is_stopped() || self.why_unavailable().is_some() {
            return Err(Errno::CANCELED);
        }
        Ok(())
    }

    fn classify_enforcing(&self, job: &Job<'_>, fault: Fault) -> Error {
        let id = job.entry.record.id;
        match (fault.errno, self.why_unavailable()) {
            (Errno::CANCELED, Some(unavailable)) => self.unavailable(unavailable),
            (Errno::CANCELED, None) => Error::Stopped(Stopped::Enforcing(id)),
            _ if is_of_the_tree(fault) => Refusal::NotEnforced { id, fault }.into(),
            _ => self.classify(fault),
        }
    }

    /// Tags the tree with a quota id, or removes its tags, durably.
    fn tag(&self, job: &Job<'_>, id: Option<u32>) -> Result<(), Fault> {
        let (os, quota) = (&self.context.os, &job.disk.quota);
        let dir = os::open_dir(&job.disk.homes.volumes, &job.entry.directory);
        let dir = dir.context("open a volume's directory")?;
        tree::remove_any(os, dir.as_fd(), SCRATCH)?;
        os.mkdir(&dir, SCRATCH, 0o700).context("make a directory")?;
        let scratch = os::open_dir(&dir, SCRATCH).context("open a directory")?;
        let set = quota.set_tag(os, scratch.as_fd(), id, true);
        set.context("tag a directory")?;
        self.tag_all(job, id, &scratch)?;
        tree::remove_any(os, dir.as_fd(), SCRATCH)?;
        job.disk.sync()
    }

    /// Ends the enforcement of the size of a volume that nobody uses. On failure the volume is not
    /// published until this, or the enforcement, was repeated.
    pub fn unenforce(&self, work: &Work<'_>, entry: &Arc<Entry>) -> Result<()> {
        let (disk, _) = self.attached()?;
        let job = self.job(work, &disk, entry)?;
        let record = &entry.record;
        if !record.enforcing {
            let begun = VolumeRecord {
                enforcement: Enforcement::None,
                enforcement_declined: record.declines_enforcement(),
                enforcing: true,
                ..record.clone()
            };
            let written = self.write_record(&job, &begun);
            written.map_err(|fault| self.classify(fault))?;
        }
        let removed = self.remove_tags(&job);
        removed.map_err(|fault| self.classify_enforcing(&job, fault))
    }

    /// Removes the tags and the quota id again. A volume that cannot be restored stays unpublished, and
    /// the request can be repeated.
    fn give_up(&self, job: &Job<'_>) {
        if let Err(fault) = self.remove_tags(job) {
            let error = self.classify_enforcing(job, fault);
            let (pool, volume) = (self.name(), job.entry.record.id);
            tracing::warn!(%pool, %volume, %error, "cannot undo the enforcement of a volume's size; the volume is not published until `rootcellar volume enforce` succeeds");
        }
    }

    /// Removes the quota id of a volume that is being enforced.
    fn remove_tags(&self, job: &Job<'_>) -> Result<(), Fault> {
        let record = self.current(job.entry).record.clone();
        let Some(id) = record.quota_id.filter(|_| record.enforcing) else {
            return Ok(());
        };
        self.tag(job, None)?;
        let restored = VolumeRecord {
            quota_id: None,
            enforcing: false,
            ..record
        };
        self.write_record(job, &restored)?;
        let released = job.disk.quota.release(&self.context.os, id);
        released.context("release a quota id")
    }

    fn tag_all(&self, job: &Job<'_>, id: Option<u32>, scratch: &OwnedFd) -> Result<(), Fault> {
        job.progress.begin_again();
        let watch = || {
            job.progress.log(|entries, _| {
                let (pool, volume, undoes) = (self.name(), job.entry.record.id, id.is_none());
                tracing::info!(%pool, %volume, entries, undoes, "enforcing a volume's size");
            });
            self.go_on(job)
        };
        let tagging = Tagging {
            os: &self.context.os,
            quota: &*job.disk.quota,
            id,
            scratch,
            watch: &watch,
        };
        tagging.tag(&job.data)
    }
}

/// Adds that the volume can be a directory again.
fn with_way_back(error: Error, id: VolumeId) -> Error {
    match error {
        Error::Precondition(refusal) => {
            let refusal = Box::new(refusal);
            Refusal::OfImport { refusal, id }.into()
        }
        error => error,
    }
}

fn refuse_if_larger(record: &VolumeRecord, quota: &dyn Quota, bytes: u64, has: u64) -> Result<()> {
    let (id, size) = (record.id, record.size_bytes);
    if bytes > size.0 {
        let used = Bytes(bytes);
        return Err(Refusal::LargeVolume { id, used, size }.into());
    }
    match quota.inode_limit(size) {
        Some(max) if has > max => Err(Refusal::ManyFilesInVolume { id, has, max, size }.into()),
        _ => Ok(()),
    }
}
