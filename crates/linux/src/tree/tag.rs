//! Charges an existing tree to a quota id.
//!
//! The id is an attribute of each file and directory. Symbolic links, FIFOs, sockets and devices
//! cannot be given one, and the kernel refuses to rename or link them in a tagged directory. So they
//! are replaced by new ones from a scratch directory that has the id, or none.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, At, Os, Times};
use crate::quota::Quota;

use super::copy::attributes;
use super::copy::source::flags;
use super::copy::{Attributes, Node, Source};
use super::entries::next_entries;
use super::walk::walk;

/// The name of a new node in the scratch directory.
const NODE: &str = "node";

/// The messages of failed steps.
const OPEN: &str = "open a directory to tag";
const STATUS: &str = "read the status of an entry to tag";
const CONTINUE: &str = "go on tagging";

/// A tree to tag, while nothing else uses it.
pub struct Tagging<'a> {
    pub os: &'a Os,
    pub quota: &'a dyn Quota,
    /// The quota id; `None` removes the id of the tree.
    pub id: Option<u32>,
    /// An empty directory that has the id.
    pub scratch: &'a OwnedFd,
    /// Called for each entry; an error ends the work.
    pub watch: &'a dyn Fn() -> Result<(), Errno>,
}

impl fmt::Debug for Tagging<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Tagging");
        text.field("id", &self.id).finish_non_exhaustive()
    }
}

/// The nodes with several names that were replaced: the old inode number, and the name in the scratch
/// directory.
type Linked = BTreeMap<u64, String>;

impl Tagging<'_> {
    /// Tags everything below a directory, and then the directory. It may be repeated.
    pub fn tag(&self, top: &OwnedFd) -> Result<(), Fault> {
        let mut linked = Linked::new();
        let top = os::open_source_dir(top, ".").context(OPEN)?;
        let mut nodes_of_top = Vec::new();
        let listed = os::open_source_dir(&top, ".").context(OPEN)?;
        walk(listed, |dir, path| {
            let dir = dir.map_err(|errno| match errno {
                Errno::NAMETOOLONG => Fault::new("tag so deep a tree", errno),
                errno => Fault::new(OPEN, errno),
            })?;
            if path.as_os_str().is_empty() {
                return self.enter(dir, &mut nodes_of_top);
            }
            self.set(dir, true)?;
            let mut nodes = Vec::new();
            let below = self.enter(dir, &mut nodes)?;
            self.renew_all(dir, &nodes, &mut linked)?;
            Ok(below)
        })?;
        if self.id.is_none() {
            // Before that the kernel refuses nodes without the id.
            self.set(&top, true)?;
        }
        // The top is tagged last. Until then a start finds a charge that differs from the record.
        self.renew_all(&top, &nodes_of_top, &mut linked)?;
        self.set(&top, true)
    }

    /// Tags the files in a directory, adds the names of its links and special files to `nodes`, and
    /// returns the names of its directories.
    fn enter(&self, dir: &OwnedFd, nodes: &mut Vec<OsString>) -> Result<Vec<OsString>, Fault> {
        let mut below = Vec::new();
        while let Some(entries) = next_entries(dir.as_fd()).context("list a directory to tag")? {
            for entry in entries {
                (self.watch)().context(CONTINUE)?;
                let name = entry.name();
                let kind = match entry.kind {
                    FileType::Unknown => os::status_at(dir, name).context(STATUS)?.file_type,
                    kind => kind,
                };
                match kind {
                    FileType::Directory => below.push(name.to_owned()),
                    FileType::RegularFile => {
                        let file = os::open_source_file(dir, name).context("open a file to tag")?;
                        self.set(&file, false)?;
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
            // ext4 refuses this for an immutable or append-only file.
            Err(fault) if fault.errno == Errno::PERM => self.unprotected(file, set),
            tagged => tagged,
        }
    }

    /// Changes a file or directory while the flags that protect it are cleared.
    fn unprotected(
        &self,
        file: &OwnedFd,
        change: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let before = os::statx(file).context(STATUS)?;
        let cleared = self.os.clear_flags(file);
        cleared.context("clear the flags of a file")?;
        let changed = change();
        attributes::protect(self.os, file, flags(&before))?;
        changed
    }

    fn renew_all(
        &self,
        dir: &OwnedFd,
        nodes: &[OsString],
        linked: &mut Linked,
    ) -> Result<(), Fault> {
        if nodes.is_empty() {
            return Ok(());
        }
        self.unprotected(dir, || {
            let before = os::statx(dir).context(STATUS)?;
            for name in nodes {
                (self.watch)().context(CONTINUE)?;
                self.renew(dir, name, linked)?;
            }
            let dir = os::open_source_dir(dir, ".").context(OPEN)?;
            let times = self.os.set_times(&dir, &Times::of(&before));
            times.context("set the times of a directory")
        })
    }

    /// Replaces a link or special file by one that has the id, or none.
    fn renew(&self, dir: &OwnedFd, name: &OsStr, linked: &mut Linked) -> Result<(), Fault> {
        const LINK: &str = "link a node";
        let scratch = self.scratch;
        let source = os::open_entry(dir, name).and_then(Source::new);
        let source = source.context(STATUS)?;
        let inode = source.status.stx_ino;
        let retained = linked.get(&inode);
        let link = retained.map(|name| {
            self.os
                .link(At::new(&scratch, name), At::new(&scratch, NODE))
        });
        match link {
            // The new node may already have as many names as the filesystem allows.
            None | Some(Err(Errno::MLINK)) => self.make(scratch, &source)?,
            Some(link) => link.context(LINK)?,
        }
        if source.status.stx_nlink > 1 && retained.is_none() {
            let name = format!("linked-{inode}");
            let link = self
                .os
                .link(At::new(&scratch, NODE), At::new(&scratch, &name));
            link.context(LINK)?;
            linked.insert(inode, name);
        }
        let replaced = self
            .os
            .replace(At::new(&scratch, NODE), At::new(&dir, name));
        replaced.context("replace a node")?;
        // A rename between two names of one inode does nothing.
        let removed = self.os.unlink_any(scratch, NODE);
        removed.context("remove a node")
    }

    fn make(&self, scratch: &OwnedFd, source: &Source) -> Result<(), Fault> {
        let made = Node::of(source)?.make(self.os, scratch, OsStr::new(NODE))?;
        let target = made.ok_or(Fault::new("make an entry", Errno::EXIST))?;
        Attributes::of(source)?.give(self.os, &target).map(|_| ())
    }
}
