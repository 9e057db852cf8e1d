//! The threads that go through one tree together: whoever has nothing to do is given part of what
//! another has before it.

use std::ffi::CString;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// How many bytes of names are read at once.
const BUFFER: usize = 32 * 1024;

/// So few files are not worth giving away.
const MIN_SHARE: usize = 32;

/// A directory that is being gone through, and what the work holds of it.
#[derive(Debug)]
pub(super) struct Dir<T> {
    held: T,
    parent: Option<Arc<Dir<T>>>,
    /// How many jobs in it were given away and are not done.
    away: AtomicUsize,
}

impl<T> Dir<T> {
    pub(super) fn new(held: T, parent: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            held,
            parent,
            away: AtomicUsize::new(0),
        })
    }

    /// The directory it is in, if it is not the top.
    pub(super) fn parent(&self) -> Option<&Self> {
        self.parent.as_deref()
    }

    /// The directory right below the top that this one is in, or is.
    pub(super) fn below_top(&self) -> &Self {
        let mut dir = self;
        while let Some(parent) = dir.parent().filter(|above| above.parent.is_some()) {
            dir = parent;
        }
        dir
    }

    fn is_within(&self, other: &Arc<Self>) -> bool {
        let mut dir = self;
        loop {
            if std::ptr::eq(dir, Arc::as_ptr(other)) {
                return true;
            }
            match dir.parent() {
                Some(parent) => dir = parent,
                None => return false,
            }
        }
    }
}

impl<T> Deref for Dir<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T: AsFd> AsFd for Dir<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// An entry that is still to be met.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: CString,
    /// What it was when it was read, if the filesystem tells.
    pub(super) kind: FileType,
    /// The inode number it had then.
    pub(super) inode: u64,
}

impl Entry {
    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}

/// The next entries of a directory, as many as are read at once; nothing at its end.
pub(super) fn next_entries(dir: BorrowedFd<'_>) -> Result<Option<Vec<Entry>>, Errno> {
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut names = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut entries = Vec::new();
    let mut ended = true;
    while let Some(entry) = names.next() {
        ended = false;
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            entries.push(Entry {
                name: name.to_owned(),
                kind: entry.file_type(),
                inode: entry.ino(),
            });
        }
        if names.is_buffer_empty() {
            break;
        }
    }
    Ok((!ended).then_some(entries))
}

/// Entries of one directory, for whichever thread is free.
#[derive(Debug)]
pub(super) struct Job<T> {
    pub(super) dir: Arc<Dir<T>>,
    pub(super) entries: Vec<Entry>,
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct WorkQueue<T> {
    /// What the threads are called.
    name: &'static str,
    jobs: Mutex<Vec<Job<T>>>,
    changed: Condvar,
    /// How many threads wait for a job, less the jobs that wait for a thread.
    wanting: AtomicIsize,
    /// How many threads may still be started.
    reserve: AtomicUsize,
    over: AtomicBool,
}

impl<T: Send + Sync> WorkQueue<T> {
    /// A work queue for at most so many threads besides the first, with a name for them.
    pub(super) fn new(helpers: usize, name: &'static str) -> Self {
        Self {
            name,
            jobs: Mutex::new(Vec::new()),
            changed: Condvar::new(),
            wanting: AtomicIsize::new(0),
            reserve: AtomicUsize::new(helpers),
            over: AtomicBool::new(false),
        }
    }

    /// Whether somebody has nothing to do; asked before every entry, so it takes no lock.
    pub(super) fn wants(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) > 0 || self.reserve.load(Ordering::Relaxed) > 0
    }

    /// Gives part of what is left of a directory away: half of the last entries, which are met first
    /// to last, or a single directory, behind which there may be more than in all the files.
    pub(super) fn share<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        dir: &Arc<Dir<T>>,
        entries: &mut Vec<Entry>,
        does: impl Fn(Job<T>) + Send + 'scope,
    ) {
        let share = match entries.first() {
            _ if entries.len() >= MIN_SHARE => entries.len() / 2,
            Some(entry) if entry.is_dir() => 1,
            _ => return,
        };
        if self.recruits() {
            let helper = move || self.help(does);
            let name = self.name.to_owned();
            if let Err(error) = Builder::new().name(name).spawn_scoped(scope, helper) {
                tracing::warn!(%error, "cannot start a {} thread", self.name);
                // The work goes on without those that could not be started.
                self.reserve.store(0, Ordering::Relaxed);
                return;
            }
        }
        let kept = entries.split_off(share);
        self.offer(Job {
            dir: Arc::clone(dir),
            entries: std::mem::replace(entries, kept),
        });
    }

    /// Whether a thread is to be started for the next job.
    fn recruits(&self) -> bool {
        let one_less = |reserve: usize| reserve.checked_sub(1);
        self.wanting.load(Ordering::Relaxed) <= 0
            && self
                .reserve
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
                .is_ok()
    }

    /// Gives a job away.
    fn offer(&self, job: Job<T>) {
        let mut jobs = self.lock();
        job.dir.away.fetch_add(1, Ordering::Relaxed);
        jobs.push(job);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Does whatever is given away until the work is over.
    fn help(&self, does: impl Fn(Job<T>)) {
        while let Some(job) = self.next(|_| true, || self.over.load(Ordering::Relaxed)) {
            self.run(job, &does);
        }
    }

    /// Waits until nothing of a directory is given away any more, and lends a hand meanwhile, but
    /// only within that directory: so everybody waits for what is further down, and nobody in a
    /// circle.
    pub(super) fn gather(&self, dir: &Arc<Dir<T>>, does: impl Fn(Job<T>)) {
        // Whoever gives away more of it holds a job of it meanwhile, so 0 stays 0.
        if dir.away.load(Ordering::Acquire) == 0 {
            return;
        }
        let done = || dir.away.load(Ordering::Acquire) == 0;
        while let Some(job) = self.next(|job| job.dir.is_within(dir), done) {
            self.run(job, &does);
        }
    }

    /// The next job that suits, or nothing once there is no reason to wait.
    fn next(&self, suits: impl Fn(&Job<T>) -> bool, done: impl Fn() -> bool) -> Option<Job<T>> {
        let mut jobs = self.lock();
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let job = loop {
            if let Some(found) = jobs.iter().position(&suits) {
                self.wanting.fetch_add(1, Ordering::Relaxed);
                break Some(jobs.swap_remove(found));
            }
            if done() {
                break None;
            }
            jobs = self
                .changed
                .wait(jobs)
                .unwrap_or_else(PoisonError::into_inner);
        };
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        job
    }

    fn run(&self, job: Job<T>, does: impl Fn(Job<T>)) {
        // Also when it panics, or somebody would wait for ever.
        let _done = Done {
            queue: self,
            dir: Arc::clone(&job.dir),
        };
        does(job);
    }
}

impl<T> WorkQueue<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<Job<T>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a job as done when dropped.
struct Done<'a, T> {
    queue: &'a WorkQueue<T>,
    dir: Arc<Dir<T>>,
}

impl<T> Drop for Done<'_, T> {
    fn drop(&mut self) {
        let _jobs = self.queue.lock();
        self.dir.away.fetch_sub(1, Ordering::Release);
        self.queue.changed.notify_all();
    }
}

/// Ends the threads of a work queue when dropped.
pub(super) struct Over<'a, T>(pub(super) &'a WorkQueue<T>);

impl<T> Drop for Over<'_, T> {
    fn drop(&mut self) {
        let _jobs = self.0.lock();
        self.0.over.store(true, Ordering::Relaxed);
        self.0.changed.notify_all();
    }
}
