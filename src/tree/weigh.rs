//! What a tree occupies, each file once however many names it has.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::os::{self, FileId, Status};
use crate::types::Bytes;

/// How many levels are looked into: each holds a descriptor open.
pub(super) const MAX_LEVELS: usize = 200;

/// What a tree occupies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    /// In bytes.
    pub(crate) bytes: u64,
    /// In files and directories.
    pub(crate) inodes: u64,
    /// What could not be looked into: the first error, or that it is too deep.
    pub(crate) unseen: Option<Errno>,
}

/// Something in a tree.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    /// The directory it is in.
    pub(crate) dir: BorrowedFd<'a>,
    pub(crate) name: &'a OsStr,
    pub(crate) status: Status,
    /// The names of the directories above it.
    above: &'a [Level],
}

impl Seen<'_> {
    /// Its path below the top.
    pub(crate) fn path(&self) -> PathBuf {
        let above = self
            .above
            .iter()
            .skip(1)
            .map(|level| level.name.as_os_str());
        above.chain([self.name]).collect()
    }
}

/// A directory that is being looked into.
#[derive(Debug)]
struct Level {
    name: OsString,
    dir: OwnedFd,
    below: Vec<OsString>,
}

/// The way to count files of several names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkCount {
    /// Each file once, which takes memory for each.
    Once,
    /// Each name as its part of the file, which is right if no name is elsewhere.
    InParts,
}

/// Inodes are counted in parts of so many.
const PARTS: u64 = 1 << 20;

/// A tree that is being weighed.
struct Walk<'v> {
    /// From the top to where it is.
    levels: Vec<Level>,
    tally: Tally,
    visit: Visit<'v>,
}

/// The files that were met.
struct Tally {
    weight: Weight,
    /// The files of several names that were met, if each is to count once.
    linked: Option<HashSet<FileId>>,
    /// The inodes, in [`PARTS`].
    parts: u64,
}

/// Sees an entry; an error ends the walk.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&Seen<'_>) -> Result<(), Errno>;

/// Weighs the tree below a directory, the directory included, and shows everything below it to
/// `visit`. What changes meanwhile may be seen or not.
pub(crate) fn weigh(top: OwnedFd, links: LinkCount, visit: Visit<'_>) -> Result<Weight, Errno> {
    let mut walk = Walk {
        levels: Vec::new(),
        tally: Tally {
            weight: Weight::default(),
            linked: (links == LinkCount::Once).then(HashSet::new),
            parts: 0,
        },
        visit,
    };
    walk.tally.add(&os::status(&top)?);
    walk.enter(top, OsString::new())?;
    while let Some(level) = walk.levels.last_mut() {
        let Some(name) = level.below.pop() else {
            walk.levels.pop();
            continue;
        };
        match os::open_source_dir(&level.dir, &name) {
            Ok(dir) if walk.levels.len() < MAX_LEVELS => walk.enter(dir, name)?,
            Ok(_) => walk.tally.weight.miss(Errno::NAMETOOLONG),
            Err(errno) => walk.tally.weight.miss(errno),
        }
    }
    let inodes = walk.tally.parts.div_ceil(PARTS);
    Ok(Weight {
        inodes,
        ..walk.tally.weight
    })
}

impl Tally {
    /// Adds a file; false if it was met before under another name.
    fn add(&mut self, status: &Status) -> bool {
        let mut names: u64 = 1;
        if status.file_type != FileType::Directory && status.links > 1 {
            match &mut self.linked {
                Some(linked) => {
                    if !linked.insert(status.id) {
                        return false;
                    }
                }
                None => names = status.links.into(),
            }
        }
        let bytes = &mut self.weight.bytes;
        *bytes = bytes.saturating_add(status.allocated / names);
        self.parts = self.parts.saturating_add(PARTS / names);
        true
    }
}

impl Walk<'_> {
    /// Counts what is in a directory, and notes which directories are to be entered.
    fn enter(&mut self, dir: OwnedFd, name: OsString) -> Result<(), Errno> {
        let below = Vec::new();
        self.levels.push(Level { name, dir, below });
        let Self {
            levels,
            tally,
            visit,
        } = self;
        let Some(level) = levels.last() else {
            return Ok(());
        };
        let dir = level.dir.as_fd();
        let mut below = Vec::new();
        let mut ended = Ok(());
        let listed = os::for_each_entry(dir, |name, _| {
            let name = OsStr::from_bytes(name.to_bytes());
            let status = match os::status_at(dir, name) {
                Ok(status) => status,
                Err(errno) => {
                    tally.weight.miss(errno);
                    return Ok(());
                }
            };
            if tally.add(&status) {
                ended = visit(&Seen {
                    dir,
                    name,
                    status,
                    above: levels,
                });
                ended?;
            }
            if status.file_type == FileType::Directory {
                below.push(name.to_owned());
            }
            Ok(())
        });
        ended?;
        if let Err(errno) = listed {
            tally.weight.miss(errno);
        }
        if let Some(level) = levels.last_mut() {
            level.below = below;
        }
        Ok(())
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Bytes(self.bytes).rounded())?;
        match self.inodes {
            0 => Ok(()),
            inodes => write!(f, " in {inodes} files"),
        }
    }
}

impl Weight {
    /// What was removed or replaced meanwhile is not missed.
    fn miss(&mut self, errno: Errno) {
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            self.unseen.get_or_insert(errno);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn weighed(top: &std::path::Path) -> (Weight, Vec<PathBuf>) {
        let mut seen = Vec::new();
        let top = os::open_path(top).unwrap();
        let top = os::open_dir(top, ".").unwrap();
        let weight = weigh(top, LinkCount::Once, &mut |entry| {
            seen.push(entry.path());
            Ok(())
        });
        let weight = weight.unwrap();
        seen.sort();
        (weight, seen)
    }

    /// Proves: T4.
    #[test]
    fn a_file_of_many_names_weighs_once_and_a_link_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(dir.path().join("outside"), vec![1; 1 << 20]).unwrap();
        fs::write(top.join("a/b/file"), vec![1; 64 << 10]).unwrap();
        fs::hard_link(top.join("a/b/file"), top.join("again")).unwrap();
        std::os::unix::fs::symlink(dir.path(), top.join("link")).unwrap();
        let (weight, seen) = weighed(&top);
        let each = ["", "a", "a/b", "a/b/file", "link"];
        let occupied = |name: &&str| top.join(name).symlink_metadata().unwrap().blocks() * 512;
        assert_eq!(weight.bytes, each.iter().map(occupied).sum::<u64>());
        assert_eq!((weight.inodes, weight.unseen), (5, None));
        let again = os::open_dir(os::open_path(&top).unwrap(), ".").unwrap();
        let parts = weigh(again, LinkCount::InParts, &mut |_| Ok(())).unwrap();
        assert_eq!((parts.bytes, parts.inodes), (weight.bytes, weight.inodes));
        assert_eq!(seen.len(), 4, "{seen:?}");
        assert!(seen.contains(&"a/b".into()), "{seen:?}");
    }

    /// Proves: T4.
    #[test]
    fn what_is_too_deep_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().to_owned();
        for _ in 0..MAX_LEVELS {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        let (weight, _) = weighed(dir.path());
        assert_eq!(weight.inodes, 1 + MAX_LEVELS as u64);
        assert_eq!(weight.unseen, Some(Errno::NAMETOOLONG));
    }
}
