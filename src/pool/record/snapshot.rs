//! The record of a snapshot.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pool::layout;
use crate::quota::{Enforcement, OURS};
use crate::types::{Bytes, ClaimLabel, SnapshotId, SnapshotLabel, SnapshotName, VolumeId};

use super::{Record, RetainedCharge};

/// The record of a snapshot, `snapshot.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The format, [`super::FORMAT`].
    pub format: u32,
    /// The snapshot's id.
    pub id: SnapshotId,
    /// The name the CO gave it.
    pub name: SnapshotName,
    /// The volume it is of, which may be gone.
    pub source_volume_id: VolumeId,
    /// Whose that volume was, for people.
    pub source_claim: ClaimLabel,
    /// The size of that volume; zero: it had none.
    pub size_bytes: Bytes,
    /// What it may come to hold by itself.
    pub held_bytes: Bytes,
    /// When it was made, in seconds since the Unix epoch.
    pub created_at: u64,
    /// Whose it is, for people.
    pub label: SnapshotLabel,
    /// How it was made, which says what it is an instant of.
    pub method: Method,
    /// Whether the volume was published meanwhile.
    pub in_use: bool,
    /// How sizes were held where it was made.
    pub enforcement: Enforcement,
    /// The project or qgroup number that it is charged to, if it is to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_id: Option<u32>,
    /// What it keeps of what volumes stay charged for.
    #[serde(rename = "pins", default, skip_serializing_if = "Vec::is_empty")]
    pub retains: Vec<RetainedCharge>,
    /// Fields of later versions, preserved.
    #[serde(flatten)]
    pub unknown: super::Unknown,
}

/// How a copy is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By a snapshot of its btrfs subvolume: all of one instant.
    Subvolume,
    /// File by file, sharing blocks: each file of its own instant.
    Reflink,
    /// File by file, byte by byte: not even a file is of one instant if it is written to.
    Copy,
}

impl Method {
    /// What is of one instant.
    pub fn consistency(self) -> &'static str {
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
    /// The least size of a volume that can be made of it. By simple quota the copy is not charged
    /// for what it shares, so what the snapshot holds beyond the size needs no larger copy.
    pub fn least_size(&self) -> Bytes {
        match self.enforcement {
            Enforcement::Squota if self.size_bytes > Bytes::ZERO => self.size_bytes,
            _ => self.size_bytes.max(self.held_bytes),
        }
    }
}

impl Record for SnapshotRecord {
    type Id = SnapshotId;
    const FILE: &'static str = "snapshot.json";
    const HOME: &'static str = layout::SNAPSHOTS;

    fn id(&self) -> SnapshotId {
        self.id
    }

    fn name(&self) -> &SnapshotName {
        &self.name
    }

    fn promised(&self) -> u64 {
        self.held_bytes.0
    }

    fn quota_id(&self) -> Option<u32> {
        self.quota_id.filter(|id| OURS.contains(id))
    }

    fn inherited(&self) -> u64 {
        self.held_bytes.0
    }

    fn retains(&self) -> &[RetainedCharge] {
        &self.retains
    }

    /// The blocks that volumes stay charged for.
    fn covered(&self) -> u64 {
        let retained = self.retains.iter().map(|retained| retained.bytes.0);
        let retained = retained.fold(0, u64::saturating_add);
        retained.min(self.held_bytes.0)
    }

    /// The size of a copy made byte by byte. Other snapshots share their blocks, as far as is known.
    fn copied(&self) -> u64 {
        match self.method {
            Method::Copy => self.held_bytes.0,
            Method::Subvolume | Method::Reflink => 0,
        }
    }

    /// Nothing is ever written into one that is made, and whoever makes it covers what it takes.
    fn limit_with(&self, _retained: u64) -> Bytes {
        Bytes::ZERO
    }

    fn directory(&self) -> String {
        let label = &self.label;
        let (namespace, object) = (label.namespace.as_deref(), label.snapshot.as_deref());
        layout::directory_name(self.id.hash(), self.name.as_str(), namespace, object)
    }
}
