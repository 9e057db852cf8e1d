//! Placeholders in the trash, by which a full XFS can delete volumes.
//!
//! XFS stores the names of a small directory in its inode. On a disk without a free block it refuses the
//! next name that does not fit there, and with it the deletion of a volume, which would free blocks. So
//! the trash has empty files whose names do not fit into an inode. It then has a block, in which more
//! names fit, and XFS does not free that block as long as these files are there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use linux::fault::{Fault, InContext};
use linux::os;
use rustix::io::Errno;

use crate::disk::layout;
use crate::disk::open::Disk;

impl Disk {
    /// Makes the placeholders in the trash, where the filesystem needs them; false if the disk is full. An
    /// older driver removes them, so each opening makes them again.
    pub(crate) fn make_placeholders(&self) -> Result<bool, Fault> {
        if self.has_placeholders.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let made = self.make_missing();
        if made.is_err_and(|fault| fault.is_full()) {
            return Ok(false);
        }
        made?;
        self.has_placeholders.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn make_missing(&self) -> Result<(), Fault> {
        let beyond = self.filesystem.names_in_inode(self.root.as_fd());
        let Some(beyond) = beyond.context("ask for the size of an inode")? else {
            return Ok(());
        };
        let trash = &self.homes.trash;
        let present = os::entry_names(trash.as_fd()).context("list the trash")?;
        let present = BTreeSet::from_iter(present);
        for name in layout::placeholders(beyond) {
            if present.contains(OsStr::new(&name)) {
                continue;
            }
            match self.context.os.create(trash, &name) {
                Ok(_) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(Fault::new("make a placeholder in the trash", errno)),
            }
        }
        Ok(())
    }
}
