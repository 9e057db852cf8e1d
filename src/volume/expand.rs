//! Making volumes larger while they are in use.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::types::Bytes;

use super::{Volumes, parse_id};

/// A checked `NodeExpandVolumeRequest`.
#[derive(Debug, Clone)]
pub struct ExpandRequest {
    /// The volume's id as received.
    pub id: String,
    /// Where it is published.
    pub path: PathBuf,
    /// The least size; zero: not said.
    pub required: Bytes,
    /// The largest size, if there is one; never below `required`.
    pub limit: Option<Bytes>,
}

impl Volumes {
    /// Makes a volume at least as large as is asked for, and says how large it is then. One that is
    /// large enough stays as it is: nothing ever shrinks.
    pub fn expand(&self, request: &ExpandRequest) -> Result<Bytes> {
        let id = parse_id(&request.id)?;
        let _id = self.in_flight.hold_id(&request.id)?;
        let (pool, entry) = self.volume(id)?;
        let work = pool.begin()?;
        self.published_at(&pool, &entry, &request.path)?;
        let size = entry.record.size_bytes;
        if size == Bytes::ZERO {
            // It has no limit, so it has what was asked for.
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
        let more = Bytes(request.required.0.saturating_sub(size.0));
        let room = pool.reserve_growth(&work, &entry, more)?;
        let entry = pool.expand(&room, &entry, request.required)?;
        Ok(entry.record.size_bytes)
    }
}
