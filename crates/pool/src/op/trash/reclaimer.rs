//! The handle of a pool on its reclaimer: it starts, wakes and ends the thread, and counts its work.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linux::sync::lock;

/// How long reclaimers may take to stop.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

const STOP_POLL: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub struct Trash {
    stopped: AtomicBool,
    /// The entries that could not be removed at the last attempt.
    pub(crate) resisting: AtomicUsize,
    /// The files and directories removed since start.
    pub(crate) removed: AtomicU64,
    /// Whether an entry has come whose space somebody waits for.
    is_urgent: AtomicBool,
    /// When the kept objects are inspected while an entry is being reclaimed.
    inspects_at: Mutex<Option<Instant>>,
    news: Mutex<bool>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Trash {
    /// Wakes the reclaimer because of a new entry.
    pub(crate) fn notify(&self) {
        *lock(&self.news) = true;
        self.wake.notify_all();
    }

    /// Has the reclaimer begin with the entries whose space somebody waits for, and continue with its present entry later.
    pub(crate) fn hurry(&self) {
        self.is_urgent.store(true, Ordering::Relaxed);
        self.notify();
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed)
    }

    /// Begins a pass over all entries.
    pub(super) fn begin_pass(&self) {
        self.is_urgent.store(false, Ordering::Relaxed);
    }

    /// Whether the kept objects are to be inspected, which is then due after this time again.
    pub(super) fn inspects(&self, every: Duration) -> bool {
        let mut at = lock(&self.inspects_at);
        let now = Instant::now();
        let is_due = at.is_none_or(|at| at <= now);
        if is_due {
            *at = Some(now + every);
        }
        is_due
    }

    /// Starts the reclaimer in a thread with this name, unless it is running.
    pub(super) fn start(
        &self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            *thread = Some(std::thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(())
    }

    /// Ends the reclaimer as soon as its disk answers.
    pub fn end(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Waits for the reclaimer to end, at most until the deadline, because a disk may hang.
    pub fn wait_for_end(&self, deadline: Instant) {
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::warn!(
                    "the thread that removes deleted objects does not stop in time, so the driver does not wait for it"
                );
                return;
            }
            std::thread::sleep(STOP_POLL);
        }
        if thread.join().is_err() {
            tracing::error!("the thread that removes deleted objects panicked");
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits for a notification, at most as long as given; returns whether there was one.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let news = lock(&self.news);
        let waited = self.wake.wait_timeout_while(news, at_most, |news| !*news);
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}
