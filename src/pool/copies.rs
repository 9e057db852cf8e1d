//! Copies: snapshots of volumes, and volumes made from snapshots or from other volumes.
//!
//! A copy is a draft like any other object. Btrfs copies the subvolume of a directory at once; images, and trees on
//! other filesystems, are copied file by file, and files share blocks if the filesystem supports that.

pub(super) mod job;
pub(super) mod progress;
pub(super) mod running;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::os::{self, At};
use linux::quota::{Enforcement, Nested};
use linux::sync::lock;
use linux::tree::{CopyFault, CopyReason, Copying, Transfer};
use objects::{Bytes, Invalid};
use rustix::io::Errno;

use crate::pool::base::Pool;
use crate::pool::copies::job::{Content, CopyJob, CopyPolicy, Origin};
use crate::pool::copies::progress::Progress;
use crate::pool::draft::Draft;
use crate::pool::limits::pending::PendingCharges;
use crate::pool::reservation::Reservation;
use crate::pool::store::disk::Disk;
use crate::pool::store::entry::{Entry, SnapshotEntry};
use crate::pool::store::error::{Error, Result};
use crate::pool::store::layout;
use crate::pool::store::record::{
    Method, Record, RetainedCharge, SnapshotRecord, Source, VolumeRecord,
};
use crate::pool::store::refusal::{OutOfRange, Refusal, Stopped};

#[derive(Debug)]
pub(super) struct CopyResult<'a> {
    pub(super) method: Method,
    pub(super) quota_id: Option<u32>,
    /// The bytes of its content, as far as they are known.
    pub(super) bytes: u64,
    /// The part of them that it shares with its original.
    pub(super) inherited: u64,
    /// The subvolumes in its original, which it lacks.
    pub(super) absent: Option<Nested>,
    pub(super) pending: PendingCharges<'a>,
}

impl Pool {
    /// Makes a snapshot of a volume, visible by one rename and durable on return. The properties of the
    /// copy complete the record; `in_use` reports at the end whether the volume was published meanwhile.
    pub(crate) fn snapshot<E: From<Error>>(
        &self,
        reservation: &Reservation<'_>,
        volume: &Arc<Entry>,
        policy: CopyPolicy,
        mut record: SnapshotRecord,
        in_use: &dyn Fn() -> Result<bool, E>,
    ) -> Result<Arc<SnapshotEntry>, E> {
        let origin = Origin::Volume(Arc::clone(volume));
        let (disk, _) = self.attached()?;
        let content = Content {
            origin: &origin,
            from: self,
            reading: None,
            policy,
        };
        let job = CopyJob {
            content,
            copy: Source::Snapshot(record.id),
            reservation,
            limit: Bytes::ZERO,
        };
        // The draft is dropped before its charges, because the names are dropped in reverse.
        let (made, draft) = self.draft_copy(&disk, &job)?;
        reservation.cover(made.bytes)?;
        record.in_use |= in_use()?;
        if record.image.is_some() {
            let length = draft.image_length().map_err(|fault| self.classify(fault))?;
            record.size_bytes = record.size_bytes.max(length);
        }
        record.held_bytes = Bytes(made.bytes);
        record.quota_id = made.quota_id;
        record.retains.clone_from(&made.pending.retains);
        record.method = made.method;
        record.absent = made.absent;
        Ok(draft.commit(record, reservation)?)
    }

    /// Makes a volume that is a copy; the properties of the copy complete the record.
    pub(super) fn create_copy(
        &self,
        disk: &Disk,
        reservation: &Reservation<'_>,
        content: Content<'_>,
        mut record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let origin = content.origin;
        let job = CopyJob {
            content,
            copy: Source::Volume(record.id),
            reservation,
            limit: record.limit(0),
        };
        let (made, draft) = self.draft_copy(disk, &job)?;
        let fits = origin.fits(made.method, made.bytes, record.size_bytes);
        if record.image.is_none() && record.enforcement != Enforcement::None && !fits {
            let (of, has, size) = (origin.source(), Bytes(made.bytes), record.size_bytes);
            let unshared = origin.is_unshared(made.method);
            return Err(OutOfRange::Content {
                of,
                has,
                size,
                unshared,
            }
            .into());
        }
        record.quota_id = made.quota_id;
        // A moved volume is a copy of itself, and keeps its source.
        if origin.source() != Source::Volume(record.id) {
            record.source = Some(origin.source());
        }
        record.inherited_bytes = Bytes(made.inherited);
        record.retains.clone_from(&made.pending.retains);
        if let Some(image) = record.image {
            let length = draft.image_length().map_err(|fault| self.classify(fault))?;
            record.size_bytes = record.size_bytes.max(length);
            reservation.cover(record.size_bytes.0)?;
            if let Err(problem) = draft.extend_image(image, record.size_bytes) {
                drop(draft);
                return Err(self.unfilled(problem));
            }
        }
        draft.commit(record, reservation)
    }

