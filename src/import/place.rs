//! The way of a directory into a pool, and back.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use uuid::Uuid;

use crate::error::Result;
use crate::fault::{Fault, PathFault};
use crate::os::{self, Os};
use crate::pool::import::{has_tree, lock, remove_entry};
use crate::pool::marker::Marker;
use crate::pool::record::Unreadable;
use crate::pool::{Record, VolumeRecord, layout, record};
use crate::types::{PoolId, VolumeId};

use super::{HostPath, notice, refuse};

/// A pool, as the host sees it.
#[derive(Debug)]
pub struct Host {
    os: Os,
    pool: PathBuf,
    meta: OwnedFd,
}

/// A directory that was moved into the directory of imports.
#[derive(Debug)]
pub struct Taken {
    pool: PathBuf,
    incoming: OwnedFd,
    dir: OwnedFd,
    name: String,
}

impl Taken {
    /// The path of the tree now.
    pub fn path(&self) -> PathBuf {
        let parts = [layout::META, layout::INCOMING, &self.name, layout::DATA];
        parts
            .iter()
            .fold(self.pool.clone(), |path, part| path.join(part))
    }

    pub(super) fn has_tree(&self) -> bool {
        has_tree(&self.dir) && os::open_dir(&self.incoming, &self.name).is_ok()
    }
}

impl Host {
    /// Opens the pool with an id at a path, and waits until no other import or export works in it.
    pub fn open(os: Os, pool: &Path, id: PoolId) -> Result<Self> {
        let fault = |what, errno: Errno| PathFault::at(what, pool)(errno);
        let root = os::open_path(pool).map_err(|errno| fault("open the pool at", errno))?;
        let marker = Marker::read(&root).ok().flatten();
        if marker.is_none_or(|marker| marker.id != id) {
            return refuse(format!(
                "{} is not pool {id} here, as it is for the driver; run this in the mount namespace of the \
                 host",
                pool.display()
            ));
        }
        let meta = os::open_dir(&root, layout::META);
        let meta = meta.map_err(|errno| fault("open the pool at", errno))?;
        let locked = lock(&meta, FlockOperation::NonBlockingLockExclusive).or_else(|_| {
            tracing::info!(pool = %pool.display(), "waiting for another import or export");
            lock(&meta, FlockOperation::LockExclusive)
        });
        locked.map_err(|errno| fault("lock the pool at", errno))?;
        Ok(Self {
            os,
            pool: pool.to_owned(),
            meta,
        })
    }

    /// Opens an entry of the directory of imports.
    pub(super) fn entry(&self, name: &str) -> Result<Taken> {
        let incoming = self.open_incoming()?;
        let dir = os::open_dir(&incoming, name);
        Ok(Taken {
            dir: dir.map_err(|errno| self.fault(Fault::new("open an import in", errno)))?,
            incoming,
            name: name.to_owned(),
            pool: self.pool.clone(),
        })
    }

    /// The record of the volume that a tree becomes, or was.
    pub(super) fn record(&self, taken: &Taken) -> Result<VolumeRecord> {
        match record::read(&taken.dir, VolumeRecord::FILE) {
            Ok(record) => Ok(record),
            Err(Unreadable::Fault(fault)) => Err(self.fault(fault)),
            Err(Unreadable::Damaged(damage)) => refuse(damage),
        }
    }

    /// Replaces the record, durably.
    pub(super) fn rewrite(&self, taken: &Taken, record: &VolumeRecord) -> Result<()> {
        let written = record::write(&self.os, &taken.dir, VolumeRecord::FILE, record);
        written.map_err(|fault| self.fault(fault))
    }

    /// Removes the file of an import, if it is still there. It promises an export to a wrong path.
    pub(super) fn remove_notice(&self, path: &Path, id: VolumeId) {
        if let Ok(at) = HostPath::open(path)
            && at.is_notice_of(id)
            && let Err(errno) = self.os.unlink(&at.parent, &at.name)
        {
            tracing::warn!(path = %path.display(), %errno, "left the file of an import");
        }
    }

    /// Refuses a path from which a directory cannot be renamed into the pool.
    pub fn check_path(&self, at: &HostPath) -> Result<()> {
        let fault = |errno: Errno| PathFault::at("inspect", &self.pool)(errno);
        let pool = self
            .pool
            .canonicalize()
            .map_err(PathFault::at("find", &self.pool))?;
        let (shown, shown_pool) = (at.path.display(), pool.display());
        if pool.starts_with(&at.path) {
            return refuse(format!("{shown} contains the pool at {shown_pool}"));
        }
        if at.path.starts_with(&pool) {
            return refuse(format!("{shown} is in the pool at {shown_pool} already"));
        }
        let (own, its) = (
            os::status(&self.meta).map_err(fault)?,
            os::status(&at.parent).map_err(at.fault("inspect"))?,
        );
        if own.id.device != its.id.device {
            return refuse(format!(
                "{shown} is on another filesystem than the pool at {shown_pool}; import it into a pool on \
                 its own filesystem, or create a new claim and copy the data there"
            ));
        }
        if own.mount_id != its.mount_id {
            return refuse(format!(
                "{shown} and the pool at {shown_pool} are on one filesystem, but on two mounts of it, and \
                 a rename does not cross mounts; name the directory by its path on the pool's mount"
            ));
        }
        Ok(())
    }

