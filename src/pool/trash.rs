//! Reclaiming deleted volumes and snapshots in the background, without a lock that a request could
//! wait for. An entry that cannot be removed is reported and tried again, each time after a longer wait.

mod discard;
mod entry;
mod pass;
mod placeholders;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::sync::lock;

use super::Pool;
use super::disk::Disk;

use discard::Discard;
pub(crate) use entry::{TrashEntry, entries};
use pass::Leftovers;

const LAST_RETRY: Duration = Duration::from_mins(5);
/// How often an empty and idle pool measures the use by others, because nothing reports a change.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// How often work that a full disk has delayed is tried again, because nothing reports free blocks.
const FULL_AGAIN: Duration = Duration::from_secs(10);
/// How long reclaimers may take to stop.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_millis(2);

/// The reclaimer, as its pool uses it.
#[derive(Debug, Default)]
pub(crate) struct Trash {
    stopped: AtomicBool,
    /// The entries that could not be removed at the last attempt.
    pub(super) resisting: AtomicUsize,
    /// The files and directories removed since start.
    pub(super) removed: AtomicU64,
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

    /// Starts the reclaimer of a pool; it runs until it is stopped.
    pub(crate) fn start(&self, pool: &Arc<Pool>) -> std::io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let pool = Arc::clone(pool);
            let name = format!("reclaim-{}", pool.options.name);
            *thread = Some(
                std::thread::Builder::new()
                    .name(name)
                    .spawn(move || run(&pool))?,
            );
        }
        Ok(())
    }

    /// Ends the reclaimer as soon as its disk answers.
    pub(crate) fn end(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Waits for the reclaimer to end, at most until the deadline, because a disk may hang.
    pub(crate) fn wait_for_end(&self, deadline: Instant) {
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::warn!("the reclaimer does not stop; not waiting for it");
                return;
            }
            std::thread::sleep(STOP_POLL);
        }
        if thread.join().is_err() {
            tracing::error!("the reclaimer panicked");
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits for a notification, at most as long as given; returns whether there was one.
    fn wait(&self, at_most: Duration) -> bool {
        let news = lock(&self.news);
        let waited = self.wake.wait_timeout_while(news, at_most, |news| !*news);
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

fn run(pool: &Pool) {
    std::thread::scope(|scope| {
        let mut measuring: Option<ScopedJoinHandle<'_, ()>> = None;
        let mut left = Leftovers::default();
        let mut discard = Discard::new(pool);
        let mut last_reclaimed = None;
        // Whether the trash may have entries that no pass has seen.
        let mut news = true;
        while !pool.trash.is_stopped() {
            // Opening the pool again wakes the reclaimer.
            let mut wait = LAST_RETRY;
            if let Ok(disk) = pool.disk() {
                if measuring.as_ref().is_none_or(ScopedJoinHandle::is_finished) {
                    measuring = measure_quarantined(scope, pool, &disk);
                }
                let work = pool.begin_own();
                match left.pass(&work, &disk, std::mem::take(&mut news)) {
                    Ok(0) => {}
                    Ok(_) => {
                        last_reclaimed = Some(Instant::now());
                        pool.measure_member(&disk);
                        discard.reclaimed();
                    }
                    Err(fault) => pool.mark_unavailable(&fault.into()),
                }
                work.advance();
                if pool.state.serves(&disk) {
                    let idle = last_reclaimed.is_none_or(|at| at.elapsed() >= LAST_RETRY);
                    if pool.measure_if_empty(&disk, idle) && idle {
                        wait = MEASURE_EVERY;
                    }
                }
                let next = left.next();
                wait = next.map_or(wait, |at| at.saturating_duration_since(Instant::now()));
                match catch_up(&disk) {
                    Ok((false, again)) => wait = again.map_or(wait, |again| wait.min(again)),
                    Ok((true, _)) => (news, wait) = (true, Duration::ZERO),
                    Err(fault) => pool.mark_unavailable(&fault.into()),
                }
            }
            news |= discard.wait(wait);
        }
    });
}

/// Does the work that a full disk has delayed. Returns whether entries came to the trash, and the time
/// until the next attempt, if work is left.
fn catch_up(disk: &Disk) -> Result<(bool, Option<Duration>), Fault> {
    let has_placeholders = disk.make_placeholders()?;
    let moved = disk.clear_staging()?;
    let is_done = has_placeholders && disk.left().is_empty();
    Ok((moved > 0, (!is_done).then_some(FULL_AGAIN)))
}

/// Measures the quarantined trees of a disk beside the reclaimer, if there are any.
fn measure_quarantined<'scope>(
    scope: &'scope Scope<'scope, '_>,
    pool: &'scope Pool,
    disk: &Arc<Disk>,
) -> Option<ScopedJoinHandle<'scope, ()>> {
    pool.state.unmeasured()?;
    let disk = Arc::clone(disk);
    let name = format!("measure-{}", pool.options.name);
    let thread = std::thread::Builder::new().name(name);
    match thread.spawn_scoped(scope, move || pool.measure_quarantined(&disk)) {
        Ok(measuring) => Some(measuring),
        Err(error) => {
            tracing::warn!(pool = %pool.options.name, %error, "cannot measure a quarantined tree");
            None
        }
    }
}
