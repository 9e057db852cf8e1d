//! Imports and exports: a directory of the host becomes a volume, or a volume such a directory.
//!
//! The host's side (`crate::import`) exchanges the directory with a file in the directory of imports,
//! beside the record that the volume will have. The tree is a volume once it is renamed into place like
//! any draft. An export moves the volume back to the directory of imports.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};
use crate::pool::error::{Error, Result};
use crate::quota::Enforcement;
use crate::tree::{self, LinkCount, Weight};
use crate::types::{Bytes, VolumeId};

use super::disk::{Disk, Staged};
use super::draft::Draft;
use super::record::{self, Record, Unreadable};
use super::{Entry, Pool, VolumeRecord, Work, layout};

const MEASURE: &str = "measure a tree";

/// A tree with the record of a volume, in the directory of imports. An import makes it that volume, and
/// an export a directory of the host.
#[derive(Debug)]
pub(crate) struct Import {
    staged: Staged,
    pub(crate) record: VolumeRecord,
    /// Whether the tree is there, and not at a path of the host.
    pub(crate) has_tree: bool,
}

impl Import {
    fn new(staged: Staged, record: VolumeRecord, has_tree: bool) -> Self {
        Self {
            staged,
            record,
            has_tree,
        }
    }

    /// Its name in the directory of imports.
    pub(crate) fn name(&self) -> &str {
        &self.staged.name
    }
}

impl Pool {
    /// Refuses the import of a tree for which the pool has no free space, or whose size it cannot enforce.
    pub(crate) fn check_import(
        &self,
        work: &Work<'_>,
        id: VolumeId,
        size: Bytes,
        tree: &Weight,
    ) -> Result<()> {
        let disk = self.disk()?;
        self.check_tree(&disk, size, tree)?;
        self.reserve_tree(work, id, size, tree.bytes).map(drop)
    }

    fn check_tree(&self, disk: &Disk, size: Bytes, tree: &Weight) -> Result<()> {
        let refuse = |problem: String| Err(Error::Precondition(problem));
        if let Some(errno) = tree.unseen {
            return refuse(format!("a part of the directory cannot be read: {errno}"));
        }
        if disk.quota.enforcement() == Enforcement::Squota {
            let pool = self.name();
            return refuse(format!(
                "pool {pool} enforces sizes on btrfs, which is not possible for an existing directory; \
                 create a new claim and copy the data there"
            ));
        }
        if tree.bytes > size.0 {
            let used = Bytes(tree.bytes);
            return refuse(format!(
                "the directory uses {used}, which is more than the size, {size}; delete files, or import \
                 it with a larger --size"
            ));
        }
        match disk.quota.inode_limit(size) {
            Some(limit) if tree.inodes > limit => refuse(format!(
                "the directory has {} files and directories, and the size, {size}, allows {limit}; delete \
                 files, or import it with a larger --size",
                tree.inodes
            )),
            _ => Ok(()),
        }
    }

    /// An entry of the directory of imports, by its record: one with a tree, else one without.
    pub(crate) fn find_import(
        &self,
        is_wanted: impl Fn(&VolumeRecord) -> bool,
    ) -> Result<Option<Import>> {
        let disk = self.disk()?;
        let found = (|| {
            let Some(incoming) = disk.incoming()? else {
                return Ok(None);
            };
            let mut without_tree = None;
            for name in names(&incoming).context("list the imports")? {
                let Some(Ok((record, has_tree))) = read_entry(&incoming, &name)? else {
                    continue;
                };
                if has_tree && is_wanted(&record) {
                    let staged = Staged::in_incoming(incoming, &name)?;
                    return Ok(Some(Import::new(staged, record, has_tree)));
                }
                if is_wanted(&record) {
                    without_tree = Some((name, record));
                }
            }
            let entry = without_tree.map(|(name, record)| {
                let staged = Staged::in_incoming(incoming, &name)?;
                Ok(Import::new(staged, record, false))
            });
            entry.transpose()
        })();
        found.map_err(|fault: Fault| self.classify(fault))
    }

    /// Refuses the id of a volume whose tree waits in the directory of imports.
    pub(crate) fn check_no_import(&self, id: VolumeId) -> Result<()> {
        let waits = self.find_import(|record| record.id == id)?;
        let Some(import) = waits.filter(|import| import.has_tree) else {
            return Ok(());
        };
        let name = &import.record.name;
        Err(Error::Precondition(format!(
            "pool {} has a directory that waits to become volume {name:?}; finish it with `rootcellar volume \
             import`, or take it back with `rootcellar volume export {id}`",
            self.name()
        )))
    }

