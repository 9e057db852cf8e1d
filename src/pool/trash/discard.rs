//! Discarding the free space of a pool with the option `discard`, after entries were reclaimed.
//!
//! A trim covers the filesystem once, because nobody knows the freed blocks any more: range by range,
//! while no call is at work on the disk.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use linux::fault::Fault;
use rustix::io::Errno;

use crate::pool::base::Pool;
use crate::pool::store::disk::Disk;

/// The most bytes that are trimmed per second.
const RATE: u64 = 1 << 30;
/// How long after a reclaim a trim begins: XFS and btrfs free the blocks of removed files in the
/// background, and a volume seldom goes alone.
const DELAY: Duration = Duration::from_secs(5);
/// How often a trim tries again to begin or to go on.
const RETRY: Duration = Duration::from_secs(1);

/// The trims of one pool.
#[derive(Debug)]
pub(super) struct Discard<'a> {
    pool: &'a Pool,
    /// The trim that is due, if entries were reclaimed since the last one.
    trim: Option<Trim>,
    /// The disk that was trimmed last, to recognize another opening of the pool.
    disk: Weak<Disk>,
    /// Whether that disk cannot discard.
    refused: bool,
}

impl<'a> Discard<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        Self {
            pool,
            trim: None,
            disk: Weak::new(),
            refused: false,
        }
    }

    /// Makes a trim due, because entries were reclaimed.
    pub(super) fn reclaimed(&mut self) {
        if self.pool.options.discard {
            self.trim = Some(Trim::after(self.trim.as_ref(), Instant::now()));
        }
    }

    /// Waits for a notification of the trash, at most as long as given, and trims meanwhile; returns
    /// whether there was one.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        loop {
            // Opening the pool again wakes the reclaimer.
            let trim = self
                .trim
                .as_ref()
                .filter(|_| self.pool.why_unavailable().is_none());
            let due = trim.map(|trim| trim.due);
            let due = due.filter(|due| *due < deadline);
            let until = due.unwrap_or(deadline);
            let wait = until.saturating_duration_since(Instant::now());
            let news = self.pool.trash.wait(wait);
            if news || due.is_none() {
                return news;
            }
            self.go_on();
        }
    }

    /// Trims the next range, if the pool is idle.
    fn go_on(&mut self) {
        let Some(mut trim) = self.trim.take() else {
            return;
        };
        let disk = self.pool.disk().ok();
        let Some(disk) = disk.filter(|_| !self.pool.is_at_work()) else {
            trim.due = Instant::now() + RETRY;
            self.trim = Some(trim);
            return;
        };
        if self.disk.as_ptr() != Arc::as_ptr(&disk) {
            self.disk = Arc::downgrade(&disk);
            self.refused = false;
            trim.restart();
        }
        if self.refused {
            return;
        }
        let _work = self.pool.begin_own();
        match trim.go_on(&disk) {
            Ok(()) if trim.is_complete() => {
                tracing::info!(pool = %self.pool.options.name, "discarded the free space");
            }
            Ok(()) => self.trim = Some(trim),
            Err(fault) => self.fail(fault),
        }
    }

    /// Gives the trim up until an entry is reclaimed.
    fn fail(&mut self, fault: Fault) {
        let (pool, path) = (&self.pool.options.name, self.pool.path().display());
        if fault.is_of_the_disk() {
            self.pool.mark_unavailable(&fault.into());
            return;
        }
        self.refused = matches!(fault.errno, Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL);
        if self.refused {
            tracing::warn!(
                %pool, %path, %fault,
                "the disk or its filesystem has no discard; remove the pool's option discard"
            );
        } else {
            tracing::warn!(%pool, %path, %fault, "nothing is discarded until the next reclaim");
        }
    }
}

/// A trim that is due.
#[derive(Debug, PartialEq, Eq)]
struct Trim {
    /// Where the next range begins, or before it.
    from: u64,
    /// Where the first range began. The trim ends there, after it has reached the end.
    begun: u64,
    reached_end: bool,
    /// Whether the reclaims before are durable.
    is_synced: bool,
    /// The time of the next range.
    due: Instant,
}

impl Trim {
    /// The trim after a reclaim. It goes on where an unfinished one is, and ends there, so that frequent
    /// reclaims keep no part of the filesystem from its turn.
    fn after(unfinished: Option<&Self>, reclaimed: Instant) -> Self {
        let due = reclaimed + DELAY;
        let from = unfinished.map_or(0, |trim| trim.from);
        Self {
            from,
            begun: from,
            reached_end: false,
            is_synced: false,
            due: unfinished.map_or(due, |trim| trim.due.max(due)),
        }
    }

