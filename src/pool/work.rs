//! The work in progress on a pool's disk: a limit for concurrent calls, and the time that the oldest
//! of them has waited for an answer.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::pool::error::{Error, Result};
use crate::sync::lock;

use super::Pool;

/// The most concurrent calls on one pool's disk.
pub(crate) const CALLS_AT_ONCE: usize = 128;

/// The short steps of which one reads the time, which is a system call on some machines.
const STEPS: u32 = 32;

/// The work in progress on a pool's disk.
#[derive(Debug, Default)]
pub(super) struct Works(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The time when each began, or advanced last.
    waiting_since: BTreeMap<u64, Instant>,
    next: u64,
    calls: usize,
}

/// One piece of work on a pool's disk; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(super) pool: &'a Pool,
    number: u64,
    is_call: bool,
    steps: AtomicU32,
}

impl Pool {
    /// Begins a call's work on the disk, unless as many as allowed are in progress.
    pub(crate) fn begin(&self) -> Result<Work<'_>> {
        let mut state = lock(&self.works.0);
        if state.calls >= CALLS_AT_ONCE {
            return Err(Error::Crowded {
                pool: self.options.name.clone(),
                calls: state.calls,
            });
        }
        state.calls += 1;
        Ok(self.begin_as(&mut state, true))
    }

    /// Begins work of the driver's own, which needs no limit.
    pub(super) fn begin_own(&self) -> Work<'_> {
        self.begin_as(&mut lock(&self.works.0), false)
    }

    fn begin_as(&self, state: &mut State, is_call: bool) -> Work<'_> {
        let number = state.next;
        state.next += 1;
        state.waiting_since.insert(number, Instant::now());
        Work {
            pool: self,
            number,
            is_call,
            steps: AtomicU32::new(0),
        }
    }

    /// Whether a call is at work. Every copy is part of one.
    pub(super) fn is_at_work(&self) -> bool {
        lock(&self.works.0).calls > 0
    }

    /// The time since the disk answered last, if that is too long.
    pub fn silence(&self) -> Option<Duration> {
        let state = lock(&self.works.0);
        let oldest = state.waiting_since.values().min()?;
        Some(oldest.elapsed()).filter(|waited| *waited >= self.context.patience)
    }
}

impl Work<'_> {
    /// Reports that the disk has answered and the work goes on.
    pub(super) fn advance(&self) {
        let mut state = lock(&self.pool.works.0);
        state.waiting_since.insert(self.number, Instant::now());
    }

    /// As [`Work::advance`], for one of many short steps.
    pub(crate) fn step(&self) {
        if self
            .steps
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(STEPS)
        {
            self.advance();
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.works.0);
        state.waiting_since.remove(&self.number);
        if self.is_call {
            state.calls -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
