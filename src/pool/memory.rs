//! What the server remembers of its pools between starts: which pool each path held. It lives in
//! the state directory, on another disk than the pools, so that a disk that is not there is
//! told from a pool that was never made.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::os::{self, Os};
use crate::types::PoolId;

use super::fault::Fault;
use super::record;

const FILE: &str = "pools.json";

/// The memory of which pool each path held.
#[derive(Debug)]
pub struct Memory {
    os: Os,
    dir: OwnedFd,
    pools: Mutex<BTreeMap<PathBuf, PoolId>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryRecord {
    format: u32,
    pools: BTreeMap<PathBuf, PoolId>,
}

impl Memory {
    /// Opens the state directory, making it if need be, and reads what is remembered.
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
        let place = os::open_path(state_dir)
            .map_err(|errno| io("open the state directory")(errno.into()))?;
        let dir = os::open_dir(&place, ".")
            .map_err(|errno| io("open the state directory")(errno.into()))?;
        let pools = if os::status_at(&dir, FILE).err() == Some(Errno::NOENT) {
            BTreeMap::new()
        } else {
            // Starting without it could make a pool where a disk is missing.
            let record: MemoryRecord =
                record::read(&dir, FILE).map_err(|reason| Error::Quarantined {
                    path: state_dir.join(FILE),
                    reason,
                })?;
            record.pools
        };
        Ok(Self {
            os,
            dir,
            pools: Mutex::new(pools),
        })
    }

    /// Which pool a path held when it was last seen.
    pub fn recall(&self, path: &Path) -> Option<PoolId> {
        self.lock().get(path).copied()
    }

    /// Remembers, durably, which pool a path holds.
    pub(crate) fn remember(&self, path: &Path, id: PoolId) -> std::result::Result<(), Fault> {
        let mut pools = self.lock();
        if pools.get(path) == Some(&id) {
            return Ok(());
        }
        let mut changed = pools.clone();
        changed.insert(path.to_owned(), id);
        let record = MemoryRecord {
            format: record::FORMAT,
            pools: changed,
        };
        record::write(&self.os, &self.dir, FILE, &record)?;
        *pools = record.pools;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, PoolId>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
