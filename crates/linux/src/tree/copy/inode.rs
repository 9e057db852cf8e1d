//! Copies files, links and special files.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, IFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InContext};
use crate::os::{self, At, Os};
use crate::sync::lock;

use super::Work;
use super::dir::Dir;
use super::fault::Reason;
use super::links::Key;
use super::source::{Source, occupied};

impl Work<'_> {
    /// Opens a file, or refers to another entry without opening it. `None` if the entry was removed
    /// or has another type.
    pub(super) fn open(
        &self,
        dir: &Dir<'_>,
        name: &OsStr,
        is_file: bool,
    ) -> Result<Option<Source>, Fault> {
        let dir = &dir.source.inode;
        let inode = if is_file {
            match os::open_source_file(dir, name) {
                // A device, which the guarded mount refuses, or a file with mandatory access control.
                Err(Errno::ACCESS) => os::open_protected(dir, name),
                opened => opened.map(Some),
            }
        } else {
            os::open_entry(dir, name).map(Some)
        };
        let found = inode.and_then(|inode| {
            let source = inode.map(Source::new).transpose()?;
            Ok(source.filter(|source| match source.kind() {
                FileType::Directory => false,
                kind => (kind == FileType::RegularFile) == is_file,
            }))
        });
        self.found(found, "open an entry")
    }

    pub(super) fn copy_inode(
        &self,
        dir: &Dir<'_>,
        name: &OsStr,
        source: &Source,
    ) -> Result<(), Reason> {
        if source.status.stx_nlink <= 1 {
            self.make_copy(dir, name, source, source.flags())?;
            return Ok(());
        }
        let key = Key::of(source);
        if self.link(dir, name, &key)? {
            return Ok(());
        }
        let _first = lock(&self.first);
        // Another thread may have copied the file before it released the lock.
        if self.link(dir, name, &key)? {
            return Ok(());
        }
        // A file with these flags accepts no further name.
        if self.make_copy(dir, name, source, IFlags::empty())? {
            let copy = At::new(&dir.target, name);
            self.links.retain(self.copying.os, copy, &key)?;
        }
        Ok(())
    }

    /// Links a name to the retained copy of a file; false if there is none.
    fn link(&self, dir: &Dir<'_>, name: &OsStr, key: &Key) -> Result<bool, Fault> {
        let name = At::new(&dir.target, name);
        let linked = self.links.link(self.copying.os, key, name)?;
        if linked {
            self.count(0);
        }
        Ok(linked)
    }

    /// Makes the copy of an inode, with these flags. False if the name exists: the entry moved while
    /// its directory was read, and was listed twice.
    fn make_copy(
        &self,
        dir: &Dir<'_>,
        name: &OsStr,
        source: &Source,
        flags: IFlags,
    ) -> Result<bool, Reason> {
        let is_file = source.kind() == FileType::RegularFile;
        let made = if is_file {
            self.make_file(dir, name, source)?
        } else {
            Node::of(source)?.make(self.copying.os, &dir.target, name)?
        };
        let Some(target) = made else {
            return Ok(false);
        };
        self.begin(source)?;
        if is_file {
            let Source { inode, status } = source;
            self.copying.transfer(inode, &target, status.stx_size)?;
        }
        self.give(source, &target, flags)?;
        self.count(occupied(&source.status));
        Ok(true)
    }

    /// Makes an empty file for the content of another; `None` if the name exists.
    fn make_file(
        &self,
        dir: &Dir<'_>,
        name: &OsStr,
        source: &Source,
    ) -> Result<Option<OwnedFd>, Reason> {
        let Source { inode, status } = source;
        self.copying.check_stall(inode, status.stx_size)?;
        // No other process can reach the copy yet, and a correct mode is not set again.
        let mode = u32::from(status.stx_mode) & 0o777;
        let target = match self.copying.os.create_as(&dir.target, name, mode) {
            Err(Errno::EXIST) => return Ok(None),
            created => created.context("make a file")?,
        };
        self.keep_in_place(source, &target)?;
        Ok(Some(target))
    }
}

/// A symbolic link or a special file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Node {
    /// A symbolic link, with its target.
    Link(CString),
    /// A FIFO, a socket or a device: the type as in `st_mode`, and the number of the device.
    Special { mode: u16, device: (u32, u32) },
}

impl Node {
    pub fn of(source: &Source) -> Result<Self, Fault> {
        let Source { inode, status } = source;
        if source.kind() == FileType::Symlink {
            let target = rustix::fs::readlinkat(inode, "", Vec::new()).context("read a link")?;
            return Ok(Self::Link(target));
        }
        Ok(Self::Special {
            mode: status.stx_mode,
            device: (status.stx_rdev_major, status.stx_rdev_minor),
        })
    }

    /// Makes the entry, a special file for root alone; `None` if the name exists.
    pub fn make(&self, os: &Os, dir: impl AsFd, name: &OsStr) -> Result<Option<OwnedFd>, Fault> {
        let made = match self {
            Self::Link(target) => os.symlink(target, &dir, name),
            Self::Special { mode, device } => {
                let kind = FileType::from_raw_mode((*mode).into());
                os.mknod(&dir, name, kind, *device)
            }
        };
        match made {
            Err(Errno::EXIST) => return Ok(None),
            made => made.context("make an entry")?,
        }
        let made = os::open_entry(dir, name).context("open a new entry")?;
        Ok(Some(made))
    }
}
