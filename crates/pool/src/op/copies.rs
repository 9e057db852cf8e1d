//! Copies: snapshots of volumes, and volumes made from snapshots or from other volumes.
//!
//! A copy is a draft like any other object. Btrfs copies the subvolume of a directory at once; images, and trees on
//! other filesystems, are copied file by file, and files share blocks if the filesystem supports that.

pub(crate) mod origin;
pub(crate) mod plan;
pub(crate) mod running;
mod watch;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::os::{self, At};
use linux::quota::{Enforcement, Nested};
use linux::sync::lock;
use linux::tree::{CopyFault, CopyReason, Copying, Transfer};
use objects::{Bytes, SnapshotId};
use rustix::io::Errno;

use crate::disk::entry::{Entry, SnapshotEntry};
use crate::disk::error::{Error, Result};
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{Method, Record, RetainedCharge, SnapshotRecord, Source, VolumeRecord};
use crate::disk::refusal::{OutOfRange, Refusal, Stopped};
use crate::op::copies::origin::Origin;
use crate::op::copies::plan::{CopyJob, CopyPlan};
use crate::op::copies::watch::Watch;
use crate::op::draft::Draft;
use crate::op::limits::pending::PendingCharges;
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;

/// A complete copy that is not visible yet. The draft is dropped before its charges.
#[derive(Debug)]
pub struct Copied<'a> {
    plan: &'a CopyPlan<'a>,
    reservation: &'a Reservation<'a>,
    draft: Draft<'a>,
    made: CopyResult<'a>,
}

#[derive(Debug)]
struct CopyResult<'a> {
    method: Method,
    quota_id: Option<u32>,
    /// The bytes of its content, as far as they are known.
    bytes: u64,
    /// The part of them that it shares with its original.
    inherited: u64,
    /// The subvolumes in its original, which it lacks.
    absent: Option<Nested>,
    pending: PendingCharges<'a>,
}

impl<'a> CopyPlan<'a> {
    /// Makes a copy for a snapshot.
    pub fn copy_for(
        &'a self,
        reservation: &'a Reservation<'a>,
        id: SnapshotId,
    ) -> Result<Copied<'a>> {
        self.to.attached()?;
        let copied = self.copy(reservation, Source::Snapshot(id), Bytes::ZERO)?;
        reservation.cover(copied.made.bytes)?;
        Ok(copied)
    }

    /// Makes a volume that is a copy, visible by one rename and durable on return; the properties of the copy complete the
    /// record. The pool must still have the enforcement that the record was made for.
    pub fn create(
        &'a self,
        reservation: &'a Reservation<'a>,
        enforcement: Enforcement,
        record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let disk = self.to.attached_with(enforcement)?;
        let copied = self.copy(reservation, Source::Volume(record.id), record.limit(0));
        let created = copied.and_then(|copied| copied.into_volume(record));
        self.to.measure_member(&disk);
        created
    }

    /// Makes the original the content of a draft.
    fn copy(
        &'a self,
        reservation: &'a Reservation<'a>,
        copy: Source,
        limit: Bytes,
    ) -> Result<Copied<'a>> {
        self.check_current()?;
        let job = CopyJob {
            plan: self,
            copy,
            reservation,
            limit,
        };
        let mut draft = Draft::begin(self.to, &self.disk)?;
        let target = draft.for_copy();
        let made = match self.method {
            Method::Subvolume => self.to.copy_subvolume(target, &job),
            Method::Reflink | Method::Copy => self.to.copy_tree(target, &job),
        }?;
        Ok(Copied {
            plan: self,
            reservation,
            draft,
            made,
        })
    }
}

impl Copied<'_> {
    /// Makes the copy a snapshot, visible by one rename and durable on return. The properties of the copy complete the
    /// record.
    pub fn into_snapshot(self, mut record: SnapshotRecord) -> Result<Arc<SnapshotEntry>> {
        // In this order, so that the draft is dropped first.
        let Self {
            plan,
            reservation,
            made,
            draft,
        } = self;
        if record.image.is_some() {
            let length = draft.image_length();
            let length = length.map_err(|fault| plan.to.classify(fault))?;
            record.size_bytes = record.size_bytes.max(length);
        }
        record.held_bytes = Bytes(made.bytes);
        record.quota_id = made.quota_id;
        record.retains.clone_from(&made.pending.retains);
        record.method = made.method;
        record.absent = made.absent;
        draft.commit(record, reservation)
    }

    fn into_volume(self, mut record: VolumeRecord) -> Result<Arc<Entry>> {
        // In this order, so that the draft is dropped first.
        let Self {
            plan,
            reservation,
            made,
            draft,
        } = self;
        let (pool, origin) = (plan.to, plan.origin);
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
            let length = draft.image_length().map_err(|fault| pool.classify(fault))?;
            record.size_bytes = record.size_bytes.max(length);
            reservation.cover(record.size_bytes.0)?;
            if let Err(problem) = draft.extend_image(image, record.size_bytes) {
                drop(draft);
                return Err(pool.unfilled(problem));
            }
        }
        draft.commit(record, reservation)
    }
}

