//! A pool: a named root path on one filesystem, with what it holds and how it fares.
//!
//! A pool is open or sick. While it is open, [`disk::Disk`] holds its descriptors; a pool that
//! falls sick drops them all and is looked at again every few seconds. The mutex guards what is
//! known in memory and is never held across a write to the disk.

mod capacity;
mod contents;
mod disk;
mod fault;
mod filesystem;
mod index;
mod inspect;
mod layout;
mod marker;
mod memory;
mod options;
mod record;
mod sickness;
mod trash;
mod tree;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use crate::error::{Error, Result};
use crate::os::{self, Os};
use crate::quota::{Enforcement, Quota};
use crate::types::{Bytes, NodeName, PoolId, PoolName, VolumeId};

pub use disk::Site;
pub use fault::Fault;
pub use index::{Entry, Quarantined};
pub use inspect::{Inspection, init, inspect};
pub use memory::Memory;
pub use options::{Overcommit, PoolOptions, Reserve};
pub use record::{AccessMode, FORMAT, Mode, Parameters, Sharing, VolumeRecord};
pub use sickness::Sickness;

use capacity::Room;
use disk::Disk;
use index::Index;
use trash::Trash;

/// What all pools of a server have in common.
#[derive(Debug, Clone)]
pub struct Context {
    /// The node this is.
    pub node: NodeName,
    /// The way to the disks.
    pub os: Os,
    /// How sizes are held.
    pub quota: Arc<dyn Quota>,
    /// Which pool each path held before.
    pub memory: Arc<Memory>,
    /// The filesystems of the node's root and of the kubelet's directory.
    pub root_devices: Vec<(u32, u32)>,
    /// Which pool is open on which filesystem.
    pub filesystems: Arc<Mutex<BTreeMap<(u32, u32), PoolName>>>,
}

/// Learns what of a pool is published before it is served.
pub type Learn<'a> = &'a dyn Fn(Site<'_>) -> std::io::Result<()>;

/// One pool of the node.
#[derive(Debug)]
pub struct Pool {
    options: PoolOptions,
    context: Context,
    state: Mutex<State>,
    trash: Trash,
}

#[derive(Debug)]
struct State {
    disk: Result<Arc<Disk>, Sickness>,
    /// Kept while the pool is sick: its volumes still live in it.
    id: Option<PoolId>,
    index: Index,
    /// The sizes of the volumes being made.
    in_flight: u64,
    other: Bytes,
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
    pub sickness: Option<Sickness>,
    /// The type of its filesystem, as in `ext4`; empty while the pool is sick.
    pub filesystem: String,
    /// The size of its filesystem; 0 while the pool is sick.
    pub total: Bytes,
    /// What the next volume may have; 0 while the pool is sick.
    pub available: Bytes,
    /// The sum of the sizes of its volumes.
    pub reserved: Bytes,
    /// How many volumes it holds.
    pub volumes: usize,
    /// How many directories and records are quarantined.
    pub quarantined: usize,
    /// How many deleted volumes wait to be reclaimed.
    pub trash: usize,
    /// How many of those resisted at the last attempt.
    pub resisting: usize,
    /// How many files and directories were reclaimed since start.
    pub reclaimed: u64,
}

/// What a pool knows of an id.
#[derive(Debug, Clone)]
pub enum Known {
    /// A volume.
    Volume(Arc<Entry>),
    /// Something that cannot be trusted.
    Quarantined(Quarantined),
    /// Nothing.
    Nothing,
}

/// Room promised to a volume being made; given back when dropped.
#[derive(Debug)]
pub struct Reservation<'a> {
    pool: &'a Pool,
    size: Bytes,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.in_flight = state.in_flight.saturating_sub(self.size.0);
    }
}

