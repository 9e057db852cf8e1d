//! Protecting the pool's own directories and files from all users but root.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use linux::fault::Fault;
use rustix::io::Errno;

use crate::disk::entry::Entry;
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::protection::{Exposed, own_paths};
use crate::disk::record::Record;
use crate::ledger::index::Index;
use crate::op::pool::Pool;

/// The pool's own entries that are exposed, those of volumes, snapshots and kept objects included.
pub fn exposed(root: impl AsFd, index: &Index) -> Result<Vec<Exposed>, Fault> {
    let volumes = index.volumes().flat_map(|entry| paths(entry));
    let snapshots = index.snapshots().flat_map(|entry| paths(entry));
    let kept = index.kept().iter().flat_map(|(name, kept)| {
        let directory = Path::new(layout::META)
            .join(layout::KEPT)
            .join(name.place());
        let record = kept.entry.file.map(|file| directory.join(file));
        [Some(directory), record].into_iter().flatten()
    });
    let paths = own_paths().chain(volumes).chain(snapshots).chain(kept);
    let found = paths.filter_map(|path| Exposed::find(&root, &path).transpose());
    found.collect()
}

fn paths<R: Record>(entry: &Entry<R>) -> [PathBuf; 2] {
    let directory = entry.path();
    let record = directory.join(R::FILE);
    [directory, record]
}

impl Pool {
    /// Sets owner and mode of the pool's own entries right. An entry that resists is left, because the volumes can be
    /// served all the same, and `check` reports it.
    pub(super) fn protect(&self, disk: &Disk, index: &Index) -> Result<(), Fault> {
        let exposed = exposed(&disk.root, index)?;
        let pool = &self.options.name;
        if !exposed.is_empty() {
            tracing::warn!(
                %pool, entries = exposed.len(),
                "the owner or mode of some of the pool's own files was changed, and the driver sets it right"
            );
        }
        for entry in exposed {
            match entry.protect(&self.context.os) {
                Err(fault) if matches!(fault.errno, Errno::IO | Errno::ROFS) => return Err(fault),
                Err(fault) => {
                    let path = entry.path.display();
                    tracing::warn!(%pool, %path, %fault, "cannot set the owner and mode of one of the pool's own files");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
