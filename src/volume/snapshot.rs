//! Snapshots of volumes, and what volumes may be made of.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::{
    Entry, FORMAT, Method, Origin, Pool, SnapshotEntry, SnapshotRecord, VolumeRecord,
};
use crate::types::{
    Bytes, ClaimLabel, PoolName, SnapshotId, SnapshotLabel, SnapshotName, VolumeId,
};

use super::find::parse_id;
use super::{InUse, SnapshotClass, SourceId, Volumes};

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The name the CO gave it.
    pub name: SnapshotName,
    /// The pool it lives in.
    pub pool: PoolName,
    /// The volume it is of, which may be gone.
    pub source: VolumeId,
    /// Whose that volume was.
    pub source_claim: ClaimLabel,
    /// Whose it is.
    pub label: SnapshotLabel,
    /// The least size of a volume made of it; zero: any.
    pub size: Bytes,
    /// What it may come to hold by itself.
    pub held: Bytes,
    /// When it was made, in seconds since the Unix epoch.
    pub created_at: u64,
    /// How it was made.
    pub method: Method,
    /// Whether the volume was in use meanwhile.
    pub in_use: bool,
}

impl Snapshot {
    pub(crate) fn new(pool: &PoolName, record: &SnapshotRecord) -> Self {
        Self {
            id: record.id,
            name: record.name.clone(),
            pool: pool.clone(),
            source: record.source_volume_id,
            source_claim: record.source_claim.clone(),
            label: record.label.clone(),
            size: record.least_size(),
            held: record.held_bytes,
            created_at: record.created_at,
            method: record.method,
            in_use: record.in_use,
        }
    }
}

/// A checked `CreateSnapshotRequest`.
#[derive(Debug, Clone)]
pub struct SnapshotRequest {
    /// The snapshot's name.
    pub name: SnapshotName,
    /// The id, as received, of the volume it is to be of.
    pub source: String,
    /// What its class says.
    pub class: SnapshotClass,
    /// Whether the requested topology leaves this node out.
    pub excludes_node: bool,
}

/// Which snapshots are asked for; all that is given must be so.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// The one with this id, as received.
    pub id: Option<String>,
    /// Those of the volume with this id, as received.
    pub source: Option<String>,
}

/// A page of snapshots.
#[derive(Debug, Clone)]
pub struct SnapshotPage {
    /// The snapshots in the order of their ids.
    pub snapshots: Vec<Snapshot>,
    /// The token of the next page; empty on the last.
    pub next_token: String,
}

impl Volumes {
    /// Makes a snapshot of a volume, or finds the one of that name if it is what was asked for.
    pub fn create_snapshot(&self, request: &SnapshotRequest) -> Result<Snapshot> {
        let _name = self.in_flight.hold_snapshot_name(request.name.as_str())?;
        if let Some((pool, entry)) = self.find_by_name::<SnapshotRecord>(&request.name)? {
            self.check_same_snapshot(&entry, request)?;
            return Ok(Snapshot::new(pool.name(), &entry.record));
        }
        let source = parse_id(&request.source)?;
        let _source = self.in_flight.share_source(&request.source)?;
        let found = self.volume(source);
        let (pool, volume) = found.map_err(|error| self.elsewhere(error, &source))?;
        if request.excludes_node {
            return Err(Error::TopologyExcludesNode {
                here: self.settings.topology.clone(),
            });
        }
        let id = SnapshotId::new(source.pool(), &request.name);
        let _id = self.in_flight.hold_id(&id.to_string())?;
        let refuses = request.class.in_use == InUse::Refuse;
        // Nobody may begin to use it either.
        let _unused = refuses
            .then(|| self.in_flight.hold_id(&request.source))
            .transpose()?;
        let in_use = self.published(&volume)?.into_iter().next();
        if let Some((target, _)) = in_use.as_ref().filter(|_| refuses) {
            return Err(Error::Published {
                id: request.source.clone(),
                target: target.clone(),
            });
        }
        let work = pool.begin()?;
        let needs = pool.snapshot_needs(&volume)?;
        let room = pool.reserve::<SnapshotRecord>(&work, id, needs)?;
        let record = record(id, &volume, request, in_use.is_some());
        let still_in_use = || Ok::<_, Error>(!self.published(&volume)?.is_empty());
        let entry = pool.snapshot(&room, &volume, request.class.copies, record, &still_in_use)?;
        Ok(Snapshot::new(pool.name(), &entry.record))
    }