impl Pool {
    /// Has the filesystem copy a subvolume, or makes one with an image that shares the blocks of the original. They
    /// stay charged to the original, so its limit is raised before, or it could not rewrite its content.
    fn copy_subvolume<'a>(&'a self, target: &OwnedFd, job: &CopyJob<'a>) -> Result<CopyResult<'a>> {
        let disk = &job.plan.disk;
        let reserved = job.reservation.size().0;
        let retains = self.retained_by(job)?;
        job.reservation.cover(needs(job, reserved, 0, &retains))?;
        let _pending = self.retain(disk, retains)?;
        // After a snapshot of its subvolume, btrfs would write each older block of an image to a new place, also
        // after the end of the snapshot. A thick image could then need space that a full disk does not have.
        let (method, quota_id) = if job.plan.origin.image().is_some() {
            let method = Method::Reflink;
            let (quota_id, _) = self.copy_files(target, job, method)?;
            (method, quota_id)
        } else {
            (Method::Subvolume, self.snapshot_subvolume(target, job)?)
        };
        // Delayed writes are allocated by now.
        let now = self.retained_by(job)?;
        let bytes = self.content_bytes(disk, job.plan.origin)?;
        job.reservation.cover(needs(job, reserved, bytes, &now))?;
        Ok(CopyResult {
            method,
            quota_id,
            bytes,
            inherited: bytes,
            absent: self.absent_from(job),
            pending: self.retain(disk, now)?,
        })
    }

    fn snapshot_subvolume(&self, target: &OwnedFd, job: &CopyJob<'_>) -> Result<Option<u32>> {
        let target = At::new(target, layout::DATA);
        let read_only = matches!(job.copy, Source::Snapshot(_));
        let quota = &job.plan.disk.quota;
        let copied = quota
            .copy_dir(
                &self.context.os,
                job.plan.source.as_fd(),
                target,
                job.limit,
                read_only,
            )
            .context("make a snapshot of a subvolume");
        let of = job.plan.origin.source();
        copied.map_err(|fault| match fault.errno {
            Errno::TXTBSY | Errno::OPNOTSUPP => Refusal::UsedForSwap { of, fault }.into(),
            _ => self.classify(fault),
        })
    }

    /// The subvolumes that a copy of a subvolume lacks. They are sought after the copy was made, because a pod may make
    /// one until then.
    fn absent_from(&self, job: &CopyJob<'_>) -> Option<Nested> {
        let (pool, of, copy) = (self.name(), job.plan.origin.source(), job.copy);
        let absent = match job.plan.origin {
            Origin::Volume(_) => job.plan.disk.quota.nested(job.plan.source.as_fd()),
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

    fn copy_tree<'a>(&'a self, target: &OwnedFd, job: &CopyJob<'a>) -> Result<CopyResult<'a>> {
        let fault = |fault| self.classify(fault);
        let (disk, method) = (&job.plan.disk, job.plan.method);
        let (quota_id, mut bytes) = self.copy_files(target, job, method)?;
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
        target: &OwnedFd,
        job: &CopyJob<'_>,
        method: Method,
    ) -> Result<(Option<u32>, u64)> {
        let fault = |fault| self.classify(fault);
        let disk = &job.plan.disk;
        let os = &self.context.os;
        let made = disk
            .quota
            .create_dir(os, At::new(target, layout::DATA), job.limit);
        let quota_id = made.context("make the copy's data").map_err(fault)?;
        let data = os::open_dir(target, layout::DATA).context("open the copy's data");
        let data = data.map_err(fault)?;
        // A source on another filesystem has no flag that its copy could get.
        if job.plan.origin.nodatacow() {
            disk.keep_in_place(&data).map_err(fault)?;
        }
        let watch = Watch::begin(self, job);
        let copying = Copying {
            os,
            transfer: match method {
                Method::Copy => Transfer::Copy,
                Method::Subvolume | Method::Reflink => Transfer::Share,
            },
            threads: disk.filesystem.copying_threads(),
            max_stall: job.plan.policy.max_stall,
            watch: &watch,
        };
        let copied = copying.copy(&job.plan.source, &data);
        let copied =
            copied.map_err(|copy| self.classify_copy(job, (method, quota_id), &watch, copy))?;
        // Copied data is allocated and charged only when it is synced.
        disk.sync().map_err(fault)?;
        Ok((quota_id, copied.bytes))
    }

    fn classify_copy(
        &self,
        job: &CopyJob<'_>,
        (method, quota_id): (Method, Option<u32>),
        watch: &Watch<'_>,
        fault: CopyFault,
    ) -> Error {
        let of = job.plan.origin.source();
        let step = match &fault.reason {
            CopyReason::Step(step) => Some(*step),
            _ => None,
        };
        let Some(step) = step.filter(|step| !is_of_the_tree(*step)) else {
            return Refusal::NotCopied { of, fault }.into();
        };
        let fault = step;
        if fault.errno == Errno::CANCELED {
            let refusal = lock(&watch.refusal).take();
            return refusal
                .or_else(|| job.plan.unavailable())
                .unwrap_or(Error::Stopped(Stopped::Copying(of)));
        }
        let disk = &job.plan.disk;
        if fault.is_full() && is_at_limit(disk, fault.errno, quota_id, job.limit) {
            return does_not_fit(job, method);
        }
        // Of two disks, the one that cannot be written has failed, or else the other one.
        if !job.plan.is_here() && !fault.is_full() && disk.try_writing().is_ok() {
            return job.plan.from.classify(fault);
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
    let origin = job.plan.origin;
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
