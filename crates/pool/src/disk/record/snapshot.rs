//! The record of a snapshot.

use std::fmt;

use linux::quota::{Enforcement, Nested, OURS};
use objects::{Bytes, ClaimLabel, ObjectId, SnapshotId, SnapshotLabel, SnapshotName, VolumeId};
use serde::{Deserialize, Serialize};

use crate::disk::layout;

use super::common::{Record, RetainedCharge, Unknown};
use super::image::Image;

/// The record of a snapshot, `snapshot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    pub format: u32,
    pub id: SnapshotId,
    pub name: SnapshotName,
    /// Its source, which may be deleted.
    pub source_volume_id: VolumeId,
    /// The Kubernetes objects of that volume, for people.
    pub source_claim: ClaimLabel,
    /// The size of that volume; zero if it had none.
    pub size_bytes: Bytes,
    /// The most bytes that it may occupy by itself.
    pub held_bytes: Bytes,
    /// The time of its creation, in seconds since the Unix epoch.
    pub created_at: u64,
    /// Its Kubernetes objects, for people.
    pub label: SnapshotLabel,
    /// The method of copying, which decides the consistency.
    pub method: Method,
    /// Whether the volume was published meanwhile.
    pub in_use: bool,
    /// The enforcement of sizes when it was made.
    pub enforcement: Enforcement,
    /// Its quota id: a project id or the number of a qgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_id: Option<u32>,
    /// The value of that volume, for its restores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nodatacow: bool,
    /// The image of that volume; `None` for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// The subvolumes in that volume, which it lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<Nested>,
    #[serde(rename = "pins", default, skip_serializing_if = "Vec::is_empty")]
    pub retains: Vec<RetainedCharge>,
    /// Fields of later versions, preserved.
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// A snapshot of the btrfs subvolume: all files of one instant.
    Subvolume,
    /// File by file, sharing blocks: each file of its own instant.
    Reflink,
    /// File by file, byte by byte: a file that is written meanwhile may mix several instants.
    Copy,
}

impl Method {
    fn consistency(self) -> &'static str {
        match self {
            Self::Subvolume => "all of it is of one instant",
            Self::Reflink => "each file is of an instant of its own",
            Self::Copy => "a file that was written to meanwhile may be of no one instant",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Subvolume => "subvolume",
            Self::Reflink => "reflink",
            Self::Copy => "copy",
        })
    }
}

impl SnapshotRecord {
    /// Which instant its content is of. An image is a single file, and it is copied byte by byte only while it is not
    /// published.
    pub fn consistency(&self) -> &'static str {
        match self.image {
            Some(_) => Method::Subvolume.consistency(),
            None => self.method.consistency(),
        }
    }

    /// The least size of a volume made from it. With simple quota a copy is not charged for shared
    /// bytes, so a snapshot that contains more than its size needs no larger copy.
    pub fn least_size(&self) -> Bytes {
        match self.enforcement {
            _ if self.image.is_some() => self.size_bytes,
            Enforcement::Squota if self.size_bytes > Bytes::ZERO => self.size_bytes,
            _ => self.size_bytes.max(self.held_bytes),
        }
    }
}

impl Record for SnapshotRecord {
    type Id = SnapshotId;
    const FILE: &'static str = "snapshot.json";
    const HOME: &'static str = layout::SNAPSHOTS;

    fn volume(_id: SnapshotId) -> Option<VolumeId> {
        None
    }

    fn id(&self) -> SnapshotId {
        self.id
    }

    fn name(&self) -> &SnapshotName {
        &self.name
    }

    fn reserved(&self) -> u64 {
        self.held_bytes.0
    }

    fn quota_id(&self) -> Option<u32> {
        self.quota_id.filter(|id| OURS.contains(id))
    }

    fn give_up_quota_id(&mut self) {
        self.quota_id = None;
    }

    fn image(&self) -> Option<Image> {
        self.image
    }

    fn inherited(&self) -> u64 {
        self.held_bytes.0
    }

    fn retains(&self) -> &[RetainedCharge] {
        &self.retains
    }

    /// The bytes that stay charged to volumes.
    fn covered(&self) -> u64 {
        let retained = self.retains.iter().map(|retained| retained.bytes.0);
        let retained = retained.fold(0, u64::saturating_add);
        retained.min(self.held_bytes.0)
    }

    /// The size of a copy made byte by byte. Other snapshots share their blocks as far as the record shows.
    fn copied(&self) -> u64 {
        match self.method {
            Method::Copy => self.held_bytes.0,
            Method::Subvolume | Method::Reflink => 0,
        }
    }

    /// A snapshot has no limit, because it is never written and its reservation covers the copy.
    fn limit(&self, _retained: u64) -> Bytes {
        Bytes::ZERO
    }

    fn directory(&self) -> String {
        let label = &self.label;
        let (namespace, object) = (label.namespace.as_deref(), label.snapshot.as_deref());
        layout::directory_name(self.id.hash(), self.name.as_str(), namespace, object)
    }
}
