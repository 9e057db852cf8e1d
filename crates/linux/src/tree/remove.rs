//! Removes trees of any depth with bounded memory and few descriptors.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use uuid::Uuid;

use crate::fault::{Fault, InContext};
use crate::filesystem::RemovalPolicy;
use crate::os::{self, At, Os};

use super::entries::{Entry, next_entries};
use super::threads::Threads;

/// The levels that a thread holds open. A deeper directory is moved to the top first.
const MAX_DEPTH: usize = 48;

/// The most attempts on one directory. A filesystem may skip entries of a directory that shrinks
/// while it is read, and a process that has the directory open may go on filling it.
const MAX_PASSES: usize = 100;

pub trait Watch: Sync {
    /// Called for every entry that was removed.
    fn removed(&self) {}
    /// Whether to stop. The rest of the tree stays.
    fn stopped(&self) -> bool {
        false
    }
}

struct NoWatch;

impl Watch for NoWatch {}

/// Removes the tree `name` in `dir`. An absent tree is a fault: somebody else moved or removed it.
pub fn remove(os: &Os, dir: BorrowedFd<'_>, name: impl AsRef<OsStr>) -> Result<(), Fault> {
    let name = name.as_ref();
    let top = os::open_dir(dir, name).context("open a directory to remove")?;
    empty(os, &top, None, RemovalPolicy::PLAIN, &NoWatch)?;
    os.rmdir(dir, name).context("remove a directory")
}

/// As [`remove`], for a tree that may be absent.
pub fn remove_any(os: &Os, dir: BorrowedFd<'_>, name: &str) -> Result<(), Fault> {
    match os::open_dir(dir, name) {
        Err(Errno::NOENT) => Ok(()),
        _ => remove(os, dir, name),
    }
}

/// Removes everything in `top` except the entry `keep`. An entry that cannot be removed does not
/// stop the rest; the first fault is returned at the end.
pub fn empty(
    os: &Os,
    top: &OwnedFd,
    keep: Option<&str>,
    policy: RemovalPolicy,
    watch: &dyn Watch,
) -> Result<(), Fault> {
    let top = rustix::io::fcntl_dupfd_cloexec(top, 0).context("hold a directory")?;
    let top = Dir::new(top, None);
    let removal = Removal {
        os,
        top: &top,
        keep: keep.map(OsStr::new),
        policy,
        moved: AtomicBool::new(false),
        fault: OnceLock::new(),
        watch,
        threads: Threads::new(policy.threads, "reclaim-helper"),
    };
    removal.empty_top()?;
    removal.fault.into_inner().map_or(Ok(()), Err)
}

/// A directory that is being emptied.
#[derive(Debug)]
struct Dir<'a> {
    fd: OwnedFd,
    parent: Option<&'a Dir<'a>>,
    /// Whether an entry was removed in this pass.
    shrunk: AtomicBool,
}

impl<'a> Dir<'a> {
    fn new(fd: OwnedFd, parent: Option<&'a Self>) -> Self {
        let shrunk = AtomicBool::new(false);
        Self { fd, parent, shrunk }
    }

    /// The ancestor directly below the top, or the directory itself.
    fn below_top(&self) -> &Dir<'a> {
        match self.parent {
            Some(parent) if parent.parent.is_some() => parent.below_top(),
            _ => self,
        }
    }
}

impl AsFd for Dir<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

struct Removal<'a> {
    os: &'a Os,
    top: &'a Dir<'a>,
    keep: Option<&'a OsStr>,
    policy: RemovalPolicy,
    /// Whether a directory was moved to the top since the last pass over the top.
    moved: AtomicBool,
    /// The first fault.
    fault: OnceLock<Fault>,
    watch: &'a dyn Watch,
    threads: Threads,
}

