//! The threads that work on one tree together.
//!
//! A thread that works on the entries of a directory starts another thread while fewer exist than are
//! allowed. The two take entries from opposite ends, and the first one waits for the second. So a
//! directory is complete when [`Threads::for_each`] returns, and no thread needs a queue. A thread
//! that waits counts, because the shape of a pod's tree must not decide the number of threads.
//!
//! `cargo bench --locked --bench threads` compares one thread with several.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};

use crate::sync::lock;

use super::entries::Entry;

/// For fewer files, the start of a thread costs more than the thread saves.
const MIN_FILES: usize = 32;

/// Limits the threads that work on one tree.
#[derive(Debug)]
pub(super) struct Threads {
    name: &'static str,
    /// The threads that may be started.
    idle: AtomicUsize,
}

/// Ends the work on a directory when one of its threads panics.
struct EndOnPanic<'a>(&'a Mutex<VecDeque<Entry>>);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            lock(self.0).clear();
        }
    }
}

impl Threads {
    /// At most `limit` threads, the caller among them; the others have this name.
    pub(super) fn new(limit: usize, name: &'static str) -> Self {
        let idle = AtomicUsize::new(limit.saturating_sub(1));
        Self { name, idle }
    }

    /// Calls `each` for every entry, the last one first, and returns after all calls.
    pub(super) fn for_each(&self, entries: Vec<Entry>, each: &(dyn Fn(&Entry) + Sync)) {
        let entries = Mutex::new(VecDeque::from(entries));
        let last = || {
            let mut entries = lock(&entries);
            let entry = entries.pop_back()?;
            let has_directory = entries.front().is_some_and(Entry::is_dir);
            let divisible = entries.len() >= MIN_FILES || (entry.is_dir() && has_directory);
            Some((entry, divisible))
        };
        let first = || lock(&entries).pop_front();
        let help = || {
            let _end = EndOnPanic(&entries);
            while let Some(entry) = first() {
                each(&entry);
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            let _end = EndOnPanic(&entries);
            while let Some((entry, divisible)) = last() {
                if divisible && self.take_idle() {
                    let helper = Builder::new().name(self.name.to_owned());
                    match helper.spawn_scoped(scope, help) {
                        Ok(_) => {}
                        // Its place stays taken: the next attempt would fail as well.
                        Err(error) => tracing::warn!(%error, "cannot start a {} thread", self.name),
                    }
                }
                each(&entry);
            }
        });
    }

    fn take_idle(&self) -> bool {
        let one_less = |idle: usize| idle.checked_sub(1);
        let idle = &self.idle;
        idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
    }
}
