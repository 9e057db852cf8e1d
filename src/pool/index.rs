//! What a pool holds, as far as it is known: its volumes and snapshots, and what is quarantined.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::os;
use crate::quota::{Enforcement, Quota};
use crate::types::{Bytes, NameHash, PoolId, SnapshotId, VolumeId};

use super::fault::{During, Fault};
use super::record::{self, Pin, Record, SnapshotRecord, Unreadable, VolumeRecord};
use super::{layout, tree};

/// A volume or a snapshot, and the name of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<R = VolumeRecord> {
    /// Its record.
    pub record: R,
    /// Its directory below `volumes/` or `snapshots/`.
    pub directory: String,
}

/// A snapshot and the name of its directory.
pub type SnapshotEntry = Entry<SnapshotRecord>;

impl<R: Record> Entry<R> {
    /// Where it is, below the pool's path.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(R::HOME).join(&self.directory)
    }
}

impl Entry {
    /// Whether it has a size that nothing holds, in a pool that holds them so.
    pub(crate) fn is_unheld(&self, enforcement: Enforcement) -> bool {
        let held = self.record.enforcement;
        self.record.size_bytes > Bytes::ZERO && (held == Enforcement::None || held != enforcement)
    }
}

/// The directories of a pool that hold what it holds.
#[derive(Debug)]
pub(crate) struct Homes {
    pub(crate) volumes: OwnedFd,
    pub(crate) snapshots: OwnedFd,
}

impl Homes {
    pub(crate) fn open(root: impl AsFd) -> Result<Self, Fault> {
        let open = |name| os::open_dir(&root, name).during("open the pool's own directories");
        Ok(Self {
            volumes: open(layout::VOLUMES)?,
            snapshots: open(layout::SNAPSHOTS)?,
        })
    }

    /// The one that holds those of a kind.
    pub(crate) fn of<R: Record>(&self) -> &OwnedFd {
        if R::HOME == layout::SNAPSHOTS {
            &self.snapshots
        } else {
            &self.volumes
        }
    }
}

/// Something below `volumes/` or `snapshots/` that cannot be trusted and is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Where it is, below the pool's path.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// What it occupies, which stays counted as promised.
    pub space: Bytes,
    home: &'static str,
    hash: Option<NameHash>,
}

/// What a pool holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    volumes: BTreeMap<VolumeId, Arc<Entry>>,
    snapshots: BTreeMap<SnapshotId, Arc<SnapshotEntry>>,
    quarantine: Vec<Quarantined>,
    reserved: u64,
}

/// What an index holds those of a kind in.
pub(crate) trait Kept: Record + Sized {
    fn kept(index: &Index) -> &BTreeMap<Self::Id, Arc<Entry<Self>>>;
    fn kept_mut(index: &mut Index) -> &mut BTreeMap<Self::Id, Arc<Entry<Self>>>;
}

impl Kept for VolumeRecord {
    fn kept(index: &Index) -> &BTreeMap<VolumeId, Arc<Entry>> {
        &index.volumes
    }

    fn kept_mut(index: &mut Index) -> &mut BTreeMap<VolumeId, Arc<Entry>> {
        &mut index.volumes
    }
}

impl Kept for SnapshotRecord {
    fn kept(index: &Index) -> &BTreeMap<SnapshotId, Arc<SnapshotEntry>> {
        &index.snapshots
    }

    fn kept_mut(index: &mut Index) -> &mut BTreeMap<SnapshotId, Arc<SnapshotEntry>> {
        &mut index.snapshots
    }
}

impl Index {
    /// Reads every record of the pool.
    pub(crate) fn load(homes: &Homes, pool: PoolId, quota: &dyn Quota) -> Result<Self, Fault> {
        let mut index = Self::default();
        index.read::<VolumeRecord>(homes, pool, quota)?;
        index.read::<SnapshotRecord>(homes, pool, quota)?;
        Ok(index)
    }

