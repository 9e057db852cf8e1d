//! Copies: snapshots of volumes, and volumes made of snapshots or of other volumes.
//!
//! A copy is made in staging and seen by one rename, like everything else. A btrfs copies a
//! subvolume at once; elsewhere the tree is copied file by file, sharing blocks where files can.

mod progress;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os;
use crate::pool::error::{Error, Result};
use crate::quota::Enforcement;
use crate::tree::{CopyFault, CopyReason, Copying, Transfer};
use crate::types::{Bytes, Invalid};

use super::disk::Disk;
use super::draft::Draft;
use super::record::{Method, RetainedCharge, Source};
use super::{Entry, Pool, Reservation, SnapshotEntry, SnapshotRecord, VolumeRecord, layout};

pub(super) use progress::Copies;
pub(crate) use progress::unfinished;
pub use progress::{CopyStatus, Unfinished};

use super::limits::PendingCharges;
use progress::Progress;

const OPEN_SOURCE: &str = "open what is to be copied";

/// What a copy is made of.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Volume(Arc<Entry>),
    Snapshot(Arc<SnapshotEntry>),
}

impl Origin {
    /// It, as records tell of it.
    pub(crate) fn source(&self) -> Source {
        match self {
            Self::Volume(entry) => Source::Volume(entry.record.id),
            Self::Snapshot(entry) => Source::Snapshot(entry.record.id),
        }
    }

    /// The least size of a volume that is a copy of it.
    pub(crate) fn least_size(&self) -> Bytes {
        match self {
            Self::Volume(entry) => entry.record.size_bytes,
            Self::Snapshot(entry) => entry.record.least_size(),
        }
    }

    /// The size of what it is or was made of; zero: it had none.
    pub(crate) fn size(&self) -> Bytes {
        match self {
            Self::Volume(entry) => entry.record.size_bytes,
            Self::Snapshot(entry) => entry.record.size_bytes,
        }
    }

    /// Whether a copy of a size may hold what it holds. By simple quota a copy is not charged for
    /// what it shares, so that needs no more than the size of its source.
    fn fits(&self, held: u64, size: Bytes) -> bool {
        let enforcement = match self {
            Self::Volume(entry) => entry.record.enforcement,
            Self::Snapshot(entry) => entry.record.enforcement,
        };
        let shares = enforcement == Enforcement::Squota && self.size() > Bytes::ZERO;
        shares || held <= size.0
    }

    /// The most that can be found in it, in bytes, with what metadata takes and what is removed
    /// meanwhile.
    fn most(&self) -> u64 {
        const LEEWAY: u64 = 64 << 20;
        match self {
            Self::Volume(entry) if entry.record.enforcement != Enforcement::None => {
                let size = entry.record.size_bytes.0;
                size.saturating_add(size / 8).saturating_add(LEEWAY)
            }
            Self::Volume(_) | Self::Snapshot(_) => u64::MAX,
        }
    }

    /// Where its data is, below the pool.
    fn data(&self) -> PathBuf {
        let entry = match self {
            Self::Volume(entry) => entry.path(),
            Self::Snapshot(entry) => entry.path(),
        };
        entry.join(layout::DATA)
    }
}

/// What a class says of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyPolicy {
    /// Whether a copy may take its time and the space of the original again.
    pub copy: bool,
    /// How long a file may be locked while it is copied, if that is bounded.
    pub max_stall: Option<Duration>,
}

/// A copy that is to be made.
pub(super) struct CopyJob<'a> {
    pub(super) origin: &'a Origin,
    /// What it will be.
    pub(super) copy: Source,
    pub(super) terms: CopyPolicy,
    pub(super) room: &'a Reservation<'a>,
    /// What it is limited to; zero: nothing.
    pub(super) limit: Bytes,
}

