//! The way of a directory into a pool, and back.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use linux::fault::{Fault, PathFault};
use linux::os::{self, At, Os};
use objects::{PoolId, VolumeId};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{HostRefusal, Result};
use pool::Marker;
use pool::imports::{ImportEntry, ImportStage, lock};
use pool::record::Unreadable;
use pool::{Record, VolumeRecord, layout, record};

use super::{HostPath, keep_times, make_file, notice};

/// A pool, as the host sees it.
#[derive(Debug)]
pub(super) struct HostPool {
    os: Os,
    path: PathBuf,
    meta: OwnedFd,
}

impl Drop for HostPool {
    /// Unlocks the pool at once. A child process of another thread has the descriptor until its exec, and
    /// would keep the lock.
    fn drop(&mut self) {
        let _ = lock(&self.meta, FlockOperation::Unlock);
    }
}

impl HostPool {
    /// Opens the pool with an id at a path, and waits until no other import or export works in it.
    pub(super) fn open(os: Os, path: &Path, id: PoolId) -> Result<Self> {
        let fault = |what, errno: Errno| PathFault::at(what, path)(errno);
        let root = os::open_path(path).map_err(|errno| fault("open the pool at", errno))?;
        let marker = Marker::read(&root).ok().flatten();
        if marker.is_none_or(|marker| marker.id != id) {
            let at = path.to_owned();
            return Err(HostRefusal::OtherPool { at, id }.into());
        }
        let meta = os::open_dir(&root, layout::META);
        let meta = meta.map_err(|errno| fault("open the pool at", errno))?;
        let locked = lock(&meta, FlockOperation::NonBlockingLockExclusive).or_else(|_| {
            tracing::info!(pool = %path.display(), "waiting for another import or export");
            lock(&meta, FlockOperation::LockExclusive)
        });
        locked.map_err(|errno| fault("lock the pool at", errno))?;
        Ok(Self {
            os,
            path: path.to_owned(),
            meta,
        })
    }

    /// The path of the tree of an entry.
    pub(super) fn tree(&self, entry: &ImportEntry) -> PathBuf {
        entry.path(&self.path).join(layout::DATA)
    }

    /// Opens an entry of the directory of imports.
    pub(super) fn entry(&self, name: &str) -> Result<ImportEntry> {
        match ImportEntry::open(&self.open_incoming()?, name) {
            Ok(Some(entry)) => Ok(entry),
            Ok(None) => Err(self.fault(Fault::new("find an import in", Errno::NOENT))),
            Err(Unreadable::Fault(fault)) => Err(self.fault(fault)),
            Err(Unreadable::Damaged(damage)) => Err(HostRefusal::Damaged(damage).into()),
        }
    }

    /// Replaces the record of an entry, durably.
    pub(super) fn rewrite(&self, entry: &mut ImportEntry, record: VolumeRecord) -> Result<()> {
        let written = record::write(&self.os, &entry.dir, VolumeRecord::FILE, &record);
        written.map_err(|fault| self.fault(fault))?;
        entry.record = record;
        Ok(())
    }

    /// Removes the file of an import, if it is still there. It promises an export to a wrong path.
    pub(super) fn remove_notice(&self, path: &Path, id: VolumeId) {
        if let Ok(at) = HostPath::open(path)
            && at.is_notice_of(id)
            && let Err(errno) = self.os.unlink(&at.parent, &at.name)
        {
            tracing::warn!(path = %path.display(), %errno, "cannot remove the file that the import left there");
        }
    }

    /// Whether the filesystem can rename a directory between a path and the pool.
    pub(super) fn renames(&self, at: &HostPath) -> Result<bool> {
        let fault = |errno: Errno| PathFault::at("inspect", &self.path)(errno);
        let pool = self
            .path
            .canonicalize()
            .map_err(PathFault::at("find", &self.path))?;
        for above in at.path.ancestors() {
            let marker = os::open_path(above).map(|above| Marker::read(&above));
            if marker.is_ok_and(|marker| !matches!(marker, Ok(None))) {
                let (at, pool) = (at.path.clone(), above.to_owned());
                return Err(HostRefusal::InPool { at, pool }.into());
            }
        }
        let (own, its) = (
            os::status(&self.meta).map_err(fault)?,
            os::status(&at.parent).map_err(at.fault("inspect"))?,
        );
        if at.is_mount || own.id.device != its.id.device {
            return Ok(false);
        }
        if own.mount_id != its.mount_id {
            let at = at.path.clone();
            return Err(HostRefusal::TwoMounts { at, pool }.into());
        }
        Ok(true)
    }

    /// Exchanges a directory with a file in the directory of imports, durably. The record is that of the
    /// volume that it becomes.
    pub(super) fn take(&self, at: &HostPath, record: VolumeRecord) -> Result<ImportEntry> {
        let entry = self.make_entry(record)?;
        let path = At::new(&at.parent, &at.name);
        let moved = keep_times(&self.os, path, || {
            self.os.exchange(path, At::new(&entry.dir, layout::DATA))
        });
        if let Err(errno) = moved {
            // It fails if the tree is there.
            self.remove(&entry)?;
            return Err(at.fault("move into the pool")(errno));
        }
        self.sync(&entry, at)?;
        Ok(entry)
    }

