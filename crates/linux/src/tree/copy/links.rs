//! Files with several names. A directory retains the first copy of each until the end, and the other
//! names are linked from there, so memory does not grow with their number.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

use rustix::fs::{IFlags, SeekFrom, seek};
use rustix::io::Errno;
use uuid::Uuid;

use crate::fault::{Fault, InContext};
use crate::os::{self, At, Os};

use super::super::entries::next_entries;
use super::attributes;
use super::fault::{CopyFault, stopped};
use super::job::CopyWatch;
use super::source::Source;

/// Identifies a file, also among files that had the same inode number at other times.
#[derive(Debug)]
pub(super) struct Key {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
    /// The copy gets them last, because a protected file accepts no further name and loses none.
    flags: IFlags,
}

impl Key {
    pub(super) fn of(source: &Source) -> Self {
        let status = &source.status;
        Self {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            born: (status.stx_btime.tv_sec, status.stx_btime.tv_nsec),
            flags: source.flags(),
        }
    }

    /// The flags in the name of a retained copy.
    fn flags_in(name: &OsStr) -> IFlags {
        let last = name.as_bytes().rsplit(|byte| *byte == b'-').next();
        let bits = last.and_then(|last| u32::from_str_radix(str::from_utf8(last).ok()?, 16).ok());
        IFlags::from_bits_truncate(bits.unwrap_or_default())
    }
}

/// The name of the retained copy.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((major, minor), inode) = (self.device, self.inode);
        let ((seconds, nanoseconds), flags) = (self.born, self.flags.bits());
        write!(
            f,
            "{major:x}-{minor:x}-{inode:x}-{seconds:x}-{nanoseconds:x}-{flags:x}"
        )
    }
}

/// The retained copies of files with several names.
#[derive(Debug)]
pub(super) struct Links {
    /// It is in the copy, where the same quota applies and a link can be made.
    dir: OwnedFd,
    name: String,
    /// Held while a file with several names is copied for the first time.
    pub(super) first: Mutex<()>,
}

impl Links {
    pub(super) fn new(os: &Os, target: &OwnedFd) -> Result<Self, Fault> {
        let name = format!(".rootcellar-links-{}", Uuid::new_v4().simple());
        os.mkdir(target, &name, 0o700)
            .context("make a directory for links")?;
        Ok(Self {
            dir: os::open_dir(target, &name).context("open the directory for links")?,
            name,
            first: Mutex::new(()),
        })
    }

    /// Links a name to the retained copy of a file; false if there is no such copy.
    pub(super) fn link(&self, os: &Os, key: &Key, name: At<'_>) -> Result<bool, Fault> {
        let retained = key.to_string();
        let linked = match os.link(At::new(&self.dir, &retained), name) {
            // The copy has as many names as a file can have, so it gives up the one here.
            Err(Errno::MLINK) => {
                let moved = os.rename(At::new(&self.dir, &retained), name);
                moved.map(|()| key.flags)
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

    /// Retains a copy for the other names.
    pub(super) fn retain(&self, os: &Os, copy: At<'_>, key: &Key) -> Result<(), Fault> {
        os.link(copy, At::new(&self.dir, &key.to_string()))
            .context("retain a file for its other names")
    }

    /// Removes the directory, and sets the flags of each retained copy.
    pub(super) fn remove(
        &self,
        os: &Os,
        watch: &dyn CopyWatch,
        target: &OwnedFd,
    ) -> Result<(), CopyFault> {
        const LIST: &str = "list the directory for links";
        loop {
            // From the beginning each time, because reading may skip entries of a directory that
            // shrinks.
            seek(&self.dir, SeekFrom::Start(0)).context(LIST)?;
            let entries = next_entries(self.dir.as_fd()).context(LIST)?;
            let entries = entries.unwrap_or_default();
            if entries.is_empty() {
                break;
            }
            if watch.stopped() {
                return Err(stopped().into());
            }
            for entry in entries {
                let name = entry.name();
                let unlink = || os.unlink(&self.dir, name).context("remove a link");
                let flags = Key::flags_in(name);
                protect(os, At::new(&self.dir.as_fd(), name), flags, unlink)?;
            }
        }
        os.rmdir(target, &self.name)
            .context("remove the directory for links")?;
        Ok(())
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
