//! The directory of imports: the entries of imports and exports that are under way, each with the record
//! of its volume.

use std::os::fd::{AsFd, OwnedFd};

use linux::fault::{Fault, InContext};
use linux::os::{self, At, Os};
use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;
use uuid::Uuid;

use crate::pool::store::disk::{Disk, Staged};
use crate::pool::store::layout;
use crate::pool::store::record::{self, Record, Unreadable, VolumeRecord};

/// The state of an entry, the most important one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// It has the tree.
    HasTree,
    /// The tree is at a path of the host, and its copy shall become a volume.
    AwaitsCopy,
    /// The tree was copied to a path of the host.
    Copied,
    /// It is being made, or an import or export that ended left it.
    Empty,
}

impl Progress {
    pub(crate) fn of(dir: &OwnedFd) -> Self {
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
    pub(crate) fn is_unfinished(self) -> bool {
        self != Self::Empty
    }
}

/// Locks or unlocks the imports and exports of a pool, by the descriptor of the driver's own directory. The
/// host's side has the lock as long as it works, and the server only while it cleans up.
pub(crate) fn lock(meta: &OwnedFd, operation: FlockOperation) -> Result<(), Errno> {
    rustix::fs::flock(meta, operation)
}

/// The names of the entries.
pub(crate) fn names(incoming: &OwnedFd) -> Result<Vec<String>, Errno> {
    let names = os::entry_names(incoming.as_fd())?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// The record and the state of an entry, or the damage of the record of one with a tree. `None`: the entry
/// is being made or removed.
#[allow(clippy::type_complexity, reason = "the parts have no other use")]
pub(crate) fn read_entry(
    incoming: &OwnedFd,
    name: &str,
) -> Result<Option<Result<(VolumeRecord, Progress), String>>, Fault> {
    let Ok(dir) = os::open_dir(incoming, name) else {
        return Ok(None);
    };
    let progress = Progress::of(&dir);
    match record::read(&dir, VolumeRecord::FILE) {
        Ok(record) => Ok(Some(Ok((record, progress)))),
        Err(Unreadable::Fault(fault)) => Err(fault),
        Err(Unreadable::Damaged(damage)) => {
            Ok((progress == Progress::HasTree).then_some(Err(damage)))
        }
    }
}

/// Removes an entry, unless it has a tree: EISDIR.
pub(crate) fn remove_entry(
    os: &Os,
    incoming: &OwnedFd,
    dir: &OwnedFd,
    name: &str,
) -> Result<(), Errno> {
    // The tree first, and the record last: without that, the entry would be unknown.
    let temporary = format!("{}.tmp", VolumeRecord::FILE);
    for file in [
        layout::DATA,
        layout::TO_COPY,
        &temporary,
        VolumeRecord::FILE,
    ] {
        os.unlink_any(dir, file)?;
    }
    os.rmdir(incoming, name)
}

impl Staged {
    /// An entry of the directory of imports.
    pub(crate) fn in_incoming(incoming: OwnedFd, name: &str) -> Result<Self, Fault> {
        Ok(Self {
            dir: os::open_dir(&incoming, name).context("open an import")?,
            name: name.to_owned(),
            parent: Some(incoming),
        })
    }
}

impl Disk {
    /// The directory of imports, if it was made.
    pub(crate) fn incoming(&self) -> Result<Option<OwnedFd>, Fault> {
        match os::open_dir(&self.meta, layout::INCOMING) {
            Err(Errno::NOENT) => Ok(None),
            opened => opened.map(Some).context("open the directory of imports"),
        }
    }

    /// Removes the entries of imports and exports that ended before they were cleaned up, unless one is at
    /// work.
    pub(in crate::pool) fn clear_incoming(&self) -> Result<(), Fault> {
        let Some(incoming) = self.incoming()? else {
            return Ok(());
        };
        if lock(&self.meta, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        let os = &self.context.os;
        let clear = |name: &str| match os::open_dir(&incoming, name) {
            Err(_) => Ok(()),
            Ok(dir) => match Progress::of(&dir) {
                Progress::HasTree | Progress::AwaitsCopy | Progress::Copied => Ok(()),
                Progress::Empty => remove_entry(os, &incoming, &dir, name),
            },
        };
        let cleared =
            names(&incoming).and_then(|names| names.iter().try_for_each(|name| clear(name)));
        let unlocked = lock(&self.meta, FlockOperation::Unlock);
        cleared.and(unlocked).context("clean up the imports")
    }

    /// Moves a volume to the directory of imports, durably, and returns its name there.
    pub(in crate::pool) fn move_to_incoming(&self, directory: &str) -> Result<String, Fault> {
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