/// A copy that was made.
#[derive(Debug)]
pub(super) struct CopyResult<'a> {
    pub(super) method: Method,
    /// The number it is charged to.
    pub(super) number: Option<u32>,
    /// What it holds, in bytes, as far as that is known.
    pub(super) held: u64,
    /// How much of that it shares with others.
    pub(super) inherited: u64,
    pub(super) pending: PendingCharges<'a>,
}

impl Pool {
    /// Makes a snapshot of a volume: built unseen, visible by one rename, durable on return. The
    /// record is filled in with what turns out; `in_use` tells at the end whether the volume was
    /// published meanwhile.
    pub(crate) fn snapshot<E: From<Error>>(
        &self,
        room: &Reservation<'_>,
        volume: &Arc<Entry>,
        terms: CopyPolicy,
        mut record: SnapshotRecord,
        in_use: &dyn Fn() -> Result<bool, E>,
    ) -> Result<Arc<SnapshotEntry>, E> {
        let origin = Origin::Volume(Arc::clone(volume));
        let (disk, _) = self.attached()?;
        let order = CopyJob {
            origin: &origin,
            copy: Source::Snapshot(record.id),
            terms,
            room,
            limit: Bytes::ZERO,
        };
        // The draft goes first, then its charges: the names are dropped in reverse.
        let (made, draft) = self.draft_copy(&disk, &order)?;
        room.cover(made.held)?;
        record.in_use |= in_use()?;
        record.held_bytes = Bytes(made.held);
        record.quota_id = made.number;
        record.retains.clone_from(&made.pending.retains);
        record.method = made.method;
        Ok(draft.commit(record)?)
    }

    /// Makes a volume that is a copy; the record is filled in with what turns out.
    pub(super) fn create_copy(
        &self,
        disk: &Disk,
        room: &Reservation<'_>,
        (origin, terms): (&Origin, CopyPolicy),
        mut record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let order = CopyJob {
            origin,
            copy: Source::Volume(record.id),
            terms,
            room,
            limit: record.limit(0),
        };
        let (made, draft) = self.draft_copy(disk, &order)?;
        let fits = origin.fits(made.held, record.size_bytes);
        if record.enforcement != Enforcement::None && !fits {
            return Err(Error::OutOfRange(format!(
                "{} holds {}, which does not fit into {}; ask for more",
                origin.source(),
                Bytes(made.held),
                record.size_bytes
            )));
        }
        record.quota_id = made.number;
        record.source = Some(origin.source());
        record.inherited_bytes = Bytes(made.inherited);
        record.retains.clone_from(&made.pending.retains);
        draft.commit(record)
    }

