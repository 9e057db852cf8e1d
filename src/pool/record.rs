//! Records: the JSON that describes a volume or a snapshot, and the one way it is written and read.

mod snapshot;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};
use crate::quota::{Charge, Enforcement, OURS};
use crate::types::{Bytes, ClaimLabel, ObjectId, SnapshotId, VolumeId, VolumeName};

use super::layout;

pub use snapshot::{Method, SnapshotRecord};

/// The version of the on-disk format this driver writes and reads.
pub const FORMAT: u32 = 1;

/// Far more than the largest record of format 1.
const MAX_RECORD_BYTES: usize = 64 * 1024;

/// The fields of a record that this version does not know. A later version may have written them, and
/// finds them again after a rollback.
pub type Unknown = BTreeMap<String, serde_json::Value>;

/// The record of a volume, `volume.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The format, [`FORMAT`].
    pub format: u32,
    /// The volume's id.
    pub id: VolumeId,
    /// The name the CO gave it.
    pub name: VolumeName,
    /// Its size; zero: no limit.
    pub size_bytes: Bytes,
    /// When it was made, in seconds since the Unix epoch.
    pub created_at: u64,
    /// Whose it is, for people.
    pub claim: ClaimLabel,
    /// What its class said of it.
    pub parameters: Parameters,
    /// The access modes it was made for.
    pub access_modes: Vec<AccessMode>,
    /// How its size is held.
    pub enforcement: Enforcement,
    /// The project or qgroup number that holds its size, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_id: Option<u32>,
    /// Whether its tree is being tagged with its quota id, or was when the driver ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enforcing: bool,
    /// Whether its class asked for no enforcement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enforcement_declined: bool,
    /// What it was made a copy of, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What it shared with that when it was made, in bytes: by simple quota others are charged for
    /// it, and elsewhere it is charged for it as well as they are.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub inherited_bytes: Bytes,
    /// What it keeps of what other volumes stay charged for.
    #[serde(rename = "pins", default, skip_serializing_if = "Vec::is_empty")]
    pub retains: Vec<RetainedCharge>,
    /// Fields of later versions, preserved.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a copy on btrfs keeps of what a volume stays charged for, whatever that volume does with
/// it: the kernel's simple quota charges whoever wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainedCharge {
    /// The volume.
    pub volume: VolumeId,
    /// The copy of the volume that it was first kept by. What others have of that is the same.
    pub origin: Source,
    /// How much it is at the most.
    pub bytes: Bytes,
}

/// The source of a copy; in a retained charge, the first copy that captured the extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A snapshot.
    Snapshot(SnapshotId),
    /// Another volume.
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

impl VolumeRecord {
    /// What its number is to be limited to (zero: not at all), while copies keep so many bytes that
    /// it is charged for. Simple quota charges whoever wrote first: the retained charge comes on
    /// top, and what it shares with its own source costs it nothing.
    pub fn limit(&self, pending: u64) -> Bytes {
        let size = self.enforcement.limit(self.size_bytes);
        match self.enforcement {
            Enforcement::Squota if size > Bytes::ZERO => Bytes(size.0.saturating_add(pending)),
            _ => size,
        }
    }

    /// Whether its class asked for no enforcement. Older drivers did not record that, but gave such
    /// a volume a quota id where they could enforce.
    pub(crate) fn declines_enforcement(&self) -> bool {
        let is_counted = self.quota_id().is_some() && !self.enforcing;
        self.enforcement_declined || self.enforcement == Enforcement::None && is_counted
    }

    /// What it uses, of its size, when so much is charged to its number. By simple quota it is not
    /// charged for what it shares with its source, and its limit is raised by what copies keep.
    pub(crate) fn usage(&self, mut charge: Charge) -> Charge {
        if self.enforcement == Enforcement::Squota && charge.byte_limit > 0 {
            let size = self.size_bytes.0;
            charge.bytes = charge.bytes.min(size);
            charge.byte_limit = size;
        }
        charge
    }

