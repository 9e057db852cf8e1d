//! The way of a directory into a pool, and back.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use linux::fault::{Fault, PathFault};
use linux::os::{self, At, Os};
use objects::{PoolId, VolumeId};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use uuid::Uuid;

use crate::error::Result;
use crate::pool::MAX_PATH;
use crate::pool::Marker;
use crate::pool::incoming::{Progress, lock, names, read_entry, remove_entry};
use crate::pool::record::Unreadable;
use crate::pool::{Record, VolumeRecord, layout, record};

use super::kind::Kind;
use super::{HostPath, keep_times, notice, refuse};

/// More bytes than the name of a kind has.
const MAX_KIND: usize = 64;

/// A pool, as the host sees it.
#[derive(Debug)]
pub struct Host {
    os: Os,
    pool: PathBuf,
    meta: OwnedFd,
}

/// An entry of the directory of imports.
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
        self.progress() == Progress::HasTree && os::open_dir(&self.incoming, &self.name).is_ok()
    }

    /// Whether the tree shall be copied from a path of the host.
    pub(super) fn awaits_copy(&self) -> bool {
        self.progress() == Progress::AwaitsCopy
    }

    /// The kind of the directory that shall be copied. An interrupted write leaves none.
    pub(super) fn kind(&self) -> Option<Kind> {
        let file = os::open_file(&self.dir, layout::TO_COPY).ok()?;
        let text = os::read_all(&file, MAX_KIND).ok()?;
        Kind::parse(std::str::from_utf8(&text).ok()?)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The path of the host to which the tree was copied; empty if writing it was interrupted.
    pub(super) fn copied_to(&self) -> Option<PathBuf> {
        if self.progress() != Progress::Copied {
            return None;
        }
        let file = os::open_file(&self.dir, layout::COPIED).ok()?;
        let path = os::read_all(&file, MAX_PATH).ok()?;
        Some(OsString::from_vec(path).into())
    }

    fn progress(&self) -> Progress {
        Progress::of(&self.dir)
    }

    pub(super) fn open_tree(&self) -> Result<OwnedFd> {
        let opened = os::open_dir(&self.dir, layout::DATA);
        Ok(opened.map_err(PathFault::at("open", &self.path()))?)
    }
}

