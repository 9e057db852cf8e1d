//! What pools hold, one by one: read from their disks without a server, and nothing is changed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::fault::{Fault, InContext};
use crate::pool::copies::unfinished;
use crate::pool::{
    Entry, PoolOptions, Record, SnapshotRecord, Source, Unavailable, Unfinished, VolumeRecord,
    layout,
};
use crate::quota::{Charge, Enforcement, Quota};
use crate::types::{Bytes, ObjectId, VolumeId};

use super::inspect::{Inspection, look};

/// A volume or snapshot, with what is charged to it where that is counted.
#[derive(Debug, Clone)]
pub struct Held<R = VolumeRecord> {
    /// It.
    pub entry: Arc<Entry<R>>,
    /// What is charged to its number.
    pub charge: Option<Charge>,
}

/// What a pool holds.
#[derive(Debug, Clone)]
pub struct PoolContents {
    /// The pool.
    pub pool: Inspection,
    /// Its volumes, in the order of their ids.
    pub volumes: Vec<Held>,
    /// Its snapshots, in the order of their ids.
    pub snapshots: Vec<Held<SnapshotRecord>>,
    /// The copies that are being made.
    pub unfinished: Vec<Unfinished>,
    /// How much of each volume copies of it keep, in bytes.
    pub retained: BTreeMap<VolumeId, u64>,
}

/// Looks at all that a pool holds; a server may be serving it.
pub fn contents(options: &PoolOptions) -> PoolContents {
    let mut holdings = PoolContents {
        pool: Inspection::nothing_yet(options),
        volumes: Vec::new(),
        snapshots: Vec::new(),
        unfinished: Vec::new(),
        retained: BTreeMap::new(),
    };
    holdings.pool.problem = holdings.read(options).err();
    holdings
}

impl PoolContents {
    fn read(&mut self, options: &PoolOptions) -> Result<(), Unavailable> {
        let looked = look(options, &mut self.pool)?;
        let quota = &*looked.quota;
        self.volumes = held(looked.index.volumes(), quota)?;
        self.snapshots = held(looked.index.snapshots(), quota)?;
        self.unfinished = unfinished(&looked.own(layout::STAGING)?)?;
        self.retained = looked.index.retained().iter().collect();
        Ok(())
    }

    /// The volume with an id.
    pub fn volume(&self, id: VolumeId) -> Option<&Held> {
        let at = self
            .volumes
            .binary_search_by_key(&id, |held| held.entry.record.id);
        self.volumes.get(at.ok()?)
    }

    /// The name of what something is a copy of, if that is still there.
    pub fn name_of(&self, source: Source) -> Option<&str> {
        match source {
            Source::Volume(id) => Some(self.volume(id)?.entry.record.name.as_str()),
            Source::Snapshot(id) => {
                let at = self
                    .snapshots
                    .binary_search_by_key(&id, |held| held.entry.record.id);
                let held = self.snapshots.get(at.ok()?)?;
                Some(held.entry.record.name.as_str())
            }
        }
    }

    /// The volumes that were made of something.
    pub fn made_of(&self, source: Source) -> impl Iterator<Item = &Held> {
        let volumes = self.volumes.iter();
        volumes.filter(move |held| held.entry.record.source == Some(source))
    }

    /// The snapshots of a volume.
    pub fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = &Held<SnapshotRecord>> {
        let snapshots = self.snapshots.iter();
        snapshots.filter(move |held| held.entry.record.source_volume_id == volume)
    }

    /// What of a kind is quarantined, and why.
    pub fn quarantined<R: Record>(&self) -> impl Iterator<Item = &(PathBuf, String)> {
        let quarantined = self.pool.quarantined.iter();
        quarantined.filter(|(path, _)| path.starts_with(R::HOME))
    }

    /// What of a kind is quarantined under an id, and why, if anything is.
    pub fn quarantined_as<R: Record>(&self, id: R::Id) -> Option<&(PathBuf, String)> {
        let hash = Some(id.hash());
        self.quarantined::<R>().find(|(path, _)| {
            let directory = path.file_name().and_then(|name| name.to_str());
            directory.and_then(layout::hash_of) == hash
        })
    }
}

fn held<'a, R: Record + 'a>(
    entries: impl Iterator<Item = &'a Arc<Entry<R>>>,
    quota: &dyn Quota,
) -> Result<Vec<Held<R>>, Fault> {
    let counts = quota.enforcement() != Enforcement::None;
    let held = |entry: &Arc<Entry<R>>| {
        let number = entry.record.quota_id().filter(|_| counts);
        let charge = number.map(|id| quota.charge(id));
        Ok(Held {
            entry: Arc::clone(entry),
            charge: charge.transpose().context("ask what is used")?,
        })
    };
    entries.map(held).collect()
}

impl Held {
    /// What the volume uses, as its pod is told.
    pub fn used(&self) -> Option<Bytes> {
        let charge = self.charge?;
        Some(Bytes(self.entry.record.usage(charge).bytes))
    }
}
