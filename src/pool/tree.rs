//! Trees that pods own: removed and measured by directory descriptors, following no link and
//! crossing no mount, at any depth. The descriptors come from a guarded clone of the pool.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::FileType;
use rustix::io::Errno;
use uuid::Uuid;

use crate::os::{self, Os};

use super::fault::{During, Fault};

/// How many levels are held open at once; what is deeper is moved up first, so depth costs
/// neither descriptors nor stack.
const MAX_DEPTH: usize = 48;

/// How often a directory is read again: a filesystem may pass over entries of one that shrinks
/// while it is read, and a process that still holds it open may go on filling it.
const MAX_PASSES: usize = 100;

/// Watches a removal: counts what is gone and says when to stop.
pub(crate) trait Watch {
    /// Called for every entry removed.
    fn removed(&mut self);
    /// Whether to stop here; what is left is left for another time.
    fn stopped(&self) -> bool;
}

/// Watches nothing.
struct NoWatch;

impl Watch for NoWatch {
    fn removed(&mut self) {}
    fn stopped(&self) -> bool {
        false
    }
}

/// Removes the tree `name` in `dir`.
pub(crate) fn remove(os: &Os, dir: BorrowedFd<'_>, name: &str) -> Result<(), Fault> {
    let top = os::open_dir(dir, name).during("open a directory to remove")?;
    empty(os, &top, None, &mut NoWatch)?;
    os.rmdir(dir, name).during("remove a directory")
}

/// Removes everything in `top` but the entry called `keep`. What resists does not stop the rest;
/// the first fault is returned at the end.
pub(crate) fn empty(
    os: &Os,
    top: &OwnedFd,
    keep: Option<&str>,
    watch: &mut dyn Watch,
) -> Result<(), Fault> {
    let mut sweep = Sweep {
        os,
        top: top.as_fd(),
        hoisted: false,
        fault: None,
        watch,
    };
    loop {
        sweep.hoisted = false;
        sweep.sweep(top.as_fd(), keep, 0)?;
        if !sweep.hoisted {
            break;
        }
    }
    sweep.fault.map_or(Ok(()), Err)
}

struct Sweep<'a> {
    os: &'a Os,
    top: BorrowedFd<'a>,
    hoisted: bool,
    fault: Option<Fault>,
    watch: &'a mut dyn Watch,
}

impl Sweep<'_> {
    /// Empties a directory; an error means to stop, a fault is only noted.
    fn sweep(
        &mut self,
        dir: BorrowedFd<'_>,
        keep: Option<&str>,
        depth: usize,
    ) -> Result<(), Fault> {
        for _ in 0..MAX_PASSES {
            let mut progress = false;
            let mut stopped = false;
            let listed = os::for_each_entry(dir, |name, file_type| {
                stopped = self.watch.stopped();
                if stopped {
                    return Err(Errno::CANCELED);
                }
                if keep.is_some_and(|keep| keep.as_bytes() == name.to_bytes()) {
                    return Ok(());
                }
                progress |= self.remove_entry(dir, name, file_type, depth);
                Ok(())
            });
            if stopped {
                return Err(Fault::new("go on: stopped", Errno::CANCELED));
            }
            listed.during("list a directory")?;
            if !progress {
                break;
            }
        }
        Ok(())
    }

    /// Removes one entry with all that is below it; whether it is gone from its directory.
    fn remove_entry(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        file_type: FileType,
        depth: usize,
    ) -> bool {
        let name = OsStr::from_bytes(name.to_bytes());
        let outcome = match file_type {
            FileType::Directory => self.remove_directory(dir, name, depth),
            _ => match self.insist(dir, name, || self.os.unlink(dir, name)) {
                Err(Errno::ISDIR) => self.remove_directory(dir, name, depth),
                outcome => outcome.inspect(|()| self.watch.removed()),
            },
        };
        match outcome {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => {
                self.fault
                    .get_or_insert(Fault::new("remove an entry", errno));
                false
            }
        }
    }

    fn remove_directory(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        depth: usize,
    ) -> Result<(), Errno> {
        if depth >= MAX_DEPTH {
            let place = format!("deep-{}", Uuid::new_v4().simple());
            let hoist = || self.os.rename((dir, name), (self.top, &place));
            self.insist(dir, name, hoist)?;
            self.hoisted = true;
            return Ok(());
        }
        let child = os::open_dir(dir, name)?;
        self.sweep(child.as_fd(), None, depth + 1)
            .map_err(|fault| fault.errno)?;
        self.insist(dir, name, || self.os.rmdir(dir, name))?;
        self.watch.removed();
        Ok(())
    }

    /// Tries a change to an entry, and again after clearing what protects it.
    fn insist(
        &self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        change: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match change() {
            Err(Errno::PERM | Errno::ACCESS) => {
                self.unprotect(dir, name);
                change()
            }
            outcome => outcome,
        }
    }

    /// Clears what makes an entry resist: the immutable and append-only flags of the entry and of
    /// its directory. Only files and directories carry them, and only those are opened.
    fn unprotect(&self, dir: BorrowedFd<'_>, name: &OsStr) {
        let cleared =
            self.os
                .clear_flags(dir)
                .and_then(|()| match os::status_at(dir, name)?.file_type {
                    FileType::RegularFile | FileType::Directory => {
                        self.os.clear_flags(os::open_entry(dir, name)?)
                    }
                    _ => Ok(()),
                });
        if let Err(errno) = cleared {
            tracing::debug!(%errno, "cannot clear the flags of a protected entry");
        }
    }
}

/// What a tree occupies, in bytes, as far as it can be read and down to 200 levels; hard links
/// count each time.
pub(crate) fn usage(dir: BorrowedFd<'_>, name: &OsStr) -> u64 {
    const MAX_LEVELS: usize = 200;
    usage_below(dir, name, MAX_LEVELS)
}

fn usage_below(dir: BorrowedFd<'_>, name: &OsStr, levels: usize) -> u64 {
    let Ok(status) = os::status_at(dir, name) else {
        return 0;
    };
    let mut bytes = status.allocated;
    if status.file_type != FileType::Directory || levels == 0 {
        return bytes;
    }
    let counted = os::open_dir(dir, name).and_then(|child| {
        os::for_each_entry(child.as_fd(), |name, _| {
            let name = OsStr::from_bytes(name.to_bytes());
            bytes = bytes.saturating_add(usage_below(child.as_fd(), name, levels - 1));
            Ok(())
        })
    });
    if let Err(errno) = counted {
        tracing::warn!(entry = %name.display(), %errno, "cannot measure all of what is quarantined");
    }
    bytes
}