impl Pool {
    /// A pool that is not open yet.
    pub fn new(options: PoolOptions, context: Context) -> Self {
        let id = context.memory.recall(&options.path);
        let state = State {
            disk: Err(Sickness::Opening),
            id,
            index: Index::default(),
            in_flight: 0,
            other: Bytes::ZERO,
        };
        Self {
            options,
            context,
            state: Mutex::new(state),
            trash: Trash::default(),
        }
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

    /// Opens the pool, waiting for its lock until the deadline, reads its records, and serves it
    /// once `learn` has learned what of it is published.
    pub fn open(&self, deadline: Instant, learn: Learn<'_>) -> Result<(), Sickness> {
        let opened = self.try_open(deadline, learn);
        let mut state = self.lock();
        match opened {
            Ok((disk, index, other)) => {
                tracing::info!(
                    pool = %self.options.name,
                    path = %self.options.path.display(),
                    id = %disk.id,
                    filesystem = disk.filesystem.name,
                    volumes = index.volumes(),
                    quarantined = index.quarantined().len(),
                    "pool is open"
                );
                for quarantined in index.quarantined() {
                    tracing::error!(
                        pool = %self.options.name,
                        path = %quarantined.path.display(),
                        reason = quarantined.reason,
                        "quarantined, not touched"
                    );
                }
                state.id = Some(disk.id);
                state.index = index;
                state.other = other;
                state.disk = Ok(Arc::new(disk));
                drop(state);
                self.trash.notify();
                Ok(())
            }
            Err(sickness) => {
                let news = state.disk.as_ref().err() != Some(&sickness);
                state.disk = Err(sickness.clone());
                drop(state);
                self.release_filesystem();
                if news {
                    tracing::error!(pool = %self.options.name, reason = %sickness, "pool is sick");
                }
                Err(sickness)
            }
        }
    }

    fn try_open(
        &self,
        deadline: Instant,
        learn: Learn<'_>,
    ) -> Result<(Disk, Index, Bytes), Sickness> {
        let disk = Disk::open(&self.options, &self.context, deadline)?;
        self.claim_filesystem(&disk)?;
        let index = Index::load(disk.volumes(), disk.id)?;
        let empty = index.is_empty() && os::is_empty(disk.trash().as_fd()).unwrap_or(false);
        let other = if empty {
            disk.measure_other()?
        } else {
            disk.other()?
        };
        learn(disk.site()).map_err(|error| Sickness::Io {
            what: "learn what is published".into(),
            error: error.to_string(),
        })?;
        Ok((disk, index, other))
    }

    fn claim_filesystem(&self, disk: &Disk) -> Result<(), Sickness> {
        let mut filesystems = self
            .context
            .filesystems
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let name = &self.options.name;
        match filesystems
            .entry(disk.place.device)
            .or_insert_with(|| name.clone())
        {
            holder if holder == name => Ok(()),
            holder => Err(Sickness::SharesFilesystem {
                with: holder.clone(),
            }),
        }
    }

    fn release_filesystem(&self) {
        self.context
            .filesystems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, holder| *holder != self.options.name);
    }

    /// Looks at the pool: one that is open may fall sick, a sick one is opened if it can be.
    pub fn check(&self, learn: Learn<'_>) {
        let verdict = match self.disk() {
            Ok(disk) => disk.verify(&self.options),
            // It says by itself why it cannot be opened.
            Err(_) => self.open(Instant::now(), learn).or(Ok(())),
        };
        if let Err(sickness) = verdict {
            self.fall_sick(sickness);
        }
    }

    /// Closes everything held on the disk until it is found well again.
    pub(crate) fn fall_sick(&self, sickness: Sickness) {
        tracing::error!(pool = %self.options.name, reason = %sickness, "pool is sick");
        self.lock().disk = Err(sickness);
        self.release_filesystem();
    }

    /// Starts reclaiming the trash in the background.
    pub fn start_reclaiming(self: &Arc<Self>) -> std::io::Result<()> {
        self.trash.start(self)
    }

    /// Stops reclaiming.
    pub fn stop_reclaiming(&self) {
        self.trash.stop();
    }

    fn disk(&self) -> Result<Arc<Disk>, Sickness> {
        self.lock().disk.clone()
    }

    fn is_sick(&self) -> bool {
        self.lock().disk.is_err()
    }

