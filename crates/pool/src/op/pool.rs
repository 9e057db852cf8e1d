//! The pool itself: its parts, and the meaning of a failed step. Every operation is in a file of its own.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use linux::fault::Fault;
use linux::filesystem::Filesystem;
use linux::quota::Enforcement;
use objects::{PoolId, PoolName};

use crate::disk::context::Context;
use crate::disk::error::{Error, Result};
use crate::disk::open::Disk;
use crate::disk::options::PoolOptions;
use crate::disk::unavailable::Unavailable;
use crate::ledger::PoolState;
use crate::op::copies::running::Copies;
use crate::op::progress::Advances;
use crate::op::trash::reclaimer::Trash;
use crate::op::works::Works;

#[derive(Debug)]
pub struct Pool {
    pub(super) options: PoolOptions,
    pub(super) context: Context,
    pub state: PoolState,
    /// Locked while the disk is opened or inspected, which may never end on a disk that hangs.
    pub(super) inspecting: Mutex<()>,
    pub trash: Trash,
    /// Locked while a limit is set from a record, and while a record and its limit change together.
    pub(super) limiting: Mutex<()>,
    /// Locked while the marker is written with the bytes of other data.
    pub(super) marking: Mutex<()>,
    pub copies: Copies,
    pub advances: Advances,
    /// The number of limits that differed from the records and were restored.
    pub(crate) limits_restored: AtomicU64,
    /// The number of kept objects that were deleted for good before their time, for their space.
    pub(crate) purged_early: AtomicU64,
    pub(super) works: Works,
}

impl Pool {
    /// A pool that is not open yet.
    pub fn new(options: PoolOptions, context: Context) -> Result<Self> {
        let id = context.known_pools.recall(&options.path)?;
        Ok(Self {
            options,
            context,
            state: PoolState::new(id),
            inspecting: Mutex::new(()),
            trash: Trash::default(),
            limiting: Mutex::new(()),
            marking: Mutex::new(()),
            copies: Copies::default(),
            advances: Advances::default(),
            limits_restored: AtomicU64::new(0),
            purged_early: AtomicU64::new(0),
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

    pub(crate) fn disk(&self) -> Result<Arc<Disk>> {
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

    /// The reason why the pool cannot be used now: it is unavailable, or its disk does not answer.
    pub fn why_unusable(&self) -> Option<Unavailable> {
        Unavailable::now(self.why_unavailable(), self.silence())
    }

    /// Classifies a fault. A full disk and a shortage of the driver's own are answers; any other
    /// makes the pool unavailable, because the state of the disk is unknown until its records are read again.
    pub(super) fn classify(&self, fault: Fault) -> Error {
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
    pub(super) fn unsynced(&self, fault: Fault) -> Error {
        match self.classify(fault) {
            Error::Unavailable { pool, reason } => Error::CommittedUnsynced { pool, reason },
            other => other,
        }
    }

    pub fn mount_id(&self) -> Option<u64> {
        let disk = self.state.disk();
        disk.ok().map(|disk| disk.place.mount.id)
    }

    pub fn filesystem(&self) -> Result<Filesystem> {
        let disk = self.disk()?;
        Ok(disk.filesystem)
    }

    /// The enforcement of sizes in the pool; none while it is unavailable.
    pub fn enforcement(&self) -> Enforcement {
        self.state.enforcement()
    }
}
