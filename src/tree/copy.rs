//! Copies a tree that a pod owns, with everything that can be kept of it, while the pod may go on
//! changing it. Each file is as it was at one instant, the tree is not.

pub(super) mod attributes;
mod content;
mod fault;
pub(super) mod inode;
mod links;
mod sharing;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use rustix::fs::{FileType, IFlags, Statx};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Inode, Os};

use super::queue::{self, Entry, Job, Over, WorkQueue, next_entries};
use links::Links;

pub(crate) use fault::{CopyFault, Reason};
pub(crate) use sharing::can_share;

/// How many levels are copied: each holds two descriptors open.
const MAX_LEVELS: usize = 200;

/// How the content of files gets from one to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// The blocks are shared (`FICLONE`).
    Share,
    /// The bytes are copied, but not the holes.
    Copy,
}

/// Watches a copy: is told what was copied and says when to stop.
pub(crate) trait CopyWatch: Sync {
    /// One more entry, with the bytes it occupies at the source (counted once per hard-linked
    /// file).
    fn copied(&self, bytes: u64);
    /// Whether to stop here; asked before every entry, and again and again within a large file.
    fn stopped(&self) -> bool;
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// How many entries, at any depth.
    pub(crate) entries: u64,
    /// What the copy occupies, its top included, each file once however many names it has.
    pub(crate) bytes: u64,
    /// How many entries were gone, or of another kind, when their turn came.
    pub(crate) vanished: u64,
    /// How many attributes and flags, of those that are not a user's, the copy would not take.
    pub(crate) attributes_lost: u64,
}

/// How trees are to be copied.
pub(crate) struct Copying<'a> {
    pub(crate) os: &'a Os,
    pub(crate) transfer: Transfer,
    /// How many threads work at once.
    pub(crate) threads: usize,
    /// How long sharing a file's blocks may hold up its writers.
    pub(crate) max_stall: Option<Duration>,
    pub(crate) watch: &'a dyn CopyWatch,
}

impl Copying<'_> {
    /// Copies everything in `source`, and its own attributes, into the empty directory `target`.
    /// Both come from a guarded clone of their mount. Nothing is durable before the next syncfs.
    pub(crate) fn copy(&self, source: &OwnedFd, target: &OwnedFd) -> Result<Copied, CopyFault> {
        let top = Pair::top(source, target)?;
        if !os::is_empty(top.target.as_fd()).context("list the copy's directory")? {
            return Err(Fault::new("copy into a directory", Errno::NOTEMPTY).into());
        }
        let work = Work::new(self, target)?;
        let top = Dir::new(top, None);
        std::thread::scope(|scope| {
            let _over = Over(&work.queue);
            let worker = Worker { work: &work, scope };
            worker.fill(&top).unwrap_or_else(|reason| {
                let path = fault::path(&top, c"");
                work.fail(CopyFault { path, reason });
            });
        });
        let fault = work.fault.into_inner();
        if let Some(fault) = fault.unwrap_or_else(PoisonError::into_inner) {
            return Err(fault);
        }
        work.links.dissolve(target, self, &work.totals)?;
        let totals = work.totals;
        totals.give(self, &top.source, &top.original, &top.target, top.flags())?;
        Ok(totals.copied())
    }
}

/// A directory and its copy.
#[derive(Debug)]
struct Pair {
    source: Inode,
    target: Inode,
    /// What the directory was like before anything in it was read.
    original: Statx,
    name: CString,
    level: usize,
}

type Dir = queue::Dir<Pair>;

impl Pair {
    /// Opened anew, for the caller's descriptors may be read elsewhere.
    fn top(source: &OwnedFd, target: &OwnedFd) -> Result<Self, Fault> {
        let source = os::open_source_dir(source, ".").context("open the directory to copy")?;
        Ok(Self {
            original: os::statx(&source).context("look at the directory to copy")?,
            source: Inode::open(source),
            target: Inode::open(os::open_dir(target, ".").context("open the copy's directory")?),
            name: CString::default(),
            level: 0,
        })
    }

