//! How far long work has come: in the log, and for the commands that wait for it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use linux::sync::lock;

use crate::disk::record::Source;

/// How often long work writes a line to the log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How far long work has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    pub done: u64,
    /// The end of `done`, if it is known.
    pub total: Option<u64>,
    pub unit: Unit,
}

/// The unit of an [`Advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Files and directories, or volumes and snapshots.
    Objects,
}

/// The counts of long work.
#[derive(Debug)]
pub struct Progress {
    unit: Unit,
    total: OnceLock<u64>,
    /// The files and directories that are done.
    entries: AtomicU64,
    /// Their disk usage.
    bytes: AtomicU64,
    /// The bytes written into files, also into unfinished ones.
    written: AtomicU64,
    logged: Mutex<Instant>,
}

impl Progress {
    pub fn new(unit: Unit, total: Option<u64>) -> Self {
        Self {
            unit,
            total: total.map_or_else(OnceLock::new, OnceLock::from),
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            logged: Mutex::new(Instant::now()),
        }
    }

    /// Counts a file or directory.
    pub fn count(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a complete file or directory with its disk usage.
    pub fn add(&self, bytes: u64) {
        self.count();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the end of the count, which was not known until now.
    pub fn expect(&self, total: u64) {
        let _ = self.total.set(total);
    }

    /// Counts the files and directories from the first one again.
    pub(crate) fn begin_again(&self) {
        self.entries.store(0, Ordering::Relaxed);
    }

    pub fn advance(&self) -> Advance {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Advance {
            done: match self.unit {
                // A large file counts before it is complete; many small ones occupy more than is written.
                Unit::Bytes => load(&self.bytes).max(load(&self.written)),
                Unit::Objects => load(&self.entries),
            },
            total: self.total.get().copied(),
            unit: self.unit,
        }
    }

    /// Writes a line to the log if the last one is old. It gets the number of files and directories and their disk usage.
    pub fn log(&self, line: impl FnOnce(u64, u64)) {
        let mut logged = lock(&self.logged);
        if logged.elapsed() >= LOG_EVERY {
            *logged = Instant::now();
            let bytes = self.bytes.load(Ordering::Relaxed);
            line(self.entries.load(Ordering::Relaxed), bytes);
        }
    }
}

/// The work on volumes and snapshots of a pool that is running.
#[derive(Debug, Default)]
pub struct Advances(Mutex<BTreeMap<Source, Arc<Progress>>>);

/// Work on a volume or snapshot that is running until this is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    advances: &'a Advances,
    on: Source,
    progress: Arc<Progress>,
}

impl Advances {
    pub fn begin(&self, on: Source, progress: Progress) -> Running<'_> {
        let progress = Arc::new(progress);
        lock(&self.0).insert(on, Arc::clone(&progress));
        Running {
            advances: self,
            on,
            progress,
        }
    }

    pub fn get(&self, on: Source) -> Option<Advance> {
        lock(&self.0).get(&on).map(|progress| progress.advance())
    }
}

impl Deref for Running<'_> {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        &self.progress
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.advances.0).remove(&self.on);
    }
}

#[cfg(test)]
mod tests {
    use objects::{ObjectId, PoolId, SnapshotId, VolumeId};

    use super::*;

    #[test]
    fn work_has_an_advance_until_it_ends() {
        let pool = PoolId::random();
        let volume = Source::Volume(VolumeId::new(pool, &"pv".parse().unwrap()));
        let snapshot = Source::Snapshot(SnapshotId::new(pool, &"pv".parse().unwrap()));
        let advances = Advances::default();
        let (copied, visited) = (
            Progress::new(Unit::Bytes, Some(9)),
            Progress::new(Unit::Objects, None),
        );
        let (copied, visited) = (
            advances.begin(snapshot, copied),
            advances.begin(volume, visited),
        );
        let advance = |on| {
            let advance = advances.get(on)?;
            Some((advance.done, advance.total, advance.unit))
        };
        assert_eq!(advance(snapshot), Some((0, Some(9), Unit::Bytes)));
        assert_eq!(advance(volume), Some((0, None, Unit::Objects)));

        copied.wrote(5);
        assert_eq!(advance(snapshot), Some((5, Some(9), Unit::Bytes)));
        copied.add(4);
        copied.add(3);
        assert_eq!(advance(snapshot), Some((7, Some(9), Unit::Bytes)));

        visited.count();
        visited.begin_again();
        visited.count();
        visited.expect(2);
        assert_eq!(advance(volume), Some((1, Some(2), Unit::Objects)));
        drop(visited);
        assert_eq!(advance(volume), None);
        assert_ne!(advance(snapshot), None);
    }
}
