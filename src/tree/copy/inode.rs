//! Everything in a directory that is no directory.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{FileType, IFlags, Statx};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Inode, Os};

use super::attributes;
use super::fault::Reason;
use super::links::{Key, Linked};
use super::{Dir, Worker, kind_of, occupied};

/// An inode that is to be copied.
pub(super) struct Found {
    source: Inode,
    original: Statx,
}

impl Worker<'_, '_> {
    /// Opens what was a file when its directory was read.
    pub(super) fn find_file(self, dir: &Dir, name: &OsStr) -> Result<Option<Found>, Fault> {
        let opened = match os::open_source_file(&dir.source, name) {
            // A device, which the guarded mount does not let open; or it is a file, and says so.
            Err(Errno::ACCESS) => os::open_protected(&dir.source, name),
            opened => opened.map(Some),
        };
        let found = opened.and_then(|file| {
            let Some(file) = file else { return Ok(None) };
            let original = os::statx(&file)?;
            let source = Inode::open(file);
            let is_file = kind_of(&original) == FileType::RegularFile;
            Ok(is_file.then_some(Found { source, original }))
        });
        self.work.met(found, "open a file")
    }

    /// Finds what was neither a directory nor a file. It is never opened.
    pub(super) fn find_node(self, dir: &Dir, name: &OsStr) -> Result<Option<Found>, Fault> {
        let found = Inode::place(&dir.source, name).and_then(|source| {
            let original = os::statx(&source)?;
            let kind = kind_of(&original);
            let is_node = !matches!(kind, FileType::Directory | FileType::RegularFile);
            Ok(is_node.then_some(Found { source, original }))
        });
        self.work.met(found, "look at an entry")
    }

    pub(super) fn copy_inode(self, dir: &Dir, name: &OsStr, found: &Found) -> Result<(), Reason> {
        if found.original.stx_nlink > 1 {
            return self.copy_linked(dir, name, found);
        }
        self.make_copy(dir, name, found, attributes::flags(&found.original))?;
        Ok(())
    }

    /// Copies one of the names of a file that has several.
    fn copy_linked(self, dir: &Dir, name: &OsStr, found: &Found) -> Result<(), Reason> {
        let key = Key::of(&found.original);
        if self.link(dir, name, &key)? {
            return Ok(());
        }
        let links = &self.work.links;
        let _claim = links.claim(key);
        // Whoever held the claim before may have copied it.
        if self.link(dir, name, &key)? {
            return Ok(());
        }
        if self.make_copy(dir, name, found, IFlags::empty())? {
            let os = self.work.copying.os;
            links
                .keep(os, (dir.target.as_fd(), name), &key)
                .context("keep a file for its other names")?;
        }
        Ok(())
    }

    /// Links a name to the copy that there is already; false if there is none.
    fn link(self, dir: &Dir, name: &OsStr, key: &Key) -> Result<bool, Fault> {
        let work = self.work;
        let os = work.copying.os;
        let linked = work.links.link(os, key, (dir.target.as_fd(), name));
        match linked.context("link a file")? {
            Linked::No => return Ok(false),
            Linked::Yes => {}
            Linked::Last => {
                let file = os::open_source_file(&dir.target, name);
                let file = file.context("open a copied file")?;
                let lost = attributes::protect(os, &file, key.flags())?;
                work.totals.lose(lost);
            }
        }
        work.count(0);
        Ok(true)
    }

    /// Makes the copy of an inode, with these flags; false if there is one of that name, which
    /// moved while its directory was read and was met twice.
    fn make_copy(
        self,
        dir: &Dir,
        name: &OsStr,
        found: &Found,
        flags: IFlags,
    ) -> Result<bool, Reason> {
        let Found { source, original } = found;
        let made = if kind_of(original) == FileType::RegularFile {
            self.make_file(dir, name, found)?
        } else {
            self.make_node(dir, name, found)?
        };
        let Some(target) = made else {
            return Ok(false);
        };
        let work = self.work;
        work.totals
            .give(work.copying, source, original, &target, flags)?;
        work.count(occupied(original));
        Ok(true)
    }

    /// Makes a file with the content of another.
    fn make_file(self, dir: &Dir, name: &OsStr, found: &Found) -> Result<Option<Inode>, Reason> {
        let Found { source, original } = found;
        let copying = self.work.copying;
        copying.check_stall(source, original.stx_size)?;
        // Nobody else gets to the directory yet, and what is right already is not set again.
        let mode = u32::from(original.stx_mode) & 0o777;
        let target = match copying.os.create_as(&dir.target, name, mode) {
            Err(Errno::EXIST) => return Ok(None),
            created => Inode::open(created.context("make a file")?),
        };
        copying.transfer(source, &target, original.stx_size)?;
        Ok(Some(target))
    }

    fn make_node(self, dir: &Dir, name: &OsStr, found: &Found) -> Result<Option<Inode>, Fault> {
        let Found { source, original } = found;
        make_node(self.work.copying.os, &dir.target, name, (source, original))
    }
}

/// Makes a link like another, or a node for root alone; nothing if the name is taken.
pub(in crate::tree) fn make_node(
    os: &Os,
    dir: impl AsFd,
    name: &OsStr,
    (source, original): (&Inode, &Statx),
) -> Result<Option<Inode>, Fault> {
    let made = if kind_of(original) == FileType::Symlink {
        let link = source.link_target().context("read a link")?;
        os.symlink(&link, &dir, name)
    } else {
        let device = (original.stx_rdev_major, original.stx_rdev_minor);
        os.mknod(&dir, name, kind_of(original), device)
    };
    match made {
        Err(Errno::EXIST) => return Ok(None),
        made => made.context("make an entry")?,
    }
    let target = Inode::place(dir, name).context("look at a new entry")?;
    Ok(Some(target))
}
