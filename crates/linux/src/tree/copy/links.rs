//! Files with several names. A directory retains the first copy of each until the end, and the other
//! names are linked from there, so memory does not grow with their number.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{IFlags, SeekFrom, seek};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, At, Os};

use super::super::entries::next_entries;
use super::attributes;
use super::fault::{Reason, stopped};
use super::job::CopyWatch;
use super::source::Source;

/// Identifies a file with several names, also among files that had the same inode number at other times. It is the name of
/// the retained copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key(String);

impl Key {
    pub(super) fn of(source: &Source) -> Self {
        let status = &source.status;
        let (major, minor, inode) = (status.stx_dev_major, status.stx_dev_minor, status.stx_ino);
        let born = status.stx_btime;
        let (seconds, nanoseconds) = (born.tv_sec, born.tv_nsec);
        // The copy gets the flags last, because a protected file accepts no further name and loses none.
        let flags = source.flags().bits();
        Self(format!(
            "{major:x}-{minor:x}-{inode:x}-{seconds:x}-{nanoseconds:x}-{flags:x}"
        ))
    }

    /// The flags of the file.
    fn flags(&self) -> IFlags {
        flags_in(OsStr::new(&self.0))
    }
}

/// The flags in the name of a retained copy.
fn flags_in(name: &OsStr) -> IFlags {
    let last = name.as_bytes().rsplit(|byte| *byte == b'-').next();
    let bits = last.and_then(|last| u32::from_str_radix(str::from_utf8(last).ok()?, 16).ok());
    IFlags::from_bits_truncate(bits.unwrap_or_default())
}

/// The retained copies of files with several names.
#[derive(Debug)]
pub(super) struct Links {
    /// It is in the copy, where the same quota applies and a link can be made.
    dir: OwnedFd,
}

impl Links {
    /// Retains copies in a directory.
    pub(super) fn new(dir: OwnedFd) -> Self {
        Self { dir }
    }

    /// Links a name to the retained copy of a file; false if there is no such copy.
    pub(super) fn link(&self, os: &Os, key: &Key, name: At<'_>) -> Result<bool, Fault> {
        let linked = match os.link(At::new(&self.dir, &key.0), name) {
            // The copy has as many names as a file can have, so it gives up the one here.
            Err(Errno::MLINK) => {
                let moved = os.rename(At::new(&self.dir, &key.0), name);
                moved.map(|()| key.flags())
            }
            linked => linked.map(|()| IFlags::empty()),
        };
        match linked {
            Err(Errno::NOENT) => Ok(false),
            // An entry that moved while its directory was read is listed twice.
            Err(Errno::EXIST) => Ok(true),
            linked => {
                let flags = linked.context("link a file")?;
                protect(os, name, flags, || Ok(()))?;
                Ok(true)
            }
        }
    }

    /// Retains a copy for the other names, in place of another one with this key.
    pub(super) fn retain(&self, os: &Os, copy: At<'_>, key: &Key) -> Result<(), Fault> {
        const RETAIN: &str = "retain a file for its other names";
        match os.link(copy, At::new(&self.dir, &key.0)) {
            Err(Errno::EXIST) => {
                os.unlink(&self.dir, &key.0).context(RETAIN)?;
                os.link(copy, At::new(&self.dir, &key.0)).context(RETAIN)
            }
            retained => retained.context(RETAIN),
        }
    }

    /// Empties the directory, and sets the flags of each retained copy.
    pub(super) fn finish(&self, os: &Os, watch: &dyn CopyWatch) -> Result<(), Reason> {
        const LIST: &str = "list the directory for links";
        loop {
            // From the beginning each time, because reading may skip entries of a directory that
            // shrinks.
            seek(&self.dir, SeekFrom::Start(0)).context(LIST)?;
            let entries = next_entries(self.dir.as_fd()).context(LIST)?;
            let entries = entries.unwrap_or_default();
            if entries.is_empty() {
                return Ok(());
            }
            if watch.stopped() {
                return Err(stopped());
            }
            for entry in entries {
                let name = entry.name();
                let unlink = || os.unlink(&self.dir, name).context("remove a link");
                protect(os, At::new(&self.dir.as_fd(), name), flags_in(name), unlink)?;
            }
        }
    }
}

/// Changes the names of a file, then sets its flags.
fn protect(
    os: &Os,
    name: At<'_>,
    flags: IFlags,
    change: impl FnOnce() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let file = (!flags.is_empty()).then(|| os::open_source_file(name.dir, name.name));
    let file = file.transpose().context("open a copied file")?;
    change()?;
    file.map_or(Ok(()), |file| attributes::protect(os, file, flags))
}
