//! The caller of a long operation: how long it waits for the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The caller of an operation. By default it waits for the answer without a limit.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    until: Option<Instant>,
    has_left: Arc<AtomicBool>,
}

impl Caller {
    /// A caller that waits for its answer until a time, or without a limit.
    pub fn until(time: Option<Instant>) -> Self {
        Self {
            until: time,
            has_left: Arc::default(),
        }
    }

    /// Notes that nobody waits for the answer any more.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// How much longer the caller waits, unless its time is over.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let Some(until) = self.until else {
            return Some(Duration::MAX);
        };
        let left = until.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }
}