    fn read<R: Kept>(
        &mut self,
        homes: &Homes,
        pool: PoolId,
        quota: &dyn Quota,
    ) -> Result<(), Fault> {
        let home = homes.of::<R>();
        let names = os::entry_names(home.as_fd()).during("list what the pool holds")?;
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
                Err("two directories claim this id".to_owned().into())
            } else {
                read_entry::<R>(home, name, pool)
            };
            match entry {
                Ok(Some(entry)) => {
                    self.insert(entry);
                }
                Ok(None) => {}
                Err(Unreadable::Fault(fault)) => return Err(fault),
                Err(Unreadable::Damaged(reason)) => {
                    let space = space(home, name, quota);
                    self.quarantine::<R>(name, hash, reason, space);
                }
            }
        }
        Ok(())
    }

    /// Takes something for what cannot be trusted.
    pub(crate) fn distrust<R: Kept>(&mut self, entry: &Entry<R>, space: u64, reason: String) {
        self.remove::<R>(entry.record.id());
        let hash = layout::hash_of(&entry.directory);
        self.quarantine::<R>(OsStr::new(&entry.directory), hash, reason, space);
    }

    fn quarantine<R: Record>(
        &mut self,
        name: &OsStr,
        hash: Option<NameHash>,
        reason: String,
        space: u64,
    ) {
        let path = PathBuf::from(R::HOME).join(name);
        self.reserved = self.reserved.saturating_add(space);
        self.quarantine.push(Quarantined {
            path,
            reason,
            space: Bytes(space),
            home: R::HOME,
            hash,
        });
    }

    pub(crate) fn insert<R: Kept>(&mut self, entry: Entry<R>) -> Arc<Entry<R>> {
        self.remove::<R>(entry.record.id());
        self.reserved = self.reserved.saturating_add(entry.record.promised());
        let entry = Arc::new(entry);
        R::kept_mut(self).insert(entry.record.id(), Arc::clone(&entry));
        entry
    }

    pub(crate) fn remove<R: Kept>(&mut self, id: R::Id) {
        if let Some(entry) = R::kept_mut(self).remove(&id) {
            self.reserved = self.reserved.saturating_sub(entry.record.promised());
        }
    }

    pub(crate) fn get<R: Kept>(&self, id: R::Id) -> Option<&Arc<Entry<R>>> {
        R::kept(self).get(&id)
    }

    /// What of a kind is quarantined under an id, if anything is.
    pub(crate) fn quarantined_as<R: Record>(&self, id: R::Id) -> Option<&Quarantined> {
        let hash = R::hash(id);
        self.quarantine
            .iter()
            .find(|quarantined| quarantined.home == R::HOME && quarantined.hash == Some(hash))
    }

    /// Those of a kind whose ids come after one, in order.
    pub(crate) fn after<R: Kept + 'static>(
        &self,
        id: Option<R::Id>,
    ) -> impl Iterator<Item = &Arc<Entry<R>>> {
        use std::ops::Bound::{Excluded, Unbounded};
        R::kept(self)
            .range((id.map_or(Unbounded, Excluded), Unbounded))
            .map(|(_, entry)| entry)
    }

    /// All volumes.
    pub(crate) fn volumes(&self) -> impl ExactSizeIterator<Item = &Arc<Entry>> {
        self.volumes.values()
    }

    /// All snapshots.
    pub(crate) fn snapshots(&self) -> impl ExactSizeIterator<Item = &Arc<SnapshotEntry>> {
        self.snapshots.values()
    }

    /// What all copies pin.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Pin> {
        let volumes = self.volumes.values().flat_map(|entry| &entry.record.pins);
        let snapshots = self.snapshots.values();
        volumes.chain(snapshots.flat_map(|entry| &entry.record.pins))
    }

    /// What is promised where the kernel charges whoever wrote first, in bytes: the sizes, what
    /// snapshots hold beyond their retained charges, and each retained charge of a volume that is
    /// there. The blocks of one that is gone are used already, and it writes no more.
    pub(crate) fn promised(&self, binned: &[Pin]) -> u64 {
        let retained = record::pinned(self.pins().chain(binned)).into_iter();
        let retained = retained.filter(|(volume, _)| self.holds(*volume));
        let retained = retained.map(|(_, bytes)| bytes);
        let shared = self.snapshots.values().map(|entry| {
            let record = &entry.record;
            let pins = record.pins.iter().map(|pin| pin.bytes.0);
            pins.fold(0, u64::saturating_add).min(record.held_bytes.0)
        });
        let alone = shared.fold(self.reserved, u64::saturating_sub);
        retained.fold(alone, u64::saturating_add)
    }

    /// Whether a volume is there, if only in quarantine.
    fn holds(&self, volume: VolumeId) -> bool {
        self.volumes.contains_key(&volume) || self.quarantined_as::<VolumeRecord>(volume).is_some()
    }

    /// How many volumes have a size that nothing holds, in a pool that holds them so.
    pub(crate) fn unheld(&self, enforcement: Enforcement) -> usize {
        let volumes = self.volumes.values();
        volumes.filter(|entry| entry.is_unheld(enforcement)).count()
    }

    pub(crate) fn quarantined(&self) -> &[Quarantined] {
        &self.quarantine
    }

    /// What is promised to all volumes and snapshots, and what is quarantined, in bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.quarantine.is_empty()
    }
}

/// What an entry that cannot be trusted takes: the limit of what its data is charged to, or what is
/// charged if that is more; where nothing is, what its tree occupies.
fn space(home: &OwnedFd, name: &OsStr, quota: &dyn Quota) -> u64 {
    let charged = || -> Result<Option<u64>, Errno> {
        let dir = os::open_dir(home, name)?;
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
    charged.unwrap_or_else(|| tree::usage(home.as_fd(), name))
}

/// Reads one record and checks that it belongs where it is; nothing if the directory is gone, as
/// it may be beside a server at work.
pub(crate) fn read_entry<R: Record>(
    home: &OwnedFd,
    name: &OsStr,
    pool: PoolId,
) -> Result<Option<Entry<R>>, Unreadable> {
    let strange = || Unreadable::Damaged("its name is not ours".into());
    let directory = name.to_str().ok_or_else(strange)?;
    let hash = layout::hash_of(directory).ok_or_else(strange)?;
    let dir = match os::open_dir(home, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => {
            let damage = || format!("cannot open it: {errno}");
            return Err(Unreadable::new("open what the pool holds", errno, damage));
        }
    };
    let record: R = record::read(&dir, R::FILE)?;
    if !record.is_sound(pool) || R::hash(record.id()) != hash {
        return Err(Unreadable::Damaged(format!(
            "{} is damaged: its id, name and directory disagree",
            R::FILE
        )));
    }
    match os::status_at(&dir, layout::DATA) {
        Ok(status) if status.file_type == FileType::Directory => {}
        Ok(_) => return Err(Unreadable::Damaged("data is no directory".into())),
        Err(errno) => {
            let damage = || format!("cannot look at data: {errno}");
            return Err(Unreadable::new("look at data", errno, damage));
        }
    }
    let directory = directory.to_owned();
    Ok(Some(Entry { record, directory }))
}
