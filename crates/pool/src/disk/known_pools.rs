//! The pools that a server knows from its last start (`pools.json`): the pool that each path held, and cordons. The file is in the state directory,
//! on another disk than the pools, so that the driver can distinguish a missing disk from a pool that was
//! never made.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use linux::fault::PathFault;
use linux::os::{self, Os};
use objects::PoolId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::disk::error::{Error, Result};
use crate::disk::record::{self, Unknown, Unreadable};

const FILE: &str = "pools.json";

/// The pool that each path held, and the pools that were cordoned or declared lost.
#[derive(Debug)]
pub struct KnownPools {
    pub(crate) os: Os,
    path: PathBuf,
    dir: OwnedFd,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KnownPoolsRecord {
    format: u32,
    pools: BTreeMap<PathBuf, PoolId>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    retired: BTreeSet<PoolId>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    cordoned: BTreeSet<PoolId>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    moved_from: BTreeSet<PoolId>,
    /// Fields of later versions, preserved.
    #[serde(flatten)]
    unknown: Unknown,
}

impl KnownPools {
    /// Opens the state directory, and makes it if it is missing.
    pub fn open(os: Os, state_dir: &Path) -> Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .recursive(true)
            .create(state_dir)
            .map_err(PathFault::at("make the state directory", state_dir))?;
        for above in state_dir.ancestors().skip(1) {
            std::fs::File::open(above)
                .and_then(|directory| directory.sync_all())
                .map_err(PathFault::at(
                    "fsync what is above the state directory",
                    state_dir,
                ))?;
        }
        let dir = os::open_path(state_dir)
            .and_then(|place| os::open_dir(place, "."))
            .map_err(PathFault::at("open the state directory", state_dir))?;
        let path = state_dir.join(FILE);
        Ok(Self { os, path, dir })
    }

    /// The pool that a path held last. If the file cannot be read, this is an error, because the driver could make a
    /// pool in place of a missing disk.
    pub fn recall(&self, path: &Path) -> Result<Option<PoolId>> {
        Ok(self.read()?.pools.get(path).copied())
    }

    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>> {
        Ok(self.read()?.pools.into_keys().collect())
    }

    /// The pools that paths held last.
    pub fn held(&self) -> Result<BTreeSet<PoolId>> {
        Ok(self.read()?.pools.into_values().collect())
    }

    /// Whether a pool was declared lost for good.
    pub fn is_retired(&self, id: PoolId) -> Result<bool> {
        Ok(self.read()?.retired.contains(&id))
    }

    /// The pools that were declared lost for good.
    pub fn retired(&self) -> Result<BTreeSet<PoolId>> {
        Ok(self.read()?.retired)
    }

    /// The pools that get no new volumes, snapshots and copies.
    pub fn cordoned(&self) -> Result<BTreeSet<PoolId>> {
        Ok(self.read()?.cordoned)
    }

    /// Cordons pools durably, or ends that; returns the pools that it changed.
    pub fn set_cordoned(&self, pools: &[PoolId], cordoned: bool) -> Result<BTreeSet<PoolId>> {
        let mut changed = BTreeSet::new();
        self.edit(|record| {
            let all = &mut record.cordoned;
            let change = |id: &PoolId| {
                if cordoned {
                    all.insert(*id)
                } else {
                    all.remove(id)
                }
            };
            changed.extend(pools.iter().copied().filter(change));
        })?;
        Ok(changed)
    }

    /// Whether volumes that a pool made may be in other pools.
    pub fn is_moved_from(&self, pool: PoolId) -> Result<bool> {
        Ok(self.read()?.moved_from.contains(&pool))
    }

    /// The pools that made volumes which may be in other pools.
    pub fn moved_from(&self) -> Result<BTreeSet<PoolId>> {
        Ok(self.read()?.moved_from)
    }

    /// Remembers durably that volumes which these pools made may be in other pools.
    pub fn add_moved_from(&self, pools: &BTreeSet<PoolId>) -> Result<()> {
        if pools.is_empty() {
            return Ok(());
        }
        self.edit(|record| record.moved_from.extend(pools))
    }

    /// Remembers durably that a path holds a pool; false if the pool was declared lost. A disk of a set
    /// that is mounted at the path of another member is not missing at its path before.
    pub(crate) fn remember(&self, path: &Path, id: PoolId, is_member: bool) -> Result<bool> {
        let mut retired = false;
        self.edit(|record| {
            retired = record.retired.contains(&id);
            if !retired {
                let is_before = |at: &Path| at != path && at.parent() == path.parent();
                let pools = &mut record.pools;
                pools.retain(|at, pool| !(is_member && *pool == id && is_before(at)));
                pools.insert(path.to_owned(), id);
            }
        })?;
        Ok(!retired)
    }

