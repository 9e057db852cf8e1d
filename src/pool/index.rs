//! What a pool holds, as far as it is known: its volumes, and what is quarantined.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::os;
use crate::quota::{Enforcement, Quota};
use crate::types::{Bytes, NameHash, PoolId, VolumeId};

use super::fault::{During, Fault};
use super::record::{self, VOLUME_RECORD, VolumeRecord};
use super::{layout, tree};

/// A volume and the name of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its record.
    pub record: VolumeRecord,
    /// Its directory below `volumes/`.
    pub directory: String,
}

impl Entry {
    /// Whether it has a size that nothing holds, in a pool that holds them so.
    pub(crate) fn is_unheld(&self, enforcement: Enforcement) -> bool {
        let held = self.record.enforcement;
        self.record.size_bytes > Bytes::ZERO && (held == Enforcement::None || held != enforcement)
    }

    /// Where it is, below the pool's path.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(layout::VOLUMES).join(&self.directory)
    }
}

/// Something below `volumes/` that cannot be trusted and is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Where it is, below the pool's path.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// What it occupies, which stays counted as promised.
    pub space: Bytes,
    hash: Option<NameHash>,
}

/// What a pool holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    volumes: BTreeMap<VolumeId, Arc<Entry>>,
    quarantine: Vec<Quarantined>,
    reserved: u64,
}

impl Index {
    /// Reads every record of the pool.
    pub(crate) fn load(volumes: &OwnedFd, pool: PoolId, quota: &dyn Quota) -> Result<Self, Fault> {
        let mut index = Self::default();
        let names = os::entry_names(volumes.as_fd()).during("list volumes")?;
        let mut seen: BTreeMap<NameHash, usize> = BTreeMap::new();
        for hash in names
            .iter()
            .filter_map(|name| layout::hash_of(name.to_str()?))
        {
            *seen.entry(hash).or_default() += 1;
        }
        for name in &names {
            let hash = name.to_str().and_then(layout::hash_of);
            let twin = hash.is_some_and(|hash| seen.get(&hash).is_some_and(|count| *count > 1));
            let entry = if twin {
                Err("two directories claim this id".to_owned())
            } else {
                read_entry(volumes, name, pool)
            };
            match entry {
                Ok(Some(entry)) => {
                    index.insert(entry);
                }
                Ok(None) => {}
                Err(reason) => {
                    let space = space(volumes, name, quota);
                    index.quarantine(name, hash, reason, space);
                }
            }
        }
        Ok(index)
    }

    /// Takes a volume for one that cannot be trusted.
    pub(crate) fn distrust(&mut self, entry: &Entry, space: u64, reason: String) {
        self.remove(entry.record.id);
        let hash = Some(entry.record.id.hash());
        self.quarantine(OsStr::new(&entry.directory), hash, reason, space);
    }

    fn quarantine(&mut self, name: &OsStr, hash: Option<NameHash>, reason: String, space: u64) {
        let path = PathBuf::from(layout::VOLUMES).join(name);
        self.reserved = self.reserved.saturating_add(space);
        self.quarantine.push(Quarantined {
            path,
            reason,
            space: Bytes(space),
            hash,
        });
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> Arc<Entry> {
        self.remove(entry.record.id);
        self.reserved = self.reserved.saturating_add(entry.record.size_bytes.0);
        let entry = Arc::new(entry);
        self.volumes.insert(entry.record.id, Arc::clone(&entry));
        entry
    }

    pub(crate) fn remove(&mut self, id: VolumeId) {
        if let Some(entry) = self.volumes.remove(&id) {
            self.reserved = self.reserved.saturating_sub(entry.record.size_bytes.0);
        }
    }

    pub(crate) fn get(&self, id: VolumeId) -> Option<&Arc<Entry>> {
        self.volumes.get(&id)
    }

    /// What is quarantined under an id, if anything is.
    pub(crate) fn quarantined_as(&self, id: VolumeId) -> Option<&Quarantined> {
        self.quarantine
            .iter()
            .find(|quarantined| quarantined.hash == Some(id.hash()))
    }

    /// The volumes whose ids come after one, in order.
    pub(crate) fn after(&self, id: Option<VolumeId>) -> impl Iterator<Item = &Arc<Entry>> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.volumes
            .range((id.map_or(Unbounded, Excluded), Unbounded))
            .map(|(_, entry)| entry)
    }

    pub(crate) fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// How many volumes have a size that nothing holds, in a pool that holds them so.
    pub(crate) fn unheld(&self, enforcement: Enforcement) -> usize {
        let volumes = self.volumes.values();
        volumes.filter(|entry| entry.is_unheld(enforcement)).count()
    }

    pub(crate) fn quarantined(&self) -> &[Quarantined] {
        &self.quarantine
    }

    /// The sizes of all volumes, and what is quarantined, in bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.quarantine.is_empty()
    }
}

/// What an entry that cannot be trusted takes: the limit of what its data is charged to, or what is
/// charged if that is more; where nothing is, what its tree occupies.
fn space(volumes: &OwnedFd, name: &OsStr, quota: &dyn Quota) -> u64 {
    let charged = || -> Result<Option<u64>, Errno> {
        let dir = os::open_dir(volumes, name)?;
        let data = os::open_dir(dir, layout::DATA)?;
        let Some(id) = quota.charged_to(data.as_fd())? else {
            return Ok(None);
        };
        let charge = quota.charge(id)?;
        Ok(charge
            .is_limited()
            .then_some(charge.byte_limit.max(charge.bytes)))
    };
    let charged = charged().ok().flatten();
    charged.unwrap_or_else(|| tree::usage(volumes.as_fd(), name))
}

/// Reads one volume's record and checks that it belongs where it is; nothing if the directory is
/// gone, as it may be beside a server at work.
pub(crate) fn read_entry(
    volumes: &OwnedFd,
    name: &OsStr,
    pool: PoolId,
) -> Result<Option<Entry>, String> {
    let directory = name.to_str().ok_or("its name is not ours")?;
    let hash = layout::hash_of(directory).ok_or("its name is not ours")?;
    let dir = match os::open_dir(volumes, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(format!("cannot open it: {errno}")),
    };
    let record: VolumeRecord = record::read(&dir, VOLUME_RECORD)?;
    if record.id != VolumeId::new(pool, &record.name) || record.id.hash() != hash {
        return Err(format!(
            "{VOLUME_RECORD} is damaged: its id, name and directory disagree"
        ));
    }
    match os::status_at(&dir, layout::DATA) {
        Ok(status) if status.file_type == FileType::Directory => {}
        Ok(_) => return Err("data is no directory".into()),
        Err(errno) => return Err(format!("cannot look at data: {errno}")),
    }
    let directory = directory.to_owned();
    Ok(Some(Entry { record, directory }))
}
