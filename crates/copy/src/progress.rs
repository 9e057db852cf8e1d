//! The progress, for people: a line every few seconds.

use std::time::{Duration, Instant};

use objects::Bytes;

const EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    /// The bytes in all, and those that an earlier run has copied.
    total: u64,
    done: u64,
    begun: Instant,
    shown: Instant,
    since: u64,
}

impl Progress {
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let now = Instant::now();
        Self {
            what,
            total,
            done: 0,
            begun: now,
            shown: now,
            since: 0,
        }
    }

    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Begins again with the same bytes.
    pub(crate) fn again(&self, what: &'static str) -> Self {
        Self::new(what, self.total.max(self.done))
    }

    /// Counts bytes of an earlier run, which do not belong to the rate.
    pub(crate) fn had(&mut self, bytes: u64) {
        self.done += bytes;
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.since += bytes;
        if self.shown.elapsed() >= EVERY {
            self.shown = Instant::now();
            eprintln!("{}", self.line(self.begun.elapsed()));
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let Self {
            what, total, done, ..
        } = self;
        let total = (*total).max(*done);
        let rate = u128::from(self.since) * 1000 / elapsed.as_millis().max(1);
        let percent = u128::from(*done) * 100 / u128::from(total.max(1));
        let left = u128::from(total - done).checked_div(rate);
        let left = left.map_or_else(|| "unknown time".to_owned(), |left| format!("{left} s"));
        let rate = Bytes(u64::try_from(rate).unwrap_or(u64::MAX)).rounded();
        format!(
            "{what}: {} of {}, {percent} %, {rate} per second, {left} left",
            Bytes(*done).rounded(),
            Bytes(total).rounded()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_rate_of_this_run_and_the_time_that_is_left() {
        let mut progress = Progress::new("copied", 100 << 20);
        progress.had(40 << 20);
        progress.add(20 << 20);
        let line = progress.line(Duration::from_secs(2));
        assert_eq!(
            line,
            "copied: 60 MiB of 100 MiB, 60 %, 10 MiB per second, 4 s left"
        );
        let begun = Progress::new("copied", 0).line(Duration::ZERO);
        assert!(begun.ends_with("unknown time left"), "{begun}");
    }
}
