//! The trees of pods: removed, copied, measured and charged to quota ids.
//!
//! A pod may change its tree at any time, while it is read too, and its names may be made to mislead. Therefore all work
//! goes by directory descriptors, follows no link and crosses no mount. The descriptors come from a guarded clone of
//! the pool's mount.

mod changes;
mod copy;
mod entries;
mod remove;
mod tag;
mod threads;
mod users;
mod walk;
mod weigh;

pub use changes::Since;
pub use copy::{
    Attributes, CopyFault, CopyWatch, Copying, MAX_LEVELS, Node, Reason as CopyReason, Source,
    Transfer, can_share,
};
pub use remove::{remove, remove_any};
pub use tag::Tagging;
pub use users::find_open;
pub use weigh::{LinkCount, LinkedFiles, Seen, Weight, weigh};

pub use remove::{Watch, empty};
