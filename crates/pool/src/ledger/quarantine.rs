//! The quarantine of an index: entries that cannot be trusted, by id and by path.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use objects::{Bytes, NameHash, ObjectId};

use crate::disk::error::Error;
use crate::disk::layout;
use crate::disk::record::Record;

/// An entry of `volumes/` or `snapshots/` that cannot be trusted and is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its path, below the pool's path.
    pub path: PathBuf,
    pub reason: String,
    /// Its disk usage, which stays reserved; `None` until it is measured.
    pub space: Option<Bytes>,
}

impl Quarantined {
    /// The error of a call about it, in the pool at a path.
    pub fn error(&self, pool: &Path) -> Error {
        Error::Quarantined {
            path: pool.join(&self.path),
            reason: self.reason.clone(),
        }
    }
}

/// All quarantined entries of a pool. Each volume that is read, and each call, asks for an id, so no
/// question may take longer the more entries there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quarantine {
    entries: Vec<Quarantined>,
    /// The place in `entries` of the first one with an id, by its home and the hash in the id.
    by_id: HashMap<(&'static str, NameHash), usize>,
    /// The places of the entries whose disk usage is not known.
    unmeasured: BTreeMap<PathBuf, usize>,
}

impl Quarantine {
    pub(crate) fn add<R: Record>(&mut self, name: &OsStr, reason: String, space: Option<u64>) {
        let (path, at) = (Path::new(R::HOME).join(name), self.entries.len());
        if let Some(hash) = name.to_str().and_then(layout::hash_of) {
            self.by_id.entry((R::HOME, hash)).or_insert(at);
        }
        if space.is_none() {
            self.unmeasured.insert(path.clone(), at);
        }
        self.entries.push(Quarantined {
            path,
            reason,
            space: space.map(Bytes),
        });
    }

    /// Removes an entry by its path, below the pool's path.
    pub(crate) fn remove(&mut self, path: &Path) -> Option<Quarantined> {
        let at = self.entries.iter().position(|entry| entry.path == path)?;
        let removed = self.entries.remove(at);
        // The places behind it change.
        self.by_id.retain(|_, place| *place != at);
        let moved = self.by_id.values_mut().chain(self.unmeasured.values_mut());
        moved
            .filter(|place| **place > at)
            .for_each(|place| *place -= 1);
        self.unmeasured.remove(path);
        Some(removed)
    }

    pub(crate) fn all(&self) -> &[Quarantined] {
        &self.entries
    }

    /// The entry of a kind with this id, if there is one.
    pub(crate) fn get<R: Record>(&self, id: R::Id) -> Option<&Quarantined> {
        let at = self.by_id.get(&(R::HOME, id.hash()))?;
        self.entries.get(*at)
    }

    /// The path of an entry whose disk usage is not known, if there is one.
    pub(crate) fn unmeasured(&self) -> Option<&Path> {
        let (path, _) = self.unmeasured.first_key_value()?;
        Some(path)
    }

    /// Notes the disk usage of an entry; false if it was known.
    pub(crate) fn measured(&mut self, path: &Path, bytes: u64) -> bool {
        let at = self.unmeasured.remove(path);
        let entry = at.and_then(|at| self.entries.get_mut(at));
        entry.is_some_and(|entry| entry.space.replace(Bytes(bytes)).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::entry::Entry;
    use crate::disk::record::{SnapshotRecord, VolumeRecord};
    use crate::ledger::index::Index;
    use objects::{PoolId, SnapshotId, VolumeId, VolumeName};

    fn id(pool: PoolId, name: &str) -> VolumeId {
        VolumeId::new(pool, &name.parse::<VolumeName>().unwrap())
    }

    fn directory(id: VolumeId, name: &str) -> String {
        layout::directory_name(id.hash(), name, None, None)
    }

    /// Of two directories with one id the first is found, and an entry of another kind is not.
    #[test]
    fn an_entry_is_found_by_its_id() {
        let pool = PoolId::random();
        let volume = id(pool, "a");
        let mut quarantine = Quarantine::default();
        for name in ["lost", &directory(volume, "a"), &directory(volume, "b")] {
            quarantine.add::<VolumeRecord>(name.as_ref(), name.to_owned(), Some(1));
        }
        let found = quarantine.get::<VolumeRecord>(volume).unwrap();
        assert_eq!(found.reason, directory(volume, "a"));
        assert_eq!(quarantine.get::<VolumeRecord>(id(pool, "b")), None);
        let snapshot = SnapshotId::from_hash(pool, volume.hash());
        assert_eq!(quarantine.get::<SnapshotRecord>(snapshot), None);
        assert_eq!(quarantine.all().len(), 3);
    }

    /// A large quarantine makes no other volume slow: neither reading nor finding one parses the names
    /// in the quarantine.
    #[test]
    fn a_volume_costs_the_same_beside_a_quarantine_of_any_size() {
        let pool = PoolId::random();
        let mut index = Index::default();
        for number in 0..100 {
            let directory = directory(id(pool, &format!("lost-{number}")), "lost");
            index.quarantine::<VolumeRecord>(directory.as_ref(), None, String::new(), None);
        }
        let parsed = layout::PARSED.get();
        for number in 0..100 {
            let name: VolumeName = format!("pvc-{number}").parse().unwrap();
            let id = VolumeId::new(pool, &name);
            let record = VolumeRecord::new(id, name.clone());
            let directory = directory(id, "pvc");
            index.insert(Entry { record, directory });
            assert_eq!(index.id_of::<VolumeRecord>(pool, &name), Some(id));
            assert_eq!(index.quarantined_as::<VolumeRecord>(id), None);
        }
        assert_eq!(layout::PARSED.get(), parsed);
    }

    #[test]
    fn the_others_are_found_after_one_is_removed() {
        let pool = PoolId::random();
        let ids = ["a", "b", "c"].map(|name| id(pool, name));
        let mut quarantine = Quarantine::default();
        for (volume, space) in ids.into_iter().zip([None, Some(2), None]) {
            let name = directory(volume, "x");
            quarantine.add::<VolumeRecord>(name.as_ref(), volume.to_string(), space);
        }
        let path = |volume| Path::new("volumes").join(directory(volume, "x"));
        assert_eq!(quarantine.remove(Path::new("volumes/other")), None);
        assert_eq!(
            quarantine.remove(&path(ids[0])).unwrap().reason,
            ids[0].to_string()
        );
        assert_eq!(quarantine.get::<VolumeRecord>(ids[0]), None);
        for left in &ids[1..] {
            let found = quarantine.get::<VolumeRecord>(*left).unwrap();
            assert_eq!(found.reason, left.to_string());
        }
        assert_eq!(quarantine.unmeasured(), Some(&*path(ids[2])));
        assert!(quarantine.measured(&path(ids[2]), 5));
    }

    #[test]
    fn an_entry_is_measured_once() {
        let mut quarantine = Quarantine::default();
        for (name, space) in [("b", None), ("known", Some(7)), ("a", None)] {
            quarantine.add::<VolumeRecord>(name.as_ref(), String::new(), space);
        }
        for name in ["a", "b"] {
            let path = Path::new("volumes").join(name);
            assert_eq!(quarantine.unmeasured(), Some(&*path));
            assert!(quarantine.measured(&path, 5));
            assert!(!quarantine.measured(&path, 6));
        }
        assert_eq!(quarantine.unmeasured(), None);
        let spaces: Vec<_> = quarantine.all().iter().map(|entry| entry.space).collect();
        assert_eq!(spaces, [5, 7, 5].map(|bytes| Some(Bytes(bytes))));
    }
}
