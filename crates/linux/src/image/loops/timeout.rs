//! Calls that the kernel may never answer, because the filesystem of a device's file is somebody else's. Each
//! runs in a thread of its own, and is awaited for some seconds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::os::FileId;
use crate::sync::lock;

use super::device::{Loop, identify};

/// The time in which a device has to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The devices that have not answered yet, and when each was asked. Only one thread asks a device, so that
/// those that never answer do not use up the threads.
static ASKED: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());
static ANSWERED: Condvar = Condvar::new();

/// Opens a device, and returns the result of `see` for it and the identity of its file. ENXIO: it has none.
/// ETIMEDOUT: no answer.
pub(super) fn ask<T: Send + 'static>(
    name: &str,
    see: impl FnOnce(Loop, FileId) -> T + Send + 'static,
) -> Result<T, Errno> {
    in_time(name, identify(name.to_owned(), see))
}

/// Asks devices at once, so that no call waits for one after the other. Each has the path of its file.
pub(super) fn ask_all<T: Send + 'static>(
    devices: Vec<(String, PathBuf)>,
    see: impl Fn(Loop, FileId) -> T + Copy + Send + 'static,
) -> Vec<(String, PathBuf, Result<T, Errno>)> {
    let start = Instant::now();
    let begin_asking = |name: &str| {
        let asked = lock(&ASKED);
        if asked.contains_key(name) {
            return Ok(None);
        }
        begin(asked, name, identify(name.to_owned(), see)).map(Some)
    };
    let asked = devices.into_iter().map(|(name, file)| {
        let begun = begin_asking(&name);
        (name, file, begun)
    });
    let asked: Vec<_> = asked.collect();
    let answers = asked.into_iter().map(|(name, file, begun)| {
        let answer = match begun {
            Ok(Some(outcome)) => receive(&outcome, TIMEOUT.saturating_sub(start.elapsed())),
            // Another call waits for it.
            Ok(None) => ask(&name, see),
            Err(errno) => Err(errno),
        };
        (name, file, answer)
    });
    answers.collect()
}

/// Acts on a device as soon as no other call does. ETIMEDOUT: the device does not answer.
pub(super) fn in_time<T: Send + 'static>(
    name: &str,
    act: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    let mut asked = lock(&ASKED);
    while let Some(since) = asked.get(name) {
        let left = TIMEOUT.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let woken = ANSWERED.wait_timeout(asked, left);
        (asked, _) = woken.unwrap_or_else(PoisonError::into_inner);
    }
    receive(&begin(asked, name, act)?, TIMEOUT)
}

/// Acts on a device in a thread of its own, because the kernel may wait for the filesystem of its file.
/// EAGAIN: there is no thread.
fn begin<T: Send + 'static>(
    mut asked: MutexGuard<'_, BTreeMap<String, Instant>>,
    name: &str,
    act: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<Receiver<Result<T, Errno>>, Errno> {
    asked.insert(name.to_owned(), Instant::now());
    drop(asked);
    let (done, outcome) = mpsc::channel();
    let named = thread::Builder::new().name(name.to_owned());
    let asked = name.to_owned();
    let started = named.spawn(move || {
        let answer = act();
        lock(&ASKED).remove(&asked);
        ANSWERED.notify_all();
        // After the timeout nobody receives it.
        let _ = done.send(answer);
    });
    if let Err(error) = started {
        lock(&ASKED).remove(name);
        ANSWERED.notify_all();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
    }
    Ok(outcome)
}

fn receive<T>(outcome: &Receiver<Result<T, Errno>>, timeout: Duration) -> Result<T, Errno> {
    outcome
        .recv_timeout(timeout)
        .unwrap_or(Err(Errno::TIMEDOUT))
}
