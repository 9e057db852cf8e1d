//! The kept objects of a pool: deleted volumes and snapshots that can come back for a time.
//!
//! Each is its directory in `kept/`, unchanged. Its name there has the time of the deletion, so that a deletion
//! and its undoing are one rename each.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use linux::fault::{Fault, InContext};
use linux::filesystem::Filesystem;
use linux::os::{self, At};
use linux::quota::Quota;
use objects::{NameHash, ObjectId, VolumeId};
use uuid::Uuid;

use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{self, Record};
use crate::disk::trash::TrashEntry;

/// The longest name of an entry in bytes, `NAME_MAX`.
const MAX_NAME: usize = 255;

/// The metadata of each subvolume, of which no space for data becomes free.
const ROOT_OF_SUBVOLUME: u64 = 16 << 10;

const READ_CHARGE: &str = "ask what a kept object uses";

/// A deleted object that can come back.
#[derive(Debug, Clone, Default)]
pub struct KeptEntry {
    /// The entry that the trash gets after it.
    pub entry: TrashEntry,
    /// The bytes on the disk that the kernel does not charge; `None` until they are measured.
    pub used: Option<u64>,
    /// Whether it is coming back, so that nobody else may take it.
    pub returns: bool,
}

impl KeptEntry {
    /// `counted`: whether the kernel counts its usage.
    pub fn new(entry: TrashEntry, counted: bool) -> Self {
        Self {
            entry,
            used: counted.then_some(0),
            returns: false,
        }
    }

    /// Whether it is a volume with an id, or was until an undeletion under another name was interrupted.
    pub fn is_volume(&self, name: &KeptName, id: VolumeId) -> bool {
        let has = self.entry.volume;
        let is_renamed = has.is_some_and(|has| !name.has_hash(has.hash()));
        has == Some(id) || is_renamed && name.has_hash(id.hash())
    }
}

/// The name of a kept entry: `<directory>.<serving time in milliseconds>.<UUID>`. The order is that of the deletions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptName {
    /// The pool's serving time at the deletion, in milliseconds.
    pub deleted: u64,
    /// The name of its directory before the deletion.
    pub directory: String,
    /// Distinguishes the entries of one id.
    pub entry: Uuid,
}

impl KeptName {
    /// A new name; `None` if the directory was renamed by hand so that none is possible.
    pub fn new(directory: &str, deleted: u64) -> Option<Self> {
        layout::hash_of(directory)?;
        let name = Self {
            directory: directory.to_owned(),
            deleted,
            entry: Uuid::new_v4(),
        };
        // A directory may be renamed by hand to a longer name.
        (name.place().len() <= MAX_NAME).then_some(name)
    }

    pub fn parse(name: &OsStr) -> Option<Self> {
        let mut parts = name.to_str()?.rsplitn(3, '.');
        let (entry, deleted, directory) = (parts.next()?, parts.next()?, parts.next()?);
        layout::hash_of(directory)?;
        let found = Self {
            directory: directory.to_owned(),
            deleted: objects::digits(deleted)?,
            entry: Uuid::try_parse(entry).ok()?,
        };
        (found.place() == *name).then_some(found)
    }

    /// Whether it is the name of an object whose id has this hash.
    pub(crate) fn has_hash(&self, hash: NameHash) -> bool {
        layout::hash_of(&self.directory) == Some(hash)
    }

    pub fn place(&self) -> OsString {
        let (directory, deleted, entry) = (&self.directory, self.deleted, self.entry.simple());
        format!("{directory}.{deleted}.{entry}").into()
    }

    /// The time for which it is kept still, at this serving time of the pool.
    pub fn left(&self, served: u64, keep: Duration) -> Duration {
        // A server that died may not have recorded all of its time.
        keep.saturating_sub(Duration::from_millis(served.saturating_sub(self.deleted)))
    }
}

/// The names of the kept entries, with those that are none of the driver's left out.
pub(crate) fn names(kept: &OwnedFd) -> Result<Vec<KeptName>, Fault> {
    let names = os::entry_names(kept.as_fd()).context("list the kept objects")?;
    Ok(names
        .iter()
        .filter_map(|name| KeptName::parse(name))
        .collect())
}

/// The kept entries. Those that the kernel charges with nothing are measured: btrfs forgets charges while its quota is
/// off.
pub(crate) fn entries(
    kept: &OwnedFd,
    quota: &dyn Quota,
) -> Result<Vec<(KeptName, KeptEntry)>, Fault> {
    let entry = |name: KeptName| {
        let entry = TrashEntry::find(kept, &name.place())?;
        let charged = entry.quota_id.map(|id| quota.usage(id)).transpose();
        let charged = charged.context(READ_CHARGE)?.unwrap_or_default();
        Ok((name, KeptEntry::new(entry, charged > 0)))
    };
    names(kept)?.into_iter().map(entry).collect()
}

impl Disk {
    /// Moves an object to its place among the kept ones, durably; false if somebody removed it by hand.
    pub fn keep<R: Record>(
        &self,
        kept: &OwnedFd,
        directory: &str,
        place: &OsStr,
    ) -> Result<bool, Fault> {
        self.move_away(self.homes.of::<R>(), directory.as_ref(), kept, place)
    }

    /// Moves a kept object to its place in the trash; false if somebody removed it by hand. It is durable after
    /// [`Disk::sync_ended`].
    pub(crate) fn end_kept(&self, kept: &OwnedFd, place: &OsStr) -> Result<bool, Fault> {
        self.rename_away(At::new(kept, place), At::new(&self.homes.trash, place))
    }

    /// Makes the moves of kept objects to the trash durable.
    pub(crate) fn sync_ended(&self, kept: &OwnedFd) -> Result<(), Fault> {
        self.sync_dirs([&self.homes.trash, kept])
    }

    /// The bytes that the kernel charges a deleted object with; 0 where nothing counts them.
    pub(crate) fn charged(&self, entry: &TrashEntry) -> Result<u64, Fault> {
        let id = entry.quota_id.filter(|_| self.accounts());
        let bytes = id.map(|id| self.quota.usage(id)).transpose();
        let bytes = bytes.context(READ_CHARGE)?.unwrap_or_default();
        if self.filesystem == Filesystem::Btrfs {
            return Ok(bytes.saturating_sub(ROOT_OF_SUBVOLUME));
        }
        Ok(bytes)
    }

    /// Replaces the record of a kept object durably.
    pub(crate) fn amend_kept<R: Record>(
        &self,
        kept: &OwnedFd,
        place: &OsStr,
        record: &R,
    ) -> Result<(), Fault> {
        let dir = os::open_dir(kept, place).context("open a kept object")?;
        record::write(&self.context.os, &dir, R::FILE, record)
    }

    /// Makes a kept object visible again, durably.
    pub(crate) fn bring_back<R: Record>(
        &self,
        kept: &OwnedFd,
        place: &OsStr,
        directory: &str,
    ) -> Result<(), Fault> {
        let home = self.homes.of::<R>();
        let renamed = self
            .context
            .os
            .rename(At::new(kept, place), At::new(home, directory));
        renamed.context("move a kept object back")?;
        self.sync_dirs([home, kept])
    }
}