impl Removal<'_> {
    fn empty_top(&self) -> Result<(), Fault> {
        loop {
            for _ in 0..MAX_PASSES {
                if !self.pass(self.top, 0)? {
                    break;
                }
            }
            if !self.moved.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Attempts every entry of a directory once; whether one of them was removed. A fault of an
    /// entry is noted, any other ends the pass.
    fn pass(&self, dir: &Dir<'_>, depth: usize) -> Result<bool, Fault> {
        const LIST: &str = "list a directory";
        rustix::fs::seek(dir, SeekFrom::Start(0)).context(LIST)?;
        while let Some(mut entries) = next_entries(dir.as_fd()).context(LIST)? {
            if depth == 0 {
                entries.retain(|entry| self.keep != Some(entry.name()));
            }
            if !self.policy.backwards {
                entries.reverse();
            }
            // Files last, so they are removed first, and directories are left for other threads.
            entries.sort_by_key(|entry| !entry.is_dir());
            self.threads
                .for_each(entries, &|entry| self.remove_entry(dir, entry, depth));
            if self.watch.stopped() {
                return Err(Fault::new("go on: stopped", Errno::CANCELED));
            }
        }
        Ok(dir.shrunk.swap(false, Ordering::Relaxed))
    }

    /// Removes one entry with everything below it, unless the removal is to stop.
    fn remove_entry(&self, dir: &Dir<'_>, entry: &Entry, depth: usize) {
        if self.watch.stopped() {
            return;
        }
        let name = entry.name();
        let removed = if entry.is_dir() {
            self.remove_directory(dir, name, depth)
        } else {
            match self.unlink(dir, name) {
                Err(Errno::ISDIR) => self.remove_directory(dir, name, depth),
                removed => removed,
            }
        };
        match removed {
            Ok(()) => dir.shrunk.store(true, Ordering::Relaxed),
            Err(Errno::NOENT) => {}
            Err(errno) => {
                self.fault
                    .get_or_init(|| Fault::new("remove an entry", errno));
            }
        }
    }

    fn unlink(&self, dir: &Dir<'_>, name: &OsStr) -> Result<(), Errno> {
        self.insist(dir, name, || self.os.unlink(dir, name))?;
        self.watch.removed();
        Ok(())
    }

    fn remove_directory(&self, dir: &Dir<'_>, name: &OsStr, depth: usize) -> Result<(), Errno> {
        if depth >= MAX_DEPTH {
            return self.move_up(dir, name);
        }
        let child = match os::open_dir(dir, name) {
            Ok(child) => Dir::new(child, Some(dir)),
            // Another entry has replaced it since the directory was read.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.unlink(dir, name),
            Err(errno) => return Err(errno),
        };
        if self.policy.has_subvolumes && os::is_subvolume(&child)? {
            // A pod may have made the subvolume read-only.
            self.os.clear_read_only(&child)?;
            if depth > 0 {
                return self.move_up(dir, name);
            }
        }
        for _ in 0..MAX_PASSES {
            let shrunk = self.pass(&child, depth + 1).map_err(|fault| fault.errno)?;
            match self.insist(dir, name, || self.os.rmdir(dir, name)) {
                Err(Errno::NOTEMPTY | Errno::EXIST) if shrunk => {}
                removed => {
                    removed?;
                    self.watch.removed();
                    return Ok(());
                }
            }
        }
        Err(Errno::NOTEMPTY)
    }

    /// Moves a directory that is too deep to the top, where another pass removes it. Only a
    /// subvolume can be moved out of a subvolume. Subvolumes are moved wherever they are found, so
    /// the subvolume that contains the directory is directly below the top.
    fn move_up(&self, dir: &Dir<'_>, name: &OsStr) -> Result<(), Errno> {
        let unique = format!("deep-{}", Uuid::new_v4().simple());
        let move_to = |target: &Dir<'_>| {
            self.insist(dir, name, || {
                self.os
                    .rename(At::new(&dir, name), At::new(&target, &unique))
            })
        };
        match move_to(self.top) {
            Err(Errno::XDEV) => move_to(dir.below_top()),
            moved => {
                moved?;
                self.moved.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Attempts a change to an entry, and again after it cleared the flags that protect the entry.
    fn insist(
        &self,
        dir: &Dir<'_>,
        name: &OsStr,
        change: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match change() {
            Err(Errno::PERM | Errno::ACCESS) => {
                if let Err(errno) = self.unprotect(dir, name) {
                    tracing::debug!(%errno, "cannot clear the flags of a protected entry");
                }
                change()
            }
            changed => changed,
        }
    }

    /// Clears the immutable and append-only flags of an entry and of its directory.
    fn unprotect(&self, dir: &Dir<'_>, name: &OsStr) -> Result<(), Errno> {
        self.os.clear_flags(dir)?;
        // Only files and directories have flags, and only those are opened.
        os::open_protected(dir, name)?.map_or(Ok(()), |entry| self.os.clear_flags(entry))
    }
}
