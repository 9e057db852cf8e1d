//! Trims: published thin images lose the blocks that their filesystems do not use any more, so that the pool has them.
//!
//! The mount option `discard` would do this at once, but with each deletion, so that the slowest fsyncs of the volume take
//! longer (benches/discards.rs), and blocks that are written again soon have to be allocated again.

use std::thread;
use std::time::Instant;

use linux::mount::Target;
use linux::os::FileId;
use objects::ObjectId;

use crate::error::Result;
use crate::volume::volumes::Volumes;
use pool::{Entry, Pool};

/// The bytes of a filesystem that are trimmed at once. In between, the limits of I/O return, and a volume can end.
const PIECE: u64 = 8 << 30;

/// The part of the time that the limits of I/O of a volume are lifted during its trim: one of so many. A pod can make a trim
/// take long, with a filesystem that is free in many small extents.
const LIFTED: u32 = 10;

impl Volumes {
    /// Whether a pool has images to trim.
    pub fn has_trims(&self, pool: &Pool) -> bool {
        let images = pool.state.thin_filesystems();
        images.iter().any(|entry| self.is_published(entry))
    }

    /// Trims the published images of a pool, one after the other, unless that is being done.
    pub fn trim_images(&self, pool: &Pool) {
        let Ok(_only) = self.in_flight.lock_name("trim", pool.name().as_str()) else {
            return;
        };
        for entry in pool.state.thin_filesystems() {
            if !self.is_published(&entry) {
                continue;
            }
            if let Err(error) = self.trim_image(pool, &entry) {
                let id = entry.record.id;
                tracing::warn!(%id, %error, "cannot trim an image, so it keeps blocks that it does not use");
            }
            // Its last unpublish left the device, because the trim still had the filesystem.
            if !self.is_published(&entry) {
                self.tidy_devices();
            }
        }
    }

    fn is_published(&self, entry: &Entry) -> bool {
        !self.publications.of(entry.record.id.hash()).is_empty()
    }

    fn trim_image(&self, pool: &Pool, entry: &Entry) -> Result<()> {
        let mut start = 0;
        // A disk that does not answer is not asked.
        while pool.silence().is_none() {
            let image = pool.data_id(entry)?;
            let begin = Instant::now();
            // The driver is limited too, because it is a pod.
            let lifted = self.image_devices.lift(entry.record.id.hash());
            if !self.trim_piece(entry, image, start)? {
                break;
            }
            drop(lifted);
            if !entry.record.io_limits.is_none() {
                thread::sleep(begin.elapsed() * (LIFTED - 1));
            }
            start += PIECE;
        }
        Ok(())
    }

    /// Trims a piece by the first target that is mounted for writing. All have one filesystem.
    fn trim_piece(&self, entry: &Entry, image: FileId, start: u64) -> Result<bool> {
        for (path, _) in self.publications.of(entry.record.id.hash()) {
            if let Some(target) = Target::open_known(&path)?
                && self.mounter.trim(&target, image, start..start + PIECE)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
