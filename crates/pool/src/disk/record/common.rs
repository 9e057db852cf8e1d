//! The common part of the records of volumes and snapshots: the trait, the format, and the sources of copies.

use std::collections::BTreeMap;
use std::fmt;

use linux::quota::Enforcement;
use objects::{Bytes, ObjectId, PoolId, SnapshotId, VolumeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::moved::{Move, MoveState};

/// The version of the on-disk format.
pub const FORMAT: u32 = 1;

/// The format of the record of an image, and of a volume that was moved or is being moved. An older
/// driver would serve the directory of the image, or a copy that is out of date.
pub(super) const FORMAT_2: u32 = 2;

/// The format of the record of a block volume with sectors of its own. An older driver would show the sectors of the disk, with
/// which no program finds its partition table.
pub(super) const FORMAT_3: u32 = 3;

/// The fields of a record that this version does not know. A later version may have written them, and
/// finds them again after a rollback.
pub type Unknown = BTreeMap<String, serde_json::Value>;

/// Bytes that stay charged to `volume` because a copy references them. Simple quota charges an extent
/// to its first writer until the last reference is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainedCharge {
    pub volume: VolumeId,
    /// The first copy that references the bytes. Copies of that copy reference the same bytes.
    pub origin: Source,
    /// The largest possible number of bytes.
    pub bytes: Bytes,
}

/// The source of a copy; in a retained charge, the first copy that captured the extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::Volume(id) => write!(f, "volume {id}"),
        }
    }
}

/// The format of a record with these fields.
pub fn format_of(image: Option<Image>, moved: Option<Move>) -> u32 {
    match image {
        Some(Image {
            sector: Some(_), ..
        }) => FORMAT_3,
        None if moved.is_none() => FORMAT,
        _ => FORMAT_2,
    }
}

/// The record of a volume or a snapshot, which is in its directory next to `data/`.
pub trait Record: Serialize + DeserializeOwned {
    type Id: ObjectId;
    const FILE: &'static str;
    /// The directory of the pool for its kind.
    const HOME: &'static str;

    /// The volume that an id names, if it names one.
    fn volume(id: Self::Id) -> Option<VolumeId>;
    fn id(&self) -> Self::Id;
    fn name(&self) -> &<Self::Id as ObjectId>::Name;
    /// The bytes reserved for it.
    fn reserved(&self) -> u64;
    /// Whether a pool may have it: the one that its id names, unless it was moved.
    fn may_be_in(&self, pool: PoolId) -> bool {
        self.id().pool() == pool
    }
    /// Its last move, if it was moved or is being moved.
    fn moved(&self) -> Option<Move> {
        None
    }
    fn unfinished_move(&self) -> Option<Move> {
        self.moved()
            .filter(|moved| moved.state != MoveState::Settled)
    }
    /// Whether it is the object itself, and not a copy that an unfinished move left.
    fn is_served(&self) -> bool {
        self.unfinished_move().is_none()
    }
    fn quota_id(&self) -> Option<u32>;
    /// Gives up its quota id, which another object may have now.
    fn give_up_quota_id(&mut self);
    /// Whether its quota id is in force; false while its tree is being tagged.
    fn is_limited(&self) -> bool {
        true
    }
    /// The bytes of its data that simple quota may charge to others.
    fn inherited(&self) -> u64;
    fn retains(&self) -> &[RetainedCharge];
    /// Whether it has the whole disk.
    fn is_exclusive(&self) -> bool {
        false
    }
    /// How its size is enforced; `None` if it has none to enforce.
    fn size_enforcement(&self) -> Option<Enforcement> {
        None
    }
    /// Its image, or that of its source; `None` for a directory.
    fn image(&self) -> Option<Image>;
    /// Takes the length of the image on the disk, in bytes.
    fn has_image_of(&mut self, _length: u64) {}
    /// The part of the reserved bytes that retained charges cover.
    fn covered(&self) -> u64 {
        0
    }
    /// The bytes that it occupies by itself, as far as its record shows.
    fn copied(&self) -> u64 {
        0
    }
    /// The part of the bytes charged to it that is its own, while copies retain `retained` bytes of it.
    fn own_of(&self, charged: u64, _retained: u64) -> u64 {
        self.copied().min(charged)
    }
    /// The limit of its quota id, zero for none, while copies retain `retained` bytes of its charge. With
    /// simple quota the retained charge is added, and bytes shared with its own source are not charged.
    fn limit(&self, retained: u64) -> Bytes;
    fn directory(&self) -> String;
}