    /// Exchanges a directory with a file in the directory of imports, durably. The record is that of the
    /// volume that it becomes.
    pub fn take(&self, at: &HostPath, record: &VolumeRecord) -> Result<Taken> {
        let taken = self.begin(self.open_incoming()?)?;
        let path = notice(record.id, &self.pool);
        let os = &self.os;
        let filled = record::write_new(os, &taken.dir, VolumeRecord::FILE, record)
            .and_then(|()| {
                let write = || -> Result<(), Errno> {
                    let file = os.create_as(&taken.dir, layout::DATA, 0o444)?;
                    os.write_all(&file, path.as_bytes())?;
                    os.fsync(&file)?;
                    os.fsync(&taken.dir)?;
                    os.fsync(&taken.incoming)
                };
                write().map_err(|errno| Fault::new("write", errno))
            })
            .map_err(|fault| self.fault(fault));
        if let Err(error) = filled {
            self.remove(&taken)?;
            return Err(error);
        }
        let moved = self.keep_times((&at.parent, &at.name), || {
            os.exchange((&at.parent, &at.name), (&taken.dir, layout::DATA))
        });
        if let Err(errno) = moved {
            // It fails if the tree is there.
            self.remove(&taken)?;
            return Err(at.fault("move into the pool")(errno));
        }
        self.sync(&taken, at)?;
        Ok(taken)
    }

    /// Exchanges the directory with the file again; false if the server took it, or if the file is not at
    /// the path any more.
    pub fn give_back(&self, taken: &Taken, at: &HostPath) -> Result<bool> {
        let record = self.record(taken)?;
        if !taken.has_tree() || !HostPath::open(&at.path)?.is_notice_of(record.id) {
            return Ok(false);
        }
        self.put(taken, at)?;
        Ok(true)
    }

    /// Moves a tree to a path, in place of the file of its import or of nothing.
    pub fn put(&self, taken: &Taken, at: &HostPath) -> Result<()> {
        let (tree, path) = ((&taken.dir, layout::DATA), (&at.parent, &at.name));
        let moved = self.keep_times(tree, || match self.os.rename(tree, path) {
            Err(Errno::EXIST) => self.os.exchange(tree, path),
            moved => moved,
        });
        moved.map_err(at.fault("move the directory to"))?;
        if has_tree(&taken.dir) {
            // Somebody made a directory at the path meanwhile.
            let moved = self.os.exchange(tree, path);
            moved.map_err(at.fault("move the directory from"))?;
            return refuse(format!("{} is a directory now", at.path.display()));
        }
        self.sync(taken, at)?;
        self.remove(taken)
    }

    /// Moves a directory. XFS changes its times by that.
    fn keep_times(
        &self,
        (parent, name): (&OwnedFd, impl AsRef<OsStr>),
        act: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let top = os::open_source_dir(parent, name)?;
        let before = os::statx(&top)?;
        act()?;
        self.os.set_times(&top, &before)
    }

    fn open_incoming(&self) -> Result<OwnedFd> {
        let made = match self.os.mkdir(&self.meta, layout::INCOMING, 0o700) {
            Err(Errno::EXIST) => Ok(()),
            Ok(()) => self.os.fsync(&self.meta),
            failed => failed,
        };
        let opened = made.and_then(|()| os::open_dir(&self.meta, layout::INCOMING));
        opened.map_err(|errno| self.fault(Fault::new("make the directory of imports in", errno)))
    }

    fn begin(&self, incoming: OwnedFd) -> Result<Taken> {
        let name = Uuid::new_v4().simple().to_string();
        let made = self.os.mkdir(&incoming, &name, 0o700);
        let dir = made.and_then(|()| os::open_dir(&incoming, &name));
        Ok(Taken {
            dir: dir.map_err(|errno| self.fault(Fault::new("make a directory in", errno)))?,
            incoming,
            name,
            pool: self.pool.clone(),
        })
    }

    fn sync(&self, taken: &Taken, at: &HostPath) -> Result<()> {
        let synced = self.os.fsync(&at.parent);
        let synced = synced.and_then(|()| self.os.fsync(&taken.dir));
        synced.map_err(at.fault("fsync the parent of"))
    }

    /// Removes the files that are left of an import or export.
    pub(super) fn remove(&self, taken: &Taken) -> Result<()> {
        let removed = remove_entry(&self.os, &taken.incoming, &taken.dir, &taken.name);
        removed.map_err(|errno| self.fault(Fault::new("clean up in", errno)))
    }

    fn fault(&self, fault: Fault) -> crate::error::Error {
        PathFault::at(fault.what, &self.pool)(fault.errno).into()
    }
}
