//! A piece of work on a pool's disk.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::disk::error::{Error, Result};
use crate::disk::unavailable::Unavailable;
use crate::op::pool::Pool;

/// The short steps of which one reads the time, which is a system call on some machines.
const STEPS: u32 = 32;

/// A disk that does not answer for so long hangs, no matter what it does.
const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// One piece of work on a pool's disk; it ends when this is dropped.
#[derive(Debug)]
pub struct Work<'a> {
    pub(super) pool: &'a Pool,
    number: u64,
    is_call: bool,
    steps: AtomicU32,
}

impl Pool {
    /// Begins a call's work on the disk, unless as many as allowed are in progress.
    pub fn begin(&self) -> Result<Work<'_>> {
        let begun = self.works.begin_call();
        let number = begun.map_err(|calls| Error::Crowded {
            pool: self.options.name.clone(),
            calls,
        })?;
        Ok(self.work(number, true))
    }

    /// Begins work of the driver's own, which needs no limit.
    pub(crate) fn begin_own(&self) -> Work<'_> {
        self.work(self.works.begin_own(), false)
    }

    fn work(&self, number: u64, is_call: bool) -> Work<'_> {
        Work {
            pool: self,
            number,
            is_call,
            steps: AtomicU32::new(0),
        }
    }

    /// The time since the disk answered last, if that is too long.
    pub fn silence(&self) -> Option<Duration> {
        let silence = self.works.silence();
        silence.filter(|waited| *waited >= self.context.timeout)
    }

    /// Fails if the disk does not answer.
    pub fn check_answers(&self) -> Result<()> {
        let silent = self.silence().map(Unavailable::silent);
        silent.map_or(Ok(()), |reason| Err(self.unavailable(reason)))
    }
}

impl Work<'_> {
    /// Reports that the disk has answered and the work goes on.
    pub(super) fn advance(&self) {
        self.pool.works.advance(self.number);
    }

    /// Waits for an operation of the disk that may take minutes. Meanwhile this work is no silence, up to a limit.
    pub(super) fn wait_for_disk<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.pool.works.wait_for_disk(self.number, LONGEST_WAIT);
        let answer = wait();
        self.advance();
        answer
    }

    /// Waits for something that is not the disk. Meanwhile this is not at work: other calls can be, and the disk owes no
    /// answer. Afterwards it is, even if as many calls as allowed are.
    pub(super) fn pause<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _pause = Pause::begin(self);
        wait()
    }

    /// As [`Work::advance`], for one of many short steps.
    pub fn step(&self) {
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
        self.pool.works.end(self.number, self.is_call);
    }
}

/// A pause of a work, which ends when this is dropped.
struct Pause<'a>(&'a Work<'a>);

impl<'a> Pause<'a> {
    fn begin(work: &'a Work<'a>) -> Self {
        work.pool.works.end(work.number, work.is_call);
        Self(work)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.pool.works.go_on(self.0.number, self.0.is_call);
    }
}

#[cfg(test)]
mod tests;
