//! How far copies are: in the log, in metrics, and on the disk for who looks at it without the
//! server.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};
use crate::pool::error::Error;
use crate::pool::record::{self, FORMAT, Method, Source};
use crate::pool::{Pool, Reservation, now};
use crate::tree::CopyWatch;
use crate::types::{Bytes, PoolName};

use super::CopyJob;

/// How many copies a pool makes at once file by file.
const MOST_AT_ONCE: usize = 4;

/// How often it is written down, and how often it is logged.
const WRITE_EVERY: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The file of a copy's progress in its staging directory.
const FILE: &str = "progress.json";
const TEMPORARY: &str = "progress.json.tmp";

/// The copies of a pool.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    stopped: AtomicBool,
    running: AtomicUsize,
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl Copies {
    /// Has another copy made file by file, unless there are enough: each keeps a call's turn, threads
    /// and descriptors for as long as it takes.
    pub(super) fn begin(&self, pool: &PoolName) -> Result<Turn<'_>, Error> {
        let one_more = |running: usize| (running < MOST_AT_ONCE).then_some(running + 1);
        let begun = self
            .running
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        match begun {
            Ok(_) => Ok(Turn(self)),
            Err(running) => {
                let what = format!("pool {pool} makes {running} copies at once already, and");
                Err(Error::Busy(what))
            }
        }
    }

    /// Ends the copies at work; none begins after.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the driver ends.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// How many are being made.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many files and directories were copied since start.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// How many bytes those occupied where they were copied from.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// How far a copy is, `progress.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyStatus {
    /// The format of records.
    pub format: u32,
    /// What is being made.
    pub copy: Source,
    /// What it is a copy of.
    pub of: Source,
    /// How it is made.
    pub method: Method,
    /// When it was begun, in seconds since the Unix epoch.
    pub started_at: u64,
    /// How many files and directories are copied.
    pub entries: u64,
    /// What those occupied.
    pub bytes: Bytes,
}

/// A copy that is being made, or was when the server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// How far it was.
    pub status: CopyStatus,
    /// When that was written down, in seconds since the Unix epoch.
    pub told_at: u64,
}

/// The copies in staging that tell how far they are; each does once it takes longer than a moment.
pub(crate) fn unfinished(staging: &OwnedFd) -> Result<Vec<Unfinished>, Fault> {
    let names = os::entry_names(staging.as_fd()).context("list staging")?;
    let read = |name| {
        let dir = os::open_dir(staging, name).ok()?;
        let written = os::statx_at(&dir, FILE).ok()?.stx_mtime.tv_sec;
        Some(Unfinished {
            status: record::read(&dir, FILE).ok()?,
            told_at: u64::try_from(written).unwrap_or_default(),
        })
    };
    Ok(names.iter().filter_map(read).collect())
}

/// Watches one copy.
pub(crate) struct Progress<'a> {
    pool: &'a Pool,
    staged: &'a OwnedFd,
    room: &'a Reservation<'a>,
    begun: CopyStatus,
    /// More than this cannot be in what is copied; whoever moves files ahead of the copy has it.
    most: u64,
    entries: AtomicU64,
    bytes: AtomicU64,
    told: Mutex<Told>,
    refused: AtomicBool,
    refusal: Mutex<Option<Error>>,
}

/// What was told so far.
struct Told {
    written: Instant,
    logged: Instant,
    is_written: bool,
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.status()).finish()
    }
}

impl<'a> Progress<'a> {
    pub(super) fn begin(
        pool: &'a Pool,
        staged: &'a OwnedFd,
        order: &CopyJob<'a>,
        method: Method,
    ) -> Self {
        let now_at = Instant::now();
        Self {
            pool,
            staged,
            room: order.room,
            begun: CopyStatus {
                format: FORMAT,
                copy: order.copy,
                of: order.origin.source(),
                method,
                started_at: now(),
                entries: 0,
                bytes: Bytes::ZERO,
            },
            most: order.origin.most(),
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            told: Mutex::new(Told {
                written: now_at,
                logged: now_at,
                is_written: false,
            }),
            refused: AtomicBool::new(false),
            refusal: Mutex::new(None),
        }
    }

    /// Why there is no room for the rest, if there is not.
    pub(super) fn refusal(&self) -> Option<Error> {
        let mut refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        refusal.take()
    }

    /// Takes away what was written down: only what is being made has it.
    pub(super) fn end(&self, os: &Os) -> Result<(), Fault> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.is_written {
            return Ok(());
        }
        match os.unlink(self.staged, FILE) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.context("remove what tells how far a copy is"),
        }
    }

    fn status(&self) -> CopyStatus {
        CopyStatus {
            entries: self.entries.load(Ordering::Relaxed),
            bytes: Bytes(self.bytes.load(Ordering::Relaxed)),
            ..self.begun.clone()
        }
    }

    /// Promises what was copied, for it may be more than was thought, and grow meanwhile.
    fn cover(&self, bytes: u64) {
        if bytes <= self.room.size().0.min(self.most) {
            return;
        }
        let mut refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = if bytes > self.most {
            let of = self.begun.of;
            Err(Error::CannotCopy(format!(
                "more than {of} can hold was found in it: its files are moved while it is copied; \
                 stop what does that"
            )))
        } else {
            self.room.cover(bytes)
        };
        if let Err(error) = covered {
            *refusal = Some(error);
            self.refused.store(true, Ordering::Relaxed);
        }
    }

    fn tell(&self) {
        // Whoever finds another at it has nothing to add.
        let mut told = match self.told.try_lock() {
            Ok(told) => told,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let status = self.status();
        if told.logged.elapsed() >= LOG_EVERY {
            told.logged = Instant::now();
            let (copy, of) = (status.copy, status.of);
            let (entries, bytes) = (status.entries, status.bytes.0);
            tracing::info!(pool = %self.pool.options.name, %copy, %of, entries, bytes, "copying");
        }
        if told.written.elapsed() >= WRITE_EVERY {
            told.written = Instant::now();
            match self.write(&status) {
                Ok(()) => told.is_written = true,
                Err(errno) => tracing::debug!(%errno, "cannot write down how far a copy is"),
            }
        }
    }

    /// Nothing rests on it, so it is not made durable.
    fn write(&self, status: &CopyStatus) -> Result<(), Errno> {
        let os = &self.pool.context.os;
        let dir = self.staged.as_fd();
        let json = serde_json::to_vec(status).map_err(|_| Errno::INVAL)?;
        match os.unlink(dir, TEMPORARY) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let file = os.create(dir, TEMPORARY)?;
        os.write_all(&file, &json)?;
        os.replace((dir, TEMPORARY), (dir, FILE))
    }
}

impl CopyWatch for Progress<'_> {
    fn copied(&self, bytes: u64) {
        self.room.advance();
        self.entries.fetch_add(1, Ordering::Relaxed);
        let copies = &self.pool.copies;
        copies.entries.fetch_add(1, Ordering::Relaxed);
        copies.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.cover(before.saturating_add(bytes));
    }

    fn stopped(&self) -> bool {
        self.room.advance();
        self.tell();
        self.refused.load(Ordering::Relaxed)
            || self.pool.copies.is_stopped()
            || self.pool.is_unavailable()
    }
}

/// The right to make one copy.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Copies);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