    fn flags(&self) -> IFlags {
        attributes::flags(&self.original)
    }
}

#[derive(Debug, Default)]
struct Totals {
    entries: AtomicU64,
    bytes: AtomicU64,
    vanished: AtomicU64,
    attributes_lost: AtomicU64,
}

impl Totals {
    fn copied(&self) -> Copied {
        Copied {
            entries: self.entries.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            vanished: self.vanished.load(Ordering::Relaxed),
            attributes_lost: self.attributes_lost.load(Ordering::Relaxed),
        }
    }

    /// Gives an inode the attributes of another, and adds up what it occupies.
    fn give(
        &self,
        copying: &Copying<'_>,
        source: &Inode,
        original: &Statx,
        target: &Inode,
        flags: IFlags,
    ) -> Result<(), Fault> {
        let given = attributes::give(copying.os, source, original, target)?;
        self.bytes.fetch_add(given.occupied, Ordering::Relaxed);
        self.lose(given.lost + attributes::protect(copying.os, target, flags)?);
        Ok(())
    }

    fn lose(&self, attributes: u64) {
        if attributes > 0 {
            self.attributes_lost
                .fetch_add(attributes, Ordering::Relaxed);
        }
    }
}

struct Work<'a> {
    copying: &'a Copying<'a>,
    links: Links,
    totals: Totals,
    /// Set with the fault, and when a thread panics.
    halted: AtomicBool,
    fault: Mutex<Option<CopyFault>>,
    queue: WorkQueue<Pair>,
}

impl<'a> Work<'a> {
    fn new(copying: &'a Copying<'a>, target: &OwnedFd) -> Result<Self, Fault> {
        Ok(Self {
            copying,
            links: Links::make(copying.os, target)?,
            totals: Totals::default(),
            halted: AtomicBool::new(false),
            fault: Mutex::new(None),
            queue: WorkQueue::new(copying.threads.saturating_sub(1), "copy-helper"),
        })
    }

    /// Has everybody stop; the first fault is the one that is told.
    fn fail(&self, fault: CopyFault) {
        let first = &self.fault;
        first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(fault);
        self.halted.store(true, Ordering::Relaxed);
    }

    fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: u64) {
        self.totals.entries.fetch_add(1, Ordering::Relaxed);
        self.copying.watch.copied(bytes);
    }

    /// What an attempt on an entry found; nothing if the entry is gone, or of another kind, which
    /// is noted.
    fn met<T>(
        &self,
        outcome: Result<Option<T>, Errno>,
        what: &'static str,
    ) -> Result<Option<T>, Fault> {
        match outcome {
            Ok(Some(value)) => return Ok(Some(value)),
            Ok(None)
            | Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::NXIO
                | Errno::NODEV
                | Errno::STALE,
            ) => {}
            Err(errno) => return Err(Fault::new(what, errno)),
        }
        self.totals.vanished.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }
}

/// Has everybody stop when its thread panics.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// One of the threads at work.
#[derive(Clone, Copy)]
struct Worker<'scope, 'env> {
    work: &'scope Work<'scope>,
    scope: &'scope Scope<'scope, 'env>,
}

impl Worker<'_, '_> {
    /// Copies what is in a directory, all of it unless the work is halted.
    fn fill(self, dir: &Arc<Dir>) -> Result<(), Reason> {
        let read = self.read(dir);
        let does = |job: Job<Pair>| self.copy_entries(&job.dir, job.entries);
        self.work.queue.gather(dir, does);
        read
    }