    /// How much of what is charged to it occupies the disk for its sake alone, at the most, in
    /// bytes; what is beyond its limit is nobody's promise.
    pub(crate) fn own(&self, charged: u64, pending: u64) -> u64 {
        match self.enforcement {
            Enforcement::Squota => charged.min(self.limit(pending).0),
            // Whoever shares blocks is charged for all of them.
            Enforcement::Project | Enforcement::None => charged
                .min(self.size_bytes.0)
                .saturating_sub(self.inherited_bytes.0),
        }
    }
}

/// What a directory of a pool holds besides `data/`: a volume's record or a snapshot's.
pub trait Record: Serialize + DeserializeOwned {
    /// What identifies it.
    type Id: ObjectId;
    /// The name of its file.
    const FILE: &'static str;
    /// The directory of the pool that holds those of its kind.
    const HOME: &'static str;

    /// Its id.
    fn id(&self) -> Self::Id;
    /// Its name.
    fn name(&self) -> &<Self::Id as ObjectId>::Name;
    /// What is promised to it, in bytes.
    fn promised(&self) -> u64;
    /// The number of ours that it is charged to, if it is to one.
    fn quota_id(&self) -> Option<u32>;
    /// Whether its quota id limits it or counts it by now, and not only once its tree is tagged.
    fn is_limited(&self) -> bool {
        true
    }
    /// How much of its data others may be charged for by simple quota, in bytes.
    fn inherited(&self) -> u64;
    /// What it keeps of what volumes stay charged for.
    fn retains(&self) -> &[RetainedCharge];
    /// The part of the promised bytes that retained charges cover, in bytes.
    fn covered(&self) -> u64;
    /// The bytes that it certainly occupies by itself, without a look at the disk.
    fn copied(&self) -> u64;
    /// The limit of its quota id (zero: none), with the bytes that stay charged to it for copies.
    fn limit_with(&self, retained: u64) -> Bytes;
    /// What it is called on the disk.
    fn directory(&self) -> String;
}

impl Record for VolumeRecord {
    type Id = VolumeId;
    const FILE: &'static str = "volume.json";
    const HOME: &'static str = layout::VOLUMES;

    fn id(&self) -> VolumeId {
        self.id
    }

    fn name(&self) -> &VolumeName {
        &self.name
    }

    fn promised(&self) -> u64 {
        self.size_bytes.0
    }

    fn quota_id(&self) -> Option<u32> {
        self.quota_id.filter(|id| OURS.contains(id))
    }

    fn is_limited(&self) -> bool {
        !self.enforcing
    }

    fn inherited(&self) -> u64 {
        self.inherited_bytes.0
    }

    fn retains(&self) -> &[RetainedCharge] {
        &self.retains
    }

    fn covered(&self) -> u64 {
        0
    }

    fn copied(&self) -> u64 {
        0
    }

    fn limit_with(&self, retained: u64) -> Bytes {
        self.limit(retained)
    }

    fn directory(&self) -> String {
        let (namespace, claim) = (self.claim.namespace.as_deref(), self.claim.claim.as_deref());
        layout::directory_name(self.id.hash(), self.name.as_str(), namespace, claim)
    }
}

