//! The directory of imports: the entries of imports and exports that are under way, each with the record
//! of its volume.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use linux::fault::{Fault, InContext};
use linux::os::{self, At, Os};
use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;
use uuid::Uuid;

use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{self, Record, Unreadable, VolumeRecord};
use crate::disk::staging::Staged;
use crate::disk::unfinished::UnfinishedCopy;

/// The bytes of the longest path of a directory of the host.
pub(crate) const MAX_PATH: usize = 4096;

/// More bytes than the kind of a directory has that an earlier version copied.
const MAX_KIND: usize = 64;

/// The state of an entry, the most important one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportStage {
    /// It has the tree.
    HasTree,
    /// The tree is at a path of the host, and an earlier version has not ended its copy.
    AwaitsCopy,
    /// An earlier version has copied the tree to a path of the host.
    Copied,
    /// It is being made, or an import or export that ended left it.
    Empty,
}

impl ImportStage {
    pub fn of(dir: &OwnedFd) -> Self {
        let is = |name: &str, wanted| {
            let status = os::status_at(dir, name);
            status.is_ok_and(|status| status.file_type == wanted)
        };
        if is(layout::COPIED, FileType::RegularFile) {
            Self::Copied
        } else if is(layout::DATA, FileType::Directory) {
            Self::HasTree
        } else if is(layout::TO_COPY, FileType::RegularFile) {
            Self::AwaitsCopy
        } else {
            Self::Empty
        }
    }

    /// Whether the import or export can go on.
    pub fn is_unfinished(self) -> bool {
        self != Self::Empty
    }
}

/// Locks or unlocks the imports and exports of a pool, by the descriptor of the driver's own directory. The
/// host's side has the lock as long as it works, and the server only while it cleans up.
pub fn lock(meta: &OwnedFd, operation: FlockOperation) -> Result<(), Errno> {
    rustix::fs::flock(meta, operation)
}

