//! Everything in a directory that is no directory.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{FileType, IFlags, Statx};
use rustix::io::Errno;

use crate::os::{self, Inode};
use crate::pool::fault::{During, Fault};

use super::attributes;
use super::fault::Reason;
use super::links::{Key, Linked};
use super::{Dir, Hand, Work, occupied};

impl Hand<'_, '_> {
    /// Copies one of the names of a file that has several.
    pub(super) fn copy_linked(self, dir: &Dir, name: &OsStr, seen: &Statx) -> Result<(), Reason> {
        let key = Key::of(seen);
        if self.link(dir, name, &key)? {
            return Ok(());
        }
        let links = &self.work.links;
        let _claim = links.claim(key);
        // Whoever held the claim before may have copied it.
        if self.link(dir, name, &key)? {
            return Ok(());
        }
        if self.copy_inode(dir, name, seen, Some(&key))? {
            let os = self.work.copying.os;
            links
                .keep(os, (dir.target.as_fd(), name), &key)
                .during("keep a file for its other names")?;
        }
        Ok(())
    }

    /// Links a name to the copy that there is already; false if there is none.
    fn link(self, dir: &Dir, name: &OsStr, key: &Key) -> Result<bool, Fault> {
        let Work {
            links,
            copying,
            totals,
            ..
        } = self.work;
        let linked = links.link(copying.os, key, (dir.target.as_fd(), name));
        match linked.during("link a file")? {
            Linked::No => return Ok(false),
            Linked::Yes => {}
            Linked::Last => {
                let last = os::open_source_file(&dir.target, name);
                let last = last.during("open a copied file")?;
                totals.lose(attributes::protect(copying.os, &last, key.flags())?);
            }
        }
        self.work.count(0);
        Ok(true)
    }

    /// Copies what is no directory; whether the copy is that of the file with the key, and its
    /// flags are still to be set.
    pub(super) fn copy_inode(
        self,
        dir: &Dir,
        name: &OsStr,
        seen: &Statx,
        key: Option<&Key>,
    ) -> Result<bool, Reason> {
        let is_file = FileType::from_raw_mode(seen.stx_mode.into()) == FileType::RegularFile;
        let made = if is_file {
            self.make_file(dir, name)?
        } else {
            self.make_node(dir, name)?
        };
        let Some(Made {
            source,
            original,
            target,
        }) = made
        else {
            return Ok(false);
        };
        // Another file may have come in place of the one that was seen.
        let is_keyed = key.is_some_and(|key| *key == Key::of(&original));
        let flags = if is_keyed {
            IFlags::empty()
        } else {
            attributes::flags(&original)
        };
        let Work {
            totals, copying, ..
        } = self.work;
        totals.give(copying, &source, &original, &target, flags)?;
        self.work.count(occupied(&original));
        Ok(is_keyed)
    }

    /// Copies a file, its attributes not yet.
    pub(super) fn make_file(self, dir: &Dir, name: &OsStr) -> Result<Option<Made>, Reason> {
        let Work { copying, .. } = self.work;
        let opened = match os::open_source_file(&dir.source, name) {
            // A device, which the guarded mount does not let open; or it is a file, and says so.
            Err(Errno::ACCESS) => os::open_protected(&dir.source, name),
            opened => opened.map(Some),
        };
        let opened = opened.and_then(|file| {
            let Some(file) = file else { return Ok(None) };
            let original = os::statx(&file)?;
            let kind = FileType::from_raw_mode(original.stx_mode.into());
            Ok((kind == FileType::RegularFile).then_some((file, original)))
        });
        let Some((source, original)) = self.work.met(opened, "open a file")? else {
            return Ok(None);
        };
        copying.check_stall(&source, &original)?;
        // Nobody else gets to the directory yet, and what is right already is not set again.
        let mode = u32::from(original.stx_mode) & 0o777;
        let target = match copying.os.create_as(&dir.target, name, mode) {
            Err(Errno::EXIST) => return Ok(None),
            made => made.during("make a file")?,
        };
        copying.transfer(&source, &target, original.stx_size)?;
        Ok(Some(Made {
            source: Inode::open(source),
            original,
            target: Inode::open(target),
        }))
    }

    /// Copies what is neither a directory nor a file, its attributes not yet. It is never opened.
    pub(super) fn make_node(self, dir: &Dir, name: &OsStr) -> Result<Option<Made>, Reason> {
        let held = Inode::place(&dir.source, name).and_then(|source| {
            let original = os::statx(&source)?;
            let kind = FileType::from_raw_mode(original.stx_mode.into());
            let is_node = !matches!(kind, FileType::Directory | FileType::RegularFile);
            Ok(is_node.then_some((source, original, kind)))
        });
        let Some((source, original, kind)) = self.work.met(held, "look at an entry")? else {
            return Ok(None);
        };
        let os = self.work.copying.os;
        let made = if kind == FileType::Symlink {
            let link = source.link_target().during("read a link")?;
            os.symlink(&link, &dir.target, name)
        } else {
            let device = (original.stx_rdev_major, original.stx_rdev_minor);
            os.mknod(&dir.target, name, kind, device)
        };
        match made {
            Err(Errno::EXIST) => return Ok(None),
            made => made.during("make an entry")?,
        }
        let target = Inode::place(&dir.target, name).during("look at a copied entry")?;
        Ok(Some(Made {
            source,
            original,
            target,
        }))
    }
}

/// A copied inode that lacks its attributes.
pub(super) struct Made {
    source: Inode,
    original: Statx,
    target: Inode,
}