    /// Whether this disk is the one the pool serves from.
    fn serves(&self, disk: &Arc<Disk>) -> bool {
        self.lock()
            .disk
            .as_ref()
            .is_ok_and(|current| Arc::ptr_eq(current, disk))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a pool that cannot be used.
    pub fn sick(&self, reason: Sickness) -> Error {
        Error::PoolSick {
            pool: self.options.name.clone(),
            reason,
        }
    }

    /// The error of a pool that cannot be used and holds the volume in question.
    pub fn home_sick(&self, reason: Sickness) -> Error {
        Error::HomeSick {
            pool: self.options.name.clone(),
            reason,
        }
    }

    /// Why the pool cannot be used, if it cannot.
    pub fn sickness(&self) -> Option<Sickness> {
        self.lock().disk.as_ref().err().cloned()
    }

    /// What a fault means: a full disk is an answer, anything else makes the pool sick, for what
    /// is on the disk is unknown until its records are read again.
    fn judge(&self, fault: Fault) -> Result<Error, Sickness> {
        if fault.is_full() {
            return Ok(Error::DiskFull {
                pool: self.options.name.clone(),
                what: fault.what,
            });
        }
        let sickness = Sickness::from(fault);
        self.fall_sick(sickness.clone());
        Err(sickness)
    }

    /// What the pool knows of an id.
    pub fn find(&self, id: VolumeId) -> Known {
        let state = self.lock();
        if let Some(entry) = state.index.get(id) {
            return Known::Volume(Arc::clone(entry));
        }
        match state.index.quarantined_as(id) {
            Some(quarantined) => Known::Quarantined(quarantined.clone()),
            None => Known::Nothing,
        }
    }

    /// At most `count` volumes whose ids come after one, in order.
    pub fn volumes_after(&self, id: Option<VolumeId>, count: usize) -> Vec<Arc<Entry>> {
        self.lock().index.after(id).take(count).cloned().collect()
    }

    /// The type of the filesystem the pool is on.
    pub fn filesystem(&self) -> Result<String> {
        let disk = self.disk().map_err(|sickness| self.sick(sickness))?;
        Ok(disk.filesystem.name.clone())
    }

    /// How the pool holds sizes.
    pub fn enforcement(&self) -> Enforcement {
        self.context.quota.enforcement()
    }

    /// What the next volume may have; zero while the pool is sick.
    pub fn available(&self) -> Bytes {
        let state = self.lock();
        let Ok(disk) = &state.disk else {
            return Bytes::ZERO;
        };
        self.room(&state, disk)
            .map_or(Bytes::ZERO, |room| room.available())
    }

    fn room(&self, state: &State, disk: &Disk) -> Result<Room, Fault> {
        Ok(Room {
            space: disk.space()?,
            other: state.other.0,
            reserved: state.index.reserved().saturating_add(state.in_flight),
            overcommit: self.options.overcommit,
            reserve: self.options.reserve,
            on_root_disk: disk.is_on_root_disk(),
        })
    }

    /// Promises room to a volume that is about to be made: check and promise are one step.
    pub fn reserve(&self, size: Bytes) -> Result<Reservation<'_>> {
        let mut state = self.lock();
        let disk = state.disk.clone().map_err(|sickness| self.sick(sickness))?;
        let available = match self.room(&state, &disk) {
            Ok(room) => room.available(),
            Err(fault) => {
                drop(state);
                return Err(self
                    .judge(fault)
                    .unwrap_or_else(|sickness| self.sick(sickness)));
            }
        };
        if size > available {
            return Err(Error::NoRoom {
                pool: self.options.name.clone(),
                size,
                available,
            });
        }
        state.in_flight = state.in_flight.saturating_add(size.0);
        Ok(Reservation { pool: self, size })
    }

    /// Measures what else is on the filesystem while the pool holds nothing.
    fn settle_if_empty(&self, disk: &Disk) {
        let is_empty = |state: &State| state.index.is_empty() && state.in_flight == 0;
        if !is_empty(&self.lock()) {
            return;
        }
        match disk.measure_other() {
            Ok(other) => {
                let mut state = self.lock();
                if is_empty(&state) {
                    state.other = other;
                }
            }
            Err(reason) => {
                tracing::warn!(pool = %self.options.name, %reason, "cannot measure other data");
            }
        }
    }

    /// What the pool is like now.
    pub fn status(&self) -> PoolStatus {
        let state = self.lock();
        let room = state
            .disk
            .as_ref()
            .ok()
            .and_then(|disk| self.room(&state, disk).ok());
        PoolStatus {
            name: self.options.name.clone(),
            path: self.options.path.clone(),
            id: state.id,
            sickness: state.disk.as_ref().err().cloned(),
            filesystem: state
                .disk
                .as_ref()
                .map_or(String::new(), |d| d.filesystem.name.clone()),
            total: room.map_or(Bytes::ZERO, |room| Bytes(room.space.total)),
            available: room.map_or(Bytes::ZERO, |room| room.available()),
            reserved: Bytes(state.index.reserved()),
            volumes: state.index.volumes(),
            quarantined: state.index.quarantined().len(),
            trash: self.trash.waiting(),
            resisting: self.trash.resisting(),
            reclaimed: self.trash.removed(),
        }
    }
}

/// Now, in seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
