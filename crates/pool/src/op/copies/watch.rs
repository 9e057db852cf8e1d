//! The watch over a copy: it counts, reserves what is copied, and ends the copy.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use linux::sync::lock;
use linux::tree::CopyWatch;

use crate::disk::error::Error;
use crate::disk::record::Source;
use crate::disk::refusal::Refusal;
use crate::op::copies::plan::CopyJob;
use crate::op::pool::Pool;
use crate::op::progress::{Progress, Running, Unit};
use crate::op::reservation::Reservation;
use crate::op::work::Work;

pub(super) struct Watch<'a> {
    pool: &'a Pool,
    reservation: &'a Reservation<'a>,
    /// The work on the disk of the original, if that is another.
    reading: Option<&'a Work<'a>>,
    copy: Source,
    of: Source,
    /// The most bytes that the original can contain. A copy finds more if files are moved ahead of it.
    most: u64,
    /// The bytes that the entries occupy whose copies have begun.
    begun: AtomicU64,
    progress: Running<'a>,
    refused: AtomicBool,
    /// The error that ended the copy from within, if there is one.
    pub(crate) refusal: Mutex<Option<Error>>,
}

impl<'a> Watch<'a> {
    pub(crate) fn begin(pool: &'a Pool, job: &CopyJob<'a>) -> Self {
        let progress = Progress::new(Unit::Bytes, job.plan.known_bytes());
        Self {
            pool,
            reservation: job.reservation,
            reading: job.plan.reading,
            copy: job.copy,
            of: job.plan.origin.source(),
            most: job.plan.origin.most(),
            begun: AtomicU64::new(0),
            progress: pool.advances.begin(job.copy, progress),
            refused: AtomicBool::new(false),
            refusal: Mutex::new(None),
        }
    }

    /// Reports that the disks have answered.
    fn advance(&self) {
        self.reservation.work.advance();
        if let Some(reading) = self.reading {
            reading.advance();
        }
    }

    /// Reserves these bytes, because the original may be larger than measured, and grow.
    fn cover(&self, bytes: u64) {
        if bytes <= self.reservation.size().0.min(self.most) {
            return;
        }
        let mut refusal = lock(&self.refusal);
        let covered = if bytes > self.most {
            Err(Refusal::FilesMove { of: self.of }.into())
        } else {
            self.reservation.cover(bytes)
        };
        if let Err(error) = covered {
            *refusal = Some(error);
            self.refused.store(true, Ordering::Relaxed);
        }
    }
}

impl CopyWatch for Watch<'_> {
    /// Reserves the bytes of a file before they are written, because afterwards they would count twice: as used, and as
    /// bytes to reserve. It also refuses a file that cannot fit before anything of it is written.
    fn begins(&self, bytes: u64) {
        let before = self.begun.fetch_add(bytes, Ordering::Relaxed);
        self.cover(before.saturating_add(bytes));
    }

    fn copied(&self, bytes: u64) {
        self.advance();
        let copies = &self.pool.copies;
        copies.entries.fetch_add(1, Ordering::Relaxed);
        copies.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.progress.add(bytes);
    }

    fn wrote(&self, bytes: u64) {
        self.progress.wrote(bytes);
    }

    fn stopped(&self) -> bool {
        self.advance();
        self.progress.log(|entries, bytes| {
            let (pool, copy, of) = (&self.pool.options.name, self.copy, self.of);
            tracing::info!(%pool, %copy, %of, entries, bytes, "copying");
        });
        let source = self.reading.map(|work| work.pool);
        self.refused.load(Ordering::Relaxed)
            || self.pool.copies.is_stopped()
            || self.pool.why_unavailable().is_some()
            || source.is_some_and(|pool| pool.why_unavailable().is_some())
    }
}
