//! Pool sets: the mounts directly below a directory are pools, which a class addresses by one name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use glob::Pattern;
use linux::mount::{MountEntry, MountTable};
use linux::os;
use objects::{Invalid, PoolName};

use crate::disk::error::Result;
use crate::disk::known_pools::KnownPools;
use crate::disk::options::{PoolOptions, needs_value, set_each, split};

/// The flag that errors name.
const FLAG: &str = "--pool-set";

const KNOWN: &str = "match=GLOB, init, overcommit=R, reserve=BYTES|N% and keep=TIME";

/// The options of a pool set, as in `--pool-set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSet {
    /// The names of the directories whose mounts are members; `None`: all.
    pub matching: Option<Pattern>,
    /// The options of each member, with the name of the set and the directory above the members.
    template: PoolOptions,
}

impl PoolSet {
    pub fn name(&self) -> &PoolName {
        &self.template.name
    }

    /// The directory above the members.
    pub fn dir(&self) -> &Path {
        &self.template.path
    }

    /// The member at a path, if a mount there is one.
    pub fn member_at(&self, path: &Path) -> Option<PoolOptions> {
        let directory = path.strip_prefix(self.dir()).ok()?;
        self.member(directory.as_os_str())
    }

    fn member(&self, directory: &OsStr) -> Option<PoolOptions> {
        let directory = directory.to_str()?;
        let matching = self.matching.as_ref();
        if matching.is_some_and(|pattern| !pattern.matches(directory)) {
            return None;
        }
        Some(PoolOptions {
            name: self.name().of_member(directory)?,
            path: self.dir().join(directory),
            ..self.template.clone()
        })
    }

    /// The mounts directly below the directory with the names of members.
    fn mounted<'a>(
        &'a self,
        table: &'a MountTable,
    ) -> impl Iterator<Item = (PoolOptions, &'a MountEntry)> + use<'a> {
        // The kernel shows mount points without the links of the configured path. A directory that
        // cannot be opened shows no mounts.
        let dir = os::open_path(self.dir()).and_then(|dir| os::path_of(&dir));
        let dir = dir.ok();
        table.entries.iter().filter_map(move |entry| {
            let is_below = entry.mount_point.parent() == dir.as_deref();
            let name = entry.mount_point.file_name();
            Some((self.member(name.filter(|_| is_below)?)?, entry))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (name, path, options) = split(text)?;
        let mut matching = None;
        let mut template = PoolOptions {
            require_mount: true,
            ..PoolOptions::plain(name, path)
        };
        set_each(options, |key, value| match (key, value) {
            ("match", Some(value)) => {
                let pattern = Pattern::new(value);
                matching =
                    Some(pattern.map_err(|error| format!("match {value:?}: {}", error.msg))?);
                Ok(())
            }
            ("match", None) => Err(needs_value(key)),
            _ => template.set(key, value, KNOWN),
        })?;
        Ok(Self { matching, template })
    }
}

impl FromStr for PoolSet {
    type Err = Invalid;

    /// Parses `NAME=DIR[,match=GLOB][,init][,overcommit=R][,reserve=BYTES|N%][,keep=TIME]`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text).map_err(|problem| Invalid::new(FLAG, format!("{text:?}: {problem}")))
    }
}

/// A member of a set, and the id of the mount at its path, if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub options: PoolOptions,
    pub mount: Option<u64>,
}

/// A mount below the directory of a set that is not a member, because it shows a part of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartMount {
    pub set: PoolName,
    pub path: PathBuf,
}

impl fmt::Display for PartMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(
            f,
            "{path} is a bind mount of a directory, or a btrfs subvolume, and not the root of a filesystem, so \
             it is not a member; mount the disk itself there, or serve the directory by --pool"
        )
    }
}

fn is_whole(mount: &MountEntry) -> bool {
    mount.root == Path::new("/")
}

/// The mounts of parts of disks that nothing else keeps from being members of sets, in the order of their paths.
pub fn part_mounts(sets: &[PoolSet], table: &MountTable) -> Vec<PartMount> {
    let mut found = BTreeMap::new();
    for set in sets {
        for (PoolOptions { path, .. }, mount) in set.mounted(table) {
            if is_whole(mount) {
                found.insert(path, None);
            } else {
                let set = set.name().clone();
                let part = Some(PartMount {
                    set,
                    path: path.clone(),
                });
                found.entry(path).or_insert(part);
            }
        }
    }
    found.into_values().flatten().collect()
}

/// The members of sets: the mounts below their directories, and the pools that were there before, in
/// the order of the sets and of their names. A mount that several sets match is in the first.
pub fn members(
    sets: &[PoolSet],
    table: &MountTable,
    known_pools: Option<&KnownPools>,
) -> Result<Vec<Member>> {
    let remembered = known_pools.map_or(Ok(Vec::new()), KnownPools::paths)?;
    let mut paths = BTreeSet::new();
    let mut members = Vec::new();
    for set in sets {
        let known = remembered.iter().filter_map(|path| set.member_at(path));
        let known = known.map(|options| Member {
            options,
            mount: None,
        });
        let mounted = set.mounted(table).filter(|(_, mount)| is_whole(mount));
        let mounted = mounted.map(|(options, mount)| Member {
            options,
            mount: Some(mount.id),
        });
        // A later mount at the same path is on top.
        let found = known.chain(mounted);
        let found = found.map(|member| (member.options.path.clone(), member));
        let found: BTreeMap<_, _> = found.collect();
        let new = found
            .into_iter()
            .filter(|(path, _)| paths.insert(path.clone()));
        members.extend(new.map(|(_, member)| member));
    }
    Ok(members)
}
