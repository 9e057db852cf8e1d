//! Copies a tree with all its attributes while the pod may go on changing it. Each file is as it
//! was at one instant; the tree is not.

pub(super) mod attributes;
mod content;
mod dir;
mod fault;
pub(super) mod inode;
mod job;
mod links;
mod sharing;
pub(super) mod source;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rustix::fs::{FileType, IFlags};
use rustix::io::Errno;
use uuid::Uuid;

use crate::fault::{Fault, InContext};
use crate::filesystem::Filesystem;
use crate::os::{self};
use crate::sync::lock;

use super::entries::{Entry, next_entries};
use super::threads::Threads;
use dir::Dir;
use source::occupied;

pub use attributes::Attributes;
pub use dir::MAX_LEVELS;
pub use fault::{CopyFault, Reason};
pub use inode::Node;
use job::Copied;
pub use job::{CopyWatch, Copying, Transfer};
use links::Links;
pub use sharing::can_share;
pub use source::Source;

impl Copying<'_> {
    /// Copies everything in `source`, and its own attributes, into the empty directory `target`.
    /// Both come from a guarded clone of their mount. Nothing is durable before the next syncfs.
    pub fn copy(&self, source: &OwnedFd, target: &OwnedFd) -> Result<Copied, CopyFault> {
        let top = Dir::top(source, target)?;
        if !os::is_empty(top.target.as_fd()).context("list the copy's directory")? {
            return Err(Fault::new("copy into a directory", Errno::NOTEMPTY).into());
        }
        let links = format!(".rootcellar-links-{}", Uuid::new_v4().simple());
        self.os
            .mkdir(&top.target, &links, 0o700)
            .context("make a directory for links")?;
        let dir = os::open_dir(&top.target, &links).context("open the directory for links")?;
        let work = Work::new(self, &top, Links::new(dir))?;
        work.keep_in_place(&top.source, &top.target)?;
        if let Err(reason) = work.fill(&top) {
            work.fail(&top, OsStr::new(""), reason);
        }
        if let Some(fault) = work.fault.get() {
            return Err(fault.clone());
        }
        work.links.finish(self.os, self.watch)?;
        self.os
            .rmdir(target, &links)
            .context("remove the directory for links")?;
        work.give(&top.source, &top.target, top.source.flags())?;
        let copied = *work.copied();
        Ok(copied)
    }
}

struct Work<'a> {
    copying: &'a Copying<'a>,
    links: Links,
    /// Held while a file with several names is copied for the first time.
    first: Mutex<()>,
    /// Whether both filesystems may rewrite files in place or not, as btrfs.
    may_keep_in_place: bool,
    copied: Mutex<Copied>,
    /// The first fault. It ends the work of all threads.
    fault: OnceLock<CopyFault>,
    threads: Threads,
}

impl<'a> Work<'a> {
    fn new(copying: &'a Copying<'a>, top: &Dir<'_>, links: Links) -> Result<Self, Fault> {
        let copies_on_write = |dir: &OwnedFd| {
            let filesystem = Filesystem::of(dir).context("find the filesystem of a directory");
            Ok(filesystem?.copies_on_write())
        };
        Ok(Self {
            copying,
            links,
            first: Mutex::new(()),
            may_keep_in_place: copies_on_write(&top.source.inode)? && copies_on_write(&top.target)?,
            copied: Mutex::default(),
            fault: OnceLock::new(),
            threads: Threads::new(copying.threads, "copy-helper"),
        })
    }

    fn fail(&self, dir: &Dir<'_>, name: &OsStr, reason: Reason) {
        let path = fault::path(dir, name);
        self.fault.get_or_init(|| CopyFault { path, reason });
    }

    fn failed(&self) -> bool {
        self.fault.get().is_some()
    }

