//! Measuring quarantined trees, in the background: a tree of ten million files takes hours.

use std::path::Path;
use std::sync::Arc;

use linux::os;
use linux::tree::{self, LinkCount, Weight};
use objects::Bytes;
use rustix::io::Errno;

use crate::pool::base::Pool;
use crate::pool::store::disk::Disk;
use crate::pool::work::Work;

impl Pool {
    /// Measures the quarantined trees whose disk usage is not known, until the pool is closed.
    pub(super) fn measure_quarantined(&self, disk: &Arc<Disk>) {
        let work = self.begin_own();
        loop {
            let Some(path) = self.state.unmeasured() else {
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
                        "cannot measure a quarantined tree; all used space stays reserved for it"
                    );
                    return;
                }
            };
            if !self.state.measured_quarantined(disk, &path, bytes) {
                return;
            }
            tracing::info!(
                pool = %self.options.name,
                path = %path.display(),
                reserved = %Bytes(bytes),
                "measured a quarantined tree"
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
        let weighed = tree::weigh(top, LinkCount::InParts, &mut |_| {
            work.advance();
            if self.trash.is_stopped() || !self.state.serves(disk) {
                return Err(Errno::CANCELED);
            }
            Ok(())
        });
        let Weight { bytes, unseen, .. } = weighed?;
        if let Some(errno) = unseen {
            let (pool, path) = (&self.options.name, path.display());
            tracing::warn!(%pool, %path, %errno, "a part of a quarantined tree cannot be read");
        }
        Ok(bytes)
    }
}
