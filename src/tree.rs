//! Trees that pods own: removed, copied and measured by directory descriptors, following no link and
//! crossing no mount, at any depth. The descriptors come from a guarded clone of the pool.

mod copy;
mod queue;
mod tag;
mod weigh;

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use uuid::Uuid;

use crate::fault::{Fault, InContext};
use crate::filesystem::RemovalPolicy;
use crate::os::{self, Os};

use queue::{Entry, Job, Over, WorkQueue, next_entries};

pub(crate) use copy::{CopyFault, CopyWatch, Copying, Reason as CopyReason, Transfer, can_share};
pub(crate) use tag::Tagging;
pub(crate) use weigh::{LinkCount, Seen, Weight, weigh};

/// How many levels a thread holds open at once; what is deeper is moved up first, so depth costs
/// neither descriptors nor stack.
const MAX_DEPTH: usize = 48;

/// How often a directory is read again: a filesystem may pass over entries of one that shrinks
/// while it is read, and a process that still holds it open may go on filling it.
const MAX_PASSES: usize = 100;

/// So few names do not fill what is read at once, however long they are: they are all there is.
const CERTAINLY_ALL: usize = 64;

/// Which names of a directory a pass reads. What resisted is not met again before all were read,
/// or every level would double the work of the one below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The first, and the rest only if they are many.
    Few,
    /// What was not read yet.
    Rest,
    /// All, from the beginning.
    Anew,
}

/// Watches a removal: counts what is gone and says when to stop.
pub(crate) trait Watch: Sync {
    /// Called for every entry removed.
    fn removed(&self);
    /// Whether to stop here; what is left is left for another time.
    fn stopped(&self) -> bool;
}

/// Watches nothing.
struct NoWatch;

impl Watch for NoWatch {
    fn removed(&self) {}
    fn stopped(&self) -> bool {
        false
    }
}

/// Removes the tree `name` in `dir`.
pub(crate) fn remove(os: &Os, dir: BorrowedFd<'_>, name: &str) -> Result<(), Fault> {
    let top = os::open_dir(dir, name).context("open a directory to remove")?;
    empty(os, &top, None, RemovalPolicy::PLAIN, &NoWatch)?;
    os.rmdir(dir, name).context("remove a directory")
}

/// Removes everything in `top` but the entry called `keep`. What resists does not stop the rest;
/// the first fault is returned at the end.
pub(crate) fn empty(
    os: &Os,
    top: &OwnedFd,
    keep: Option<&str>,
    manner: RemovalPolicy,
    watch: &dyn Watch,
) -> Result<(), Fault> {
    let top = rustix::io::fcntl_dupfd_cloexec(top, 0).context("hold a directory")?;
    let removal = Removal {
        os,
        top: Dir::new(Emptied::new(top), None),
        manner,
        hoisted: AtomicBool::new(false),
        fault: Mutex::new(None),
        watch,
        queue: WorkQueue::new(manner.threads.saturating_sub(1), "reclaim-helper"),
    };
    std::thread::scope(|scope| {
        let _over = Over(&removal.queue);
        let worker = Worker {
            removal: &removal,
            scope,
        };
        worker.empty_top(keep)
    })?;
    let fault = removal.fault.into_inner();
    fault
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}

type Dir = queue::Dir<Emptied>;

/// A directory that is being emptied.
#[derive(Debug)]
struct Emptied {
    fd: OwnedFd,
    progress: AtomicBool,
}

impl Emptied {
    fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            progress: AtomicBool::new(false),
        }
    }

    /// Notes that an entry is gone.
    fn advance(&self) {
        self.progress.store(true, Ordering::Relaxed);
    }

    /// Whether an entry is gone since this was asked last.
    fn has_advanced(&self) -> bool {
        self.progress.swap(false, Ordering::Relaxed)
    }
}

impl AsFd for Emptied {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

struct Removal<'a> {
    os: &'a Os,
    top: Arc<Dir>,
    manner: RemovalPolicy,
    hoisted: AtomicBool,
    fault: Mutex<Option<Fault>>,
    watch: &'a dyn Watch,
    queue: WorkQueue<Emptied>,
}

/// One of the threads at work.
#[derive(Clone, Copy)]
struct Worker<'scope, 'env> {
    removal: &'scope Removal<'scope>,
    scope: &'scope Scope<'scope, 'env>,
}

