//! The copies that a pool makes file by file now, and their sums since start.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use objects::PoolName;

use crate::pool::store::error::{Busy, Error};

/// The most copies that a pool makes file by file at once.
const MOST_AT_ONCE: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Copies {
    stopped: AtomicBool,
    pub(crate) running: AtomicUsize,
    /// The files and directories copied since start.
    pub(crate) entries: AtomicU64,
    /// The disk usage of those, in bytes.
    pub(crate) bytes: AtomicU64,
}

impl Copies {
    /// Begins a copy file by file, unless as many as allowed are running: each occupies a call, threads
    /// and descriptors until it ends.
    pub(in crate::pool) fn begin(&self, pool: &PoolName) -> Result<Turn<'_>, Error> {
        let one_more = |running: usize| (running < MOST_AT_ONCE).then_some(running + 1);
        let begun = self
            .running
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        match begun {
            Ok(_) => Ok(Turn(self)),
            Err(running) => {
                let pool = pool.clone();
                Err(Error::Busy(Busy::Copies { pool, running }))
            }
        }
    }

    /// Ends the running copies; none begins after.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// One of the copies that may run at once.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Copies);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