impl Drop for Host {
    /// Unlocks the pool at once. A child process of another thread has the descriptor until its exec, and
    /// would keep the lock.
    fn drop(&mut self) {
        let _ = lock(&self.meta, FlockOperation::Unlock);
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

    /// Its path.
    pub fn pool(&self) -> &Path {
        &self.pool
    }

    /// Opens a directory in the pool by its absolute path.
    pub(super) fn open_below(&self, path: &Path) -> Result<OwnedFd> {
        let fault = |errno: Errno| PathFault::at("open", path)(errno);
        let below = path.strip_prefix(&self.pool).unwrap_or(path);
        let root = os::open_path(&self.pool).map_err(fault)?;
        Ok(os::open_dir(&root, below).map_err(fault)?)
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

    /// Whether a directory can be renamed between a path and the pool. Otherwise it is copied.
    pub fn renames(&self, at: &HostPath) -> Result<bool> {
        let fault = |errno: Errno| PathFault::at("inspect", &self.pool)(errno);
        let pool = self
            .pool
            .canonicalize()
            .map_err(PathFault::at("find", &self.pool))?;
        let (shown, shown_pool) = (at.path.display(), pool.display());
        for above in at.path.ancestors() {
            let marker = os::open_path(above).map(|above| Marker::read(&above));
            if marker.is_ok_and(|marker| !matches!(marker, Ok(None))) {
                let above = above.display();
                return refuse(format!("{shown} is in the pool at {above} already"));
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
            return refuse(format!(
                "{shown} and the pool at {shown_pool} are on one filesystem, but on two mounts of it, and \
                 a rename does not cross mounts; name the directory by its path on the pool's mount"
            ));
        }
        Ok(true)
    }

    /// Makes an entry for a directory of this kind that shall be copied, durably.
    pub(super) fn await_copy(&self, record: &VolumeRecord, kind: Kind) -> Result<Taken> {
        self.forget_export(record.id)?;
        let entry = self.begin(self.open_incoming()?)?;
        let os = &self.os;
        // The record first, so that an entry that awaits a copy has one.
        let made = record::write_new(os, &entry.dir, VolumeRecord::FILE, record).and_then(|()| {
            let marked = os.create(&entry.dir, layout::TO_COPY);
            let synced = marked
                .and_then(|file| {
                    os.write_all(&file, kind.as_str().as_bytes())?;
                    os.fsync(&file)
                })
                .and_then(|()| os.fsync(&entry.dir))
                .and_then(|()| os.fsync(&entry.incoming));
            synced.map_err(|errno| Fault::new("write", errno))
        });
        if let Err(fault) = made {
            self.remove(&entry)?;
            return Err(self.fault(fault));
        }
        Ok(entry)
    }

    /// Removes the entries of a volume that are left of imports by copy.
    pub(super) fn clear(&self, id: VolumeId) -> Result<()> {
        let incoming = self.open_incoming()?;
        let listed = names(&incoming).map_err(|errno| Fault::new("list the imports in", errno));
        for name in listed.map_err(|fault| self.fault(fault))? {
            let entry = read_entry(&incoming, &name).map_err(|fault| self.fault(fault))?;
            if let Some(Ok((record, Progress::AwaitsCopy))) = entry
                && record.id == id
            {
                self.remove(&self.entry(&name)?)?;
            }
        }
        Ok(())
    }

    /// Notes durably that a tree was copied to a path of the host.
    pub(super) fn mark_copied(&self, taken: &Taken, path: &Path) -> Result<()> {
        let record = self.record(taken)?;
        if record.enforcing {
            // The tree of an interrupted import has no quota id yet, and another volume may have it.
            let record = VolumeRecord {
                quota_id: None,
                enforcing: false,
                ..record
            };
            self.rewrite(taken, &record)?;
        }
        let path = path.as_os_str().as_bytes();
        let marked = match self.os.create(&taken.dir, layout::COPIED) {
            Err(Errno::EXIST) => Ok(()),
            made => made.and_then(|file| {
                self.os.write_all(&file, path)?;
                self.os.fsync(&file)
            }),
        };
        let synced = marked.and_then(|()| self.os.fsync(&taken.dir));
        synced.map_err(|errno| self.fault(Fault::new("mark an export in", errno)))
    }

    /// Exchanges a directory with a file in the directory of imports, durably. The record is that of the
    /// volume that it becomes.
    pub fn take(&self, at: &HostPath, record: &VolumeRecord) -> Result<Taken> {
        self.forget_export(record.id)?;
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
        let moved = keep_times(&self.os, At::new(&at.parent, &at.name), || {
            os.exchange(
                At::new(&at.parent, &at.name),
                At::new(&taken.dir, layout::DATA),
            )
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
        let tree = At::new(&taken.dir, layout::DATA);
        let path = At::new(&at.parent, &at.name);
        let moved = keep_times(&self.os, tree, || match self.os.rename(tree, path) {
            Err(Errno::EXIST) => self.os.exchange(tree, path),
            moved => moved,
        });
        moved.map_err(at.fault("move the directory to"))?;
        if taken.progress() == Progress::HasTree {
            // Somebody made a directory at the path meanwhile.
            let moved = self.os.exchange(tree, path);
            moved.map_err(at.fault("move the directory from"))?;
            return refuse(format!("{} is a directory now", at.path.display()));
        }
        self.sync(taken, at)?;
        self.remove(taken)
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
                tracing::warn!(%id, "the disk is full, so a repeated export does not find this one");
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
