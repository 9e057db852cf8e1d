//! A pool: a named root path on one filesystem, with its volumes and snapshots.
//!
//! A pool is open or unavailable. While it is open, [`disk::Disk`] has its descriptors. A pool that
//! becomes unavailable closes them all, and is inspected again every few seconds. [`Pool`] only
//! coordinates: [`state`] is the state in memory, and every other module owns one concern.

mod adopt;
mod amend;
pub(crate) mod capacity;
mod claims;
mod contents;
pub(crate) mod copies;
mod cordon;
mod disk;
mod draft;
mod enforce;
pub(crate) mod enforcement;
pub(crate) mod error;
pub(crate) mod import;
pub(crate) mod incoming;
pub(crate) mod index;
pub(crate) mod init;
pub(crate) mod layout;
mod life;
pub(crate) mod limits;
pub(crate) mod marker;
mod memory;
mod moving;
mod options;
pub(crate) mod path;
mod quarantine;
pub(crate) mod record;
mod set;
mod state;
mod status;
pub(crate) mod trash;
mod unavailable;
mod work;

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::fault::Fault;
use crate::filesystem::Filesystem;
use crate::os::Os;
use crate::quota::{Enforcement, Quotas};
use crate::types::{NodeName, PoolId, PoolName};

pub use adopt::{Adopted, adopt, retire};
pub use capacity::Reservation;
pub(crate) use capacity::{Expected, Standing};
pub use claims::Claims;
pub(crate) use copies::{Content, Origin};
pub use copies::{CopyPolicy, CopyStatus, Unfinished};
pub use cordon::find_id;
pub(crate) use disk::Disk;
pub use enforce::Enforced;
pub use enforcement::{Unenforced, said_at_init};
pub use error::{Error, Result};
pub use index::{Entry, Quarantined, SnapshotEntry};
pub(crate) use index::{Index, Resource};
pub use init::{Wanted, enable_quota, init};
pub use marker::NewPool;
pub use memory::Memory;
pub use options::{Overcommit, PoolOptions, Reserve};
pub(crate) use record::format_of;
pub use record::{
    AccessMode, FORMAT, Image, ImageContent, ImportMethod, ImportOrigin, KubernetesFields, Method,
    Mode, Move, MoveState, Parameters, ReclaimPolicy, Record, RetainedCharge, Sharing,
    SnapshotRecord, Source, Unknown, VolumeRecord,
};
pub use set::{Member, PoolSet, members};
pub use status::PoolStatus;
pub use unavailable::Unavailable;
pub(crate) use work::{CALLS_AT_ONCE, Work};

use copies::Copies;
use state::PoolState;
use trash::Trash;
use work::Works;

/// The settings and services that all pools of a server share.
#[derive(Debug, Clone)]
pub struct Context {
    pub node: NodeName,
    /// The mutating system calls.
    pub os: Os,
    /// The kinds of quota.
    pub quotas: Arc<dyn Quotas>,
    /// The pool that each path held before.
    pub memory: Arc<Memory>,
    /// The devices of the filesystems that the node itself needs.
    pub root_devices: Vec<(u32, u32)>,
    /// The filesystems and identities of the open pools.
    pub claims: Arc<Claims>,
    /// The time after which a disk counts as silent.
    pub patience: Duration,
}

/// Learns which volumes of a pool are published, before it is served.
pub(crate) type Learn<'a> = &'a dyn Fn(&Disk, &Index) -> std::io::Result<()>;

#[derive(Debug)]
pub struct Pool {
    options: PoolOptions,
    context: Context,
    pub(crate) state: PoolState,
    /// Locked while the disk is opened or inspected, which may never end on a disk that hangs.
    inspecting: Mutex<()>,
    pub(crate) trash: Trash,
    /// Locked while a limit is set from a record, and while a record and its limit change together.
    limiting: Mutex<()>,
    /// Locked while the marker is written with the bytes of other data.
    marking: Mutex<()>,
    pub(crate) copies: Copies,
    /// The number of limits that differed from the records and were restored.
    limits_restored: AtomicU64,
    works: Works,
}

/// The knowledge of a pool about an id.
#[derive(Debug, Clone)]
pub enum Lookup<R = VolumeRecord> {
    Entry(Arc<Entry<R>>),
    /// A directory or record that cannot be trusted.
    Quarantined(Quarantined),
    Nothing,
}

impl Pool {
    /// A pool that is not open yet.
    pub fn new(options: PoolOptions, context: Context) -> Result<Self> {
        let id = context.memory.recall(&options.path)?;
        Ok(Self {
            options,
            context,
            state: PoolState::new(id),
            inspecting: Mutex::new(()),
            trash: Trash::default(),
            limiting: Mutex::new(()),
            marking: Mutex::new(()),
            copies: Copies::default(),
            limits_restored: AtomicU64::new(0),
            works: Works::default(),
        })
    }

    pub fn name(&self) -> &PoolName {
        &self.options.name
    }

    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// Its identity; `None` if it was never seen.
    pub fn id(&self) -> Option<PoolId> {
        self.state.id()
    }

    /// Starts reclaiming the trash in the background.
    pub fn start_reclaiming(self: &Arc<Self>) -> std::io::Result<()> {
        self.trash.start(self)
    }

    fn disk(&self) -> Result<Arc<Disk>> {
        let disk = self.state.disk();
        disk.map_err(|reason| self.unavailable(reason))
    }

    /// The error of a pool that cannot be used.
    pub fn unavailable(&self, reason: Unavailable) -> Error {
        let pool = self.options.name.clone();
        match reason {
            Unavailable::Shortage(fault) => Error::Retry { pool, fault },
            _ => Error::Unavailable { pool, reason },
        }
    }

    /// The reason why the pool cannot be used, if it cannot.
    pub fn why_unavailable(&self) -> Option<Unavailable> {
        self.state.why_unavailable()
    }

    /// Classifies a fault. A full disk and a shortage of the driver's own are answers; any other
    /// makes the pool unavailable, because the state of the disk is unknown until its records are read again.
    fn classify(&self, fault: Fault) -> Error {
        let pool = self.options.name.clone();
        if fault.is_full() {
            return Error::DiskFull {
                pool,
                what: fault.what,
            };
        }
        if fault.is_local() {
            return Error::Retry { pool, fault };
        }
        let unavailable = Unavailable::from(fault);
        self.mark_unavailable(&unavailable);
        self.unavailable(unavailable)
    }

    /// Classifies a fault of the sync after a change became visible.
    fn unsynced(&self, fault: Fault) -> Error {
        match self.classify(fault) {
            Error::Unavailable { pool, reason } => Error::CommittedUnsynced { pool, reason },
            other => other,
        }
    }

    /// Why the records, which may exist, were never read since the start.
    pub(crate) fn why_unread(&self) -> Option<Unavailable> {
        self.state.why_unread()
    }

    /// The id of the mount that it is served from.
    pub(crate) fn mount_id(&self) -> Option<u64> {
        let disk = self.state.disk();
        disk.ok().map(|disk| disk.place.mount.id)
    }

    /// The type of the filesystem the pool is on.
    pub fn filesystem(&self) -> Result<Filesystem> {
        let disk = self.disk()?;
        Ok(disk.filesystem)
    }

    /// The enforcement of sizes in the pool; none while it is unavailable.
    pub fn enforcement(&self) -> Enforcement {
        self.state.enforcement()
    }
}

/// Now, in seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
