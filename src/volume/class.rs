//! What a storage class says of its volumes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::pool::{CopyPolicy, Mode, Parameters, Sharing};
use crate::types::{ClaimLabel, Invalid, PoolName, SnapshotLabel};

/// The prefix of the keys that belong to the sidecars.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";
const SIDECAR_FSTYPE: &str = "csi.storage.k8s.io/fstype";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_VOLUME: &str = "csi.storage.k8s.io/pv/name";
const SNAPSHOT_NAMESPACE: &str = "csi.storage.k8s.io/volumesnapshot/namespace";
const SNAPSHOT_NAME: &str = "csi.storage.k8s.io/volumesnapshot/name";
const SNAPSHOT_CONTENT: &str = "csi.storage.k8s.io/volumesnapshotcontent/name";

/// The largest uid or gid; 4294967295 means "no change" to chown(2).
const MAX_ID: u32 = u32::MAX - 1;

/// The parameters of a request, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Class {
    /// The pool asked for by name.
    pub pool: Option<PoolName>,
    /// Whether its size must be held by force.
    pub enforcement: EnforcementPolicy,
    /// What the volume keeps.
    pub parameters: Parameters,
    /// `csi.storage.k8s.io/fstype`, which only the capacity poll carries.
    pub fs_type: Option<String>,
    /// For people: whose volume it is.
    pub claim: ClaimLabel,
    /// What it says of volumes that are copies.
    pub copies: CopyPolicy,
}

/// The parameters of a snapshot's request, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotClass {
    /// Whether a volume may be in use.
    pub in_use: InUse,
    /// What it says of copies.
    pub copies: CopyPolicy,
    /// For people: whose snapshot it is.
    pub label: SnapshotLabel,
}

/// Whether a snapshot may be made of a volume in use: the parameter `inUse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InUse {
    /// It may.
    #[default]
    Allow,
    /// Only of a volume that is published nowhere.
    Refuse,
}

/// Whether the sizes of a class are held by force: the parameter `enforcement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnforcementPolicy {
    /// Where the pool can.
    #[default]
    Auto,
    /// Or the volume is not made.
    Required,
    /// Never.
    None,
}

impl Class {
    /// Parses a request's parameters; the first unknown key or bad value is an error naming it.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        let mut class = Self::default();
        // Sorted, so that of several mistakes always the same one is named.
        for (key, value) in pairs.into_iter().collect::<BTreeMap<_, _>>() {
            class.set(key, value)?;
        }
        Ok(class)
    }

    /// Parses like [`Class::parse`] as if bad keys and values were absent: a capacity poll that
    /// failed would keep `CreateVolume`, and so its error message, from ever being reached.
    pub fn parse_leniently<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let mut class = Self::default();
        for (key, value) in pairs {
            if let Err(error) = class.set(key, value) {
                tracing::debug!(%error, "capacity asked for a class that no volume can have");
            }
        }
        class
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "pool" => {
                let named = |error: Invalid| error.named(parameter_field(key));
                self.pool = Some(value.parse().map_err(named)?);
            }
            COPY => self.copies.copy = parse_copy(value)?,
            MAX_STALL => self.copies.max_stall = Some(parse_stall(value)?),
            "mode" => {
                self.parameters.mode = Mode::parse(value).ok_or_else(|| {
                    parameter(key, &format!("{value:?} is not an octal mode up to 3777"))
                })?;
            }
            "uid" => self.parameters.uid = parse_id(key, value)?,
            "gid" => self.parameters.gid = parse_id(key, value)?,
            "sharing" => {
                self.parameters.sharing = match value {
                    "none" => Sharing::None,
                    "node" => Sharing::Node,
                    _ => {
                        return Err(parameter(key, &format!("{value:?} is not none or node")));
                    }
                }
            }
            "enforcement" => {
                self.enforcement = match value {
                    "auto" => EnforcementPolicy::Auto,
                    "required" => EnforcementPolicy::Required,
                    "none" => EnforcementPolicy::None,
                    _ => {
                        let problem = format!("{value:?} is not auto, required or none");
                        return Err(parameter(key, &problem));
                    }
                }
            }
            SIDECAR_FSTYPE => self.fs_type = Some(value.to_owned()).filter(|v| !v.is_empty()),
            CLAIM_NAMESPACE => self.claim.namespace = Some(value.to_owned()),
            CLAIM_NAME => self.claim.claim = Some(value.to_owned()),
            CLAIM_VOLUME => self.claim.volume = Some(value.to_owned()),
            _ if key.starts_with(SIDECAR_PREFIX) => {}
            _ => {
                return Err(parameter(
                    key,
                    "unknown parameter; known are pool, enforcement, mode, uid, gid, sharing, copy \
                     and maxStall",
                ));
            }
        }
        Ok(())
    }
}

impl SnapshotClass {
    /// Parses a request's parameters; the first unknown key or bad value is an error naming it.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        let mut class = Self::default();
        for (key, value) in pairs.into_iter().collect::<BTreeMap<_, _>>() {
            class.set(key, value)?;
        }
        Ok(class)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "inUse" => {
                self.in_use = match value {
                    "allow" => InUse::Allow,
                    "refuse" => InUse::Refuse,
                    _ => return Err(parameter(key, &format!("{value:?} is not allow or refuse"))),
                }
            }
            COPY => self.copies.copy = parse_copy(value)?,
            MAX_STALL => self.copies.max_stall = Some(parse_stall(value)?),
            SNAPSHOT_NAMESPACE => self.label.namespace = Some(value.to_owned()),
            SNAPSHOT_NAME => self.label.snapshot = Some(value.to_owned()),
            SNAPSHOT_CONTENT => self.label.content = Some(value.to_owned()),
            _ if key.starts_with(SIDECAR_PREFIX) => {}
            _ => {
                let problem = "unknown parameter; known are inUse, copy and maxStall";
                return Err(parameter(key, problem));
            }
        }
        Ok(())
    }
}

/// Whether copies may be made where files share no blocks.
const COPY: &str = "copy";
/// How long a file may be locked while it is copied.
const MAX_STALL: &str = "maxStall";

fn parse_copy(value: &str) -> Result<bool> {
    match value {
        "allowed" => Ok(true),
        "refused" => Ok(false),
        _ => Err(parameter(
            COPY,
            &format!("{value:?} is not allowed or refused"),
        )),
    }
}

/// A whole number with its unit, `ms` or `s`; at least one millisecond.
fn parse_stall(value: &str) -> Result<Duration> {
    let (digits, unit) = match (value.strip_suffix("ms"), value.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 1000),
        (None, None) => ("", 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number = is_number.then(|| digits.parse::<u64>().ok()).flatten();
    let milliseconds = number.and_then(|number| number.checked_mul(unit));
    milliseconds
        .filter(|milliseconds| *milliseconds > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| {
            let problem = format!("{value:?} is not a time such as 100ms or 2s");
            parameter(MAX_STALL, &problem)
        })
}

fn parameter_field(key: &str) -> String {
    format!("parameter {key:?}")
}

fn parameter(key: &str, problem: &str) -> Error {
    Error::invalid(parameter_field(key), problem)
}

fn parse_id(key: &str, value: &str) -> Result<u32> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| value.parse().ok())
        .flatten()
        .filter(|id| *id <= MAX_ID)
        .ok_or_else(|| {
            parameter(
                key,
                &format!("{value:?} is not a number from 0 to {MAX_ID}"),
            )
        })
}
