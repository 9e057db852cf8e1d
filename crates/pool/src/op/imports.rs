//! One pool's side of imports and exports: a directory of the host becomes a volume, or a volume such a directory.
//!
//! The host's side (`crate::host`) makes an entry in the directory of imports with the record that the
//! volume will have, and exchanges the directory with a file in it. The tree is a volume once it is renamed
//! into place like any draft. An export moves the volume back to the directory of imports.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::os;
use linux::quota::Enforcement;
use linux::tree::{self, LinkCount, LinkedFiles, Seen, Weight};
use objects::{Bytes, VolumeId};
use rustix::io::Errno;

use crate::disk::entry::Entry;
use crate::disk::error::{Error, Result};
use crate::disk::imports::{ImportEntry, MAX_PATH, names};
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{Record, Unreadable, VolumeRecord};
use crate::disk::refusal::{Refusal, Stopped};
use crate::ledger::reservations::Demand;
use crate::op::draft::Draft;
use crate::op::pool::Pool;
use crate::op::work::Work;

const MEASURE: &str = "measure a tree";

impl Pool {
    /// Refuses existing directories in a pool with simple quota, which enforces sizes of new subvolumes only.
    pub fn check_takes_directories(&self) -> Result<()> {
        if self.enforcement() == Enforcement::Squota {
            let pool = self.name().clone();
            return Err(Refusal::OnlyNewDirectories { pool }.into());
        }
        Ok(())
    }

    /// Refuses the import of a tree for which the pool has no free space, or whose size it cannot enforce.
    /// Its own bytes need not be free.
    pub fn check_import(
        &self,
        work: &Work<'_>,
        id: VolumeId,
        size: Bytes,
        tree: &Weight,
    ) -> Result<()> {
        let disk = self.disk()?;
        Self::check_tree(&disk, size, tree)?;
        let (used, whole) = (tree.bytes, false);
        self.check_new(work, id, Demand::Tree { size, used, whole })
    }

    fn check_tree(disk: &Disk, size: Bytes, tree: &Weight) -> Result<()> {
        let (used, has) = (Bytes(tree.bytes), tree.inodes);
        if let Some(errno) = tree.unseen {
            return Err(Refusal::UnreadableDirectory { errno }.into());
        }
        if used > size {
            return Err(Refusal::LargeDirectory { used, size }.into());
        }
        match disk.quota.inode_limit(size) {
            Some(max) if has > max => Err(Refusal::ManyFilesInDirectory { has, max, size }.into()),
            _ => Ok(()),
        }
    }

    /// An entry of the directory of imports, by its record: one with a tree, or else one whose import or
    /// export can go on, or else any.
    pub fn find_incoming(
        &self,
        is_wanted: impl Fn(&VolumeRecord) -> bool,
    ) -> Result<Option<ImportEntry>> {
        let disk = self.disk()?;
        let found = (|| {
            let Some(incoming) = disk.imports()? else {
                return Ok(None);
            };
            let mut found = Vec::new();
            for name in names(&incoming).context("list the imports")? {
                let entry = match ImportEntry::open(&incoming, &name) {
                    Ok(entry) => entry.filter(|entry| is_wanted(&entry.record)),
                    Err(Unreadable::Damaged(_)) => None,
                    Err(Unreadable::Fault(fault)) => return Err(fault),
                };
                found.extend(entry);
            }
            Ok(found.into_iter().min_by_key(ImportEntry::stage))
        })();
        found.map_err(|fault: Fault| self.classify(fault))
    }

    /// Refuses the id of a volume whose tree waits in the directory of imports.
    pub fn check_no_import(&self, id: VolumeId) -> Result<()> {
        let waits = self.find_incoming(|record| record.id == id)?;
        let Some(entry) = waits.filter(|entry| entry.stage().is_unfinished()) else {
            return Ok(());
        };
        self.check_no_copy(&entry)?;
        Err(Refusal::WaitingImport {
            pool: self.name().clone(),
            name: entry.record.name,
            id,
        }
        .into())
    }

    /// Refuses an entry whose copy an earlier version did not end.
    pub fn check_no_copy(&self, entry: &ImportEntry) -> Result<()> {
        match entry.unfinished_copy(self.path()) {
            None => Ok(()),
            Some(copy) => Err(Refusal::UnfinishedCopy(copy).into()),
        }
    }

    /// Makes a tree a volume, visible by one rename and durable on return. If the pool enforces sizes,
    /// the volume is not published before [`Pool::enforce`] has ended.
    pub fn import(&self, work: &Work<'_>, tree: ImportEntry) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let classify = |fault| self.classify(fault);
        let record = tree.record.clone();
        let data = os::open_source_dir(&tree.dir, layout::DATA).context(MEASURE);
        let mut linked = LinkedFiles::default();
        let used =
            self.measure_tree(work, data.map_err(classify)?, &mut |seen| linked.note(seen))?;
        Self::check_tree(&disk, record.size_bytes, &used)?;
        // A link may have been made since the host's side has searched for them.
        if let Some((at, all, outside)) = linked.outside() {
            return Err(Refusal::NamesOutside { at, all, outside }.into());
        }
        let demand = Demand::Tree {
            size: record.size_bytes,
            used: used.bytes,
            whole: false,
        };
        let reservation = self.reserve_new(work, record.id, demand, None)?;
        let (quota_id, enforcement) = self.quota_of_tree(&disk, &tree)?;
        let is_new = enforcement == Enforcement::None;
        let record = VolumeRecord {
            quota_id,
            enforcing: quota_id.is_some() && is_new,
            enforcement,
            ..record
        };
        let committed =
            Draft::of_import(self, &disk, tree.into_staged()).commit(record, &reservation);
        if let (Err(Error::DiskFull { .. } | Error::Retry { .. }), Some(id)) =
            (&committed, quota_id.filter(|_| is_new))
            && let Err(errno) = disk.quota.release(&self.context.os, id)
        {
            let pool = self.name();
            tracing::warn!(%pool, id, %errno, "cannot release a quota id; it stays in use until the pool is opened again");
        }
        let entry = committed?;
        if !disk.accounts() {
            self.move_from_others(&disk, used.bytes);
        }
        if enforcement == Enforcement::Squota {
            let limited = self.refresh_limit(&disk, entry.record.id);
            limited.context("limit a volume").map_err(classify)?;
        }
        Ok(entry)
    }

