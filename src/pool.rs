//! A pool: a named root path on one filesystem, with what it holds and how it fares.
//!
//! A pool is open or unavailable. While it is open, [`disk::Disk`] holds its descriptors; a pool that
//! becomes unavailable drops them all and is looked at again every few seconds. The mutex guards the state
//! in memory and is never held while the disk is asked or written.

mod adopt;
pub(crate) mod capacity;
mod claims;
mod contents;
pub(crate) mod copies;
mod disk;
mod draft;
mod enforce;
pub(crate) mod enforcement;
pub(crate) mod error;
pub(crate) mod index;
pub(crate) mod init;
pub(crate) mod layout;
mod life;
pub(crate) mod limits;
pub(crate) mod marker;
mod memory;
mod options;
pub(crate) mod path;
mod quarantine;
pub(crate) mod record;
mod room;
mod trash;
mod unavailable;
mod work;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::fault::Fault;
use crate::filesystem::Filesystem;
use crate::os::Os;
use crate::quota::{Enforcement, Quotas};
use crate::types::{Bytes, NodeName, PoolId, PoolName};

pub use adopt::{Adopted, adopt, retire};
pub use claims::Claims;
pub(crate) use copies::Origin;
pub use copies::{CopyPolicy, CopyStatus, Unfinished};
pub use disk::Site;
pub use enforce::Enforced;
pub use enforcement::{Unenforced, said_at_init};
pub use error::{Error, Result};
pub(crate) use index::Resource;
pub use index::{Entry, Quarantined, SnapshotEntry};
pub use init::{Wanted, enable_quota, init};
pub use marker::NewPool;
pub use memory::Memory;
pub use options::{Overcommit, PoolOptions, Reserve};
pub use record::{
    AccessMode, FORMAT, Method, Mode, Parameters, Record, RetainedCharge, Sharing, SnapshotRecord,
    Source, Unknown, VolumeRecord,
};
pub use room::Reservation;
pub use unavailable::Unavailable;
pub(crate) use work::{CALLS_AT_ONCE, Work};

use copies::Copies;
use disk::Disk;
use index::Index;
use room::Measured;
use trash::Trash;
use work::Works;

/// What all pools of a server have in common.
#[derive(Debug, Clone)]
pub struct Context {
    /// The node this is.
    pub node: NodeName,
    /// The way to the disks.
    pub os: Os,
    /// What holds sizes.
    pub quotas: Arc<dyn Quotas>,
    /// Which pool each path held before.
    pub memory: Arc<Memory>,
    /// The filesystems that the node itself needs.
    pub root_devices: Vec<(u32, u32)>,
    /// What the open pools have claimed.
    pub claims: Arc<Claims>,
    /// How long a disk may leave an operation without an answer.
    pub patience: Duration,
}

/// Learns what of a pool is published before it is served.
pub type Learn<'a> = &'a dyn Fn(Site<'_>) -> std::io::Result<()>;

/// One pool of the node.
#[derive(Debug)]
pub struct Pool {
    options: PoolOptions,
    context: Context,
    state: Mutex<State>,
    /// Held while the disk is opened or looked at, which may take for ever on one that hangs.
    looking: Mutex<()>,
    trash: Trash,
    /// Held while a limit is set by what is recorded, and a record changed after it.
    limiting: Mutex<()>,
    copies: Copies,
    /// How many limits were not as recorded and were restored.
    limits_restored: AtomicU64,
    works: Works,
}

#[derive(Debug)]
struct State {
    disk: Result<Arc<Disk>, Unavailable>,
    /// Kept while the pool is unavailable: its volumes still live in it.
    id: Option<PoolId>,
    index: Index,
    /// What is promised to what is being made.
    in_flight: u64,
    /// How often room was promised, or a disk opened: nothing came as long as this is the same.
    grants: u64,
    /// The charges that copies under construction will retain.
    pending: Vec<RetainedCharge>,
    /// What stood on the filesystem when the pool last held nothing.
    other: Bytes,
    /// The charges as they were read last.
    measured: Option<Measured>,
}

impl State {
    fn serves(&self, disk: &Arc<Disk>) -> bool {
        let current = self.disk.as_ref();
        current.is_ok_and(|current| Arc::ptr_eq(current, disk))
    }
}

/// What a pool is like now, for people, `/readyz` and metrics.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// The pool.
    pub name: PoolName,
    /// Its path.
    pub path: PathBuf,
    /// Its identity, once known.
    pub id: Option<PoolId>,
    /// Why it cannot be used, if it cannot.
    pub unavailable: Option<Unavailable>,
    /// How long its disk has not answered, if that is too long.
    pub silence: Option<Duration>,
    /// The type of its filesystem, as in `ext4`; empty while the pool is unavailable.
    pub filesystem: String,
    /// The enforcement of sizes in it; none while the pool is unavailable.
    pub enforcement: Enforcement,
    /// The size of its filesystem; 0 while the pool is unavailable or its disk does not answer.
    pub total: Bytes,
    /// The largest size of the next volume; 0 while the pool is unavailable or its disk does not answer.
    pub available: Bytes,
    /// The sum of the sizes of its volumes.
    pub reserved: Bytes,
    /// How many volumes it holds.
    pub volumes: usize,
    /// How many snapshots it holds.
    pub snapshots: usize,
    /// How many of them have a size that nothing holds.
    pub not_enforced: usize,
    /// How many limits were not as recorded, and were restored, since start.
    pub limits_restored: u64,
    /// How many directories and records are quarantined.
    pub quarantined: usize,
    /// How many deleted volumes wait to be reclaimed; until then their sizes stay promised.
    pub trash: usize,
    /// How many of those resisted at the last attempt.
    pub resisting: usize,
    /// How many copies are being made file by file.
    pub copies: usize,
    /// How many files and directories were copied since start.
    pub copied_entries: u64,
    /// What those occupied where they were copied from.
    pub copied_bytes: Bytes,
    /// How many files and directories were reclaimed since start.
    pub reclaimed: u64,
}