    /// Makes an entry with its record and the file for the path of the directory, durably.
    fn make_entry(&self, record: VolumeRecord) -> Result<ImportEntry> {
        self.forget_export(record.id)?;
        let (os, text) = (&self.os, notice(record.id, &self.path));
        let made = ImportEntry::make(os, self.open_incoming()?, record);
        let entry = made.map_err(|errno| self.fault(Fault::new("make a directory in", errno)))?;
        // The record first, so that an entry with that file has one.
        let filled =
            record::write_new(os, &entry.dir, VolumeRecord::FILE, &entry.record).and_then(|()| {
                let file = At::new(&entry.dir, layout::DATA);
                let written =
                    make_file(os, file, 0o444, text.as_bytes()).and_then(|()| entry.sync(os));
                written.map_err(|errno| Fault::new("write", errno))
            });
        if let Err(fault) = filled {
            self.remove(&entry)?;
            return Err(self.fault(fault));
        }
        Ok(entry)
    }

    /// Exchanges the directory with the file again; false if the server took it, or if the file is not at
    /// the path any more.
    pub(super) fn give_back(&self, entry: &ImportEntry, at: &HostPath) -> Result<bool> {
        if !entry.has_tree() || !HostPath::open(&at.path)?.is_notice_of(entry.record.id) {
            return Ok(false);
        }
        self.put(entry, at)?;
        Ok(true)
    }

    /// Moves a tree to a path, in place of the file of its import or of nothing.
    pub(super) fn put(&self, entry: &ImportEntry, at: &HostPath) -> Result<()> {
        let tree = At::new(&entry.dir, layout::DATA);
        let path = At::new(&at.parent, &at.name);
        let moved = keep_times(&self.os, tree, || match self.os.rename(tree, path) {
            Err(Errno::EXIST) => self.os.exchange(tree, path),
            moved => moved,
        });
        moved.map_err(at.fault("move the directory to"))?;
        if entry.stage() == ImportStage::HasTree {
            // Somebody made a directory at the path meanwhile.
            let moved = self.os.exchange(tree, path);
            moved.map_err(at.fault("move the directory from"))?;
            let at = at.path.clone();
            return Err(HostRefusal::DirectoryNow { at }.into());
        }
        self.sync(entry, at)?;
        self.remove(entry)
    }

    /// Notes durably where the directory of a volume goes. A repeated export finds nothing else.
    pub(super) fn note_export(&self, id: VolumeId, path: &Path) -> Result<()> {
        let (os, name) = (&self.os, id.to_string());
        let noted = self.open_own(layout::EXPORTED).and_then(|exported| {
            os.unlink_any(&exported, &name)?;
            let file = os.create(&exported, &name)?;
            let written = os
                .write_all(&file, path.as_os_str().as_bytes())
                .and_then(|()| os.fsync(&file));
            if written.is_err() {
                os.unlink_any(&exported, &name)?;
            }
            written?;
            os.fsync(&exported)
        });
        let noted = noted.map_err(|errno| Fault::new("note an export in", errno));
        match noted {
            Err(fault) if fault.is_full() => {
                tracing::warn!(%id, "the disk is full, so the driver cannot note this export, and a repeated command does not find it");
                Ok(())
            }
            noted => noted.map_err(|fault| self.fault(fault)),
        }
    }

    /// Forgets the export of a volume that is imported again.
    fn forget_export(&self, id: VolumeId) -> Result<()> {
        let forgotten = match os::open_dir(&self.meta, layout::EXPORTED) {
            Err(Errno::NOENT) => Ok(()),
            opened => opened.and_then(|exported| self.os.unlink_any(&exported, id.to_string())),
        };
        forgotten.map_err(|errno| self.fault(Fault::new("forget an export in", errno)))
    }

    fn open_incoming(&self) -> Result<OwnedFd> {
        let opened = self.open_own(layout::INCOMING);
        opened.map_err(|errno| self.fault(Fault::new("make the directory of imports in", errno)))
    }

    /// Opens a directory in the driver's own directory, and makes it before.
    fn open_own(&self, name: &str) -> Result<OwnedFd, Errno> {
        match self.os.mkdir(&self.meta, name, 0o700) {
            Err(Errno::EXIST) => {}
            Ok(()) => self.os.fsync(&self.meta)?,
            Err(errno) => return Err(errno),
        }
        os::open_dir(&self.meta, name)
    }

    fn sync(&self, entry: &ImportEntry, at: &HostPath) -> Result<()> {
        let synced = self.os.fsync(&at.parent);
        let synced = synced.and_then(|()| self.os.fsync(&entry.dir));
        synced.map_err(at.fault("fsync the parent of"))
    }

    /// Removes the files that are left of an import or export.
    pub(super) fn remove(&self, entry: &ImportEntry) -> Result<()> {
        let removed = entry.remove(&self.os);
        removed.map_err(|errno| self.fault(Fault::new("clean up in", errno)))
    }

    fn fault(&self, fault: Fault) -> crate::error::Error {
        PathFault::at(fault.what, &self.path)(fault.errno).into()
    }
}
