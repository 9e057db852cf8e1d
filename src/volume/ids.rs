//! Ids as they are received.

use objects::{MAX_FIELD_BYTES, ObjectId};

use crate::error::{Error, Result};

pub(super) fn parse_id<I: ObjectId>(id: &str) -> Result<I> {
    I::parse(id).ok_or_else(|| no_id::<I>(id))
}

pub(super) fn no_id<I: ObjectId>(id: &str) -> Error {
    let (what, id) = (I::OBJECT, shorten(id));
    Error::NotFound { what, id }
}

/// The start of a text that may not be an id, for a message.
pub(super) fn shorten(id: &str) -> String {
    id.chars().take(MAX_FIELD_BYTES).collect()
}
