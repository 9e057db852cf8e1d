//! Imports and exports: a directory of the host becomes a volume, or a volume such a directory.
//!
//! The host's side (`crate::import`) exchanges the directory with a file in the directory of imports,
//! beside the record that the volume will have. The tree is a volume once it is renamed into place like
//! any draft. An export moves the volume back to the directory of imports.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::FileType;
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
}

impl Import {
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

    /// A tree in the directory of imports, by its record.
    pub(crate) fn find_import(
        &self,
        is_wanted: impl Fn(&VolumeRecord) -> bool,
    ) -> Result<Option<Import>> {
        let disk = self.disk()?;
        let found = (|| {
            let Some(incoming) = disk.incoming()? else {
                return Ok(None);
            };
            for name in trees(&incoming).context("list the imports")? {
                let Some(record) = read_tree(&incoming, &name)?.filter(&is_wanted) else {
                    continue;
                };
                let staged = Staged::in_incoming(incoming, &name)?;
                return Ok(Some(Import { staged, record }));
            }
            Ok(None)
        })();
        found.map_err(|fault| self.classify(fault))
    }

    /// Makes a tree a volume, visible by one rename and durable on return. If the pool enforces sizes,
    /// the volume is not published before [`Pool::enforce`] has ended.
    pub(crate) fn import(&self, work: &Work<'_>, import: Import) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let classify = |fault| self.classify(fault);
        let Import { staged, record } = import;
        let data = os::open_source_dir(&staged.dir, layout::DATA).context(MEASURE);
        let used = self.measure_tree(data.map_err(classify)?)?;
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
        } else if record.quota_id().is_some() && disk.quota.enforcement() == Enforcement::Squota {
            "is a btrfs subvolume with a limit"
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
        let classify = |fault| self.classify(fault);
        let used = if disk.accounts() {
            Weight::default()
        } else {
            let data = os::open_source_dir(&disk.homes.volumes, entry.data_path());
            self.measure_tree(data.context(MEASURE).map_err(classify)?)?
        };
        let moved = disk.move_to_incoming(&entry.directory);
        let name = moved.map_err(classify)?;
        self.state.remove::<VolumeRecord>(record.id);
        if !disk.accounts() {
            self.move_to_others(&disk, used.bytes);
        }
        Ok(name)
    }

    fn measure_tree(&self, top: OwnedFd) -> Result<Weight> {
        let weighed = tree::weigh(top, LinkCount::InParts, &mut |_| {
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

/// The names in the directory of imports.
pub(crate) fn trees(incoming: &OwnedFd) -> Result<Vec<String>, Errno> {
    let names = os::entry_names(incoming.as_fd())?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// The record of an entry of the directory of imports, if it has a tree. The host's side may remove it
/// meanwhile.
pub(crate) fn read_tree(incoming: &OwnedFd, name: &str) -> Result<Option<VolumeRecord>, Fault> {
    let Ok(dir) = os::open_dir(incoming, name) else {
        return Ok(None);
    };
    let data = os::status_at(&dir, layout::DATA);
    if data.map_or(true, |data| data.file_type != FileType::Directory) {
        return Ok(None);
    }
    match record::read(&dir, VolumeRecord::FILE) {
        Ok(record) => Ok(Some(record)),
        Err(Unreadable::Fault(fault)) => Err(fault),
        Err(Unreadable::Damaged(_)) => Ok(None),
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
