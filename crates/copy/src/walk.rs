//! The walk of a tree in the order of its names, with a fingerprint of what it has seen, so that a change is noticed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use std::vec::IntoIter;

use linux::os::{self, FileId};
use linux::tree::{MAX_LEVELS, Source};
use rustix::fs::{FileType, StatxAttributes};
use rustix::io::Errno;
use twox_hash::xxhash3_128::Hasher;

use crate::fault::{At, Error, Result, stream};
use crate::volume::{is_of_filesystem, open_file};

/// A step of the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'a> {
    Enter(&'a OsStr, &'a Source),
    /// A directory whose entries were all seen; the top has no name.
    Leave(&'a OsStr, &'a Source),
    /// A file, a link or a special file, and whether it has several names.
    Entry(&'a OsStr, &'a Source, bool),
    /// Another name of an entry, with the path of the first one.
    Again(&'a OsStr, &'a [u8]),
}

struct Level {
    name: OsString,
    dir: Source,
    names: IntoIter<OsString>,
}

pub(crate) struct Walk {
    levels: Vec<Level>,
    /// The first paths of the entries with several names.
    first: HashMap<FileId, Vec<u8>>,
    hasher: Hasher,
    /// The time of the newest change of a status, since the Unix epoch.
    pub(crate) newest: Duration,
    /// Whether times have parts of seconds.
    pub(crate) is_fine: bool,
}

impl Walk {
    pub(crate) fn new(top: &OwnedFd) -> Result<Self> {
        let dir = os::open_source_dir(top, ".").at("open the source", String::new)?;
        let dir = Source::new(dir).at("read the status of the source", String::new)?;
        let mut walk = Self {
            levels: Vec::new(),
            first: HashMap::new(),
            hasher: Hasher::new(),
            newest: Duration::ZERO,
            is_fine: false,
        };
        walk.see(OsStr::new(""), &dir);
        let names = walk.names(&dir)?;
        walk.levels.push(Level {
            name: OsString::new(),
            dir,
            names,
        });
        Ok(walk)
    }

    pub(crate) fn fingerprint(&self) -> u128 {
        self.hasher.finish_128()
    }

    /// The path of an entry of the present directory, with a NUL between names. So paths sort as the walk goes.
    pub(crate) fn key(&self, name: &OsStr) -> Vec<u8> {
        let levels = self.levels.iter().map(|level| level.name.as_bytes());
        key(levels, name.as_bytes())
    }

    /// The same for messages.
    pub(crate) fn path(&self, name: &OsStr) -> String {
        readable(&self.key(name))
    }

