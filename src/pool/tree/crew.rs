//! The threads that remove one tree together: whoever has nothing to do is given part of what
//! another has before it.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A directory that is being emptied.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    parent: Option<Arc<Dir>>,
    /// How many jobs in it were given away and are not done.
    away: AtomicUsize,
    progress: AtomicBool,
}

impl Dir {
    pub(super) fn new(fd: OwnedFd, parent: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            fd,
            parent,
            away: AtomicUsize::new(0),
            progress: AtomicBool::new(false),
        })
    }

    /// Notes that an entry is gone.
    pub(super) fn advance(&self) {
        self.progress.store(true, Ordering::Relaxed);
    }

    /// Whether an entry is gone since this was asked last.
    pub(super) fn has_advanced(&self) -> bool {
        self.progress.swap(false, Ordering::Relaxed)
    }

    /// The directory right below the top that this one is in, or is.
    pub(super) fn below_top(&self) -> &Self {
        let mut dir = self;
        while let Some(parent) = dir.parent.as_deref().filter(|above| above.parent.is_some()) {
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
            match &dir.parent {
                Some(parent) => dir = parent,
                None => return false,
            }
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An entry that is to go.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) is_dir: bool,
}

/// Entries of one directory, for whichever thread is free.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) dir: Arc<Dir>,
    pub(super) entries: Vec<Entry>,
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct Crew {
    jobs: Mutex<Vec<Job>>,
    changed: Condvar,
    /// How many threads wait for a job, less the jobs that wait for a thread.
    wanting: AtomicIsize,
    /// How many threads may still be started.
    reserve: AtomicUsize,
    over: AtomicBool,
}

impl Crew {
    /// A crew of at most so many threads besides the first.
    pub(super) fn new(helpers: usize) -> Self {
        Self {
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

    /// Whether a thread is to be started for the next job; then it must be, or [`Crew::dismiss`]ed.
    pub(super) fn recruits(&self) -> bool {
        let one_less = |reserve: usize| reserve.checked_sub(1);
        self.wanting.load(Ordering::Relaxed) <= 0
            && self
                .reserve
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
                .is_ok()
    }

    /// Goes on without the threads that could not be started.
    pub(super) fn dismiss(&self) {
        self.reserve.store(0, Ordering::Relaxed);
    }

    /// Gives a job away.
    pub(super) fn offer(&self, job: Job) {
        let mut jobs = self.lock();
        job.dir.away.fetch_add(1, Ordering::Relaxed);
        jobs.push(job);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Does whatever is given away until the work is over.
    pub(super) fn help(&self, does: impl Fn(Job)) {
        while let Some(job) = self.next(|_| true, || self.over.load(Ordering::Relaxed)) {
            self.run(job, &does);
        }
    }

    /// Waits until nothing of a directory is given away any more, and lends a hand meanwhile, but
    /// only within that directory: so everybody waits for what is further down, and nobody in a
    /// circle.
    pub(super) fn gather(&self, dir: &Arc<Dir>, does: impl Fn(Job)) {
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
    fn next(&self, suits: impl Fn(&Job) -> bool, done: impl Fn() -> bool) -> Option<Job> {
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

    fn run(&self, job: Job, does: impl Fn(Job)) {
        // Also when it panics, or somebody would wait for ever.
        let _done = Done {
            crew: self,
            dir: Arc::clone(&job.dir),
        };
        does(job);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a job as done when dropped.
struct Done<'a> {
    crew: &'a Crew,
    dir: Arc<Dir>,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let _jobs = self.crew.lock();
        self.dir.away.fetch_sub(1, Ordering::Release);
        self.crew.changed.notify_all();
    }
}

/// Sends a crew home when dropped.
pub(super) struct Over<'a>(pub(super) &'a Crew);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let _jobs = self.0.lock();
        self.0.over.store(true, Ordering::Relaxed);
        self.0.changed.notify_all();
    }
}
