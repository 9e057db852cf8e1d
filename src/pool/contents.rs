//! What is done to a pool's volumes on its disk, and what a failure of it means for the pool.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::StatVfs;
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, FileId};
use crate::pool::error::{Error, Result};
use crate::quota::{Charge, Enforcement};
use crate::types::Bytes;

use super::disk::{self, Disk};
use super::draft::Draft;
use super::record::Record;
use super::trash::TrashEntry;
use super::{
    CopyPolicy, Entry, Origin, Pool, Reservation, Resource, Unavailable, VolumeRecord, layout,
};

impl Pool {
    /// Makes a volume from its record, empty or a copy: built unseen, visible by one rename, durable
    /// on return.
    ///
    /// The record's quota number is filled in here, where the limit is set. What holds sizes must
    /// still be what the record was written for.
    pub(crate) fn create(
        &self,
        room: &Reservation<'_>,
        enforcement: Enforcement,
        content: Option<(&Origin, CopyPolicy)>,
        mut record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        if disk.quota.enforcement() != enforcement {
            return Err(self.unavailable(Unavailable::EnforcementChanged));
        }
        if let Some(content) = content {
            return self.create_copy(&disk, room, content, record);
        }
        let mut draft = Draft::begin(self, &disk)?;
        if let Err(fault) = draft.fill(&mut record) {
            drop(draft);
            return Err(self.classify(fault));
        }
        draft.commit(record)
    }

    /// Makes a volume larger: the limit first, or a record that a crash leaves would promise what
    /// is not held. Of a limit without a record the next start makes what is recorded.
    pub fn expand(
        &self,
        _room: &Reservation<'_>,
        entry: &Entry,
        size: Bytes,
    ) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let mut record = entry.record.clone();
        record.size_bytes = size;
        self.change(&disk, entry, record)
    }

    /// Changes the record of a volume and the limit that follows from it.
    pub(super) fn change(
        &self,
        disk: &Disk,
        entry: &Entry,
        record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let _limiting = self.limiting();
        let amended = self
            .set_limit(disk, &record)
            .context("raise a volume's limit")
            .and_then(|()| disk.amend(&entry.directory, &record));
        if let Err(fault) = amended {
            if let Err(errno) = self.set_limit(disk, &entry.record) {
                tracing::warn!(pool = %self.options.name, %errno, "left a limit raised");
            }
            return Err(self.classify(fault));
        }
        let directory = entry.directory.clone();
        Ok(self.state.insert(Entry { record, directory }))
    }

    /// What is charged to a volume, where that is counted.
    pub fn charge(&self, entry: &Entry) -> Result<Option<Charge>> {
        let disk = self.disk()?;
        let Some(id) = entry.record.quota_id().filter(|_| disk.accounts()) else {
            return Ok(None);
        };
        let charge = disk.quota.charge(id).context("ask what a volume uses");
        charge.map(Some).map_err(|fault| self.classify(fault))
    }

    /// What the filesystem has.
    pub fn space(&self) -> Result<StatVfs> {
        let disk = self.disk()?;
        disk.statvfs().map_err(|fault| self.classify(fault))
    }

    /// The disk, and the pool's directory by its path, if the path still shows this disk: nothing
    /// is done on a disk that was taken away a moment ago.
    pub(super) fn attached(&self) -> Result<(Arc<Disk>, OwnedFd)> {
        let disk = self.disk()?;
        match disk.attached(&self.options) {
            Ok(at) => Ok((disk, at)),
            Err(reason) => {
                self.mark_unavailable(&reason);
                Err(self.unavailable(reason))
            }
        }
    }

    /// Takes a volume or snapshot out of sight, durably; its space comes back in the background, and
    /// until then what was promised to it may stay promised.
    pub(crate) fn delete<R: Resource>(&self, entry: &Entry<R>) -> Result<()> {
        let (disk, _) = self.attached()?;
        // Counted before it is there, for the reclaimer may be done with it at once.
        let place = Disk::place_in_trash(&entry.directory);
        let trashed = TrashEntry::new(&entry.record);
        self.state.add_to_trash(place.clone().into(), trashed);
        let moved = disk.move_to_trash::<R>(&entry.directory, &place);
        if matches!(moved, Ok(false) | Err(Fault { sync: false, .. })) {
            self.state.remove_from_trash(place.as_ref());
        }
        moved.map_err(|fault| self.classify(fault))?;
        self.state.remove::<R>(entry.record.id());
        self.trash.notify();
        Ok(())
    }

    /// A volume's `data/` as the pool's own mount shows it, for a bind mount. The descriptor keeps
    /// the host from unmounting the disk, so it is not to be kept.
    pub fn open_data(&self, entry: &Entry) -> Result<OwnedFd> {
        let (_, at) = self.attached()?;
        let path = [layout::VOLUMES, &entry.directory, layout::DATA].join("/");
        os::open_place(at, path)
            .context(disk::LOOK_AT_DATA)
            .map_err(|fault| self.classify_data(entry, fault))
    }

    /// What a volume's `data/` is identified by.
    pub fn data_id(&self, entry: &Entry) -> Result<FileId> {
        let disk = self.disk()?;
        disk.data_id(entry)
            .map_err(|fault| self.classify_data(entry, fault))
    }

    /// A `data/` that is not what was made is a matter of that volume, not of the pool.
    pub(super) fn classify_data(&self, entry: &Entry, fault: Fault) -> Error {
        match fault.errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Error::Quarantined {
                path: self
                    .options
                    .path
                    .join(layout::VOLUMES)
                    .join(&entry.directory),
                reason: format!(
                    "its data is not the directory that was made: {}",
                    fault.errno
                ),
            },
            _ => self.classify(fault),
        }
    }
}