/// The access modes of the specification that a directory can honour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AccessMode {
    /// Read and write, one target.
    SingleNodeWriter,
    /// Read only, one target.
    SingleNodeReaderOnly,
    /// Read and write, one target (`ReadWriteOncePod`).
    SingleNodeSingleWriter,
    /// Read and write, many targets (`ReadWriteOnce`).
    SingleNodeMultiWriter,
    /// Read only, many targets.
    MultiNodeReaderOnly,
    /// One writer, many targets.
    MultiNodeSingleWriter,
    /// Read and write, many targets.
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// Whether a second target is to be refused.
    pub fn is_exclusive(self) -> bool {
        matches!(
            self,
            Self::SingleNodeWriter | Self::SingleNodeReaderOnly | Self::SingleNodeSingleWriter
        )
    }

    /// Whether the mode allows reading only.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether the mode speaks of many nodes.
    pub fn is_multi_node(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter
        )
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

    /// The bits, for chmod(2).
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl Default for Mode {
    /// Any uid in the pod may write; the pool's own directories keep everybody else out.
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

/// The parameters of a class that a volume keeps for life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The permission bits of `data/`.
    pub mode: Mode,
    /// The owner of `data/`.
    pub uid: u32,
    /// The group of `data/`.
    pub gid: u32,
    /// Who may share it.
    pub sharing: Sharing,
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            uid,
            gid,
            sharing,
        } = self;
        let sharing = match sharing {
            Sharing::None => "none",
            Sharing::Node => "node",
        };
        write!(f, "mode={mode} uid={uid} gid={gid} sharing={sharing}")
    }
}

/// Writes a record so that a reader sees the old one or the new one whole: temporary file,
/// fsync, rename, fsync of the directory.
pub(crate) fn write(
    os: &Os,
    dir: impl AsFd,
    name: &str,
    record: &impl Serialize,
) -> Result<(), Fault> {
    let temporary = format!("{name}.tmp");
    match os.unlink(&dir, &temporary) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(Fault::new("remove an old temporary record", errno)),
    }
    write_new(os, &dir, &temporary, record)?;
    os.replace((&dir, &temporary), (&dir, name))
        .context("rename a record")?;
    os.fsync(&dir).context_sync("fsync a record's directory")
}

/// Writes a record into a directory that nobody sees yet; its directory is not made durable.
pub(crate) fn write_new(
    os: &Os,
    dir: impl AsFd,
    name: &str,
    record: &impl Serialize,
) -> Result<(), Fault> {
    let mut json = serde_json::to_vec_pretty(record)
        .map_err(|_| Fault::new("encode a record", Errno::INVAL))?;
    json.push(b'\n');
    // It could not be read again.
    if json.len() > MAX_RECORD_BYTES {
        return Err(Fault::new("write so long a record", Errno::INVAL));
    }
    let file = os.create(&dir, name).context("make a record")?;
    os.write_all(&file, &json).context("write a record")?;
    os.fsync(&file).context_sync("fsync a record")
}

/// Why a record cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It could not be read now, and may be sound.
    Fault(Fault),
    /// It is damaged, in a sentence for people.
    Damaged(String),
}

impl Unreadable {
    /// Classifies a failed step of reading. A disk or a driver in trouble says nothing of a record.
    pub(crate) fn new(what: &'static str, errno: Errno, damage: impl FnOnce() -> String) -> Self {
        let fault = Fault::new(what, errno);
        match errno {
            Errno::IO | Errno::AGAIN | Errno::INTR => Self::Fault(fault),
            _ if fault.is_shortage() => Self::Fault(fault),
            _ => Self::Damaged(damage()),
        }
    }
}

impl From<String> for Unreadable {
    fn from(damage: String) -> Self {
        Self::Damaged(damage)
    }
}

/// Reads a record.
pub(crate) fn read<T: DeserializeOwned>(dir: impl AsFd, name: &str) -> Result<T, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let bytes = os::read_file(dir, name, MAX_RECORD_BYTES).map_err(|errno| {
        Unreadable::new("read a record", errno, || {
            format!("cannot read {name}: {errno}")
        })
    })?;
    let damaged = |error: serde_json::Error| format!("{name} is damaged: {error}");
    let version: Version = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version.format != FORMAT {
        return Err(Unreadable::Damaged(format!(
            "{name} has format {}, and this driver knows format {FORMAT}",
            version.format
        )));
    }
    Ok(serde_json::from_slice(&bytes).map_err(damaged)?)
}
