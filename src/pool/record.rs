//! Records: the JSON that describes a volume, and the one way it is written and read.

use std::fmt;
use std::os::fd::AsFd;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::os::{self, Os};
use crate::quota::{Enforcement, OURS};
use crate::types::{Bytes, ClaimLabel, VolumeId, VolumeName};

use super::fault::{During, Fault};

/// The version of the on-disk format this driver writes and reads.
pub const FORMAT: u32 = 1;

/// The name of a volume's record in its directory.
pub(crate) const VOLUME_RECORD: &str = "volume.json";

/// Far more than the largest record of format 1.
const MAX_RECORD_BYTES: usize = 64 * 1024;

/// The record of a volume, `volume.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
}

impl VolumeRecord {
    /// The number of ours that its use is charged to, and what that is limited to (zero: nothing).
    pub fn limit(&self) -> Option<(u32, Bytes)> {
        let limit = self.enforcement.limit(self.size_bytes);
        let id = self.quota_id.filter(|id| OURS.contains(id))?;
        Some((id, limit))
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

    fn try_from(text: String) -> std::result::Result<Self, String> {
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
        .during("rename a record")?;
    os.fsync(&dir).during_sync("fsync a record's directory")
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
    let file = os.create(&dir, name).during("make a record")?;
    os.write_all(&file, &json).during("write a record")?;
    os.fsync(&file).during_sync("fsync a record")
}

/// Reads a record; the error is a sentence for people.
pub(crate) fn read<T: DeserializeOwned>(dir: impl AsFd, name: &str) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let bytes = os::read_file(dir, name, MAX_RECORD_BYTES)
        .map_err(|errno| format!("cannot read {name}: {errno}"))?;
    let damaged = |error: serde_json::Error| format!("{name} is damaged: {error}");
    let version: Version = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version.format != FORMAT {
        return Err(format!(
            "{name} has format {}, and this driver knows format {FORMAT}",
            version.format
        ));
    }
    serde_json::from_slice(&bytes).map_err(damaged)
}
