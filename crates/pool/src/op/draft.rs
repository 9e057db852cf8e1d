//! Volumes and snapshots under construction.
//!
//! A draft is built in staging, where nobody sees it. One rename makes it a volume or a snapshot, durably. New
//! volumes, restores, clones and snapshots are all made in this way.
//!
//! A draft that is dropped before the rename leaves nothing. One that a crash leaves in staging is deleted
//! by the next start. After the rename the object counts as made, also if the sync fails: it may be on the disk, and a
//! repeated request finds it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::image::{Allocation, FormatFault};
use linux::os::{self, At};
use objects::Bytes;
use rustix::io::Errno;

use crate::disk::entry::Entry;
use crate::disk::error::{Error, Result};
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{Image, Record, VolumeRecord};
use crate::disk::refusal::Refusal;
use crate::disk::staging::Staged;
use crate::disk::trash::TrashEntry;
use crate::ledger::index::Resource;
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;

const OPEN_IMAGE: &str = "open an image";
pub(super) const SYNC_IMAGE: &str = "fsync an image";

#[derive(Debug)]
pub(super) struct Draft<'a> {
    pool: &'a Pool,
    disk: &'a Disk,
    staged: Staged,
    state: DraftState,
}

/// The content of a draft, which decides how it is discarded.
#[derive(Debug)]
enum DraftState {
    /// Little content, charged to a quota id.
    Empty(Option<u32>),
    /// A copy, which may contain much.
    Copy,
    /// A tree that somebody else made. It stays.
    Import,
    /// None, because the draft is a volume or a snapshot now.
    Committed,
}

/// Why a draft was not filled. The caller classifies it after the draft was dropped.
#[derive(Debug)]
pub(super) enum Unfilled {
    Step(Fault),
    Format(FormatFault),
    /// The filesystem cannot allocate the blocks of a file before they are written.
    NoAllocation,
}

impl From<Fault> for Unfilled {
    fn from(fault: Fault) -> Self {
        Self::Step(fault)
    }
}

impl From<FormatFault> for Unfilled {
    fn from(fault: FormatFault) -> Self {
        Self::Format(fault)
    }
}

impl Pool {
    /// Extends an image to a size, and fills its holes if it is thick.
    pub(super) fn extend(
        &self,
        file: &OwnedFd,
        allocation: Allocation,
        size: Bytes,
    ) -> Result<(), Unfilled> {
        let os = &self.context.os;
        // It is never cut off: a filesystem in it may have grown.
        let length = os::status(file).context(OPEN_IMAGE)?.length;
        match allocation {
            Allocation::Thin if length >= size.0 => {}
            Allocation::Thin => os.truncate(file, size.0).context("extend an image")?,
            Allocation::Thick => match os.allocate(file, size.0) {
                Err(Errno::OPNOTSUPP) => return Err(Unfilled::NoAllocation),
                allocated => allocated.context("allocate an image")?,
            },
        }
        Ok(())
    }

    /// The error of an image that was not extended, or of a draft that is dropped.
    pub(super) fn unfilled(&self, problem: Unfilled) -> Error {
        match problem {
            Unfilled::Step(fault) => self.classify(fault),
            Unfilled::Format(fault) => Error::NotFormatted {
                pool: self.name().clone(),
                fault,
            },
            Unfilled::NoAllocation => {
                let pool = self.name().clone();
                Refusal::NoAllocation { pool }.into()
            }
        }
    }
}

impl<'a> Draft<'a> {
    /// Begins a draft without content.
    pub(super) fn begin(pool: &'a Pool, disk: &'a Disk) -> Result<Self> {
        let staged = disk.stage().map_err(|fault| pool.classify(fault))?;
        Ok(Self {
            pool,
            disk,
            staged,
            state: DraftState::Empty(None),
        })
    }

    pub(super) fn of_import(pool: &'a Pool, disk: &'a Disk, staged: Staged) -> Self {
        Self {
            pool,
            disk,
            staged,
            state: DraftState::Import,
        }
    }

    /// The directory of the draft, for a copy as its content.
    pub(super) fn for_copy(&mut self) -> &OwnedFd {
        self.state = DraftState::Copy;
        &self.staged.dir
    }

    /// Makes the data of a new volume, and sets the record's quota id: limit, then `data/`, then
    /// the image, or copy-on-write, owner and mode (chown clears mode bits).
    pub(super) fn fill(&mut self, record: &mut VolumeRecord) -> Result<(), Unfilled> {
        let (os, dir) = (&self.pool.context.os, self.staged.dir.as_fd());
        let limit = record.limit(0);
        record.quota_id = self
            .disk
            .quota
            .create_dir(os, At::new(&dir, layout::DATA), limit)
            .context("make a volume's data")?;
        self.state = DraftState::Empty(record.quota_id);
        let data = os::open_dir(dir, layout::DATA).context("open a volume's data")?;
        if let Some(image) = record.image {
            return self.make_image(&data, image, record.size_bytes);
        }
        if record.nodatacow {
            self.disk.keep_in_place(&data)?;
        }
        let parameters = record.parameters;
        os.chown(&data, parameters.uid, parameters.gid)
            .context("set a volume's owner")?;
        os.chmod(&data, parameters.mode.bits())
            .context("set a volume's mode")?;
        Ok(())
    }