    /// Takes a step; false at the end.
    pub(crate) fn next(
        &mut self,
        visit: &mut dyn FnMut(&Self, Step<'_>) -> Result<()>,
    ) -> Result<bool> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(false);
        };
        let Some(name) = level.names.next() else {
            self.hasher.write(b"/");
            let Some(level) = self.levels.pop() else {
                return Ok(false);
            };
            visit(self, Step::Leave(&level.name, &level.dir))?;
            return Ok(true);
        };
        let source = self.open_entry(&name)?;
        let top = self.levels.first().map(|level| &level.dir.inode);
        if self.levels.len() == 1 && top.is_some_and(|top| is_of_filesystem(top, &name, &source)) {
            return Ok(true);
        }
        self.see(&name, &source);
        if source.kind() == FileType::Directory {
            self.enter(name, source, visit)?;
            return Ok(true);
        }
        let several = source.status.stx_nlink > 1;
        if several {
            let id = os::Status::from(source.status).id;
            if let Some(first) = self.first.get(&id) {
                visit(self, Step::Again(&name, first))?;
                return Ok(true);
            }
            self.first.insert(id, self.key(&name));
        }
        visit(self, Step::Entry(&name, &source, several))?;
        Ok(true)
    }

    fn enter(
        &mut self,
        name: OsString,
        dir: Source,
        visit: &mut dyn FnMut(&Self, Step<'_>) -> Result<()>,
    ) -> Result<()> {
        let attributes = dir.status.stx_attributes;
        if attributes.contains(StatxAttributes::MOUNT_ROOT) {
            let path = self.path(&name);
            return Err(Error::Mount { path });
        }
        if self.levels.len() > MAX_LEVELS {
            let path = self.path(&name);
            return Err(Error::TooDeep { path });
        }
        visit(self, Step::Enter(&name, &dir))?;
        let names = self.names(&dir)?;
        self.levels.push(Level { name, dir, names });
        Ok(())
    }

    fn names(&self, dir: &Source) -> Result<IntoIter<OsString>> {
        let names = os::entry_names(dir.inode.as_fd());
        let mut names = names.at("list a directory", || self.path(OsStr::new("")))?;
        names.sort_unstable();
        Ok(names.into_iter())
    }

    fn open_entry(&self, name: &OsStr) -> Result<Source> {
        let path = || self.path(name);
        let Some(level) = self.levels.last() else {
            return Err(Error::Changed { path: path() });
        };
        let dir = &level.dir.inode;
        let kind = os::status_at(dir, name)
            .at("read the status of an entry", path)?
            .file_type;
        let opened = match kind {
            FileType::Directory => os::open_source_dir(dir, name),
            FileType::RegularFile => open_file(dir, name),
            _ => os::open_entry(dir, name),
        };
        let source = match opened.and_then(Source::new) {
            Err(Errno::XDEV) => return Err(Error::Mount { path: path() }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                return Err(Error::Changed { path: path() });
            }
            source => source.at("open an entry", path)?,
        };
        if source.kind() != kind {
            return Err(Error::Changed { path: path() });
        }
        Ok(source)
    }

    /// Adds an entry to the fingerprint. The time of the last change of its status changes with everything.
    fn see(&mut self, name: &OsStr, source: &Source) {
        let status = &source.status;
        let changed = status.stx_ctime;
        let seconds = Duration::from_secs(changed.tv_sec.try_into().unwrap_or_default());
        self.newest = self
            .newest
            .max(seconds + Duration::from_nanos(changed.tv_nsec.into()));
        self.is_fine |= changed.tv_nsec != 0;
        let name = name.as_bytes();
        let size = if source.kind() == FileType::Directory {
            0
        } else {
            status.stx_size
        };
        let numbers = [
            name.len() as u64,
            status.stx_ino,
            status.stx_mode.into(),
            status.stx_uid.into(),
            status.stx_gid.into(),
            status.stx_nlink.into(),
            size,
            status.stx_mtime.tv_sec.cast_unsigned(),
            status.stx_mtime.tv_nsec.into(),
            status.stx_ctime.tv_sec.cast_unsigned(),
            status.stx_ctime.tv_nsec.into(),
        ];
        for number in numbers {
            self.hasher.write(&number.to_le_bytes());
        }
        self.hasher.write(name);
    }
}

/// The path of an entry of the last directory, with a NUL between names. The first directory is the top.
pub(crate) fn key<'a>(levels: impl Iterator<Item = &'a [u8]>, name: &'a [u8]) -> Vec<u8> {
    levels.skip(1).chain([name]).collect::<Vec<_>>().join(&0)
}

/// A path with a NUL between its names, for messages.
pub(crate) fn readable(key: &[u8]) -> String {
    String::from_utf8_lossy(key).replace('\0', "/")
}

/// The directory of a path with a NUL between its names, and the last name.
pub(crate) fn walk_to<'k>(top: &OwnedFd, key: &'k [u8]) -> Result<(OwnedFd, &'k OsStr)> {
    let path = || readable(key);
    let mut dir = os::open_source_dir(top, ".").at("open the target", path)?;
    let mut names = key.split(|byte| *byte == 0).peekable();
    while let Some(name) = names.next() {
        check(name)?;
        let name = OsStr::from_bytes(name);
        if names.peek().is_none() {
            return Ok((dir, name));
        }
        dir = os::open_source_dir(&dir, name).at("open a copied directory", path)?;
    }
    Err(stream("it has an empty path"))
}

/// Refuses a name that no entry can have.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    let is_refused =
        matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0);
    if is_refused {
        return Err(stream("it has a name that no entry can have"));
    }
    Ok(())
}