    /// Makes a copy the content of a draft.
    fn draft_copy<'a>(
        &'a self,
        disk: &'a Disk,
        job: &CopyJob<'_>,
    ) -> Result<(CopyResult<'a>, Draft<'a>)> {
        let fault = |fault| self.classify(fault);
        let is_here = std::ptr::eq(self, job.content.from);
        let source = if is_here {
            self.open_origin(disk, job.content.origin)?
        } else {
            job.content
                .from
                .open_origin(&*job.content.from.disk()?, job.content.origin)?
        };
        let method = if is_here {
            disk.method(&source).map_err(fault)?
        } else {
            Method::Copy
        };
        if method == Method::Copy && !job.content.policy.copy {
            let (pool, filesystem) = (self.name(), disk.filesystem);
            let problem = format!(
                "pool {pool} is on {filesystem}, where files share no blocks: a copy takes time, \
                 and the space of its original again; the class parameter copy: allowed permits it"
            );
            return Err(Invalid::new("parameter \"copy\"", problem).into());
        }
        if method == Method::Copy
            && job.content.origin.image().is_some()
            && disk.filesystem.copies_on_write()
        {
            let (of, pool) = (job.content.origin.source(), self.name().clone());
            return Err(Refusal::ImageOfOtherPool { of, pool }.into());
        }
        // Before anything is staged, because the sidecars repeat a refused request often.
        let _running = match method {
            Method::Subvolume => None,
            Method::Reflink | Method::Copy => Some(self.copies.begin(self.name())?),
        };
        let mut draft = Draft::begin(self, disk)?;
        let target = draft.for_copy();
        let made = match method {
            Method::Subvolume => self.copy_subvolume(disk, target, &source, job),
            Method::Reflink | Method::Copy => self.copy_tree(disk, target, &source, job, method),
        }?;
        Ok((made, draft))
    }

    /// Has the filesystem copy a subvolume, or makes one with an image that shares the blocks of the original. They
    /// stay charged to the original, so its limit is raised before, or it could not rewrite its content.
    fn copy_subvolume<'a>(
        &'a self,
        disk: &'a Disk,
        target: &OwnedFd,
        source: &OwnedFd,
        job: &CopyJob<'_>,
    ) -> Result<CopyResult<'a>> {
        let reserved = job.reservation.size().0;
        let retains = self.retained_by(job)?;
        job.reservation.cover(needs(job, reserved, 0, &retains))?;
        let _pending = self.retain(disk, retains)?;
        // After a snapshot of its subvolume, btrfs would write each older block of an image to a new place, also
        // after the end of the snapshot. A thick image could then need space that a full disk does not have.
        let (method, quota_id) = if job.content.origin.image().is_some() {
            let method = Method::Reflink;
            let (quota_id, _) = self.copy_files(disk, target, source, job, method)?;
            (method, quota_id)
        } else {
            (
                Method::Subvolume,
                self.snapshot_subvolume(disk, target, source, job)?,
            )
        };
        // Delayed writes are allocated by now.
        let now = self.retained_by(job)?;
        let bytes = self.content_bytes(disk, job.content.origin)?;
        job.reservation.cover(needs(job, reserved, bytes, &now))?;
        Ok(CopyResult {
            method,
            quota_id,
            bytes,
            inherited: bytes,
            absent: self.absent_from(disk, source, job),
            pending: self.retain(disk, now)?,
        })
    }

    fn snapshot_subvolume(
        &self,
        disk: &Disk,
        target: &OwnedFd,
        source: &OwnedFd,
        job: &CopyJob<'_>,
    ) -> Result<Option<u32>> {
        let target = At::new(target, layout::DATA);
        let read_only = matches!(job.copy, Source::Snapshot(_));
        let quota = &disk.quota;
        let copied = quota
            .copy_dir(
                &self.context.os,
                source.as_fd(),
                target,
                job.limit,
                read_only,
            )
            .context("make a snapshot of a subvolume");
        let of = job.content.origin.source();
        copied.map_err(|fault| match fault.errno {
            Errno::TXTBSY | Errno::OPNOTSUPP => Refusal::UsedForSwap { of, fault }.into(),
            _ => self.classify(fault),
        })
    }

    /// The subvolumes that a copy of a subvolume lacks. They are sought after the copy was made, because a pod may make
    /// one until then.
    fn absent_from(&self, disk: &Disk, source: &OwnedFd, job: &CopyJob<'_>) -> Option<Nested> {
        let (pool, of, copy) = (self.name(), job.content.origin.source(), job.copy);
        let absent = match job.content.origin {
            Origin::Volume(_) => disk.quota.nested(source.as_fd()),
            // In the snapshot, empty directories are in their places.
            Origin::Snapshot(entry) => Ok(entry.record.absent.clone()),
        };
        match &absent {
            Ok(None) => {}
            Ok(Some(absent)) => tracing::warn!(
                %pool,
                %of,
                %copy,
                %absent,
                "a copy lacks the data of the subvolumes in its source"
            ),
            Err(errno) => {
                tracing::warn!(%pool, %of, %copy, %errno, "cannot find out whether a copy lacks subvolumes");
            }
        }
        absent.ok().flatten()
    }

    /// Whether a copy of a volume shares blocks, and each file in it is of one instant.
    pub(crate) fn shares_blocks(&self, volume: &Arc<Entry>) -> Result<bool> {
        let disk = self.disk()?;
        let source = self.open_origin(&disk, &Origin::Volume(Arc::clone(volume)))?;
        let method = disk.method(&source);
        Ok(method.map_err(|fault| self.classify(fault))? != Method::Copy)
    }

    /// The bytes to reserve for a snapshot of a volume. For a tree whose usage is not counted, bytes
    /// are reserved as it is copied.
    pub(crate) fn snapshot_needs(&self, volume: &Arc<Entry>) -> Result<Bytes> {
        let disk = self.disk()?;
        let origin = Origin::Volume(Arc::clone(volume));
        let source = self.open_origin(&disk, &origin)?;
        let method = disk.method(&source);
        match method.map_err(|fault| self.classify(fault))? {
            Method::Reflink | Method::Copy if !disk.accounts() => Ok(Bytes::ZERO),
            Method::Subvolume | Method::Reflink | Method::Copy => {
                self.content_bytes(&disk, &origin).map(Bytes)
            }
        }
    }

    fn copy_tree<'a>(
        &'a self,
        disk: &'a Disk,
        target: &OwnedFd,
        source: &OwnedFd,
        job: &CopyJob<'_>,
        method: Method,
    ) -> Result<CopyResult<'a>> {
        let fault = |fault| self.classify(fault);
        let (quota_id, mut bytes) = self.copy_files(disk, target, source, job, method)?;
        if let Some(id) = quota_id.filter(|_| disk.quota.enforcement() == Enforcement::Project) {
            let charge = disk.quota.charge(id).context("ask what a copy uses");
            let charge = charge.map_err(fault)?;
            // A privileged process such as this one exceeds the limits of ext4.
            if charge.exceeds() {
                return Err(does_not_fit(job, method));
            }
            bytes = charge.bytes;
        }
        Ok(CopyResult {
            method,
            quota_id,
            bytes,
            inherited: if method == Method::Reflink { bytes } else { 0 },
            absent: None,
            pending: self.retain(disk, Vec::new())?,
        })
    }

    /// Copies file by file into a new directory. Returns its quota id, and the bytes that the copy occupies.
    fn copy_files(
        &self,
        disk: &Disk,
        target: &OwnedFd,
        source: &OwnedFd,
        job: &CopyJob<'_>,
        method: Method,
    ) -> Result<(Option<u32>, u64)> {
        let fault = |fault| self.classify(fault);
        let os = &self.context.os;
        let made = disk
            .quota
            .create_dir(os, At::new(target, layout::DATA), job.limit);
        let quota_id = made.context("make the copy's data").map_err(fault)?;
        let data = os::open_dir(target, layout::DATA).context("open the copy's data");
        let data = data.map_err(fault)?;
        // A source on another filesystem has no flag that its copy could get.
        if job.content.origin.nodatacow() {
            disk.keep_in_place(&data).map_err(fault)?;
        }
        let progress = Progress::begin(self, target, job, method);
        let copying = Copying {
            os,
            transfer: match method {
                Method::Copy => Transfer::Copy,
                Method::Subvolume | Method::Reflink => Transfer::Share,
            },
            threads: disk.filesystem.copying_threads(),
            max_stall: job.content.policy.max_stall,
            watch: &progress,
        };
        let copied = copying.copy(source, &data);
        progress.end(os).map_err(fault)?;
        let copied = copied
            .map_err(|copy| self.classify_copy(disk, job, (method, quota_id), &progress, copy))?;
        // Copied data is allocated and charged only when it is synced.
        disk.sync().map_err(fault)?;
        Ok((quota_id, copied.bytes))
    }

    /// Opens the original. A replaced directory does not make the pool unavailable.
    fn open_origin(&self, disk: &Disk, origin: &Origin) -> Result<OwnedFd> {
        let data = origin.data();
        match origin {
            Origin::Volume(entry) => self.check_charged(disk, &*self.current(entry))?,
            Origin::Snapshot(entry) => self.check_charged(disk, &**entry)?,
        }
        let source = disk
            .open_below(&data)
            .context("open the original of a copy");
        source.map_err(|fault| self.classify_directory(&data, "it", fault))
    }

    fn classify_copy(
        &self,
        disk: &Disk,
        job: &CopyJob<'_>,
        (method, quota_id): (Method, Option<u32>),
        progress: &Progress<'_>,
        fault: CopyFault,
    ) -> Error {
        let of = job.content.origin.source();
        let step = match &fault.reason {
            CopyReason::Step(step) => Some(*step),
            _ => None,
        };
        let Some(step) = step.filter(|step| !is_of_the_tree(*step)) else {
            return Refusal::NotCopied { of, fault }.into();
        };
        let fault = step;
        if fault.errno == Errno::CANCELED {
            let refusal = lock(&progress.refusal).take();
            let unavailable = |pool: &Self| Some(pool.unavailable(pool.why_unavailable()?));
            return refusal
                .or_else(|| unavailable(self).or_else(|| unavailable(job.content.from)))
                .unwrap_or(Error::Stopped(Stopped::Copying(of)));
        }
        if fault.is_full() && is_at_limit(disk, fault.errno, quota_id, job.limit) {
            return does_not_fit(job, method);
        }
        // Of two disks, the one that cannot be written has failed, or else the other one.
        if !std::ptr::eq(self, job.content.from) && !fault.is_full() && disk.try_writing().is_ok() {
            return job.content.from.classify(fault);
        }
        self.classify(fault)
    }
}

