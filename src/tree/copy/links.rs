//! Files of several names. The first copy of each is kept in a directory of its own until the end,
//! from where the other names are linked, so memory does not grow with them.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{IFlags, SeekFrom, Statx, seek};
use rustix::io::Errno;
use uuid::Uuid;

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};

use super::super::queue::next_entries;
use super::attributes;
use super::fault::{CopyFault, stopped};
use super::{Copying, Totals};

/// What tells a file from all others, also from one that got its number after it was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
    /// The copy gets them last: a protected file takes no other name and loses none.
    flags: IFlags,
}

impl Key {
    pub(super) fn of(file: &Statx) -> Self {
        Self {
            device: (file.stx_dev_major, file.stx_dev_minor),
            inode: file.stx_ino,
            born: (file.stx_btime.tv_sec, file.stx_btime.tv_nsec),
            flags: attributes::flags(file),
        }
    }

    pub(super) fn flags(&self) -> IFlags {
        self.flags
    }

    /// The flags that the name of a kept copy ends in.
    fn flags_in(name: &OsStr) -> IFlags {
        let last = name.as_bytes().rsplit(|byte| *byte == b'-').next();
        let bits = last.and_then(|last| u32::from_str_radix(str::from_utf8(last).ok()?, 16).ok());
        IFlags::from_bits_truncate(bits.unwrap_or_default())
    }
}

/// The name of the kept copy.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device: (major, minor),
            inode,
            born: (seconds, nanoseconds),
            flags,
        } = self;
        let flags = flags.bits();
        write!(
            f,
            "{major:x}-{minor:x}-{inode:x}-{seconds:x}-{nanoseconds:x}-{flags:x}"
        )
    }
}

/// Whether a name was linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linked {
    /// To a kept copy.
    Yes,
    /// To a kept copy, which is kept no longer: it has as many names as a file can have.
    Last,
    /// There is no kept copy.
    No,
}

/// The copies of files with several names.
#[derive(Debug)]
pub(super) struct Links {
    /// In the copy, so that the same limits hold there and a link can be made.
    dir: OwnedFd,
    name: String,
    /// What is being copied: at most one file for each thread.
    claimed: Mutex<Vec<Key>>,
    released: Condvar,
}

impl Links {
    pub(super) fn make(os: &Os, target: &OwnedFd) -> Result<Self, Fault> {
        let name = format!(".rootcellar-links-{}", Uuid::new_v4().simple());
        os.mkdir(target, &name, 0o700)
            .context("make a directory for links")?;
        Ok(Self {
            dir: os::open_dir(target, &name).context("open the directory for links")?,
            name,
            claimed: Mutex::new(Vec::new()),
            released: Condvar::new(),
        })
    }

    /// Waits until nobody else copies the file; nobody does as long as the result lives.
    pub(super) fn claim(&self, key: Key) -> Claim<'_> {
        let claimed = self.claimed.lock();
        let claimed = claimed.unwrap_or_else(PoisonError::into_inner);
        let mut claimed = self
            .released
            .wait_while(claimed, |claimed| claimed.contains(&key))
            .unwrap_or_else(PoisonError::into_inner);
        claimed.push(key);
        Claim { links: self, key }
    }

    /// Links a name to the kept copy of a file.
    pub(super) fn link(
        &self,
        os: &Os,
        key: &Key,
        (dir, name): (BorrowedFd<'_>, &OsStr),
    ) -> Result<Linked, Errno> {
        let kept = key.to_string();
        let linked = match os.link((&self.dir, &kept), (dir, name)) {
            Err(Errno::MLINK) => {
                let moved = os.rename((&self.dir, &kept), (dir, name));
                moved.map(|()| Linked::Last)
            }
            linked => linked.map(|()| Linked::Yes),
        };
        match linked {
            Err(Errno::NOENT) => Ok(Linked::No),
            // A name that moved while its directory was read is met twice.
            Err(Errno::EXIST) => Ok(Linked::Yes),
            linked => linked,
        }
    }

    /// Keeps a copy for the other names.
    pub(super) fn keep(
        &self,
        os: &Os,
        copy: (BorrowedFd<'_>, &OsStr),
        key: &Key,
    ) -> Result<(), Errno> {
        os.link(copy, (&self.dir, key.to_string()))
    }

    /// Sets the flags that were left for the end, and removes what was kept.
    pub(super) fn dissolve(
        &self,
        target: &OwnedFd,
        copying: &Copying<'_>,
        totals: &Totals,
    ) -> Result<(), CopyFault> {
        let os = copying.os;
        loop {
            // From the beginning each time: a directory that shrinks may pass over entries.
            seek(&self.dir, SeekFrom::Start(0)).context("list the directory for links")?;
            let names = next_entries(self.dir.as_fd()).context("list the directory for links")?;
            let names = names.unwrap_or_default();
            if names.is_empty() {
                break;
            }
            if copying.watch.stopped() {
                let path = String::new();
                let reason = stopped();
                return Err(CopyFault { path, reason });
            }
            for name in names {
                let name = OsStr::from_bytes(name.name.as_bytes());
                totals.lose(self.release(os, name)?);
            }
        }
        os.rmdir(target, &self.name)
            .context("remove the directory for links")?;
        Ok(())
    }

    /// Removes one of what was kept, and sets its flags; how many were lost.
    fn release(&self, os: &Os, name: &OsStr) -> Result<u64, Fault> {
        let flags = Key::flags_in(name);
        let file = (!flags.is_empty())
            .then(|| os::open_source_file(&self.dir, name))
            .transpose()
            .context("open a copied file")?;
        os.unlink(&self.dir, name).context("remove a link")?;
        file.map_or(Ok(0), |file| attributes::protect(os, file, flags))
    }
}

/// The right to copy a file that has several names.
pub(super) struct Claim<'a> {
    links: &'a Links,
    key: Key,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let claimed = self.links.claimed.lock();
        let mut claimed = claimed.unwrap_or_else(PoisonError::into_inner);
        claimed.retain(|key| *key != self.key);
        self.links.released.notify_all();
    }
}
