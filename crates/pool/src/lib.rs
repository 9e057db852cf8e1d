//! A pool: a named root path on one filesystem, with its volumes and snapshots.
//!
//! A pool is open or unavailable. While it is open, [`Disk`] has its descriptors. A pool that becomes
//! unavailable closes them all, and is inspected again every few seconds.
//!
//! A module imports those below it, and no files import each other in a circle (`hack/lint/check-imports.sh`):
//!
//! ```text
//! view      the one picture of a pool, from memory, for pages, metrics and health
//! op        the operations, each an `impl Pool`, which change the disk first, then the memory
//! ledger    the memory: index, reservations and free space; it never reads a disk
//! disk      the bytes and the descriptors: names, records, the marker, the open disk
//! ```

#![forbid(unsafe_code)]

mod disk;
mod ledger;
mod op;
mod view;

pub use disk::backing::Backing;
pub use disk::cause::Cause;
pub use disk::claims::Claims;
pub use disk::context::Context;
pub use disk::dirs::{RecordDirs, open_own};
pub use disk::enforcement::{quoted, said_at_init, unenforced};
pub use disk::entry::{Entry, SnapshotEntry, claims, read_entry, read_kept};
pub use disk::error::{Busy, Error, Result};
pub use disk::kept::{KeptEntry, KeptName};
pub use disk::known_pools::KnownPools;
pub use disk::marker::{Marker, NewPool};
pub use disk::open::Disk;
pub use disk::options::{Overcommit, PoolOptions, Reserve};
pub use disk::protection::Exposed;
pub use disk::record::{
    FORMAT, Image, ImageContent, ImportMethod, ImportOrigin, KubernetesFields, Method, Mode, Move,
    MoveState, Parameters, Record, RetainedCharge, Sharing, SnapshotRecord, Source, Unknown,
    Unreadable, VolumeRecord, format_of,
};
pub use disk::refusal::{OutOfRange, Refusal, Stopped, why_unfit};
pub use disk::set::{Member, PartMount, PoolSet, members, part_mounts};
pub use disk::space::Space;
pub use disk::trash::TrashEntry;
pub use disk::unavailable::Unavailable;
pub use disk::unfinished::UnfinishedCopy;
pub use disk::{imports, layout, path, record};
pub use ledger::PoolState;
pub use ledger::free_space::{FreeSpace, Others, Policy};
pub use ledger::index::{Index, Lookup, Resource, Sums};
pub use ledger::kept::{EndCause, Ended};
pub use ledger::quarantine::Quarantined;
pub use ledger::reservations::Demand;
pub use op::adopt::{Adopted, adopt, retire};
pub use op::caller::Caller;
pub use op::copies::origin::{CopyPolicy, Origin};
pub use op::copies::plan::CopyPlan;
pub use op::copies::running::COPIES_WAITING;
pub use op::cordon::find_id;
pub use op::enforce::Enforced;
pub use op::init::{Wanted, count_limited, enable_quota, init, open_root};
pub use op::kept::{Deletion, Kept, Purge};
pub use op::limits::{
    LimitState, QuotaConflict, READ_LIMITS, RecordedLimits, described, examine, recorded,
};
pub use op::load::{images, load};
pub use op::moving::HandOver;
pub use op::pool::Pool;
pub use op::progress::{Advance, Unit};
pub use op::protection::exposed;
pub use op::reservation::{Expected, Reservation};
pub use op::trash::reclaimer::{STOP_TIMEOUT, Trash};
pub use op::work::Work;
pub use op::works::CALLS_AT_ONCE;
pub use view::PoolView;
pub use view::health::{Condition, Impairment};