/// What a pool knows of an id.
#[derive(Debug, Clone)]
pub enum Lookup<R = VolumeRecord> {
    /// What is called so.
    Entry(Arc<Entry<R>>),
    /// Something that cannot be trusted.
    Quarantined(Quarantined),
    /// Nothing.
    Nothing,
}

impl Pool {
    /// A pool that is not open yet.
    pub fn new(options: PoolOptions, context: Context) -> Result<Self> {
        let id = context.memory.recall(&options.path)?;
        let state = State {
            disk: Err(Unavailable::Opening),
            id,
            index: Index::default(),
            in_flight: 0,
            grants: 0,
            pending: Vec::new(),
            other: Bytes::ZERO,
            measured: None,
        };
        Ok(Self {
            options,
            context,
            state: Mutex::new(state),
            looking: Mutex::new(()),
            trash: Trash::default(),
            limiting: Mutex::new(()),
            copies: Copies::default(),
            limits_restored: AtomicU64::new(0),
            works: Works::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &PoolName {
        &self.options.name
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// Its identity; `None` if it was never seen.
    pub fn id(&self) -> Option<PoolId> {
        self.lock().id
    }

    /// Starts reclaiming the trash in the background.
    pub fn start_reclaiming(self: &Arc<Self>) -> std::io::Result<()> {
        self.trash.start(self)
    }

    /// Stops reclaiming.
    pub fn stop_reclaiming(&self) {
        self.trash.stop();
    }

    /// Ends the copies that are being made; none begins after.
    pub fn stop_copies(&self) {
        self.copies.stop();
    }

    fn disk(&self) -> Result<Arc<Disk>> {
        let disk = self.lock().disk.clone();
        disk.map_err(|reason| self.unavailable(reason))
    }

    fn limiting(&self) -> MutexGuard<'_, ()> {
        self.limiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unavailable(&self) -> bool {
        self.lock().disk.is_err()
    }

    /// Whether this disk is the one the pool serves from.
    fn serves(&self, disk: &Arc<Disk>) -> bool {
        self.lock().serves(disk)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a pool that cannot be used.
    pub fn unavailable(&self, reason: Unavailable) -> Error {
        let pool = self.options.name.clone();
        match reason {
            Unavailable::Shortage(fault) => Error::Retry { pool, fault },
            _ => Error::Unavailable { pool, reason },
        }
    }

    /// Why the pool cannot be used, if it cannot.
    pub fn why_unavailable(&self) -> Option<Unavailable> {
        self.lock().disk.as_ref().err().cloned()
    }

    /// Classifies a fault. A full disk and a shortage of the process's own are answers; any other
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
        self.mark_unavailable(unavailable.clone());
        self.unavailable(unavailable)
    }

    /// Classifies a fault of the sync after a change became visible.
    fn unsynced(&self, fault: Fault) -> Error {
        match self.classify(fault) {
            Error::Unavailable { pool, reason } => Error::CommittedUnsynced { pool, reason },
            other => other,
        }
    }

    /// What the pool knows of an id, and why it cannot be used now, if it cannot; both of one
    /// moment.
    pub(crate) fn find<R: Resource>(&self, id: R::Id) -> (Lookup<R>, Option<Unavailable>) {
        let state = self.lock();
        let index = &state.index;
        let known = match (index.get::<R>(id), index.quarantined_as::<R>(id)) {
            (Some(entry), _) => Lookup::Entry(Arc::clone(entry)),
            (None, Some(quarantined)) => Lookup::Quarantined(quarantined.clone()),
            (None, None) => Lookup::Nothing,
        };
        (known, state.disk.as_ref().err().cloned())
    }

    /// At most `count` entries that are asked for, whose ids come after one, in order.
    pub(crate) fn after<R: Resource + 'static>(
        &self,
        id: Option<R::Id>,
        count: usize,
        asked_for: impl Fn(&R) -> bool,
    ) -> Vec<Arc<Entry<R>>> {
        let state = self.lock();
        let entries = state.index.after::<R>(id);
        let asked_for = entries.filter(|entry| asked_for(&entry.record));
        asked_for.take(count).cloned().collect()
    }

    /// The type of the filesystem the pool is on.
    pub fn filesystem(&self) -> Result<Filesystem> {
        let disk = self.disk()?;
        Ok(disk.filesystem)
    }

    /// How the pool holds sizes; not at all while it is unavailable.
    pub fn enforcement(&self) -> Enforcement {
        self.disk()
            .map_or(Enforcement::None, |disk| disk.quota.enforcement())
    }
}

/// Now, in seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