    /// Makes a copy the content of a draft.
    fn draft_copy<'a>(
        &'a self,
        disk: &'a Disk,
        order: &CopyJob<'_>,
    ) -> Result<(CopyResult<'a>, Draft<'a>)> {
        let fault = |fault| self.classify(fault);
        let source = disk.open_below(&order.origin.data()).context(OPEN_SOURCE);
        let source = source.map_err(|missing| self.classify_source(order.origin, missing))?;
        let method = disk.method(&source).map_err(fault)?;
        if method == Method::Copy && !order.terms.copy {
            let (pool, filesystem) = (self.name(), disk.filesystem);
            let problem = format!(
                "pool {pool} is on {filesystem}, where files share no blocks: a copy takes the \
                 space of its original again, and the time to write it; give the class the \
                 parameter copy: allowed if that is wanted"
            );
            return Err(Invalid::new("parameter \"copy\"", problem).into());
        }
        // Before anything is staged: whoever is told to come again comes often.
        let _turn = match method {
            Method::Subvolume => None,
            Method::Reflink | Method::Copy => Some(self.copies.begin(self.name())?),
        };
        let mut draft = Draft::begin(self, disk)?;
        let target = draft.for_copy();
        let made = match method {
            Method::Subvolume => self.copy_subvolume(disk, target, &source, order),
            Method::Reflink | Method::Copy => self.copy_tree(disk, target, &source, order, method),
        }?;
        Ok((made, draft))
    }

    /// Has the filesystem copy a subvolume. What the copy keeps of its original's stays charged to
    /// that, so the original's limit is raised before, or it could not rewrite what it holds.
    fn copy_subvolume<'a>(
        &'a self,
        disk: &'a Disk,
        target: &OwnedFd,
        source: &OwnedFd,
        order: &CopyJob<'_>,
    ) -> Result<CopyResult<'a>> {
        let fault = |fault| self.classify(fault);
        let promised = order.room.size().0;
        let retains = self.retained_by(order)?;
        order.room.cover(needs(order, promised, 0, &retains))?;
        let _pending = self.retain(disk, retains)?;
        let target = (target.as_fd(), layout::DATA);
        let read_only = matches!(order.copy, Source::Snapshot(_));
        let quota = &disk.quota;
        let copied = quota
            .copy_dir(
                &self.context.os,
                source.as_fd(),
                target,
                order.limit,
                read_only,
            )
            .context("make a snapshot of a subvolume");
        let refused = |step: Fault| match step.errno {
            Errno::TXTBSY | Errno::OPNOTSUPP => {
                let source = order.origin.source();
                Error::CannotCopy(format!(
                    "{source} cannot be copied: {step}: is a file of it in use for swap?"
                ))
            }
            _ => fault(step),
        };
        let number = copied.map_err(refused)?;
        // Data that was written before and had no place on the disk yet has one now.
        let (now, held) = (
            self.retained_by(order)?,
            self.bytes_held(disk, order.origin)?,
        );
        order.room.cover(needs(order, promised, held, &now))?;
        Ok(CopyResult {
            method: Method::Subvolume,
            number,
            held,
            inherited: held,
            pending: self.retain(disk, now)?,
        })
    }

    /// What a snapshot of a volume is thought to hold. A tree that nobody counts is promised room as
    /// it is copied.
    pub(crate) fn snapshot_needs(&self, volume: &Arc<Entry>) -> Result<Bytes> {
        let disk = self.disk()?;
        let origin = Origin::Volume(Arc::clone(volume));
        let source = disk.open_below(&origin.data()).context(OPEN_SOURCE);
        let source = source.map_err(|missing| self.classify_source(&origin, missing))?;
        let method = disk.method(&source);
        match method.map_err(|fault| self.classify(fault))? {
            Method::Reflink | Method::Copy if !disk.accounts() => Ok(Bytes::ZERO),
            Method::Subvolume | Method::Reflink | Method::Copy => {
                self.bytes_held(&disk, &origin).map(Bytes)
            }
        }
    }

    fn copy_tree<'a>(
        &'a self,
        disk: &'a Disk,
        target: &OwnedFd,
        source: &OwnedFd,
        order: &CopyJob<'_>,
        method: Method,
    ) -> Result<CopyResult<'a>> {
        let fault = |fault| self.classify(fault);
        let os = &self.context.os;
        let made = disk
            .quota
            .create_dir(os, (target.as_fd(), layout::DATA), order.limit);
        let number = made.context("make the copy's data").map_err(fault)?;
        let data = os::open_dir(target, layout::DATA).context("open the copy's data");
        let data = data.map_err(fault)?;
        let progress = Progress::begin(self, target, order, method);
        let copying = Copying {
            os,
            transfer: match method {
                Method::Copy => Transfer::Copy,
                Method::Subvolume | Method::Reflink => Transfer::Share,
            },
            threads: disk.filesystem.copying_threads(),
            max_stall: order.terms.max_stall,
            watch: &progress,
        };
        let copied = copying.copy(source, &data);
        progress.end(os).map_err(fault)?;
        let copied =
            copied.map_err(|copy| self.classify_copy(disk, order, number, &progress, &copy))?;
        // What was copied has its place on the disk, and is charged for it, only when it is synced.
        disk.sync().map_err(fault)?;
        let mut held = copied.bytes;
        if let Some(id) = number.filter(|_| disk.quota.enforcement() == Enforcement::Project) {
            let charge = disk.quota.charge(id).context("ask what a copy uses");
            let charge = charge.map_err(fault)?;
            // Whoever is as privileged as this driver passes any limit of ext4.
            if charge.exceeds() {
                return Err(does_not_fit(order));
            }
            held = charge.bytes;
        }
        Ok(CopyResult {
            method,
            number,
            held,
            inherited: if method == Method::Reflink { held } else { 0 },
            pending: PendingCharges::none(self, disk),
        })
    }

    /// What is to be copied and is not what was made is a matter of its own, not of the pool.
    fn classify_source(&self, origin: &Origin, fault: Fault) -> Error {
        match fault.errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Error::Quarantined {
                path: self.path().join(origin.data()),
                reason: format!("it is not the directory that was made: {}", fault.errno),
            },
            _ => self.classify(fault),
        }
    }

    fn classify_copy(
        &self,
        disk: &Disk,
        order: &CopyJob<'_>,
        number: Option<u32>,
        progress: &Progress<'_>,
        fault: &CopyFault,
    ) -> Error {
        let source = order.origin.source();
        let step = match &fault.reason {
            CopyReason::Step(step) => Some(*step),
            _ => None,
        };
        let Some(step) = step.filter(|step| !is_of_the_tree(*step)) else {
            return Error::CannotCopy(format!("{source} cannot be copied: {fault}"));
        };
        let fault = step;
        if fault.errno == Errno::CANCELED {
            return match (progress.refusal(), self.why_unavailable()) {
                (Some(refused), _) => refused,
                (None, Some(unavailable)) => self.unavailable(unavailable),
                (None, None) => Error::Stopped(format!("copying {}", order.origin.source())),
            };
        }
        if fault.is_full() && is_at_limit(disk, fault.errno, number, order.limit) {
            return does_not_fit(order);
        }
        self.classify(fault)
    }
}

