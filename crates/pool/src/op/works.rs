//! The work in progress on a pool's disk: a limit for concurrent calls, and the time that the oldest
//! of them has waited for an answer.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use linux::sync::lock;

/// The most concurrent calls on one pool's disk.
pub const CALLS_AT_ONCE: usize = 128;

/// The work in progress on a pool's disk.
#[derive(Debug, Default)]
pub(super) struct Works(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The time when each began, advanced last, or ends its rest.
    waiting_since: BTreeMap<u64, Instant>,
    next: u64,
    calls: usize,
}

impl State {
    fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting_since.insert(number, Instant::now());
        number
    }
}

impl Works {
    /// Begins a call; returns its number, or the number of calls at work if those are as many as allowed.
    pub(super) fn begin_call(&self) -> Result<u64, usize> {
        let mut state = lock(&self.0);
        if state.calls >= CALLS_AT_ONCE {
            return Err(state.calls);
        }
        state.calls += 1;
        Ok(state.begin())
    }

    /// Begins work of the driver's own, which needs no limit.
    pub(super) fn begin_own(&self) -> u64 {
        lock(&self.0).begin()
    }

    /// Notes that the disk has answered, and that the work goes on.
    pub(super) fn advance(&self, number: u64) {
        lock(&self.0).waiting_since.insert(number, Instant::now());
    }

    /// Notes that the work may wait this long before its silence begins.
    pub(super) fn wait_for_disk(&self, number: u64, time: Duration) {
        let end = Instant::now() + time;
        lock(&self.0).waiting_since.insert(number, end);
    }

    pub(super) fn end(&self, number: u64, is_call: bool) {
        let mut state = lock(&self.0);
        state.waiting_since.remove(&number);
        state.calls -= usize::from(is_call);
    }

    /// Goes on with work after its [`Works::end`], without a limit.
    pub(super) fn go_on(&self, number: u64, is_call: bool) {
        let mut state = lock(&self.0);
        state.waiting_since.insert(number, Instant::now());
        state.calls += usize::from(is_call);
    }

    /// The longest time since the disk answered, if work is in progress.
    pub(super) fn silence(&self) -> Option<Duration> {
        let state = lock(&self.0);
        state.waiting_since.values().min().map(Instant::elapsed)
    }
}