pub fn names(incoming: &OwnedFd) -> Result<Vec<String>, Errno> {
    let names = os::entry_names(incoming.as_fd())?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// An entry of the directory of imports, opened with its record. The server and the host's side work on it in
/// turns, so its state is read again each time.
#[derive(Debug)]
pub struct ImportEntry {
    incoming: OwnedFd,
    pub dir: OwnedFd,
    name: String,
    /// The record of the volume that the tree becomes, or was.
    pub record: VolumeRecord,
}

impl ImportEntry {
    /// Makes an entry without files, for a volume with this record.
    pub fn make(os: &Os, incoming: OwnedFd, record: VolumeRecord) -> Result<Self, Errno> {
        let name = Uuid::new_v4().simple().to_string();
        os.mkdir(&incoming, &name, 0o700)?;
        Ok(Self {
            dir: os::open_dir(&incoming, &name)?,
            incoming,
            name,
            record,
        })
    }

    /// Opens a listed entry. `None`: it is being made or removed. Only the damage of one with a tree counts.
    pub fn open(incoming: &OwnedFd, name: &str) -> Result<Option<Self>, Unreadable> {
        let Ok(dir) = os::open_dir(incoming, name) else {
            return Ok(None);
        };
        // Before the record, which an entry has before its tree.
        let stage = ImportStage::of(&dir);
        match record::read(&dir, VolumeRecord::FILE) {
            Ok(record) => {
                let incoming = os::open_dir(incoming, ".").context("open the directory of imports");
                Ok(Some(Self {
                    incoming: incoming.map_err(Unreadable::Fault)?,
                    dir,
                    name: name.to_owned(),
                    record,
                }))
            }
            Err(Unreadable::Damaged(_)) if stage != ImportStage::HasTree => Ok(None),
            Err(unreadable) => Err(unreadable),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path in a pool at this path.
    pub fn path(&self, pool: &Path) -> PathBuf {
        let incoming = pool.join(layout::META).join(layout::INCOMING);
        incoming.join(&self.name)
    }

    pub fn stage(&self) -> ImportStage {
        ImportStage::of(&self.dir)
    }

    /// Whether it has the tree, and the server has not made the entry a volume.
    pub fn has_tree(&self) -> bool {
        self.stage() == ImportStage::HasTree && os::open_dir(&self.incoming, &self.name).is_ok()
    }

    /// Whether its tree keeps a quota id, as that of a volume which an earlier version began to copy to the host.
    /// The tree of an import has its id only as a volume.
    pub fn is_counted(&self) -> bool {
        self.record.quota_id.is_some() && !self.record.enforcing
    }

    /// The copy that an earlier version did not end, in a pool at this path.
    pub fn unfinished_copy(&self, pool: &Path) -> Option<UnfinishedCopy> {
        let entry = self.path(pool);
        let read = |name, most| {
            let file = os::open_file(&self.dir, name);
            file.and_then(|file| os::read_all(&file, most))
                .unwrap_or_default()
        };
        match self.stage() {
            ImportStage::AwaitsCopy => {
                let kind = read(layout::TO_COPY, MAX_KIND);
                let kind = String::from_utf8_lossy(&kind);
                Some(UnfinishedCopy::of_import(&self.record, &entry, &kind))
            }
            ImportStage::Copied => {
                let to = PathBuf::from(OsString::from_vec(read(layout::COPIED, MAX_PATH)));
                Some(UnfinishedCopy::of_export(&self.record, &entry, &to))
            }
            ImportStage::HasTree | ImportStage::Empty => None,
        }
    }

    /// Makes the entry durable, once its files are.
    pub fn sync(&self, os: &Os) -> Result<(), Errno> {
        os.fsync(&self.dir)?;
        os.fsync(&self.incoming)
    }

    /// Removes it, unless it has a tree: EISDIR.
    pub fn remove(&self, os: &Os) -> Result<(), Errno> {
        remove_entry(os, &self.incoming, &self.dir, &self.name)
    }

    pub(crate) fn into_staged(self) -> Staged {
        Staged {
            dir: self.dir,
            name: self.name,
            parent: Some(self.incoming),
        }
    }
}

/// Removes an entry, unless it has a tree: EISDIR. Its record may be missing.
fn remove_entry(os: &Os, incoming: &OwnedFd, dir: &OwnedFd, name: &str) -> Result<(), Errno> {
    // The tree first, and the record last: without that, the entry would be unknown.
    let temporary = format!("{}.tmp", VolumeRecord::FILE);
    for file in [layout::DATA, &temporary, VolumeRecord::FILE] {
        os.unlink_any(dir, file)?;
    }
    os.rmdir(incoming, name)
}

/// Logs the copy that an earlier version did not end.
fn report_copy(incoming: &OwnedFd, name: &str, pool: &Path) {
    if let Ok(Some(entry)) = ImportEntry::open(incoming, name)
        && let Some(copy) = entry.unfinished_copy(pool)
    {
        tracing::warn!(pool = %pool.display(), "{copy}");
    }
}

impl Disk {
    /// The directory of imports, if it was made.
    pub fn imports(&self) -> Result<Option<OwnedFd>, Fault> {
        match os::open_dir(&self.meta, layout::INCOMING) {
            Err(Errno::NOENT) => Ok(None),
            opened => opened.map(Some).context("open the directory of imports"),
        }
    }

    /// Removes the entries of imports and exports that ended before they were cleaned up, unless one is at
    /// work. Reports the copies that an earlier version did not end, in the pool at this path.
    pub(crate) fn clear_imports(&self, pool: &Path) -> Result<(), Fault> {
        let Some(incoming) = self.imports()? else {
            return Ok(());
        };
        if lock(&self.meta, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        let os = &self.context.os;
        let clear = |name: &str| match os::open_dir(&incoming, name) {
            Err(_) => Ok(()),
            Ok(dir) => match ImportStage::of(&dir) {
                ImportStage::HasTree => Ok(()),
                ImportStage::AwaitsCopy | ImportStage::Copied => {
                    report_copy(&incoming, name, pool);
                    Ok(())
                }
                ImportStage::Empty => remove_entry(os, &incoming, &dir, name),
            },
        };
        let cleared =
            names(&incoming).and_then(|names| names.iter().try_for_each(|name| clear(name)));
        let unlocked = lock(&self.meta, FlockOperation::Unlock);
        cleared.and(unlocked).context("clean up the imports")
    }

    /// Moves a volume to the directory of imports, durably, and returns its name there.
    pub(crate) fn move_to_imports(&self, directory: &str) -> Result<String, Fault> {
        let os = &self.context.os;
        match os.mkdir(&self.meta, layout::INCOMING, 0o700) {
            Ok(()) => self.sync_dirs([&self.meta])?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(Fault::new("make the directory of imports", errno)),
        }
        let incoming = os::open_dir(&self.meta, layout::INCOMING);
        let incoming = incoming.context("open the directory of imports")?;
        let name = Uuid::new_v4().simple().to_string();
        let volumes = &self.homes.volumes;
        let moved = os.rename(At::new(&volumes, directory), At::new(&incoming, &name));
        moved.context("move a volume out of the pool")?;
        self.sync_dirs([&incoming, volumes])?;
        Ok(name)
    }
}