/// The bytes that a copy of a subvolume needs: for a snapshot those of its content, for a volume its
/// size and the charge that its original retains for it.
fn needs(job: &CopyJob<'_>, reserved: u64, content: u64, retains: &[RetainedCharge]) -> u64 {
    if matches!(job.copy, Source::Snapshot(_)) {
        return reserved.max(content);
    }
    let retained = retains
        .iter()
        .filter(|retained| retained.origin == job.copy);
    let retained = retained.map(|retained| retained.bytes.0);
    retained.fold(reserved, u64::saturating_add)
}

/// Whether a step of a copy failed because of the copied tree, and not because of the disk.
pub(super) fn is_of_the_tree(fault: Fault) -> bool {
    let is_canceled = fault.errno == Errno::CANCELED;
    !(is_canceled || fault.is_of_the_disk() || fault.is_full() || fault.is_local())
}

fn does_not_fit(job: &CopyJob<'_>, method: Method) -> Error {
    let origin = job.content.origin;
    OutOfRange::Limit {
        of: origin.source(),
        limit: job.limit,
        unshared: origin.is_unshared(method),
    }
    .into()
}

/// Whether a copy reached its own limit and not the end of the disk, which has free space for the rest
/// of the limit. A file whose blocks are shared fits completely or not at all.
fn is_at_limit(disk: &Disk, errno: Errno, quota_id: Option<u32>, limit: Bytes) -> bool {
    let charge = quota_id.and_then(|id| disk.quota.charge(id).ok());
    charge.is_some_and(|charge| {
        let inodes = charge.inode_limit > 0 && charge.inodes >= charge.inode_limit;
        let left = limit.0.saturating_sub(charge.bytes);
        let is_free = disk.space().is_ok_and(|space| space.available >= left);
        inodes || limit > Bytes::ZERO && (is_free || errno == Errno::DQUOT)
    })
}
