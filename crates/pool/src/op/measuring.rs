//! Measuring the trees of quarantined and kept objects, in the background: a tree of ten million files takes hours.

use std::path::Path;
use std::sync::Arc;

use linux::os;
use linux::tree::{self, LinkCount, Weight};
use objects::Bytes;
use rustix::io::Errno;

use crate::disk::open::Disk;
use crate::ledger::index::Index;
use crate::op::pool::Pool;
use crate::op::work::Work;

/// After how many files it looks whether it goes on. That takes locks for which requests wait, and the thread has the
/// lowest priority.
const LOOK_EVERY: u64 = 64;

impl Pool {
    /// Measures the trees whose disk usage is not known, until the pool is closed.
    pub(super) fn measure_trees(&self, disk: &Arc<Disk>) {
        let work = self.begin_own();
        loop {
            let Some(path) = self.state.read(Index::unmeasured) else {
                return;
            };
            let bytes = match self.occupied(&work, disk, &path) {
                Ok(bytes) => bytes,
                // The next inspection of the pool finds a reason that lasts.
                Err(Errno::CANCELED) => return,
                Err(errno) => {
                    tracing::warn!(
                        pool = %self.options.name,
                        path = %path.display(),
                        %errno,
                        "cannot measure a tree; if it is in quarantine, all used space stays reserved"
                    );
                    return;
                }
            };
            if !self.state.measured_tree(disk, &path, bytes) {
                return;
            }
            tracing::info!(
                pool = %self.options.name,
                path = %path.display(),
                used = %Bytes(bytes),
                "measured a tree"
            );
        }
    }

    /// The disk usage of a tree, as far as it can be read; 0 if somebody removed it.
    fn occupied(&self, work: &Work<'_>, disk: &Arc<Disk>, path: &Path) -> Result<u64, Errno> {
        let top = match disk.open_below(path) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(0),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Ok(os::status_at(&disk.root, path)?.allocated);
            }
            Err(errno) => return Err(errno),
        };
        let mut entries = 0_u64;
        let weighed = tree::weigh(top, LinkCount::InParts, &mut |_| {
            entries += 1;
            if !entries.is_multiple_of(LOOK_EVERY) {
                return Ok(());
            }
            work.advance();
            if self.trash.is_stopped() || !self.state.serves(disk) {
                return Err(Errno::CANCELED);
            }
            Ok(())
        });
        let Weight { bytes, unseen, .. } = weighed?;
        if let Some(errno) = unseen {
            let (pool, path) = (&self.options.name, path.display());
            tracing::warn!(%pool, %path, %errno, "a part of a tree cannot be read");
        }
        Ok(bytes)
    }
}