    /// The quota id for a tree, and the enforcement that it has already. A subvolume has them from the
    /// volume whose export is undone.
    fn quota_of_tree(&self, disk: &Disk, tree: &ImportEntry) -> Result<(Option<u32>, Enforcement)> {
        let classify = |fault| self.classify(fault);
        let (quota, none) = (&disk.quota, Enforcement::None);
        match quota.enforcement() {
            Enforcement::None => Ok((None, none)),
            Enforcement::Project => {
                let taken = quota.take().context("take a quota id");
                Ok((Some(taken.map_err(classify)?), none))
            }
            Enforcement::Squota => {
                let data = os::open_dir(&tree.dir, layout::DATA);
                let id = data.and_then(|data| quota.charged_to(data.as_fd()));
                let id = id.context("find the quota id of a tree");
                let id = id.map_err(classify)?;
                Ok((id, id.map_or(none, |_| Enforcement::Squota)))
            }
        }
    }

    /// Refuses a volume that cannot become a directory of the host by a rename.
    pub fn check_gives_directory(&self, entry: &Entry) -> Result<()> {
        let (record, disk) = (&entry.record, self.disk()?);
        let id = record.id;
        if record.image.is_some() {
            return Err(Refusal::ExportOfImage { id }.into());
        }
        if record.moved.is_some() {
            return Err(Refusal::ExportOfMoved { id }.into());
        }
        if !record.retains.is_empty() {
            return Err(Refusal::ExportOfCopy { id }.into());
        }
        if record.quota_id().is_some() && disk.quota.enforcement() != Enforcement::Project {
            // Only the deletion of a subvolume removes its quota id.
            return Err(Refusal::ExportOfCounted { id }.into());
        }
        Ok(())
    }

    /// Refuses a tree in the directory of imports that an earlier version copies to the host.
    pub fn check_gives_entry(&self, entry: &ImportEntry) -> Result<()> {
        self.check_no_copy(entry)?;
        if entry.is_counted() {
            let id = entry.record.id;
            return Err(Refusal::ExportOfCounted { id }.into());
        }
        Ok(())
    }

    /// Makes a volume that nobody uses a tree in the directory of imports again, and returns its name there.
    /// The tree has no limit. On failure it is a volume, or the request can be repeated.
    pub fn export(&self, work: &Work<'_>, entry: &Arc<Entry>) -> Result<String> {
        let (disk, _) = self.attached()?;
        let record = &entry.record;
        if record.quota_id().is_some() && disk.quota.enforcement() == Enforcement::Project {
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
                &mut |_| {},
            )?
        };
        let moved = disk.move_to_imports(&entry.directory);
        let name = moved.map_err(|fault| self.classify_data(entry, fault))?;
        // Before the reservation ends, because the space is still used.
        if !disk.accounts() {
            self.move_to_others(&disk, used.bytes);
        }
        self.state.remove::<VolumeRecord>(record.id);
        Ok(name)
    }

    /// The path of the host to which a volume was exported, until it is imported again.
    pub fn exported_to(&self, id: VolumeId) -> Result<Option<PathBuf>> {
        let disk = self.disk()?;
        let read = os::open_dir(&disk.meta, layout::EXPORTED)
            .and_then(|exported| os::open_file(&exported, id.to_string()))
            .and_then(|file| os::read_all(&file, MAX_PATH));
        match read {
            Err(Errno::NOENT) => Ok(None),
            read => {
                let path = read.context("read where a volume was exported to");
                let path = path.map_err(|fault| self.classify(fault))?;
                // A power-off may have left an empty file.
                let path = Some(path).filter(|path| !path.is_empty());
                Ok(path.map(|path| OsString::from_vec(path).into()))
            }
        }
    }

    fn measure_tree(
        &self,
        work: &Work<'_>,
        top: OwnedFd,
        note: &mut dyn FnMut(&Seen<'_>),
    ) -> Result<Weight> {
        let weighed = tree::weigh(top, LinkCount::InParts, &mut |seen| {
            note(seen);
            work.step();
            if self.copies.is_stopped() {
                return Err(Errno::CANCELED);
            }
            Ok(())
        });
        weighed.map_err(|errno| match errno {
            Errno::CANCELED => Error::Stopped(Stopped::Measuring),
            errno => self.classify(Fault::new(MEASURE, errno)),
        })
    }
}
