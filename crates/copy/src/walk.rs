//! The walk of a source: the same steps in the same order as long as the tree does not change, with a fingerprint of what it
//! has seen. So a copy goes on at a number of steps, and a change is noticed.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::vec::IntoIter;

use linux::os::{self, FileId};
use linux::tree::{Key, MAX_LEVELS, Source};
use rustix::fs::{FileType, StatxAttributes};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use crate::fault::{At, Error, Result};
use crate::volume::{LOST_AND_FOUND, open_file};

/// A step of the walk.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Enter(&'a OsStr, &'a Source),
    Leave(&'a Source),
    /// A file, with its key if it has several names, and whether one of these was there before.
    File(&'a OsStr, &'a Source, Option<Key>, bool),
    /// A link or a special file, as a file.
    Node(&'a OsStr, &'a Source, Option<Key>, bool),
}

struct Level {
    name: OsString,
    dir: Source,
    names: IntoIter<OsString>,
}

pub(crate) struct Walk {
    levels: Vec<Level>,
    /// The files with several names that were seen.
    linked: HashSet<FileId>,
    hasher: XxHash3_128Stream,
    pub(crate) steps: u64,
}

/// A hash that grows.
type XxHash3_128Stream = twox_hash::xxhash3_128::Hasher;

/// The sum of some bytes.
pub(crate) fn sum(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

impl Walk {
    pub(crate) fn new(top: &OwnedFd) -> Result<Self> {
        let dir = os::open_source_dir(top, ".").at("open the source", String::new)?;
        let dir = Source::new(dir).at("read the status of the source", String::new)?;
        let mut walk = Self {
            levels: Vec::new(),
            linked: HashSet::new(),
            hasher: XxHash3_128Stream::new(),
            steps: 0,
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

    /// The directories that are open, the top first.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&OsStr, &Source)> {
        self.levels
            .iter()
            .map(|level| (level.name.as_os_str(), &level.dir))
    }

    /// The path of an entry of the present directory, for messages.
    pub(crate) fn path(&self, name: &OsStr) -> String {
        let names = self.levels.iter().skip(1).map(|level| &*level.name);
        let names = names.chain([name]).map(OsStr::to_string_lossy);
        names.collect::<Vec<_>>().join("/")
    }

    /// Takes a step; false at the end.
    pub(crate) fn next(
        &mut self,
        visit: &mut dyn FnMut(&Self, Step<'_>) -> Result<()>,
    ) -> Result<bool> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(false);
        };
        self.steps += 1;
        let Some(name) = level.names.next() else {
            self.hasher.write(b"/");
            let Some(level) = self.levels.pop() else {
                return Ok(false);
            };
            visit(self, Step::Leave(&level.dir))?;
            return Ok(true);
        };
        let source = self.open_entry(&name)?;
        if self.levels.len() == 1 && is_own_of_filesystem(&name, &source) {
            return Ok(true);
        }
        self.see(&name, &source);
        if source.kind() == FileType::Directory {
            self.enter(name, source, visit)?;
            return Ok(true);
        }
        let key = (source.status.stx_nlink > 1).then(|| Key::of(&source));
        let id = os::Status::from(source.status).id;
        let again = key.is_some() && !self.linked.insert(id);
        let step = if source.kind() == FileType::RegularFile {
            Step::File(&name, &source, key, again)
        } else {
            Step::Node(&name, &source, key, again)
        };
        visit(self, step)?;
        Ok(true)
    }

    fn enter(
        &mut self,
        name: OsString,
        dir: Source,
        visit: &mut dyn FnMut(&Self, Step<'_>) -> Result<()>,
    ) -> Result<()> {
        let is_mount = dir
            .status
            .stx_attributes
            .contains(StatxAttributes::MOUNT_ROOT);
        if is_mount {
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
        Ok(names
            .at("list a directory", || self.path(OsStr::new("")))?
            .into_iter())
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
        let name = name.as_bytes();
        let numbers = [
            name.len() as u64,
            status.stx_ino,
            status.stx_mode.into(),
            status.stx_uid.into(),
            status.stx_gid.into(),
            status.stx_nlink.into(),
            if source.kind() == FileType::Directory {
                0
            } else {
                status.stx_size
            },
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

/// Whether it is the empty `lost+found` that every filesystem of the ext family has; that of the target stays.
fn is_own_of_filesystem(name: &OsStr, source: &Source) -> bool {
    name == LOST_AND_FOUND
        && source.kind() == FileType::Directory
        && os::entry_names(source.inode.as_fd()).is_ok_and(|names| names.is_empty())
}
