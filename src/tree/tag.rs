//! Has the kernel charge an existing tree to a quota id.
//!
//! The id is an attribute of each file and directory. Symbolic links, FIFOs, sockets and devices
//! cannot be given one, and the kernel refuses to rename or link them in a tagged directory, so they
//! are made anew in a scratch directory that has the id.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Statx};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Inode, Os};
use crate::quota::Quota;

use super::copy::attributes;
use super::copy::inode::make_node;
use super::queue::next_entries;
use super::weigh::MAX_LEVELS;

/// The name of a node under construction, in the scratch directory.
const NODE: &str = "node";

/// A tree that is being tagged, while nobody else uses it.
pub(crate) struct Tagging<'a> {
    pub(crate) os: &'a Os,
    pub(crate) quota: &'a dyn Quota,
    /// The quota id; none: the tree is charged to nothing again.
    pub(crate) id: Option<u32>,
    /// An empty directory that has the id. Without one, links and nodes stay as they are.
    pub(crate) scratch: Option<&'a OwnedFd>,
    /// Called for each entry; an error ends the work.
    pub(crate) watch: &'a dyn Fn() -> Result<(), Errno>,
}

/// A directory whose entries are being tagged.
struct Level {
    dir: OwnedFd,
    below: Vec<OsString>,
}

/// The links and nodes of several names that were made anew, by their old inode number, with the
/// names under which the scratch directory keeps them.
type Linked = BTreeMap<u64, String>;

impl Tagging<'_> {
    /// Tags everything below a directory, and then the directory. It may be repeated.
    pub(crate) fn tag(&self, top: &OwnedFd) -> Result<(), Fault> {
        let mut linked = Linked::new();
        let top = os::open_source_dir(top, ".").context("open a directory to tag")?;
        let mut nodes_of_top = Vec::new();
        let below = self.enter(&top, &mut nodes_of_top)?;
        let mut levels = vec![Level { dir: top, below }];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else {
                return Ok(());
            };
            let Some(name) = level.below.pop() else {
                // The top is tagged last: until then any start finds that its charge is not as
                // recorded.
                if depth == 1 {
                    self.renew_all(&level.dir, &nodes_of_top, &mut linked)?;
                    self.set(&level.dir, true)?;
                }
                levels.pop();
                continue;
            };
            if depth >= MAX_LEVELS {
                return Err(Fault::new("tag so deep a tree", Errno::NAMETOOLONG));
            }
            let dir = os::open_source_dir(&level.dir, &name).context("open a directory to tag")?;
            self.set(&dir, true)?;
            let mut nodes = Vec::new();
            let below = self.enter(&dir, &mut nodes)?;
            self.renew_all(&dir, &nodes, &mut linked)?;
            levels.push(Level { dir, below });
        }
    }

    /// Tags the files in a directory; returns the names of its directories, and adds those of its
    /// links and nodes.
    fn enter(&self, dir: &OwnedFd, nodes: &mut Vec<OsString>) -> Result<Vec<OsString>, Fault> {
        let mut below = Vec::new();
        while let Some(entries) = next_entries(dir.as_fd()).context("list a directory to tag")? {
            for entry in entries {
                (self.watch)().context("go on tagging")?;
                let name = OsStr::from_bytes(entry.name.to_bytes());
                let status = os::status_at(dir, name).context("look at an entry to tag")?;
                match status.file_type {
                    FileType::Directory => below.push(name.to_owned()),
                    FileType::RegularFile => {
                        let file = os::open_protected(dir, name).context("open a file to tag")?;
                        if let Some(file) = file {
                            self.set(&file, false)?;
                        }
                    }
                    _ => nodes.push(name.to_owned()),
                }
            }
        }
        Ok(below)
    }

    fn set(&self, file: &OwnedFd, is_dir: bool) -> Result<(), Fault> {
        let set = || {
            self.quota
                .set_tag(self.os, file.as_fd(), self.id, is_dir)
                .context("tag a file")
        };
        match set() {
            // Of a file that is immutable or append-only: ext4 keeps its attributes as they are.
            Err(fault) if fault.errno == Errno::PERM => self.unprotected(file, set),
            tagged => tagged,
        }
    }

    /// Changes a file or directory without the flags that protect it.
    fn unprotected(
        &self,
        file: &OwnedFd,
        change: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let before = os::statx(file).context("look at a file to tag")?;
        let cleared = self.os.clear_flags(file);
        cleared.context("clear the flags of a file")?;
        let changed = change();
        attributes::protect(self.os, file, attributes::flags(&before))?;
        changed
    }

    fn renew_all(
        &self,
        dir: &OwnedFd,
        nodes: &[OsString],
        linked: &mut Linked,
    ) -> Result<(), Fault> {
        let Some(scratch) = self.scratch.filter(|_| !nodes.is_empty()) else {
            return Ok(());
        };
        self.unprotected(dir, || {
            let before = os::statx(dir).context("look at a directory to tag")?;
            for name in nodes {
                (self.watch)().context("go on tagging")?;
                self.renew(scratch, dir, name, linked)?;
            }
            let dir = os::open_source_dir(dir, ".").context("open a directory to tag")?;
            let times = self.os.set_times(&Inode::open(dir), &before);
            times.context("set the times of a directory")
        })
    }

    /// Replaces a link or node by one that has the id.
    fn renew(
        &self,
        scratch: &OwnedFd,
        dir: &OwnedFd,
        name: &OsStr,
        linked: &mut Linked,
    ) -> Result<(), Fault> {
        let source = Inode::place(dir, name).context("look at an entry to tag")?;
        let original = os::statx(&source).context("look at an entry to tag")?;
        let kept = linked.get(&original.stx_ino);
        let link = kept.map(|kept| self.os.link((scratch, kept.as_str()), (scratch, NODE)));
        match link {
            // An inode can have as many names as its file system allows, and this is one more.
            None | Some(Err(Errno::MLINK)) => self.make(scratch, &source, &original)?,
            Some(link) => link.context("link a node")?,
        }
        if original.stx_nlink > 1 && kept.is_none() {
            let kept = format!("linked-{}", original.stx_ino);
            let link = self.os.link((scratch, NODE), (scratch, kept.as_str()));
            link.context("link a node")?;
            linked.insert(original.stx_ino, kept);
        }
        let replaced = self.os.replace((scratch, NODE), (dir, name));
        replaced.context("replace a node")?;
        // To rename one name of an inode over another does nothing.
        match self.os.unlink(scratch, NODE) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Fault::new("remove a node", errno)),
        }
    }

    fn make(&self, scratch: &OwnedFd, source: &Inode, original: &Statx) -> Result<(), Fault> {
        let made = make_node(self.os, scratch, OsStr::new(NODE), (source, original))?;
        let Some(target) = made else {
            return Err(Fault::new("make an entry", Errno::EXIST));
        };
        attributes::give(self.os, source, original, &target)?;
        Ok(())
    }
}