    /// Makes an image of a size, durably.
    fn make_image(&self, data: &OwnedFd, image: Image, size: Bytes) -> Result<(), Unfilled> {
        let os = &self.pool.context.os;
        os.create(data, layout::IMAGE).context("make an image")?;
        let file = os::open_writable(data, layout::IMAGE).context(OPEN_IMAGE)?;
        self.disk.keep_in_place(&file)?;
        self.pool.extend(&file, image.allocation, size)?;
        if let Some(format) = image.content.format() {
            let formatted = rustix::io::fcntl_dupfd_cloexec(&file, 0).context(OPEN_IMAGE)?;
            let made = os.format(&file, || format.make(formatted));
            made.context("format an image")??;
        }
        Ok(os.fsync(&file).context_sync(SYNC_IMAGE)?)
    }

    /// The length of the image of a copy. It may be larger than the size of the source was before.
    pub(super) fn image_length(&self) -> Result<Bytes, Fault> {
        let path = [layout::DATA, layout::IMAGE].join("/");
        let status = os::status_at(&self.staged.dir, path).context(OPEN_IMAGE)?;
        Ok(Bytes(status.length))
    }

    pub(super) fn extend_image(&self, image: Image, size: Bytes) -> Result<(), Unfilled> {
        let path = [layout::DATA, layout::IMAGE].join("/");
        let file = os::open_writable(&self.staged.dir, path).context(OPEN_IMAGE)?;
        self.pool.extend(&file, image.allocation, size)?;
        let synced = self.pool.context.os.fsync(&file);
        Ok(synced.context_sync(SYNC_IMAGE)?)
    }

    /// Makes the draft a volume or snapshot: the record, one rename, and the sync of the rename.
    pub(super) fn commit<R: Resource>(
        mut self,
        record: R,
        reservation: &Reservation<'_>,
    ) -> Result<Arc<Entry<R>>> {
        let (pool, disk) = (self.pool, self.disk);
        let directory = record.directory();
        let shown = disk
            .write_record(&self.staged, &record)
            .and_then(|()| disk.rename_into_place::<R>(&self.staged, &directory));
        if let Err(fault) = shown {
            // Discarded first, because the fault may make the pool unavailable, and the next inspection
            // would find its lock in use.
            drop(self);
            return Err(pool.classify(fault));
        }
        // From here on the object may be on the disk, even if the sync fails.
        self.state = DraftState::Committed;
        let synced = disk.sync_parents::<R>(&self.staged);
        let entry = pool
            .state
            .insert_reserved(record, directory, &reservation.held);
        synced.map_err(|fault| pool.unsynced(fault))?;
        Ok(entry)
    }

    /// Removes a draft with little content. After a failure the next start clears the rest and releases
    /// the quota id, which must not happen twice: it might belong to another volume by then.
    fn remove(&self, quota_id: Option<u32>) {
        if let Err(fault) = self.disk.discard(&self.staged) {
            self.left(fault);
            return;
        }
        let freed = quota_id.map(|id| self.disk.quota.release(&self.pool.context.os, id));
        if let Some(Err(errno)) = freed {
            let pool = self.pool.name();
            tracing::warn!(%pool, %errno, "cannot release a quota id; its limit stays until the pool is opened again");
        }
    }

    /// Has a draft with much content reclaimed in the background.
    fn move_to_trash(&self) {
        let name = OsStr::new(&self.staged.name);
        // Counted before it is moved, because the reclaimer may remove it at once.
        let state = &self.pool.state;
        state.add_to_trash(name.to_owned(), TrashEntry::default());
        if let Err(fault) = self.disk.drop_staged(&self.staged) {
            self.left(fault);
            if !fault.is_full() {
                state.remove_from_trash(name);
                return;
            }
            self.disk.leave(name.to_owned(), self.staged.name.clone());
        }
        self.pool.trash.notify();
    }

    fn left(&self, fault: Fault) {
        tracing::warn!(pool = %self.pool.name(), %fault, "cannot remove a draft from staging; the driver tries again later");
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        match self.state {
            DraftState::Empty(quota_id) => self.remove(quota_id),
            DraftState::Copy => self.move_to_trash(),
            DraftState::Import | DraftState::Committed => {}
        }
    }
}
