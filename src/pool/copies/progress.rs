//! The progress of copies: in the log, in metrics, and on the disk for commands that run without the
//! server.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use linux::fault::{Fault, InContext};
use linux::os::{self, At, Os, now};
use linux::sync::lock;
use linux::tree::CopyWatch;
use objects::Bytes;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::pool::advance::{CopiedBytes, Running};
use crate::pool::base::Pool;
use crate::pool::copies::plan::CopyJob;
use crate::pool::reservation::Reservation;
use crate::pool::store::error::Error;
use crate::pool::store::record::{self, FORMAT, Method, Source};
use crate::pool::store::refusal::Refusal;
use crate::pool::work::Work;

/// How often the progress is written to the disk, and to the log.
const WRITE_EVERY: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The file of a copy's progress in its staging directory.
const FILE: &str = "progress.json";
const TEMPORARY: &str = "progress.json.tmp";

/// The progress of a copy, as in `progress.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyStatus {
    pub format: u32,
    /// The volume or snapshot under construction.
    pub copy: Source,
    pub of: Source,
    pub method: Method,
    /// The time of its start, in seconds since the Unix epoch.
    pub started_at: u64,
    /// The number of files and directories copied so far.
    pub entries: u64,
    /// Their disk usage.
    pub bytes: Bytes,
}

/// A copy that is running, or was running when the server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    pub status: CopyStatus,
    /// The time of that report, in seconds since the Unix epoch.
    pub told_at: u64,
}

/// The copies in staging that report their progress, which each does after its first second.
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

pub(crate) struct Progress<'a> {
    pool: &'a Pool,
    staged: &'a OwnedFd,
    reservation: &'a Reservation<'a>,
    /// The work on the disk of the original, if that is another.
    reading: Option<&'a Work<'a>>,
    begun: CopyStatus,
    /// The most bytes that the original can contain. A copy finds more if files are moved ahead of it.
    most: u64,
    entries: AtomicU64,
    bytes: CopiedBytes,
    /// For the command that waits for a move, with the bytes of the original, if they are known.
    running: Option<(Running<'a>, Option<u64>)>,
    reports: Mutex<Reports>,
    refused: AtomicBool,
    /// The error that ended the copy from within, if there is one.
    pub(in crate::pool) refusal: Mutex<Option<Error>>,
}

/// The time of the last reports.
struct Reports {
    written: Instant,
    logged: Instant,
    is_written: bool,
}

impl<'a> Progress<'a> {
    pub(in crate::pool) fn begin(
        pool: &'a Pool,
        staged: &'a OwnedFd,
        job: &CopyJob<'a>,
        method: Method,
    ) -> Self {
        let now_at = Instant::now();
        let running = match job.copy {
            Source::Volume(id) => Some((pool.advances.begin(id), job.plan.known_bytes())),
            Source::Snapshot(_) => None,
        };
        Self {
            pool,
            staged,
            reservation: job.reservation,
            reading: job.plan.reading,
            begun: CopyStatus {
                format: FORMAT,
                copy: job.copy,
                of: job.plan.origin.source(),
                method,
                started_at: now(),
                entries: 0,
                bytes: Bytes::ZERO,
            },
            most: job.plan.origin.most(),
            entries: AtomicU64::new(0),
            bytes: CopiedBytes::default(),
            running,
            reports: Mutex::new(Reports {
                written: now_at,
                logged: now_at,
                is_written: false,
            }),
            refused: AtomicBool::new(false),
            refusal: Mutex::new(None),
        }
    }

    /// Removes the progress file, which only a copy under construction has.
    pub(in crate::pool) fn end(&self, os: &Os) -> Result<(), Fault> {
        let reports = lock(&self.reports);
        if !reports.is_written {
            return Ok(());
        }
        let removed = os.unlink_any(self.staged, FILE);
        removed.context("remove the progress of a copy")
    }

    /// Reports that the disks have answered.
    fn advance(&self) {
        self.reservation.work.advance();
        if let Some(reading) = self.reading {
            reading.advance();
        }
    }

    fn status(&self) -> CopyStatus {
        CopyStatus {
            entries: self.entries.load(Ordering::Relaxed),
            bytes: Bytes(self.bytes.complete()),
            ..self.begun.clone()
        }
    }

    /// Reserves the bytes copied so far, because the original may be larger than measured, and grow.
    fn cover(&self, bytes: u64) {
        if bytes <= self.reservation.size().0.min(self.most) {
            return;
        }
        let mut refusal = lock(&self.refusal);
        let covered = if bytes > self.most {
            let of = self.begun.of;
            Err(Refusal::FilesMove { of }.into())
        } else {
            self.reservation.cover(bytes)
        };
        if let Err(error) = covered {
            *refusal = Some(error);
            self.refused.store(true, Ordering::Relaxed);
        }
    }

    fn report(&self) {
        // If another thread reports now, nothing is missing.
        let mut reports = match self.reports.try_lock() {
            Ok(reports) => reports,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let status = self.status();
        if let Some((running, total)) = &self.running {
            running.set(self.bytes.advance(*total));
        }
        if reports.logged.elapsed() >= LOG_EVERY {
            reports.logged = Instant::now();
            let (copy, of) = (status.copy, status.of);
            let (entries, bytes) = (status.entries, status.bytes.0);
            tracing::info!(pool = %self.pool.options.name, %copy, %of, entries, bytes, "copying");
        }
        if reports.written.elapsed() >= WRITE_EVERY {
            reports.written = Instant::now();
            match self.write(&status) {
                Ok(()) => reports.is_written = true,
                Err(errno) => tracing::debug!(%errno, "cannot write the progress of a copy"),
            }
        }
    }

    /// Writes the progress. It is only information, so it is not made durable.
    fn write(&self, status: &CopyStatus) -> Result<(), Errno> {
        let os = &self.pool.context.os;
        let dir = self.staged.as_fd();
        let json = serde_json::to_vec(status).map_err(|_| Errno::INVAL)?;
        os.unlink_any(dir, TEMPORARY)?;
        let file = os.create(dir, TEMPORARY)?;
        os.write_all(&file, &json)?;
        os.replace(At::new(&dir, TEMPORARY), At::new(&dir, FILE))
    }
}

impl CopyWatch for Progress<'_> {
    fn copied(&self, bytes: u64) {
        self.advance();
        self.entries.fetch_add(1, Ordering::Relaxed);
        let copies = &self.pool.copies;
        copies.entries.fetch_add(1, Ordering::Relaxed);
        copies.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.cover(self.bytes.add(bytes));
    }

    fn wrote(&self, bytes: u64) {
        self.bytes.wrote(bytes);
    }

    fn stopped(&self) -> bool {
        self.advance();
        self.report();
        let source = self.reading.map(|work| work.pool);
        self.refused.load(Ordering::Relaxed)
            || self.pool.copies.is_stopped()
            || self.pool.why_unavailable().is_some()
            || source.is_some_and(|pool| pool.why_unavailable().is_some())
    }
}
