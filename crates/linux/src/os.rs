//! System calls on a pool's disk. Every call that changes the disk is a method of [`Os`], so that a
//! test can observe, fail or stop each one and skip a sync. Calls that only read are functions.

mod change;
mod copy;
mod open;
mod status;

pub use crate::sys::{Extent, each_extent};
pub use change::{At, Object, Observer, Os, Step};
pub use copy::{Times, attribute, attributes, is_kept_in_place, open_source_dir, open_source_file};
pub use open::{
    entry_names, is_empty, open_dir, open_entry, open_file, open_node, open_path, open_place,
    open_protected, open_writable, path_of, read_all,
};
pub use status::now;
pub use status::{
    FileId, Status, is_subvolume, kernel_version, permits_direct_io, status, status_at,
    status_behind, statx, statx_at, written_at,
};
