//! The record of a volume.

use std::fmt;

use linux::io::IoLimits;
use linux::os::now;
use linux::quota::{Charge, Enforcement, OURS};
use objects::{AccessMode, Bytes, ClaimLabel, ObjectId, PoolId, VolumeId, VolumeName};
use serde::{Deserialize, Serialize};

use crate::disk::layout;

use super::common::{FORMAT, Record, RetainedCharge, Source, Unknown, format_of};
use super::image::Image;
use super::kubernetes::{ImportOrigin, KubernetesFields};
use super::moved::Move;

/// The record of a volume, `volume.json`.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    pub format: u32,
    pub id: VolumeId,
    pub name: VolumeName,
    /// Its size; zero for no limit.
    pub size_bytes: Bytes,
    /// The time of its creation, in seconds since the Unix epoch.
    pub created_at: u64,
    /// Its Kubernetes objects, for people.
    pub claim: ClaimLabel,
    /// The fields of its `PersistentVolume` that its class has.
    #[serde(default, skip_serializing_if = "KubernetesFields::is_empty")]
    pub kubernetes: KubernetesFields,
    pub parameters: Parameters,
    pub access_modes: Vec<AccessMode>,
    pub enforcement: Enforcement,
    /// Its quota id: a project id or the number of a qgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_id: Option<u32>,
    /// Whether its tree is being tagged with its quota id, or was when the driver ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enforcing: bool,
    /// Whether its class asked for no enforcement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enforcement_declined: bool,
    /// Whether it has the whole disk, which no other volume or snapshot may use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Whether btrfs rewrites the blocks of its new files in place, without copy-on-write.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nodatacow: bool,
    /// Its image; `None` for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// The limits of the I/O of pods with its image.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub io_limits: IoLimits,
    /// The original, if it is a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The directory that it was, if it was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ImportOrigin>,
    /// The bytes that it shared with its original at first. Simple quota charges them to others only;
    /// project quota charges them to both.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub inherited_bytes: Bytes,
    /// Its last move, unless it is in the pool that made it, and no move is unfinished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Move>,
    /// The charges of other volumes that it retains.
    #[serde(rename = "pins", default, skip_serializing_if = "Vec::is_empty")]
    pub retains: Vec<RetainedCharge>,
    /// Fields of later versions, preserved.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl VolumeRecord {
    /// A record, made now, of an empty directory without a size.
    pub fn new(id: VolumeId, name: VolumeName) -> Self {
        Self {
            format: FORMAT,
            id,
            name,
            size_bytes: Bytes::ZERO,
            created_at: now(),
            claim: ClaimLabel::default(),
            kubernetes: KubernetesFields::default(),
            parameters: Parameters::default(),
            access_modes: Vec::new(),
            enforcement: Enforcement::None,
            quota_id: None,
            enforcing: false,
            enforcement_declined: false,
            exclusive: false,
            nodatacow: false,
            image: None,
            io_limits: IoLimits::NONE,
            source: None,
            origin: None,
            inherited_bytes: Bytes::ZERO,
            moved: None,
            retains: Vec::new(),
            unknown: Unknown::new(),
        }
    }

    /// The record with another state of its move.
    #[must_use]
    pub fn with_move(&self, moved: Option<Move>) -> Self {
        Self {
            format: format_of(self.image, moved),
            moved,
            ..self.clone()
        }
    }

    pub fn is_device(&self) -> bool {
        self.image.is_some_and(Image::is_device)
    }

    /// Whether its class asked for no enforcement. Older drivers did not record that, but gave such
    /// a volume a quota id if the pool could enforce.
    pub fn declines_enforcement(&self) -> bool {
        let is_counted = self.quota_id().is_some() && !self.enforcing;
        self.enforcement_declined || self.enforcement == Enforcement::None && is_counted
    }

    /// Whether it is imported into a pool that does not enforce its size yet.
    pub(crate) fn is_unfinished_import(&self) -> bool {
        self.enforcing && self.origin.is_some()
    }

    /// The used bytes of its size, for a charge of its quota id. With simple quota, bytes shared with its
    /// source are not charged, and bytes retained by copies are charged on top.
    pub fn usage(&self, mut charge: Charge) -> Charge {
        if self.enforcement == Enforcement::Squota && charge.byte_limit > 0 {
            let size = self.size_bytes.0;
            charge.bytes = charge.bytes.min(size);
            charge.byte_limit = size;
        }
        charge
    }

    /// The largest part of its charge that may occupy the disk for this volume alone, in bytes. No
    /// reservation covers a charge beyond its limit.
    pub fn own(&self, charged: u64, pending: u64) -> u64 {
        match self.enforcement {
            Enforcement::Squota => charged.min(self.size_bytes.0.saturating_add(pending)),
            // All volumes that share blocks are charged for all of them.
            Enforcement::Project | Enforcement::None => charged
                .min(self.size_bytes.0)
                .saturating_sub(self.inherited_bytes.0),
        }
    }
}

