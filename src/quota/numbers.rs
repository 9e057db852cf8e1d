//! The numbers that stand for volumes in the kernel.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use uuid::Uuid;

/// The numbers that are the driver's. Others count up from 1 (people) or from 1048577 (the
/// kubelet); what they limit is never touched.
pub const OURS: Range<u32> = 1 << 30..1 << 31;

/// So many random numbers in use, one after the other, are no coincidence.
const ATTEMPTS: usize = 64;

/// The numbers known to be in use, the kernel's knowledge apart: one that was just taken, or one
/// whose limit is about to be lifted, may look free there.
#[derive(Debug, Default)]
pub(super) struct Numbers(Mutex<BTreeSet<u32>>);

impl Numbers {
    /// Takes a random number of ours for which `take` returns true.
    pub(super) fn take(
        &self,
        mut take: impl FnMut(u32) -> Result<bool, Errno>,
    ) -> Result<u32, Errno> {
        for _ in 0..ATTEMPTS {
            let random = Uuid::new_v4().as_fields().0;
            let id = OURS.start | (random & (OURS.start - 1));
            if !self.lock().insert(id) {
                continue;
            }
            match take(id) {
                Ok(true) => return Ok(id),
                // It is somebody's, and stays noted as such.
                Ok(false) => {}
                Err(errno) => {
                    self.free(id);
                    return Err(errno);
                }
            }
        }
        Err(Errno::BUSY)
    }

    /// Takes a number for in use.
    pub(super) fn note(&self, id: u32) {
        self.lock().insert(id);
    }

    /// Takes a number for free.
    pub(super) fn free(&self, id: u32) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ours_and_each_is_taken_once() {
        let numbers = Numbers::default();
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            let id = numbers.take(|_| Ok(true)).unwrap();
            assert!(OURS.contains(&id), "{id}");
            assert!(seen.insert(id), "{id} twice");
        }
    }

    #[test]
    fn what_is_in_use_is_passed_over() {
        let numbers = Numbers::default();
        let mut asked = Vec::new();
        let id = numbers.take(|id| {
            asked.push(id);
            Ok(asked.len() == 3)
        });
        assert_eq!(id, Ok(asked[2]));
        assert_eq!(asked.len(), 3);
    }

    #[test]
    fn a_failure_frees_the_number_and_there_is_an_end() {
        let numbers = Numbers::default();
        assert_eq!(numbers.take(|_| Err(Errno::IO)), Err(Errno::IO));
        assert!(numbers.lock().is_empty());
        assert_eq!(numbers.take(|_| Ok(false)), Err(Errno::BUSY));
    }
}