    /// Begins at the start of another disk.
    fn restart(&mut self) {
        (self.from, self.begun) = (0, 0);
        (self.reached_end, self.is_synced) = (false, false);
    }

    fn is_complete(&self) -> bool {
        self.reached_end && self.from >= self.begun
    }

    /// Trims the next range.
    fn go_on(&mut self, disk: &Disk) -> Result<(), Fault> {
        if !self.is_synced {
            disk.sync_trash()?;
            self.is_synced = true;
        }
        let start = Instant::now();
        match disk.trim(self.from)? {
            Some((range, bytes)) => self.trimmed(&range, bytes, start),
            None => self.end(),
        }
        Ok(())
    }

    /// Goes on behind a range whose trim began at `start`. A filesystem may trim more than the range.
    fn trimmed(&mut self, range: &Range<u64>, bytes: u64, start: Instant) {
        let bytes = bytes.max(range.end - range.start);
        self.from = range.end;
        self.due = start + Duration::from_secs(bytes.div_ceil(RATE));
    }

    /// Goes on at the start of the filesystem. One that shrank meanwhile ends before the first range.
    fn end(&mut self) {
        if self.reached_end {
            self.begun = 0;
        }
        self.from = 0;
        self.reached_end = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 5 << 29;

    /// A trim after a reclaim now, at this number of GiB.
    fn trim_from(from: u64) -> Trim {
        let mut trim = Trim::after(None, Instant::now());
        trim.from = from << 30;
        Trim::after(Some(&trim), Instant::now())
    }

    /// Trims the next range of a filesystem of this size; returns its start in GiB.
    fn go_on(trim: &mut Trim, size: u64) -> Option<u64> {
        if trim.from >= size {
            trim.end();
            return None;
        }
        let range = trim.from..trim.from + RATE;
        trim.trimmed(&range, 7, trim.due);
        Some(range.start >> 30)
    }

    /// The starts of the ranges until the trim is complete, in GiB.
    fn complete(trim: &mut Trim, size: u64) -> Vec<u64> {
        let mut starts = Vec::new();
        while !trim.is_complete() {
            starts.extend(go_on(trim, size));
        }
        starts
    }

    #[test]
    fn a_trim_covers_the_filesystem_once() {
        assert_eq!(complete(&mut trim_from(0), SIZE), [0, 1, 2]);
        assert_eq!(complete(&mut trim_from(2), SIZE), [2, 0, 1]);
    }

    #[test]
    fn reclaims_that_interrupt_a_trim_keep_no_part_from_its_turn() {
        let mut trim = trim_from(0);
        let mut starts = Vec::new();
        for _ in 0..6 {
            starts.extend(go_on(&mut trim, SIZE));
            trim = Trim::after(Some(&trim), Instant::now());
        }
        assert_eq!(starts, [0, 1, 2, 0, 1]);
        assert!(!trim.is_synced, "the last reclaim is not durable");
        assert_eq!(complete(&mut trim, SIZE), [2, 0, 1]);
    }

    #[test]
    fn the_ranges_keep_to_the_rate() {
        let reclaimed = Instant::now();
        let mut trim = Trim::after(None, reclaimed);
        assert_eq!(trim.due, reclaimed + DELAY);
        let start = trim.due + Duration::from_millis(300);
        // A part of a range, a range, and much more than the range.
        for (range, bytes, seconds) in [
            (0..4096, 0, 1),
            (4096..4096 + RATE, RATE, 1),
            (8 << 30..9 << 30, 20 * RATE + 1, 21),
        ] {
            trim.trimmed(&range, bytes, start);
            assert_eq!(trim.from, range.end);
            assert_eq!(trim.due, start + Duration::from_secs(seconds));
        }
        let due = trim.due;
        assert_eq!(Trim::after(Some(&trim), start).due, due);
        assert_eq!(Trim::after(Some(&trim), due).due, due + DELAY);
    }

    #[test]
    fn a_filesystem_that_shrinks_ends_the_trim() {
        assert_eq!(complete(&mut trim_from(2), 1 << 30), [0]);
    }

    #[test]
    fn another_disk_is_trimmed_from_its_start() {
        let mut trim = trim_from(1);
        go_on(&mut trim, SIZE);
        trim.is_synced = true;
        trim.restart();
        assert!(!trim.is_synced);
        assert_eq!(complete(&mut trim, SIZE), [0, 1, 2]);
    }
}
