//! The bytes and the descriptors of a pool: the names on its disk, its records and its marker, and the open disk.
//!
//! One rename makes a change visible, and the sync after it makes it durable; `docs/storage-format.md` has the
//! orders. All files are reached by descriptors beneath the directory of the pool, so that no name in a
//! pool leads out of it. Nothing here knows which objects exist: the callers pass their names.
//!
//! The format relies only on this:
//!
//! - fsync(2) and syncfs(2) return when the data is on stable storage, the cache of the disk included. An fsync of a
//!   file also syncs its current name, and one of a directory its entries. After a failed sync the driver opens the
//!   pool again. A cache that ignores flushes, or the mount option `nobarrier`, is not detected.
//! - rename(2) is atomic: after a power-off a file has its old or its new name and content. After a rename from
//!   `volumes/` to `trash/`, both names may be there.
//! - On XFS and ext4, the log keeps the order of metadata, so a surviving name brings the entries, owners and modes
//!   below it. Elsewhere syncfs does.
//! - Unsynced changes may survive in any combination. Only `spare` is overwritten in place, so torn sectors concern
//!   only files without their final name.
//! - The disk returns the bytes that it acknowledged. There are no checksums: damage is found if it breaks the JSON or
//!   contradicts id, name or directory, but not in a size or in `data/`.
//! - flock(2) excludes other servers: no other machine mounts the filesystem.

pub(crate) mod amend;
pub(crate) mod backing;
pub(crate) mod cause;
pub(crate) mod claims;
pub(crate) mod context;
pub(crate) mod dirs;
pub(crate) mod enforcement;
pub(crate) mod entry;
pub(crate) mod error;
pub mod imports;
pub(crate) mod kept;
pub(crate) mod known_pools;
pub mod layout;
pub(crate) mod marker;
pub(crate) mod open;
pub(crate) mod options;
pub mod path;
mod placeholders;
pub(crate) mod protection;
pub mod record;
pub(crate) mod refusal;
pub(crate) mod set;
pub(crate) mod space;
pub(crate) mod staging;
pub(crate) mod trash;
pub(crate) mod unavailable;
pub(crate) mod unfinished;
