//! What the server remembers of its pools between starts: which pool each path held. It lives in
//! the state directory, on another disk than the pools, so that a disk that is not there is
//! told from a pool that was never made.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::os::{self, Os};
use crate::types::PoolId;

use super::record;

const FILE: &str = "pools.json";

/// The memory of which pool each path held.
#[derive(Debug)]
pub struct Memory {
    os: Os,
    path: PathBuf,
    dir: OwnedFd,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryRecord {
    format: u32,
    pools: BTreeMap<PathBuf, PoolId>,
}

impl Memory {
    /// Opens the state directory, making it if need be.
    pub fn open(os: Os, state_dir: &Path) -> Result<Self> {
        let io = |what: &'static str| {
            move |source| Error::Io {
                what,
                path: state_dir.to_owned(),
                source,
            }
        };
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .recursive(true)
            .create(state_dir)
            .map_err(io("make the state directory"))?;
        let dir = os::open_path(state_dir)
            .and_then(|place| os::open_dir(place, "."))
            .map_err(|errno| io("open the state directory")(errno.into()))?;
        let path = state_dir.join(FILE);
        Ok(Self { os, path, dir })
    }

    /// Which pool a path held when it was last seen. What cannot be read is an error: going on
    /// without it could make a pool where a disk is missing.
    pub fn recall(&self, path: &Path) -> Result<Option<PoolId>> {
        Ok(self.read()?.get(path).copied())
    }

    /// Remembers, durably, which pool a path holds.
    pub(crate) fn remember(&self, path: &Path, id: PoolId) -> Result<()> {
        if self.recall(path)? == Some(id) {
            return Ok(());
        }
        // Another server may share the directory: what it remembers is kept.
        let failed = |source: Errno| Error::Io {
            what: "write",
            path: self.path.clone(),
            source: source.into(),
        };
        flock(&self.dir, FlockOperation::LockExclusive).map_err(failed)?;
        let written = self.read().and_then(|mut pools| {
            pools.insert(path.to_owned(), id);
            let format = record::FORMAT;
            record::write(&self.os, &self.dir, FILE, &MemoryRecord { format, pools })
                .map_err(|fault| failed(fault.errno))
        });
        flock(&self.dir, FlockOperation::Unlock).map_err(failed)?;
        written
    }

    fn read(&self) -> Result<BTreeMap<PathBuf, PoolId>> {
        if os::status_at(&self.dir, FILE).err() == Some(Errno::NOENT) {
            return Ok(BTreeMap::new());
        }
        let record: MemoryRecord =
            record::read(&self.dir, FILE).map_err(|reason| Error::Quarantined {
                path: self.path.clone(),
                reason,
            })?;
        Ok(record.pools)
    }
}
