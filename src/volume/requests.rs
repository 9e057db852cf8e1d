//! Checked requests, and the answers.

use std::path::PathBuf;

use linux::quota::Enforcement;
use objects::{Bytes, PoolName, VolumeId, VolumeName};

use crate::volume::capability::Capability;
use crate::volume::class::Class;
use pool::{Caller, Entry, Image, Parameters, Pool, Source};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub id: VolumeId,
    /// The name from the CO.
    pub name: VolumeName,
    pub pool: PoolName,
    /// Its size; zero: no limit.
    pub size: Bytes,
    pub parameters: Parameters,
    /// How its size is enforced.
    pub enforcement: Enforcement,
    /// Its image; `None` for a directory.
    pub image: Option<Image>,
    pub source: Option<Source>,
}

impl Volume {
    pub(super) fn new(pool: &Pool, entry: &Entry) -> Self {
        let record = &entry.record;
        Self {
            id: record.id,
            name: record.name.clone(),
            pool: pool.name().clone(),
            size: record.size_bytes,
            parameters: record.parameters,
            enforcement: record.enforcement,
            image: record.image,
            source: record.source,
        }
    }
}

/// A checked `CreateVolumeRequest`.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    pub name: VolumeName,
    /// The least size; zero: not given.
    pub required: Bytes,
    /// The largest size, if given; never below `required`.
    pub limit: Option<Bytes>,
    /// The capabilities that the volume must support; never empty.
    pub capabilities: Vec<Capability>,
    pub class: Class,
    pub source: Option<SourceId>,
    pub excludes_node: bool,
    pub caller: Caller,
}

/// The id of a source, as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceId {
    Snapshot(String),
    Volume(String),
}

/// A checked `NodePublishVolumeRequest`.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// The volume's id, as received.
    pub id: String,
    pub target: PathBuf,
    pub capability: Capability,
    /// Whether the mount must be read-only even if the capability allows writing.
    pub read_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// The sum over the pools of the class.
    pub available: Bytes,
    /// The largest size that the next creation would accept.
    pub largest: Bytes,
}

#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The objects in the order of their ids.
    pub objects: Vec<T>,
    /// The token of the next page; empty on the last.
    pub next_token: String,
}

/// The usage of a volume, or of the filesystem where sizes are not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    pub bytes: Usage,
    /// In inodes; `None` for a block device.
    pub inodes: Option<Usage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub total: u64,
    pub used: u64,
    pub available: u64,
}
