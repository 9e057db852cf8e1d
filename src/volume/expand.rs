//! Expansion of published volumes.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::pool::VolumeRecord;
use crate::types::Bytes;

use super::{Volumes, parse_id};

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
        let (pool, entry) = self.entry::<VolumeRecord>(id)?;
        let work = pool.begin()?;
        self.published_at(&pool, &entry, &request.path)?;
        let size = entry.record.size_bytes;
        if size == Bytes::ZERO {
            // It has no limit, so every size is there already.
            return Ok(request.required);
        }
        if let Some(limit) = request.limit.filter(|limit| *limit < size) {
            return Err(Error::OutOfRange(format!(
                "capacity_range: limit_bytes is {limit}, and the volume has {size} already; \
                 volumes do not shrink"
            )));
        }
        if request.required <= size {
            return Ok(size);
        }
        if entry.record.exclusive {
            return Err(Error::OutOfRange(format!(
                "volume {id} has a whole disk (exclusive: true), which is {size}; it cannot grow"
            )));
        }
        let more = Bytes(request.required.0.saturating_sub(size.0));
        let room = pool.reserve(&work, id, Some(&entry.record), more)?;
        let entry = pool.expand(&room, &entry, request.required)?;
        Ok(entry.record.size_bytes)
    }
}
