//! Expansion of published volumes.

use std::os::fd::AsFd;
use std::path::PathBuf;

use linux::mount::Target;
use objects::{Bytes, ObjectId};

use crate::error::{OutOfRange, Result};
use crate::volume::admit::{Arrival, Purpose};
use crate::volume::ids::parse_id;
use crate::volume::images;
use crate::volume::volumes::Volumes;
use pool::{Entry, Pool, VolumeRecord};

/// A checked `NodeExpandVolumeRequest`.
#[derive(Debug, Clone)]
pub struct ExpandRequest {
    /// The volume's id, as received.
    pub id: String,
    /// A target of the volume.
    pub path: PathBuf,
    /// The least size; zero: not given.
    pub required: Bytes,
    /// The largest size, if given; never below `required`.
    pub limit: Option<Bytes>,
}

impl Volumes {
    /// Expands a volume to at least the required size, and returns its size. A larger volume does not
    /// shrink.
    pub fn expand(&self, request: &ExpandRequest) -> Result<Bytes> {
        let id = parse_id(&request.id)?;
        let _id = self.in_flight.lock_id(&request.id)?;
        let (pool, entry) = self.served::<VolumeRecord>(id)?;
        let work = pool.begin()?;
        let target = self.published_at(&pool, &entry, &request.path)?;
        let size = entry.record.size_bytes;
        if size == Bytes::ZERO {
            // It has no limit, so every size is there already.
            return Ok(request.required);
        }
        if let Some(limit) = request.limit.filter(|limit| *limit < size) {
            return Err(OutOfRange::Shrinks { limit, size }.into());
        }
        if request.required <= size {
            // An earlier call may have ended before the filesystem in the image grew.
            self.grow_image(&pool, &entry, &target)?;
            return Ok(size);
        }
        if entry.record.exclusive {
            return Err(OutOfRange::WholeDisk { id, size }.into());
        }
        self.admit(&pool, &Arrival::new(Purpose::Expand))?;
        let required = match entry.record.image {
            Some(_) => images::size(request.required, request.limit)?,
            None => request.required,
        };
        let more = Bytes(required.0.saturating_sub(size.0));
        let reservation = pool.reserve(&work, id, Some(&entry.record), more)?;
        let entry = pool.expand(&reservation, &entry, required)?;
        // The record has the new size now, and an image may take seconds to grow.
        drop(reservation);
        self.grow_image(&pool, &entry, &target)?;
        Ok(entry.record.size_bytes)
    }

    /// Grows the mounted filesystem of an image to the size of the image.
    fn grow_image(&self, pool: &Pool, entry: &Entry, target: &Target) -> Result<()> {
        let Some(image) = entry.record.image else {
            return Ok(());
        };
        let file = pool.open_place(entry)?;
        let format = image.content.format();
        let _lifted = self.image_devices.lift(entry.record.id.hash());
        Ok(self.mounter.grow(target, file.as_fd(), format)?)
    }
}
