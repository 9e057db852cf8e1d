//! Measures the space and the inodes that a tree occupies.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use objects::Bytes;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::os::{self, FileId, Status};

use super::entries::next_entries;
use super::walk::walk;

/// The space and the inodes that a tree occupies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    pub bytes: u64,
    /// The files and directories.
    pub inodes: u64,
    /// The first error that hid a part of the tree; `NAMETOOLONG` if the tree is too deep.
    pub unseen: Option<Errno>,
}

#[derive(Debug)]
pub struct Seen<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a OsStr,
    pub status: Status,
    /// The path of the directory below the top.
    above: &'a Path,
}

impl Seen<'_> {
    /// The path of the entry below the top.
    pub fn path(&self) -> PathBuf {
        self.above.join(self.name)
    }
}

/// How files with several names are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCount {
    /// Each file once. This takes memory for each.
    Once,
    /// Each name as its share of the file. This is exact if no name is outside the tree.
    InParts,
}

/// The files with several names, for the search for names outside of a tree.
#[derive(Debug, Default)]
pub struct LinkedFiles(HashMap<FileId, LinkedFile>);

#[derive(Debug)]
struct LinkedFile {
    /// The path of its first name.
    path: PathBuf,
    names: u32,
    names_inside: u32,
}

impl LinkedFiles {
    /// Notes an entry of a tree that is weighed with [`LinkCount::InParts`].
    pub fn note(&mut self, seen: &Seen<'_>) {
        let Status { id, links, .. } = seen.status;
        if seen.status.file_type == FileType::Directory || links < 2 {
            return;
        }
        let file = self.0.entry(id).or_insert_with(|| LinkedFile {
            path: seen.path(),
            names: links,
            names_inside: 0,
        });
        file.names_inside += 1;
    }

    /// The path of a file that has also names outside, the number of its names, and that of those outside.
    pub fn outside(self) -> Option<(PathBuf, u32, u32)> {
        let mut files = self.0.into_values();
        let file = files.find(|file| file.names > file.names_inside)?;
        Some((file.path, file.names, file.names - file.names_inside))
    }
}

/// The shares of one inode, so that sums of shares stay exact enough.
const SHARES: u64 = 1 << 20;

/// The entries counted so far.
struct Tally {
    weight: Weight,
    /// The files with several names that were counted, if each counts once.
    linked: Option<HashSet<FileId>>,
    /// The inodes, in [`SHARES`].
    shares: u64,
}

/// Called for an entry; an error ends the walk.
pub(super) type Visit<'v> = &'v mut dyn FnMut(&Seen<'_>) -> Result<(), Errno>;

/// Measures the tree of a directory, which is included, and calls `visit` for every entry below it.
/// Entries that change meanwhile may be missed.
pub fn weigh(top: OwnedFd, links: LinkCount, visit: Visit<'_>) -> Result<Weight, Errno> {
    let mut tally = Tally {
        weight: Weight::default(),
        linked: (links == LinkCount::Once).then(HashSet::new),
        shares: 0,
    };
    tally.add(&os::status(&top)?);
    walk(top, |dir, path| match dir {
        Ok(dir) => tally.enter(dir, path, visit),
        Err(errno) => {
            tally.miss(errno);
            Ok(Vec::new())
        }
    })?;
    Ok(Weight {
        inodes: tally.shares.div_ceil(SHARES),
        ..tally.weight
    })
}

impl Tally {
    /// Counts the entries of a directory; the names of the directories among them.
    fn enter(
        &mut self,
        dir: &OwnedFd,
        above: &Path,
        visit: Visit<'_>,
    ) -> Result<Vec<OsString>, Errno> {
        let dir = dir.as_fd();
        let mut below = Vec::new();
        while let Some(entries) = next_entries(dir).unwrap_or_else(|errno| {
            self.miss(errno);
            None
        }) {
            for entry in entries {
                let name = entry.name();
                let status = match os::status_at(dir, name) {
                    Ok(status) => status,
                    Err(errno) => {
                        self.miss(errno);
                        continue;
                    }
                };
                if self.add(&status) {
                    visit(&Seen {
                        dir,
                        name,
                        status,
                        above,
                    })?;
                }
                if status.file_type == FileType::Directory {
                    below.push(name.to_owned());
                }
            }
        }
        Ok(below)
    }

    /// Counts a file; false if it was counted under another name.
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
        self.shares = self.shares.saturating_add(SHARES / names);
        true
    }

    /// Notes an error, unless the entry was removed or replaced meanwhile.
    fn miss(&mut self, errno: Errno) {
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            self.weight.unseen.get_or_insert(errno);
        }
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::tree::walk::MAX_LEVELS;

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
    fn a_tree_too_deep_is_reported() {
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
