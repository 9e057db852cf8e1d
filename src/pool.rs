//! A pool: a named root path on one filesystem, with its volumes and snapshots.
//!
//! A pool is open or unavailable. While it is open, [`Disk`] has its descriptors. A pool that becomes
//! unavailable closes them all, and is inspected again every few seconds.
//!
//! The files are on three floors, and a file imports only from its own floor and the floors below.
//! [`store`] has the bytes and the descriptors: names, records, the marker, the open disk. [`state`] is the
//! memory: the index, the reservations and the free space; it never reads a disk. The operations above, which
//! are the other files, change both: first the disk, then the memory. Each operation is an `impl Pool`.
//!
//! Only this file exports names to the rest of the driver, and no file below it imports from it.

mod adopt;
mod base;
mod caller;
mod capacity;
mod contents;
mod conversion;
mod copies;
mod cordon;
mod draft;
mod enforce;
mod health;
mod init;
mod inventory;
mod kept;
mod life;
mod limits;
mod load;
mod measuring;
mod moving;
mod progress;
mod protection;
mod reservation;
mod state;
mod status;
mod store;
mod trash;
mod work;
mod works;

pub use adopt::{Adopted, adopt, retire};
pub use base::Pool;
pub use caller::Caller;
pub use copies::origin::CopyPolicy;
pub(crate) use copies::origin::Origin;
pub(crate) use copies::plan::CopyPlan;
pub(crate) use copies::running::COPIES_WAITING;
pub use cordon::find_id;
pub use enforce::Enforced;
pub use health::{Condition, Impairment};
pub(crate) use init::open_root;
pub use init::{Wanted, count_limited, enable_quota, init};
pub(crate) use kept::{Deletion, Kept, Purge};
pub(crate) use limits::{
    Ledger, LimitState, QuotaConflict, READ_LIMITS, described, examine, recorded,
};
pub(crate) use load::{images, load};
pub use progress::{Advance, Unit};
pub(crate) use protection::exposed;
pub(crate) use reservation::Expected;
pub use reservation::Reservation;
pub(crate) use state::free_space::{FreeSpace, Others, Policy};
pub use state::index::Lookup;
pub(crate) use state::index::{Index, Resource};
pub use state::kept::Cause;
pub(crate) use state::kept::Ended;
pub use state::quarantine::Quarantined;
pub(crate) use state::reservations::Demand;
pub use state::status::PoolStatus;
pub use store::backing::Backing;
pub use store::claims::Claims;
pub use store::context::Context;
pub(crate) use store::dirs::{RecordDirs, open_own};
pub(crate) use store::disk::Disk;
pub(crate) use store::enforcement::quoted;
pub use store::enforcement::{Unenforced, said_at_init};
pub use store::entry::{Entry, SnapshotEntry};
pub(crate) use store::entry::{claims, read_entry, read_kept};
pub use store::error::{Busy, Error, Result};
pub(crate) use store::incoming;
pub(crate) use store::kept::KeptName;
pub(crate) use store::layout;
pub(crate) use store::marker::Marker;
pub use store::marker::NewPool;
pub use store::memory::Memory;
pub use store::options::{Overcommit, PoolOptions, Reserve};
pub(crate) use store::path;
pub(crate) use store::record;
pub(crate) use store::record::Unreadable;
pub(crate) use store::record::format_of;
pub use store::record::{
    FORMAT, Image, ImageContent, ImportMethod, ImportOrigin, KubernetesFields, Method, Mode, Move,
    MoveState, Parameters, Record, RetainedCharge, Sharing, SnapshotRecord, Source, Unknown,
    VolumeRecord,
};
pub(crate) use store::refusal::why_unfit;
pub use store::refusal::{OutOfRange, Refusal, Stopped};
pub use store::set::{Member, PartMount, PoolSet, members, part_mounts};
pub(crate) use store::space::Space;
pub use store::unavailable::Unavailable;
pub(crate) use trash::reclaimer::STOP_PATIENCE;
pub(crate) use work::Work;
pub(crate) use works::CALLS_AT_ONCE;
