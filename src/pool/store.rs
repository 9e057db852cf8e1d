//! The bytes and the descriptors of a pool: the names on its disk, its records and its marker, and the open disk.
//!
//! One rename makes a change visible, and the sync after it makes it durable; `docs/storage-format.md` has the
//! orders. All files are reached by descriptors beneath the directory of the pool, so that no name in a
//! pool leads out of it. Nothing here knows which objects exist: the callers pass their names.

pub(crate) mod amend;
pub(crate) mod claims;
pub(crate) mod context;
pub(crate) mod dirs;
pub(crate) mod disk;
pub(crate) mod enforcement;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod incoming;
pub(crate) mod layout;
pub(crate) mod marker;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod path;
mod placeholders;
pub(crate) mod record;
pub(crate) mod refusal;
pub(crate) mod set;
pub(crate) mod space;
pub(crate) mod trash;
pub(crate) mod unavailable;