    /// Makes a tree a volume, visible by one rename and durable on return. If the pool enforces sizes,
    /// the volume is not published before [`Pool::enforce`] has ended.
    pub(crate) fn import(&self, work: &Work<'_>, import: Import) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let classify = |fault| self.classify(fault);
        let Import { staged, record, .. } = import;
        let data = os::open_source_dir(&staged.dir, layout::DATA).context(MEASURE);
        let used = self.measure_tree(work, data.map_err(classify)?)?;
        self.check_tree(&disk, record.size_bytes, &used)?;
        let reservation = self.reserve_tree(work, record.id, record.size_bytes, used.bytes)?;
        let enforces = disk.quota.enforcement() == Enforcement::Project;
        let quota_id = if enforces {
            let taken = disk.quota.take().context("take a quota id");
            Some(taken.map_err(classify)?)
        } else {
            None
        };
        let record = VolumeRecord {
            quota_id,
            enforcing: quota_id.is_some(),
            enforcement: Enforcement::None,
            ..record
        };
        let committed = Draft::of_import(self, &disk, staged).commit(record, &reservation);
        if let (Err(Error::DiskFull { .. } | Error::Retry { .. }), Some(id)) =
            (&committed, quota_id)
            && let Err(errno) = disk.quota.release(&self.context.os, id)
        {
            tracing::warn!(pool = %self.name(), id, %errno, "left a quota id");
        }
        let entry = committed?;
        if !disk.accounts() {
            self.move_from_others(&disk, used.bytes);
        }
        Ok(entry)
    }

    /// Refuses a volume that is no plain directory.
    pub(crate) fn check_export(&self, entry: &Entry) -> Result<()> {
        let (record, disk) = (&entry.record, self.disk()?);
        let problem = if record.image.is_some() {
            "is an image"
        } else if record.quota_id().is_some() && disk.quota.enforcement() != Enforcement::Project {
            "has a quota id that only btrfs, or another mount option, can remove"
        } else if record.moved.is_some() {
            "was moved from another pool"
        } else {
            return Ok(());
        };
        let id = record.id;
        Err(Error::Precondition(format!(
            "volume {id} {problem}, which is not exported; copy its data"
        )))
    }

    /// Makes a volume that nobody uses a tree in the directory of imports again, without a limit, and
    /// returns its name there. On failure it is a volume, or the request can be repeated.
    pub(crate) fn export(&self, work: &Work<'_>, entry: &Arc<Entry>) -> Result<String> {
        let (disk, _) = self.attached()?;
        let record = &entry.record;
        if record.quota_id().is_some() {
            self.unenforce(work, entry)?;
        }
        let used = if disk.accounts() {
            Weight::default()
        } else {
            let data = os::open_source_dir(&disk.homes.volumes, entry.data_path());
            let data = data.context(MEASURE);
            self.measure_tree(
                work,
                data.map_err(|fault| self.classify_data(entry, fault))?,
            )?
        };
        let moved = disk.move_to_incoming(&entry.directory);
        let name = moved.map_err(|fault| self.classify_data(entry, fault))?;
        // Before the reservation ends, because the space is still used.
        if !disk.accounts() {
            self.move_to_others(&disk, used.bytes);
        }
        self.state.remove::<VolumeRecord>(record.id);
        Ok(name)
    }

    fn measure_tree(&self, work: &Work<'_>, top: OwnedFd) -> Result<Weight> {
        let weighed = tree::weigh(top, LinkCount::InParts, &mut |_| {
            work.advance();
            if self.copies.is_stopped() {
                return Err(Errno::CANCELED);
            }
            Ok(())
        });
        weighed.map_err(|errno| match errno {
            Errno::CANCELED => Error::Stopped("the measurement of a tree".into()),
            errno => self.classify(Fault::new(MEASURE, errno)),
        })
    }
}

/// Locks or unlocks the imports and exports of a pool, by the descriptor of the driver's own directory. The
/// host's side has the lock as long as it works, and the server only while it cleans up.
pub(crate) fn lock(meta: &OwnedFd, operation: FlockOperation) -> Result<(), Errno> {
    rustix::fs::flock(meta, operation)
}

/// The names in the directory of imports.
pub(crate) fn names(incoming: &OwnedFd) -> Result<Vec<String>, Errno> {
    let names = os::entry_names(incoming.as_fd())?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// Whether an entry of the directory of imports has a tree, and not the file for the tree's path.
pub(crate) fn has_tree(dir: &OwnedFd) -> bool {
    let data = os::status_at(dir, layout::DATA);
    data.is_ok_and(|data| data.file_type == FileType::Directory)
}

/// The record of an entry of the directory of imports, and whether the entry has a tree; or, of one with a
/// tree, the damage of its record. `None`: the entry is being made or removed.
#[allow(clippy::type_complexity, reason = "the parts have no other use")]
pub(crate) fn read_entry(
    incoming: &OwnedFd,
    name: &str,
) -> Result<Option<Result<(VolumeRecord, bool), String>>, Fault> {
    let Ok(dir) = os::open_dir(incoming, name) else {
        return Ok(None);
    };
    let has_tree = has_tree(&dir);
    match record::read(&dir, VolumeRecord::FILE) {
        Ok(record) => Ok(Some(Ok((record, has_tree)))),
        Err(Unreadable::Fault(fault)) => Err(fault),
        Err(Unreadable::Damaged(damage)) => Ok(has_tree.then_some(Err(damage))),
    }
}

/// Removes an entry of the directory of imports, without its tree: EISDIR.
pub(crate) fn remove_entry(
    os: &Os,
    incoming: &OwnedFd,
    dir: &OwnedFd,
    name: &str,
) -> Result<(), Errno> {
    // The tree first, and the record last: without that, the entry would be unknown.
    let temporary = format!("{}.tmp", VolumeRecord::FILE);
    for file in [layout::DATA, &temporary, VolumeRecord::FILE] {
        os.unlink_any(dir, file)?;
    }
    os.rmdir(incoming, name)
}