/// What a copy of a subvolume needs of the pool, in bytes: a snapshot what it holds, a volume its
/// size and the charge that its original retains for it.
fn needs(order: &CopyJob<'_>, promised: u64, held: u64, retains: &[RetainedCharge]) -> u64 {
    if matches!(order.copy, Source::Snapshot(_)) {
        return promised.max(held);
    }
    let retained = retains
        .iter()
        .filter(|retained| retained.origin == order.copy);
    let retained = retained.map(|retained| retained.bytes.0);
    retained.fold(promised, u64::saturating_add)
}

/// Whether a step of a copy failed for the sake of what is copied, and not of the disk.
pub(super) fn is_of_the_tree(fault: Fault) -> bool {
    let of_the_disk = matches!(
        fault.errno,
        Errno::CANCELED
            | Errno::IO
            | Errno::ROFS
            | Errno::UCLEAN
            | Errno::BADMSG
            | Errno::NXIO
            | Errno::NODEV
    );
    !(of_the_disk || fault.sync || fault.is_full() || fault.is_local())
}

fn does_not_fit(order: &CopyJob<'_>) -> Error {
    let (source, limit) = (order.origin.source(), order.limit);
    Error::OutOfRange(format!(
        "what is in {source} does not fit into {limit}; ask for more"
    ))
}

/// Whether it is its own limit that a copy does not fit into, and not the disk: there is room for
/// all that it might still take. A file whose blocks are shared fits as a whole or not at all.
fn is_at_limit(disk: &Disk, errno: Errno, number: Option<u32>, limit: Bytes) -> bool {
    let charge = number.and_then(|id| disk.quota.charge(id).ok());
    charge.is_some_and(|charge| {
        let inodes = charge.inode_limit > 0 && charge.inodes >= charge.inode_limit;
        let left = limit.0.saturating_sub(charge.bytes);
        let has_room = disk.space().is_ok_and(|space| space.available >= left);
        inodes || limit > Bytes::ZERO && (has_room || errno == Errno::DQUOT)
    })
}
