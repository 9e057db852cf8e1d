//! Deleting volumes and snapshots, also those of which only the record is left.

use std::path::Path;

use linux::fault::{Fault, InContext};
use linux::os;

use crate::disk::entry::{Entry, is_emptied, read_emptied};
use crate::disk::error::Result;
use crate::disk::open::Disk;
use crate::disk::record;
use crate::disk::trash::TrashEntry;
use crate::ledger::index::Resource;
use crate::op::kept::Deletion;
use crate::op::pool::Pool;

impl Pool {
    /// Deletes a volume or snapshot durably. Its space is freed in the background, and may stay reserved until then.
    pub fn delete<R: Resource>(&self, entry: &Entry<R>, deletion: Deletion) -> Result<()> {
        let (disk, _) = self.attached()?;
        let is_kept = deletion == Deletion::Kept && self.keep(&disk, entry)?;
        if !is_kept {
            self.move_to_trash(&disk, entry)?;
        }
        self.measure_member(&disk);
        self.trash.notify();
        Ok(())
    }

    /// The object with an id that is in quarantine at a path, below the pool's, because somebody removed everything
    /// but its record by hand, so that it can be deleted.
    pub fn find_emptied<R: Resource>(&self, id: R::Id, path: &Path) -> Result<Option<Entry<R>>> {
        let (disk, _) = self.attached()?;
        let name = path
            .file_name()
            .filter(|_| self.state.is_alone_in_quarantine::<R>(id));
        let Some(name) = name else { return Ok(None) };
        let found = read_emptied::<R>(disk.homes.of::<R>(), name, disk.id);
        let found = found.map_err(|fault| self.classify(fault))?;
        Ok(found.filter(|entry| entry.record.id() == id))
    }

    /// Deletes what is left of such an object, durably.
    pub fn delete_emptied<R: Resource>(&self, mut entry: Entry<R>) -> Result<()> {
        let (disk, _) = self.attached()?;
        if entry.record.quota_id().is_some() {
            // Its quota id was free since the pool was opened, so another object may have it now. The trash must not
            // release that.
            entry.record.give_up_quota_id();
            let dir = os::open_dir(disk.homes.of::<R>(), &entry.directory);
            let written = dir
                .context("open the directory of an object without data")
                .and_then(|dir| record::write(&self.context.os, &dir, R::FILE, &entry.record));
            written.map_err(|fault| self.classify(fault))?;
        }
        self.move_to_trash(&disk, &entry)?;
        self.trash.notify();
        Ok(())
    }

    /// Whether somebody removed everything but the record of an object by hand.
    pub fn is_emptied<R: Resource>(&self, entry: &Entry<R>) -> Result<bool> {
        let disk = self.disk()?;
        let emptied = is_emptied::<R>(disk.homes.of::<R>(), entry.directory.as_ref());
        emptied.map_err(|fault| self.classify_directory(&entry.path(), "it", fault))
    }

    fn move_to_trash<R: Resource>(&self, disk: &Disk, entry: &Entry<R>) -> Result<()> {
        // Counted before it is moved, because the reclaimer may remove it at once.
        let place = Disk::place_in_trash(&entry.directory);
        let trashed = TrashEntry::new(&entry.record);
        self.state.add_to_trash(place.clone().into(), trashed);
        let moved = disk.move_to_trash::<R>(&entry.directory, &place);
        if matches!(moved, Ok(false) | Err(Fault { sync: false, .. })) {
            self.state.remove_from_trash(place.as_ref());
        }
        moved.map_err(|fault| self.classify(fault))?;
        self.state.remove_deleted(entry);
        Ok(())
    }
}
