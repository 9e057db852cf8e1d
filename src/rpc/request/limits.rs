//! The limits of the specification for the sizes of fields.

use crate::error::{Error, Result};

/// The specification's limit for the keys and values of a map together, and for `mount_flags`.
pub(super) const MAX_MAP_BYTES: usize = 4 << 10;

pub(super) fn within_limit(field: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        let problem = format!("it has {bytes} bytes; at most {limit} are allowed");
        return Err(Error::invalid(field, problem));
    }
    Ok(())
}