impl Worker<'_, '_> {
    fn empty_top(self, keep: Option<&str>) -> Result<(), Fault> {
        let top = &self.removal.top;
        loop {
            for _ in 0..MAX_PASSES {
                self.pass(top, keep, 0, Reading::Anew)?;
                if !top.has_advanced() {
                    break;
                }
            }
            if !self.removal.hoisted.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Goes once through a directory; an error means to stop, a fault is only noted.
    fn pass(
        self,
        dir: &Arc<Dir>,
        keep: Option<&str>,
        depth: usize,
        reading: Reading,
    ) -> Result<(), Fault> {
        let passed = self.read(dir, keep, depth, reading);
        self.removal
            .queue
            .gather(dir, |job| self.work(&job.dir, job.entries, depth + 1));
        if self.removal.watch.stopped() {
            return Err(Fault::new("go on: stopped", Errno::CANCELED));
        }
        passed
    }

    fn read(
        self,
        dir: &Arc<Dir>,
        keep: Option<&str>,
        depth: usize,
        reading: Reading,
    ) -> Result<(), Fault> {
        let listing = "list a directory";
        if reading == Reading::Anew {
            rustix::fs::seek(dir.as_fd(), SeekFrom::Start(0)).context(listing)?;
        }
        while let Some(mut entries) = next_entries(dir.as_fd()).context(listing)? {
            entries
                .retain(|entry| keep.is_none_or(|keep| keep.as_bytes() != entry.name.as_bytes()));
            let all = reading == Reading::Few && entries.len() < CERTAINLY_ALL;
            // The last is taken first.
            if !self.removal.manner.backwards {
                entries.reverse();
            }
            // Files first: directories are what is worth giving away.
            entries.sort_by_key(|entry| !entry.is_dir());
            self.work(dir, entries, depth);
            if all || self.removal.watch.stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Removes entries of a directory, the last first, and gives some away to whoever is idle.
    fn work(self, dir: &Arc<Dir>, mut entries: Vec<Entry>, depth: usize) {
        while let Some(entry) = entries.pop() {
            if self.removal.watch.stopped() {
                return;
            }
            if self.removal.queue.wants() {
                let does = move |job: Job<Emptied>| self.work(&job.dir, job.entries, 0);
                self.removal
                    .queue
                    .share(self.scope, dir, &mut entries, does);
            }
            if self.remove_entry(dir, &entry, depth) {
                dir.advance();
            }
        }
    }

    /// Removes one entry with all that is below it; whether it is gone from its directory.
    fn remove_entry(self, dir: &Arc<Dir>, entry: &Entry, depth: usize) -> bool {
        let name = entry.name.as_c_str();
        let outcome = if entry.is_dir() {
            self.remove_directory(dir, name, depth)
        } else {
            match self.unlink(dir, name) {
                Err(Errno::ISDIR) => self.remove_directory(dir, name, depth),
                outcome => outcome,
            }
        };
        match outcome {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => {
                let fault = &self.removal.fault;
                fault
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(Fault::new("remove an entry", errno));
                false
            }
        }
    }

    fn unlink(self, dir: &Arc<Dir>, name: &CStr) -> Result<(), Errno> {
        let name = OsStr::from_bytes(name.to_bytes());
        self.removal
            .insist(dir, name, || self.removal.os.unlink(dir.as_fd(), name))?;
        self.removal.watch.removed();
        Ok(())
    }

    fn remove_directory(self, dir: &Arc<Dir>, name: &CStr, depth: usize) -> Result<(), Errno> {
        let path = OsStr::from_bytes(name.to_bytes());
        if depth >= MAX_DEPTH {
            return self.removal.hoist(dir, path);
        }
        let child = match os::open_dir(dir.as_fd(), path) {
            Ok(child) => Dir::new(Emptied::new(child), Some(Arc::clone(dir))),
            // Something else has taken its place since it was read.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.unlink(dir, name),
            Err(errno) => return Err(errno),
        };
        if self.removal.manner.has_subvolumes && os::is_subvolume(&child)? {
            // A pod may have left it read-only as a whole.
            self.removal.os.clear_read_only(&child)?;
            if depth > 0 {
                return self.removal.hoist(dir, path);
            }
        }
        let mut advanced = false;
        for pass in 0..MAX_PASSES {
            let reading = match pass {
                0 => Reading::Few,
                1 => Reading::Rest,
                _ => Reading::Anew,
            };
            self.pass(&child, None, depth + 1, reading)
                .map_err(|fault| fault.errno)?;
            advanced |= child.has_advanced();
            let removed = self
                .removal
                .insist(dir, path, || self.removal.os.rmdir(dir.as_fd(), path));
            match removed {
                // That it is empty, only the filesystem knows.
                Err(Errno::NOTEMPTY | Errno::EXIST) if pass == 0 => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if advanced => advanced = false,
                outcome => {
                    outcome?;
                    self.removal.watch.removed();
                    return Ok(());
                }
            }
        }
        Err(Errno::NOTEMPTY)
    }
}

impl Removal<'_> {
    /// Moves a directory that is too deep to the top, where another pass finds it. Out of a
    /// subvolume only other subvolumes can be moved; those are moved wherever they are found, so
    /// that what holds the rest is right below the top.
    fn hoist(&self, dir: &Arc<Dir>, name: &OsStr) -> Result<(), Errno> {
        let place = format!("deep-{}", Uuid::new_v4().simple());
        let hoist = |above: &Dir| {
            let renamed = || self.os.rename((dir.as_fd(), name), (above.as_fd(), &place));
            self.insist(dir, name, renamed)
        };
        match hoist(&self.top) {
            Ok(()) => {
                self.hoisted.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(Errno::XDEV) => hoist(dir.below_top()),
            Err(errno) => Err(errno),
        }
    }

    /// Tries a change to an entry, and again after clearing what protects it.
    fn insist(
        &self,
        dir: &Dir,
        name: &OsStr,
        change: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match change() {
            Err(Errno::PERM | Errno::ACCESS) => {
                self.unprotect(dir.as_fd(), name);
                change()
            }
            outcome => outcome,
        }
    }

    /// Clears what makes an entry resist: the immutable and append-only flags of the entry and of
    /// its directory. Only files and directories carry them, and only those are opened.
    fn unprotect(&self, dir: BorrowedFd<'_>, name: &OsStr) {
        let cleared = self.os.clear_flags(dir).and_then(|()| {
            os::open_protected(dir, name)?.map_or(Ok(()), |entry| self.os.clear_flags(entry))
        });
        if let Err(errno) = cleared {
            tracing::debug!(%errno, "cannot clear the flags of a protected entry");
        }
    }
}
