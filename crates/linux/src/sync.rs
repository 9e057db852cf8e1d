//! Locks and threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::setpriority_process;

/// The lowest priority of a thread, by setpriority(2).
const LOWEST: i32 = 19;

/// Locks a mutex, even if a thread panicked while it had the lock: each change is complete in itself.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the calling thread the lowest priority among those of its control group. It must seldom take a lock, because
/// others wait while it has one and does not run.
pub fn lower_priority() -> Result<(), Errno> {
    // Linux has a priority for each thread, and without an id the call is about the calling one.
    setpriority_process(None, LOWEST)
}
