//! Reclaiming deleted volumes and snapshots in the background.
//!
//! A deletion moves an object to the trash by one rename and returns. One thread of each pool removes the entries of the
//! trash, and no request waits for a lock that it holds. The record of an entry is removed last, because the next
//! start finds the quota id there. An entry that cannot be removed is reported and tried again, each time
//! after a longer wait. An entry whose space somebody waits for overtakes the others: the pass ends, and the next one
//! continues where it was.

mod pass;
pub(crate) mod reclaimer;

use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use linux::fault::Fault;
use linux::sync::lower_priority;

use crate::disk::open::Disk;
use crate::ledger::index::Index;
use crate::op::pool::Pool;
use crate::op::trash::pass::LAST_RETRY;
use crate::op::trash::pass::Leftovers;

/// How often an empty and idle pool measures the use by others, because nothing reports a change.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// How often work that a full disk has delayed is tried again, because nothing reports free blocks.
const FULL_AGAIN: Duration = Duration::from_secs(10);

impl Pool {
    /// Starts reclaiming the trash in the background, until the pool's [`Trash`](reclaimer::Trash) is stopped.
    pub fn start_reclaiming(self: &Arc<Self>) -> std::io::Result<()> {
        let pool = Arc::clone(self);
        let name = format!("reclaim-{}", self.options.name);
        self.trash.start(name, move || run(&pool))
    }
}

fn run(pool: &Pool) {
    std::thread::scope(|scope| {
        let mut measuring: Option<ScopedJoinHandle<'_, ()>> = None;
        let mut left = Leftovers::default();
        let mut last_reclaimed = None;
        // Whether the trash may have entries that no pass has seen.
        let mut news = true;
        while !pool.trash.is_stopped() {
            // Opening the pool again wakes the reclaimer.
            let mut wait = LAST_RETRY;
            if let Ok(disk) = pool.disk() {
                if measuring.as_ref().is_none_or(ScopedJoinHandle::is_finished) {
                    measuring = measure_trees(scope, pool, &disk);
                }
                let again = pool.expire(&disk).unwrap_or(Some(FULL_AGAIN));
                let work = pool.begin_own();
                match left.pass(&work, &disk, std::mem::take(&mut news)) {
                    Ok(0) => {}
                    Ok(_) => {
                        last_reclaimed = Some(Instant::now());
                        pool.measure_member(&disk);
                    }
                    Err(fault) => pool.mark_unavailable(&fault.into()),
                }
                work.advance();
                if left.was_overtaken {
                    news = true;
                    continue;
                }
                if pool.state.serves(&disk) {
                    let idle = last_reclaimed.is_none_or(|at| at.elapsed() >= LAST_RETRY);
                    if pool.measure_if_empty(&disk, idle) && idle {
                        wait = MEASURE_EVERY;
                    }
                }
                let next = left.next();
                wait = next.map_or(wait, |at| at.saturating_duration_since(Instant::now()));
                wait = again.map_or(wait, |again| wait.min(again));
                match catch_up(&disk) {
                    Ok((false, again)) => wait = again.map_or(wait, |again| wait.min(again)),
                    Ok((true, _)) => (news, wait) = (true, Duration::ZERO),
                    Err(fault) => pool.mark_unavailable(&fault.into()),
                }
            }
            news |= pool.trash.wait(wait);
        }
        if let Ok(disk) = pool.disk() {
            pool.record_last_served(&disk);
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

/// Measures trees of a disk while the reclaimer works, if there are any to measure.
fn measure_trees<'scope>(
    scope: &'scope Scope<'scope, '_>,
    pool: &'scope Pool,
    disk: &Arc<Disk>,
) -> Option<ScopedJoinHandle<'scope, ()>> {
    pool.state.read(Index::unmeasured)?;
    let disk = Arc::clone(disk);
    let name = format!("measure-{}", pool.options.name);
    let thread = std::thread::Builder::new().name(name);
    let measure = move || {
        // Many deletions at once must not wait for the measurement.
        if let Err(errno) = lower_priority() {
            tracing::debug!(pool = %pool.options.name, %errno, "measures at full priority");
        }
        pool.measure_trees(&disk);
    };
    match thread.spawn_scoped(scope, measure) {
        Ok(measuring) => Some(measuring),
        Err(error) => {
            tracing::warn!(pool = %pool.options.name, %error, "cannot start the thread that measures trees");
            None
        }
    }
}
