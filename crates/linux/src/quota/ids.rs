//! The quota ids of volumes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;

use rustix::io::Errno;

use crate::sync::lock;

use super::interface::Result;

/// The quota ids of the driver, which changes no others. People count up from 1, and the kubelet
/// from 1048577.
pub const OURS: Range<u32> = 1 << 30..1 << 31;

/// The quota ids that the driver uses. The kernel does not show an id that was just taken, or whose
/// limit is about to be lifted.
#[derive(Debug, Default)]
pub(super) struct QuotaIds(Mutex<BTreeSet<u32>>);

impl QuotaIds {
    /// Takes the lowest free id of [`OURS`] for which `take` returns true. The lowest, because XFS
    /// never frees the block of a quota id.
    ///
    /// An id to which other files are charged is skipped and stays free, because those files may be
    /// deleted.
    pub(super) fn take(&self, mut take: impl FnMut(u32) -> Result<bool>) -> Result<u32> {
        let mut from = OURS.start;
        loop {
            let id = self.reserve(from)?;
            match take(id) {
                Ok(true) => return Ok(id),
                refused => {
                    self.free(id);
                    refused?;
                    from = id + 1;
                }
            }
        }
    }

    /// Marks the lowest unused id from `from` on as used.
    fn reserve(&self, from: u32) -> Result<u32> {
        let mut used = lock(&self.0);
        let taken = used.range(from..).zip(from..);
        let last = taken.take_while(|(taken, id)| *taken == id).last();
        let id = last.map_or(from, |(_, id)| id + 1);
        if !OURS.contains(&id) {
            return Err(Errno::BUSY);
        }
        used.insert(id);
        Ok(id)
    }

    pub(super) fn note(&self, id: u32) {
        lock(&self.0).insert(id);
    }

    pub(super) fn free(&self, id: u32) {
        lock(&self.0).remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ours_and_each_is_taken_once() {
        let numbers = QuotaIds::default();
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            let id = numbers.take(|_| Ok(true)).unwrap();
            assert!(OURS.contains(&id), "{id}");
            assert!(seen.insert(id), "{id} twice");
        }
    }

    /// Proves: S18.
    #[test]
    fn the_lowest_free_number_is_taken() {
        let numbers = QuotaIds::default();
        numbers.note(OURS.start + 1);
        for expected in [0, 2, 3] {
            assert_eq!(numbers.take(|_| Ok(true)), Ok(OURS.start + expected));
        }
        numbers.free(OURS.start + 2);
        assert_eq!(numbers.take(|_| Ok(true)), Ok(OURS.start + 2));
    }

    #[test]
    fn however_many_are_in_use_elsewhere_the_next_is_found_and_none_is_remembered() {
        let numbers = QuotaIds::default();
        let id = numbers.take(|id| Ok(id >= OURS.start + 1000));
        assert_eq!(id, Ok(OURS.start + 1000));
        assert_eq!(numbers.take(|_| Ok(true)), Ok(OURS.start));
    }

    #[test]
    fn a_failure_frees_the_number() {
        let numbers = QuotaIds::default();
        assert_eq!(numbers.take(|_| Err(Errno::IO)), Err(Errno::IO));
        assert!(lock(&numbers.0).is_empty());
    }
}
