//! Drafts in staging: their birth, the rename that makes them visible, and the way of the others to the trash.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use linux::fault::{Fault, InContext};
use linux::os::{self, At};
use linux::sync::lock;
use linux::tree;
use uuid::Uuid;

use crate::disk::open::{Disk, Left};
use crate::disk::record::{self, Record};

#[derive(Debug)]
pub(crate) struct Staged {
    pub dir: OwnedFd,
    pub name: String,
    /// The directory that contains it; `None`: staging.
    pub(crate) parent: Option<OwnedFd>,
}

impl Disk {
    pub(crate) fn stage(&self) -> Result<Staged, Fault> {
        let name = Uuid::new_v4().simple().to_string();
        self.context
            .os
            .mkdir(&self.staging, &name, 0o700)
            .context("make a staging directory")?;
        let dir = os::open_dir(&self.staging, &name).context("open a staging directory")?;
        Ok(Staged {
            dir,
            name,
            parent: None,
        })
    }

    /// Removes a staging directory with little content.
    pub(crate) fn discard(&self, staged: &Staged) -> Result<(), Fault> {
        tree::remove(&self.context.os, self.staging.as_fd(), &staged.name)
    }

    /// Makes the record durable in staging. If `data/` is empty, the one fsync of [`Disk::sync_parents`]
    /// covers directory, mode and owner, unless the filesystem needs syncfs. The caller syncs the content
    /// of `data/` before.
    pub(crate) fn write_record<R: Record>(&self, staged: &Staged, record: &R) -> Result<(), Fault> {
        if self.filesystem.needs_syncfs() {
            self.sync()?;
        }
        let os = &self.context.os;
        match staged.parent {
            None => record::write_new(os, &staged.dir, R::FILE, record),
            Some(_) => record::write(os, &staged.dir, R::FILE, record),
        }
    }

    /// Makes a staged object visible, once its record is written.
    pub(crate) fn rename_into_place<R: Record>(
        &self,
        staged: &Staged,
        directory: &str,
    ) -> Result<(), Fault> {
        let parent = staged.parent.as_ref().unwrap_or(&self.staging);
        let to = At::new(self.homes.of::<R>(), directory);
        let renamed = self.context.os.rename(At::new(parent, &staged.name), to);
        renamed.context("rename a draft into place")
    }

    /// Makes the rename into place durable.
    pub(crate) fn sync_parents<R: Record>(&self, staged: &Staged) -> Result<(), Fault> {
        self.sync_dirs([self.homes.of::<R>()])?;
        // A draft that the next start finds in staging is discarded in any case.
        staged
            .parent
            .as_ref()
            .map_or(Ok(()), |parent| self.sync_dirs([parent]))
    }

    /// Moves a draft to the trash, where it has the same name.
    pub(crate) fn drop_staged(&self, staged: &Staged) -> Result<(), Fault> {
        let from = staged.parent.as_ref().unwrap_or(&self.staging);
        let to = &self.homes.trash;
        let os = &self.context.os;
        let renamed = os.rename(At::new(&from, &staged.name), At::new(&to, &staged.name));
        renamed.context("move a draft to the trash")
    }

    /// Has an entry of staging moved to a place in the trash by [`Disk::clear_staging`].
    pub(crate) fn leave(&self, name: OsString, place: String) {
        lock(&self.left).push((name, place));
    }

    /// Moves the entries that were left in staging to the trash; returns their number. A full disk, which
    /// may take no name in the trash, keeps the others until the reclaimer has freed space.
    pub(crate) fn clear_staging(&self) -> Result<usize, Fault> {
        let mut moved = 0;
        loop {
            // No call waits for the lock while the disk works: drafts may be left meanwhile.
            let Some((name, place)) = lock(&self.left).pop() else {
                return Ok(moved);
            };
            let to = At::new(&self.homes.trash, &place);
            let renamed = self.context.os.rename(At::new(&self.staging, &name), to);
            if let Err(fault) = renamed.context("move staging to the trash") {
                self.leave(name, place);
                return if fault.is_full() {
                    Ok(moved)
                } else {
                    Err(fault)
                };
            }
            moved += 1;
        }
    }

    pub(crate) fn left(&self) -> Vec<Left> {
        lock(&self.left).clone()
    }
}