impl Record for VolumeRecord {
    type Id = VolumeId;
    const FILE: &'static str = "volume.json";
    const HOME: &'static str = layout::VOLUMES;

    fn volume(id: VolumeId) -> Option<VolumeId> {
        Some(id)
    }

    fn id(&self) -> VolumeId {
        self.id
    }

    fn name(&self) -> &VolumeName {
        &self.name
    }

    fn reserved(&self) -> u64 {
        self.size_bytes.0
    }

    fn may_be_in(&self, pool: PoolId) -> bool {
        match self.moved {
            None => self.id.pool() == pool,
            Some(_) => true,
        }
    }

    fn moved(&self) -> Option<Move> {
        self.moved
    }

    fn quota_id(&self) -> Option<u32> {
        self.quota_id.filter(|id| OURS.contains(id))
    }

    fn give_up_quota_id(&mut self) {
        self.quota_id = None;
    }

    fn is_limited(&self) -> bool {
        !self.enforcing
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn size_enforcement(&self) -> Option<Enforcement> {
        let has_limit = self.image.is_none() && self.size_bytes > Bytes::ZERO;
        has_limit.then_some(self.enforcement)
    }

    fn image(&self) -> Option<Image> {
        self.image
    }

    /// An expansion that ended before its record left a longer image, into which a pod may have written.
    fn has_image_of(&mut self, length: u64) {
        self.size_bytes = self.size_bytes.max(Bytes(length));
    }

    fn inherited(&self) -> u64 {
        self.inherited_bytes.0
    }

    fn own_of(&self, charged: u64, retained: u64) -> u64 {
        self.own(charged, retained)
    }

    fn retains(&self) -> &[RetainedCharge] {
        &self.retains
    }

    fn limit(&self, retained: u64) -> Bytes {
        // The length of an image is its limit.
        if self.image.is_some() {
            return Bytes::ZERO;
        }
        let size = self.enforcement.limit(self.size_bytes);
        match self.enforcement {
            Enforcement::Squota if size > Bytes::ZERO => Bytes(size.0.saturating_add(retained)),
            _ => size,
        }
    }

    fn directory(&self) -> String {
        let (namespace, claim) = (self.claim.namespace.as_deref(), self.claim.claim.as_deref());
        layout::directory_name(self.id.hash(), self.name.as_str(), namespace, claim)
    }
}

/// The permission bits of a volume's `data/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mode(u32);

impl Mode {
    /// The largest mode a class may ask for: no set-user-id on a directory.
    const MAX: u32 = 0o3777;

    /// Parses octal digits, at most 3777.
    pub fn parse(text: &str) -> Option<Self> {
        let octal = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let bits = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten()?;
        (bits <= Self::MAX).then_some(Self(bits))
    }

    /// The permission bits of a directory, without set-user-id.
    pub fn of(bits: u32) -> Self {
        Self(bits & Self::MAX)
    }

    /// The bits, for chmod(2).
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl Default for Mode {
    /// Any uid in the pod may write. The pool's own directories exclude everybody else.
    fn default() -> Self {
        Self(0o777)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not an octal mode up to 3777"))
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> String {
        mode.to_string()
    }
}

/// Whether many pods of the one node may share a volume through the `MULTI_NODE` modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// The `MULTI_NODE` modes are refused.
    #[default]
    None,
    /// The `MULTI_NODE` modes are accepted, meaning many pods on the node.
    Node,
}

impl Sharing {
    pub const ALL: [Self; 2] = [Self::None, Self::Node];

    /// The name in classes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Node => "node",
        }
    }
}

/// The parameters of a class that a volume has until its deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The permission bits of `data/`.
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub sharing: Sharing,
}