    /// Remembers durably that a path holds a pool in place of any other, and that the pool is not lost.
    pub(crate) fn adopt(&self, path: &Path, id: PoolId) -> Result<()> {
        self.edit(|record| {
            record.pools.insert(path.to_owned(), id);
            record.retired.remove(&id);
        })
    }

    /// Remembers durably that a pool is lost for good, which ends its cordon; returns the paths that
    /// held it.
    pub(crate) fn retire(&self, id: PoolId) -> Result<Vec<PathBuf>> {
        let mut held = Vec::new();
        self.edit(|record| {
            held = record
                .pools
                .extract_if(.., |_, pool| *pool == id)
                .map(|(path, _)| path)
                .collect();
            record.retired.insert(id);
            record.cordoned.remove(&id);
        })?;
        Ok(held)
    }

    fn edit(&self, change: impl FnOnce(&mut KnownPoolsRecord)) -> Result<()> {
        // Other pools, another server or a command may write too, so each change reads first. Each has
        // its own descriptor, because a shared descriptor shares the lock.
        let failed = PathFault::at::<Errno>("write", &self.path);
        let lock = os::open_dir(&self.dir, ".").map_err(&failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(&failed)?;
        self.read().and_then(|before| {
            let mut after = before.clone();
            change(&mut after);
            if after == before {
                // The process that wrote it may have been killed before it was durable.
                return Ok(self.os.fsync(&self.dir).map_err(&failed)?);
            }
            let written = record::write(&self.os, &self.dir, FILE, &after);
            Ok(written.map_err(|fault| failed(fault.errno))?)
        })
    }

    fn read(&self) -> Result<KnownPoolsRecord> {
        if os::statx_at(&self.dir, FILE).is_err_and(|errno| errno == Errno::NOENT) {
            return Ok(KnownPoolsRecord {
                format: record::FORMAT,
                ..KnownPoolsRecord::default()
            });
        }
        record::read(&self.dir, FILE).map_err(|unreadable| match unreadable {
            Unreadable::Fault(fault) => PathFault::at("read", &self.path)(fault.errno).into(),
            Unreadable::Damaged(reason) => Error::Quarantined {
                path: self.path.clone(),
                reason,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &tempfile::TempDir) -> KnownPools {
        KnownPools::open(Os::default(), dir.path()).unwrap()
    }

    /// Proves: P2.
    #[test]
    fn what_is_remembered_at_once_is_all_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let known_pools = open(&dir);
        let pools: Vec<_> = (0..16)
            .map(|n| (PathBuf::from(format!("/pools/{n}")), PoolId::random()))
            .collect();
        std::thread::scope(|scope| {
            for (path, id) in &pools {
                scope.spawn(|| assert!(known_pools.remember(path, *id, false).unwrap()));
            }
        });
        for (path, id) in pools {
            assert_eq!(known_pools.recall(&path).unwrap(), Some(id));
        }
    }

    /// Proves: PC1.
    #[test]
    fn every_change_by_another_process_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (server, command) = (open(&dir), open(&dir));
        let pools = [PoolId::random(), PoolId::random()];
        command.set_cordoned(&pools[..1], true).unwrap();
        for n in 0..64 {
            let (now, next) = (pools[n % 2], pools[(n + 1) % 2]);
            assert_eq!(server.cordoned().unwrap(), BTreeSet::from([now]));
            command.set_cordoned(&[now], false).unwrap();
            command.set_cordoned(&[next], true).unwrap();
        }
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        let damaged = server.cordoned().unwrap_err();
        assert!(matches!(damaged, Error::Quarantined { .. }), "{damaged}");
    }

    /// Proves: PC2, PC3.
    #[test]
    fn a_cordon_ends_by_uncordon_and_by_retire() {
        let dir = tempfile::tempdir().unwrap();
        let known_pools = open(&dir);
        let (a, b) = (PoolId::random(), PoolId::random());
        let both = BTreeSet::from([a, b]);
        assert_eq!(known_pools.set_cordoned(&[a], true).unwrap(), [a].into());
        assert_eq!(known_pools.set_cordoned(&[a, b], true).unwrap(), [b].into());
        assert_eq!(known_pools.set_cordoned(&[a, b], true).unwrap(), [].into());
        known_pools.adopt(Path::new("/pools/a"), a).unwrap();
        assert_eq!(open(&dir).cordoned().unwrap(), both);
        known_pools.retire(a).unwrap();
        assert_eq!(known_pools.cordoned().unwrap(), [b].into());
        assert_eq!(
            known_pools.set_cordoned(&[a, b], false).unwrap(),
            [b].into()
        );
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("cordoned"), "{text}");
    }
}