    fn read(self, dir: &Arc<Dir>) -> Result<(), Reason> {
        while !self.work.is_halted() {
            let read = match next_entries(dir.source.as_fd()) {
                // It was removed while it was read.
                Err(Errno::NOENT | Errno::STALE) => {
                    self.work.totals.vanished.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                read => read.context("list a directory")?,
            };
            let Some(mut entries) = read else { break };
            // The last is taken first: files, for directories are what is worth giving away. In the
            // order of the disk, threads keep to different parts of it: XFS locks each by itself.
            entries.sort_unstable_by_key(|entry| (!entry.is_dir(), Reverse(entry.inode)));
            self.copy_entries(dir, entries);
        }
        Ok(())
    }

    /// Copies entries of a directory, the last first, and gives some away to whoever is idle.
    fn copy_entries(self, dir: &Arc<Dir>, mut entries: Vec<Entry>) {
        let work = self.work;
        let _alarm = Alarm(&work.halted);
        while let Some(entry) = entries.pop() {
            if work.is_halted() {
                return;
            }
            if work.queue.wants() {
                let does = move |job: Job<Pair>| self.copy_entries(&job.dir, job.entries);
                work.queue.share(self.scope, dir, &mut entries, does);
            }
            let copied = if work.copying.watch.stopped() {
                Err(fault::stopped())
            } else {
                self.copy_entry(dir, &entry)
            };
            if let Err(reason) = copied {
                let path = fault::path(dir, &entry.name);
                return work.fail(CopyFault { path, reason });
            }
        }
    }

    fn copy_entry(self, dir: &Arc<Dir>, entry: &Entry) -> Result<(), Reason> {
        let name = OsStr::from_bytes(entry.name.as_bytes());
        let mut kind = entry.kind;
        if kind == FileType::Unknown {
            let seen = os::statx_at(&dir.source, name).map(|seen| Some(kind_of(&seen)));
            let Some(seen) = self.work.met(seen, "look at an entry")? else {
                return Ok(());
            };
            kind = seen;
        }
        let found = match kind {
            FileType::Directory => return self.copy_directory(dir, &entry.name),
            FileType::RegularFile => self.find_file(dir, name)?,
            _ => self.find_node(dir, name)?,
        };
        found.map_or(Ok(()), |found| self.copy_inode(dir, name, &found))
    }

    fn copy_directory(self, dir: &Arc<Dir>, entry: &CStr) -> Result<(), Reason> {
        let Some(child) = self.make_directory(dir, entry)? else {
            return Ok(());
        };
        self.fill(&child)?;
        if self.work.is_halted() {
            return Ok(());
        }
        let Pair {
            source,
            target,
            original,
            ..
        } = &**child;
        let Work {
            totals, copying, ..
        } = self.work;
        totals.give(copying, source, original, target, child.flags())?;
        self.work.count(occupied(original));
        Ok(())
    }

    /// Makes the copy of a directory, empty and for root alone.
    fn make_directory(self, dir: &Arc<Dir>, entry: &CStr) -> Result<Option<Arc<Dir>>, Reason> {
        let name = OsStr::from_bytes(entry.to_bytes());
        let source = os::open_source_dir(&dir.source, name).map(Some);
        let Some(source) = self.work.met(source, "open a directory")? else {
            return Ok(None);
        };
        let level = dir.level + 1;
        if level > MAX_LEVELS {
            return Err(Reason::TooDeep);
        }
        let original = os::statx(&source).context("look at a directory")?;
        let os = self.work.copying.os;
        match os.mkdir(&dir.target, name, 0o700) {
            Err(Errno::EXIST) => return Ok(None),
            made => made.context("make a directory")?,
        }
        let target = os::open_dir(&dir.target, name).context("open a copied directory")?;
        let pair = Pair {
            source: Inode::open(source),
            target: Inode::open(target),
            original,
            name: entry.to_owned(),
            level,
        };
        Ok(Some(Dir::new(pair, Some(Arc::clone(dir)))))
    }
}

fn kind_of(statx: &Statx) -> FileType {
    FileType::from_raw_mode(statx.stx_mode.into())
}

/// What an inode occupies, in bytes.
fn occupied(statx: &Statx) -> u64 {
    statx.stx_blocks.saturating_mul(512)
}