    fn copied(&self) -> MutexGuard<'_, Copied> {
        lock(&self.copied)
    }

    /// Announces an entry before its content is copied.
    fn begin(&self, source: &Source) -> Result<(), Reason> {
        let watch = self.copying.watch;
        watch.begins(occupied(&source.status));
        if watch.stopped() {
            return Err(fault::stopped());
        }
        Ok(())
    }

    fn count(&self, bytes: u64) {
        self.copied().entries += 1;
        self.copying.watch.copied(bytes);
    }

    /// Has an empty copy rewritten in place if its source is. It inherits that from its directory, which may
    /// differ, and files that differ cannot share blocks.
    fn keep_in_place(&self, source: &Source, target: &OwnedFd) -> Result<(), Fault> {
        if !self.may_keep_in_place {
            return Ok(());
        }
        let kept = self.copying.os.keep_in_place_as(target, &source.inode);
        kept.context("set the copy-on-write of a copy")
    }

    /// Gives a copy the attributes of its source and these flags, and adds its bytes.
    fn give(&self, source: &Source, target: &OwnedFd, flags: IFlags) -> Result<(), Fault> {
        let bytes = Attributes::of(source)?.give(self.copying.os, target)?;
        attributes::protect(self.copying.os, target, flags)?;
        self.copied().bytes += bytes;
        Ok(())
    }

    /// The result of an attempt to open an entry. `None` if the entry was removed or has another
    /// type; it is counted as vanished.
    fn found<T>(
        &self,
        outcome: Result<Option<T>, Errno>,
        what: &'static str,
    ) -> Result<Option<T>, Fault> {
        let found = match outcome {
            // XDEV: the entry moved out of its directory while it was opened beneath it.
            Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::NXIO
                | Errno::NODEV
                | Errno::STALE
                | Errno::XDEV,
            ) => None,
            outcome => outcome.context(what)?,
        };
        self.copied().vanished += u64::from(found.is_none());
        Ok(found)
    }

    /// Copies everything in a directory, unless the copy fails.
    fn fill(&self, dir: &Dir<'_>) -> Result<(), Reason> {
        while !self.failed() {
            let read = match next_entries(dir.source.inode.as_fd()) {
                // The directory was removed while it was read.
                Err(Errno::NOENT | Errno::STALE) => {
                    self.copied().vanished += 1;
                    break;
                }
                read => read.context("list a directory")?,
            };
            let Some(mut entries) = read else { break };
            // Files last, so they are copied first, and directories are left for other threads. In
            // the order of inodes, because the disk has them in that order.
            entries.sort_unstable_by_key(|entry| (!entry.is_dir(), Reverse(entry.inode)));
            self.threads
                .for_each(entries, &|entry| self.attempt(dir, entry));
        }
        Ok(())
    }

    /// Copies one entry with everything below it, unless the copy fails or is to stop.
    fn attempt(&self, dir: &Dir<'_>, entry: &Entry) {
        if self.failed() {
            return;
        }
        let copied = if self.copying.watch.stopped() {
            Err(fault::stopped())
        } else {
            self.copy_entry(dir, entry)
        };
        if let Err(reason) = copied {
            self.fail(dir, entry.name(), reason);
        }
    }

    fn copy_entry(&self, dir: &Dir<'_>, entry: &Entry) -> Result<(), Reason> {
        let name = entry.name();
        let mut kind = entry.kind;
        if kind == FileType::Unknown {
            let status = os::status_at(&dir.source.inode, name).map(Some);
            let Some(status) = self.found(status, "read the status of an entry")? else {
                return Ok(());
            };
            kind = status.file_type;
        }
        if kind == FileType::Directory {
            return self.copy_directory(dir, name);
        }
        match self.open(dir, name, kind == FileType::RegularFile)? {
            Some(source) => self.copy_inode(dir, name, &source),
            None => Ok(()),
        }
    }

    fn copy_directory(&self, dir: &Dir<'_>, name: &OsStr) -> Result<(), Reason> {
        let Some(child) = self.make_directory(dir, name)? else {
            return Ok(());
        };
        self.fill(&child)?;
        if !self.failed() {
            self.give(&child.source, &child.target, child.source.flags())?;
            self.count(occupied(&child.source.status));
        }
        Ok(())
    }

    /// Makes the copy of a directory, empty and accessible to root alone.
    fn make_directory<'d>(
        &self,
        dir: &'d Dir<'d>,
        name: &'d OsStr,
    ) -> Result<Option<Dir<'d>>, Reason> {
        let opened = os::open_source_dir(&dir.source.inode, name).map(Some);
        let Some(opened) = self.found(opened, "open a directory")? else {
            return Ok(None);
        };
        let level = dir.level + 1;
        if level > MAX_LEVELS {
            return Err(Reason::TooDeep);
        }
        let source = Source::new(opened).context("read a directory's status")?;
        let os = self.copying.os;
        match os.mkdir(&dir.target, name, 0o700) {
            Err(Errno::EXIST) => return Ok(None),
            made => made.context("make a directory")?,
        }
        self.begin(&source)?;
        let target = os::open_dir(&dir.target, name).context("open a copied directory")?;
        self.keep_in_place(&source, &target)?;
        Ok(Some(Dir {
            source,
            target,
            name,
            parent: Some(dir),
            level,
        }))
    }
}
