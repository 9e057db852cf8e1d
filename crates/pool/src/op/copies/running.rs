//! The copies that a pool makes file by file now, those that wait for their turn, and their sums since start.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use linux::sync::lock;

use crate::disk::error::Error;
use crate::op::caller::Caller;

/// The most copies that a pool makes file by file at once: each occupies threads and descriptors until it ends.
pub(crate) const COPIES_AT_ONCE: usize = 4;

/// The most copies that wait for their turn, because each occupies a thread.
pub const COPIES_WAITING: usize = 128;

/// How often a copy that waits asks whether its pools and its caller still wait for it.
const ASK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub struct Copies {
    stopped: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The files and directories copied since start.
    pub entries: AtomicU64,
    /// The disk usage of those, in bytes.
    pub bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    running: usize,
    /// The numbers of those that wait, in the order of their arrival.
    waiting: VecDeque<u64>,
    next: u64,
}

impl Copies {
    /// Waits for a turn, first come, first served, as long as the caller waits and `go_on` does not fail. Returns
    /// `None` if the turn did not come, or at once if as many as allowed wait already.
    pub(crate) fn turn(
        &self,
        caller: &Caller,
        go_on: &dyn Fn() -> Result<(), Error>,
    ) -> Result<Option<Turn<'_>>, Error> {
        go_on()?;
        let place = match self.join() {
            Joined::Runs(turn) => return Ok(Some(turn)),
            Joined::Waits(place) => place,
            Joined::Full => return Ok(None),
        };
        loop {
            let mut queue = lock(&self.queue);
            if caller.has_left() {
                return Ok(None);
            }
            let is_next = queue.waiting.front() == Some(&place.number);
            if is_next && queue.running < COPIES_AT_ONCE {
                queue.running += 1;
                return Ok(Some(Turn(self)));
            }
            let Some(time_left) = caller.time_left() else {
                return Ok(None);
            };
            // An error says that a thread panicked with the lock, which the next round takes all the same.
            drop(self.changed.wait_timeout(queue, time_left.min(ASK_EVERY)));
            go_on()?;
        }
    }

    /// Takes a turn if there is one and no other copy waits for it, even if the caller has left: such a copy does not wait.
    fn join(&self) -> Joined<'_> {
        let mut queue = lock(&self.queue);
        if queue.waiting.is_empty() && queue.running < COPIES_AT_ONCE {
            queue.running += 1;
            return Joined::Runs(Turn(self));
        }
        if queue.waiting.len() >= COPIES_WAITING {
            return Joined::Full;
        }
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back(number);
        Joined::Waits(Waiting {
            copies: self,
            number,
        })
    }

    /// The number of copies that are running, and of those that wait for their turn.
    pub(crate) fn count(&self) -> (usize, usize) {
        let queue = lock(&self.queue);
        (queue.running, queue.waiting.len())
    }

    /// Ends the running copies and those that wait; none begins after.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _queue = lock(&self.queue);
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// What a copy finds when it comes.
#[derive(Debug)]
enum Joined<'a> {
    Runs(Turn<'a>),
    Waits(Waiting<'a>),
    /// As many wait as may.
    Full,
}

/// The place of a copy among those that wait. When this is dropped, the next one is asked.
#[derive(Debug)]
struct Waiting<'a> {
    copies: &'a Copies,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.copies.queue);
        queue.waiting.retain(|number| *number != self.number);
        self.copies.changed.notify_all();
    }
}

/// One of the copies that may run at once.
#[derive(Debug)]
pub struct Turn<'a>(&'a Copies);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).running -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn until_waiting(copies: &Copies, count: usize) {
        while copies.count().1 < count {
            thread::yield_now();
        }
    }

    fn turn<'a>(copies: &'a Copies, caller: &Caller) -> Option<Turn<'a>> {
        copies.turn(caller, &|| Ok(())).unwrap()
    }

    #[test]
    fn the_first_to_come_is_the_first_to_be_served() {
        let (copies, caller) = (&Copies::default(), &Caller::default());
        let (served, order) = mpsc::channel();
        thread::scope(|scope| {
            let mut running: Vec<_> = (0..COPIES_AT_ONCE).map(|_| turn(copies, caller)).collect();
            for number in 1..=8 {
                let served = served.clone();
                scope.spawn(move || {
                    let turn = turn(copies, caller);
                    served.send((number, turn)).unwrap();
                });
                until_waiting(copies, number);
            }
            for expected in 1..=8 {
                assert!(order.try_recv().is_err(), "nobody is served before");
                running.remove(0);
                let (number, turn) = order.recv().unwrap();
                assert_eq!(number, expected);
                running.push(turn);
                assert_eq!(copies.count(), (COPIES_AT_ONCE, 8 - expected));
            }
        });
        assert_eq!(copies.count(), (0, 0));
    }

    #[test]
    fn one_that_gives_up_does_not_hold_up_the_next() {
        let (copies, caller) = (&Copies::default(), &Caller::default());
        let leaving = &Caller::default();
        thread::scope(|scope| {
            let mut running: Vec<_> = (0..COPIES_AT_ONCE).map(|_| turn(copies, caller)).collect();
            let left = scope.spawn(move || turn(copies, leaving).is_some());
            until_waiting(copies, 1);
            let next = scope.spawn(move || turn(copies, caller).is_some());
            until_waiting(copies, 2);
            leaving.leave();
            running.pop();
            assert!(!left.join().unwrap(), "nobody waits for it");
            assert!(next.join().unwrap());
        });
    }

    #[test]
    fn only_a_copy_that_waits_ends_with_its_caller() {
        let (copies, caller, left) = (&Copies::default(), &Caller::default(), &Caller::default());
        left.leave();
        let running: Vec<_> = (0..COPIES_AT_ONCE).map(|_| turn(copies, left)).collect();
        assert!(running.iter().all(Option::is_some), "they do not wait");
        assert!(turn(copies, left).is_none(), "it would wait");
        drop(running);
        assert!(turn(copies, caller).is_some());
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let (copies, caller) = (&Copies::default(), &Caller::default());
        let leaving = &Caller::default();
        thread::scope(|scope| {
            let running: Vec<_> = (0..COPIES_AT_ONCE).map(|_| turn(copies, caller)).collect();
            for _ in 0..COPIES_WAITING {
                scope.spawn(move || drop(turn(copies, leaving)));
            }
            until_waiting(copies, COPIES_WAITING);
            assert!(turn(copies, caller).is_none(), "one more");
            leaving.leave();
            drop(running);
        });
    }
}
