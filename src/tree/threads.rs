//! The threads that work on one tree together.
//!
//! A thread that works on the entries of a directory starts another thread while fewer run than are
//! allowed. The two take entries from opposite ends, and the first one waits for the second. So a
//! directory is complete when [`Threads::for_each`] returns, and no thread needs a queue.
//!
//! `cargo bench --locked --bench threads` compares one thread with several.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};

use super::entries::Entry;

/// For fewer files, the start of a thread costs more than the thread saves.
const MIN_FILES: usize = 32;

/// Limits the threads that work on one tree.
#[derive(Debug)]
pub(super) struct Threads {
    name: &'static str,
    /// The threads that may be started. Below zero while a thread that waited runs beside the one
    /// that was started in its place.
    idle: AtomicIsize,
}

impl Threads {
    /// At most `limit` threads at work, the caller among them; the others have this name.
    pub(super) fn new(limit: usize, name: &'static str) -> Self {
        let idle = isize::try_from(limit).unwrap_or(isize::MAX) - 1;
        let idle = AtomicIsize::new(idle);
        Self { name, idle }
    }

    /// Calls `each` for every entry, the last one first, and returns after all calls.
    pub(super) fn for_each(&self, entries: Vec<Entry>, each: &(dyn Fn(&Entry) + Sync)) {
        let entries = Mutex::new(VecDeque::from(entries));
        let lock = || -> MutexGuard<'_, VecDeque<Entry>> {
            entries.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let last = || {
            let mut entries = lock();
            let entry = entries.pop_back()?;
            let has_directory = entries.front().is_some_and(Entry::is_dir);
            let divisible = entries.len() >= MIN_FILES || (entry.is_dir() && has_directory);
            Some((entry, divisible))
        };
        let first = || lock().pop_front();
        let help = || {
            while let Some(entry) = first() {
                each(&entry);
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
        };
        let waiting = thread::scope(|scope| {
            let mut helpers = 0;
            while let Some((entry, divisible)) = last() {
                if divisible && self.take_idle() {
                    let helper = Builder::new().name(self.name.to_owned());
                    match helper.spawn_scoped(scope, help) {
                        Ok(_) => helpers += 1,
                        // Its place stays taken: the next attempt would fail as well.
                        Err(error) => tracing::warn!(%error, "cannot start a {} thread", self.name),
                    }
                }
                each(&entry);
            }
            // Another thread may run in place of this one while it waits for its helpers.
            let waiting = isize::from(helpers > 0);
            self.idle.fetch_add(waiting, Ordering::Relaxed);
            waiting
        });
        self.idle.fetch_sub(waiting, Ordering::Relaxed);
    }

    fn take_idle(&self) -> bool {
        let one_less = |idle: isize| (idle > 0).then(|| idle - 1);
        let idle = &self.idle;
        idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
    }
}