    /// Deletes a snapshot; its space comes back in the background. What was made of it stays. A
    /// snapshot of a pool that was declared gone is gone.
    pub fn delete_snapshot(&self, id: &str) -> Result<()> {
        self.delete_unused::<SnapshotRecord>(id, |_| Ok(()))
    }

    /// The snapshot with an id.
    pub fn get_snapshot(&self, id: &str) -> Result<Snapshot> {
        let (pool, entry) = self.entry::<SnapshotRecord>(parse_id(id)?)?;
        Ok(Snapshot::new(pool.name(), &entry.record))
    }

    /// At most `max_entries` snapshots (0: all) of those asked for, after the one named by `token`
    /// (empty: from the first).
    pub fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        max_entries: usize,
        token: &str,
    ) -> Result<SnapshotPage> {
        let id = filter.id.as_deref().map(SnapshotId::parse);
        let source = filter.source.as_deref().map(VolumeId::parse);
        // A text that is no id of ours is nobody's.
        let asked_for = |record: &SnapshotRecord| {
            id.is_none_or(|id| id == Some(record.id))
                && source.is_none_or(|source| source == Some(record.source_volume_id))
        };
        let (found, next_token) = self.page(max_entries, token, asked_for)?;
        let snapshots = found
            .iter()
            .map(|(pool, entry)| Snapshot::new(pool.name(), &entry.record));
        Ok(SnapshotPage {
            snapshots: snapshots.collect(),
            next_token,
        })
    }

    /// What a volume is to be made a copy of, and the pool that it is in.
    pub(super) fn origin(&self, source: &SourceId) -> Result<(Arc<Pool>, Origin)> {
        match source {
            SourceId::Snapshot(id) => {
                let id: SnapshotId = parse_id(id)?;
                let found = self.entry(id);
                let (pool, entry) = found.map_err(|error| self.elsewhere(error, &id))?;
                Ok((pool, Origin::Snapshot(entry)))
            }
            SourceId::Volume(id) => {
                let id = parse_id(id)?;
                let found = self.volume(id);
                let (pool, entry) = found.map_err(|error| self.elsewhere(error, &id))?;
                Ok((pool, Origin::Volume(entry)))
            }
        }
    }

    /// What it means that a source is in a pool that is not here: another node has it, unless the
    /// pool was declared gone.
    fn elsewhere(&self, error: Error, source: &dyn fmt::Display) -> Error {
        match error {
            Error::PoolNotHere { pool } => match self.memory.is_retired(pool) {
                Ok(true) => Error::NotFound {
                    what: "source",
                    id: source.to_string(),
                },
                Ok(false) => Error::SourceElsewhere {
                    id: source.to_string(),
                    pool,
                },
                Err(unreadable) => unreadable.into(),
            },
            other => other,
        }
    }

    /// Whether a snapshot that exists is the one asked for.
    fn check_same_snapshot(&self, entry: &SnapshotEntry, request: &SnapshotRequest) -> Result<()> {
        let differs = |difference: String| Error::Incompatible {
            what: format!("a snapshot named {:?}", request.name.as_str()),
            difference,
        };
        let of = entry.record.source_volume_id;
        if VolumeId::parse(&request.source) != Some(of) {
            return Err(differs(format!("it is of volume {of}")));
        }
        if request.excludes_node {
            return Err(differs(format!(
                "it is on {}, which the requested topology excludes",
                self.settings.topology
            )));
        }
        Ok(())
    }
}

/// The record of a snapshot that is to be made, as far as is known beforehand.
fn record(
    id: SnapshotId,
    volume: &Entry<VolumeRecord>,
    request: &SnapshotRequest,
    in_use: bool,
) -> SnapshotRecord {
    SnapshotRecord {
        format: FORMAT,
        id,
        name: request.name.clone(),
        source_volume_id: volume.record.id,
        source_claim: volume.record.claim.clone(),
        size_bytes: volume.record.size_bytes,
        held_bytes: Bytes::ZERO,
        created_at: crate::pool::now(),
        label: request.class.label.clone(),
        method: Method::Copy,
        in_use,
        enforcement: volume.record.enforcement,
        quota_id: None,
        retains: Vec::new(),
        unknown: crate::pool::Unknown::new(),
    }
}
