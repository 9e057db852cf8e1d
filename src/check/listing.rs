//! The volumes and snapshots of pools, read from their disks without a server.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use linux::fault::{Fault, InContext};
use linux::quota::{Charge, Enforcement, Quota};
use objects::{Bytes, VolumeId};
use uuid::Uuid;

use pool::claims;
use pool::{
    Entry, PoolOptions, Quarantined, Record, SnapshotRecord, Source, Unavailable, Unreadable,
    VolumeRecord, read_kept,
};

use super::inspect::{Inspection, OpenPool, open};

#[derive(Debug, Clone)]
pub struct Held<R = VolumeRecord> {
    pub entry: Arc<Entry<R>>,
    /// The charges of its quota id, where the kernel counts them.
    pub charge: Option<Charge>,
}

/// A deleted volume or snapshot that can come back.
#[derive(Debug, Clone)]
pub struct Deleted<R = VolumeRecord> {
    pub record: R,
    /// Distinguishes several with one id.
    pub entry: Uuid,
    /// The running time of the server until it is deleted for good, as of a few minutes ago. `None` if the pool has
    /// no option `keep`: only a purge or the need for its space ends it.
    pub left: Option<Duration>,
}

#[derive(Debug, Clone)]
pub struct PoolContents {
    pub pool: Inspection,
    /// Its volumes, in the order of their ids.
    pub volumes: Vec<Held>,
    /// Its snapshots, in the order of their ids.
    pub snapshots: Vec<Held<SnapshotRecord>>,
    /// Its deleted volumes and snapshots that can come back, the oldest first.
    pub kept_volumes: Vec<Deleted>,
    pub kept_snapshots: Vec<Deleted<SnapshotRecord>>,
    /// The bytes that copies retain of each volume.
    pub retained: BTreeMap<VolumeId, u64>,
}

/// Reads the contents of a pool, which a server may serve meanwhile.
pub fn contents(options: &PoolOptions) -> PoolContents {
    let mut holdings = PoolContents {
        pool: Inspection::nothing_yet(options),
        volumes: Vec::new(),
        snapshots: Vec::new(),
        kept_volumes: Vec::new(),
        kept_snapshots: Vec::new(),
        retained: BTreeMap::new(),
    };
    holdings.pool.problem = holdings.read(options).err();
    holdings
}

/// Leaves out the copies that an unfinished move left next to the volume itself.
pub fn hide_old_copies(pools: &mut [PoolContents]) {
    let volumes = || pools.iter().flat_map(|contents| &contents.volumes);
    let served = volumes().filter(|held| held.entry.record.is_served());
    let served: BTreeSet<VolumeId> = served.map(|held| held.entry.record.id).collect();
    for contents in pools {
        contents.volumes.retain(|Held { entry, .. }| {
            entry.record.is_served() || !served.contains(&entry.record.id)
        });
    }
}

impl PoolContents {
    fn read(&mut self, options: &PoolOptions) -> Result<(), Unavailable> {
        let opened = open(options, &mut self.pool)?;
        let quota = &*opened.quota;
        self.volumes = held(opened.index.volumes(), quota)?;
        self.snapshots = held(opened.index.snapshots(), quota)?;
        if let Some(kept) = &opened.homes.kept {
            self.kept_volumes = deleted(&opened, kept, options.keep)?;
            self.kept_snapshots = deleted(&opened, kept, options.keep)?;
        }
        self.retained = opened.index.retained().iter().collect();
        Ok(())
    }

    /// The name of a source, if it still exists.
    pub fn name_of(&self, source: Source) -> Option<&str> {
        Some(match source {
            Source::Volume(id) => find(&self.volumes, id)?.entry.record.name.as_str(),
            Source::Snapshot(id) => find(&self.snapshots, id)?.entry.record.name.as_str(),
        })
    }

    pub fn made_of(&self, source: Source) -> impl Iterator<Item = &Held> {
        let volumes = self.volumes.iter();
        volumes.filter(move |held| held.entry.record.source == Some(source))
    }

    pub fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = &Held<SnapshotRecord>> {
        let snapshots = self.snapshots.iter();
        snapshots.filter(move |held| held.entry.record.source_volume_id == volume)
    }

    pub fn quarantined<R: Record>(&self) -> impl Iterator<Item = &Quarantined> {
        let quarantined = self.pool.quarantined.iter();
        quarantined.filter(|quarantined| quarantined.path.starts_with(R::HOME))
    }

    pub fn quarantined_as<R: Record>(&self, id: R::Id) -> Option<&Quarantined> {
        let mut quarantined = self.pool.quarantined.iter();
        quarantined.find(|quarantined| claims::<R>(&quarantined.path, id))
    }
}

/// The kept objects of a kind. Damaged ones are left to [`super::check`].
fn deleted<R: Record>(
    opened: &OpenPool,
    kept: &OwnedFd,
    keep: Option<Duration>,
) -> Result<Vec<Deleted<R>>, Fault> {
    let served = opened.marker.served_ms;
    let mut found = Vec::new();
    for (name, _) in opened.index.kept().iter() {
        match read_kept::<R>(kept, &name.place(), opened.marker.id) {
            Ok(Some(record)) => found.push(Deleted {
                record,
                entry: name.entry,
                left: keep.map(|keep| name.left(served, keep)),
            }),
            Ok(None) | Err(Unreadable::Damaged(_)) => {}
            Err(Unreadable::Fault(fault)) => return Err(fault),
        }
    }
    Ok(found)
}

fn find<R: Record>(all: &[Held<R>], id: R::Id) -> Option<&Held<R>> {
    let at = all.binary_search_by_key(&id, |held| held.entry.record.id());
    all.get(at.ok()?)
}

fn held<'a, R: Record + 'a>(
    entries: impl Iterator<Item = &'a Arc<Entry<R>>>,
    quota: &dyn Quota,
) -> Result<Vec<Held<R>>, Fault> {
    let counts = quota.enforcement() != Enforcement::None;
    let held = |entry: &Arc<Entry<R>>| {
        let id = entry.record.quota_id().filter(|_| counts);
        let charge = id.map(|id| quota.charge(id));
        Ok(Held {
            entry: Arc::clone(entry),
            charge: charge.transpose().context("ask what is used")?,
        })
    };
    entries.map(held).collect()
}

impl Held {
    /// The bytes that the volume uses, as `NodeGetVolumeStats` reports them.
    pub fn used(&self) -> Option<Bytes> {
        let charge = self.charge?;
        Some(Bytes(self.entry.record.usage(charge).bytes))
    }
}
