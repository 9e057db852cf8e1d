//! The parameters of storage classes and snapshot classes.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::image::Allocation;
use crate::pool::{CopyPolicy, KubernetesFields, Mode, Parameters, ReclaimPolicy, Sharing};
use crate::types::{ClaimLabel, Invalid, PoolName, SnapshotLabel};

/// The prefix of the sidecars' keys.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// The longest name of a Kubernetes object.
const MAX_OBJECT_NAME: usize = 253;

/// The largest uid or gid; 4294967295 means "no change" to chown(2).
const MAX_ID: u32 = u32::MAX - 1;

/// The checked parameters of a `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Class {
    pub pool: Option<PoolName>,
    /// Whether a volume takes the whole disk of a set's member.
    pub exclusive: bool,
    pub kind: Kind,
    /// Whether the blocks of images are allocated at once, if the class says so.
    pub allocation: Option<Allocation>,
    /// Whether the kernel must enforce the size.
    pub enforcement: EnforcementPolicy,
    /// The parameters in the volume's record.
    pub parameters: Parameters,
    /// `csi.storage.k8s.io/fstype`; `CreateVolume` has it in the capabilities.
    pub fs_type: Option<String>,
    /// The volume's claim, for people.
    pub claim: ClaimLabel,
    /// Its own name and reclaim policy, for the volume's record.
    pub kubernetes: KubernetesFields,
    pub copies: CopyPolicy,
}

/// The checked parameters of a `VolumeSnapshotClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotClass {
    /// Whether the volume may be in use.
    pub in_use: InUse,
    pub copies: CopyPolicy,
    /// The snapshot's `VolumeSnapshot`, for people.
    pub label: SnapshotLabel,
}

/// Whether a volume in use may have a snapshot: the parameter `inUse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InUse {
    /// It may.
    #[default]
    Allow,
    /// The volume must not be published.
    Refuse,
}

/// The kind of volumes: the parameter `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Directories of the pool's filesystem.
    #[default]
    Directory,
    /// Files with a filesystem of their own.
    Image,
}

/// Whether the kernel enforces the sizes of a class: the parameter `enforcement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnforcementPolicy {
    /// If the pool can enforce sizes.
    #[default]
    Auto,
    /// A pool that cannot enforce sizes gets no volume.
    Required,
    /// Never.
    None,
}

impl Class {
    /// Parses a request's parameters. The error names the first unknown key or bad value.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        set_all(pairs, Self::set)
    }

    /// As [`Class::parse`], without bad keys and values. If `GetCapacity` failed, the provisioner would
    /// never call `CreateVolume`, and nobody would see its error message.
    pub fn parse_leniently<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let mut class = Self::default();
        for (key, value) in pairs {
            if let Err(error) = class.set(key, value) {
                tracing::debug!(%error, "GetCapacity has a class that no volume can have");
            }
        }
        class
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = || Some(value.to_owned());
        match key {
            "pool" => {
                let named = |error: Invalid| parameter(key, &error.problem);
                self.pool = Some(value.parse().map_err(named)?);
            }
            COPY | MAX_STALL => set_copies(&mut self.copies, key, value)?,
            "mode" => {
                self.parameters.mode = Mode::parse(value).ok_or_else(|| {
                    parameter(key, &format!("{value:?} is not an octal mode up to 3777"))
                })?;
            }
            "uid" => self.parameters.uid = parse_id(key, value)?,
            "gid" => self.parameters.gid = parse_id(key, value)?,
            "sharing" => {
                let choices = [("none", Sharing::None), ("node", Sharing::Node)];
                self.parameters.sharing = choose(key, value, &choices)?;
            }
            "exclusive" => {
                self.exclusive = choose(key, value, &[("true", true), ("false", false)])?;
            }
            "kind" => {
                let choices = [("directory", Kind::Directory), ("image", Kind::Image)];
                self.kind = choose(key, value, &choices)?;
            }
            "allocation" => {
                let choices = [Allocation::Thick, Allocation::Thin];
                let choices = choices.map(|choice| (choice.as_str(), choice));
                self.allocation = Some(choose(key, value, &choices)?);
            }
            "enforcement" => {
                let choices = [
                    ("auto", EnforcementPolicy::Auto),
                    ("required", EnforcementPolicy::Required),
                    ("none", EnforcementPolicy::None),
                ];
                self.enforcement = choose(key, value, &choices)?;
            }
            "class" => self.kubernetes.class = Some(parse_object(key, value)?),
            "reclaimPolicy" => {
                let policies = ReclaimPolicy::ALL.map(|policy| (policy.as_str(), policy));
                self.kubernetes.reclaim_policy = Some(choose(key, value, &policies)?);
            }
            "csi.storage.k8s.io/fstype" => self.fs_type = text().filter(|text| !text.is_empty()),
            "csi.storage.k8s.io/pvc/namespace" => self.claim.namespace = text(),
            "csi.storage.k8s.io/pvc/name" => self.claim.claim = text(),
            "csi.storage.k8s.io/pv/name" => self.claim.volume = text(),
            _ if key.starts_with(SIDECAR_PREFIX) => {}
            _ => {
                return Err(parameter(
                    key,
                    "unknown parameter; known are pool, kind, allocation, exclusive, enforcement, \
                     mode, uid, gid, sharing, copy, maxStall, class and reclaimPolicy",
                ));
            }
        }
        Ok(())
    }
}

impl SnapshotClass {
    /// Parses a request's parameters. The error names the first unknown key or bad value.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        set_all(pairs, Self::set)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = || Some(value.to_owned());
        match key {
            "inUse" => {
                let choices = [("allow", InUse::Allow), ("refuse", InUse::Refuse)];
                self.in_use = choose(key, value, &choices)?;
            }
            COPY | MAX_STALL => set_copies(&mut self.copies, key, value)?,
            "csi.storage.k8s.io/volumesnapshot/namespace" => self.label.namespace = text(),
            "csi.storage.k8s.io/volumesnapshot/name" => self.label.snapshot = text(),
            "csi.storage.k8s.io/volumesnapshotcontent/name" => self.label.content = text(),
            _ if key.starts_with(SIDECAR_PREFIX) => {}
            _ => {
                let problem = "unknown parameter; known are inUse, copy and maxStall";
                return Err(parameter(key, problem));
            }
        }
        Ok(())
    }
}

/// Sets every parameter of a class. They are sorted, so that of several mistakes always the same one
/// is reported.
fn set_all<'a, C: Default>(
    pairs: impl IntoIterator<Item = (&'a String, &'a String)>,
    set: impl Fn(&mut C, &str, &str) -> Result<()>,
) -> Result<C> {
    let mut class = C::default();
    for (key, value) in pairs.into_iter().collect::<BTreeMap<_, _>>() {
        set(&mut class, key, value)?;
    }
    Ok(class)
}

/// Whether a filesystem that shares no blocks may copy.
const COPY: &str = "copy";
/// The longest time for which a file may be locked during its copy.
const MAX_STALL: &str = "maxStall";

fn set_copies(copies: &mut CopyPolicy, key: &str, value: &str) -> Result<()> {
    if key == COPY {
        copies.copy = choose(key, value, &[("allowed", true), ("refused", false)])?;
    } else {
        copies.max_stall = Some(parse_stall(value)?);
    }
    Ok(())
}

/// The choice with the name `value`.
fn choose<T: Copy>(key: &str, value: &str, choices: &[(&str, T)]) -> Result<T> {
    let choice = choices.iter().find(|(name, _)| *name == value);
    choice.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        parameter(
            key,
            &format!("{value:?} is not one of {}", names.join(", ")),
        )
    })
}

/// A number with the unit `ms` or `s`; at least one millisecond.
fn parse_stall(value: &str) -> Result<Duration> {
    let (digits, unit) = match (value.strip_suffix("ms"), value.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 1000),
        (None, None) => ("", 0),
    };
    let milliseconds = number(digits).and_then(|number: u64| number.checked_mul(unit));
    milliseconds
        .filter(|milliseconds| *milliseconds > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| {
            let problem = format!("{value:?} is not a time such as 100ms or 2s");
            parameter(MAX_STALL, &problem)
        })
}

/// A number without the sign that [`str::parse`] accepts.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn parameter(key: &str, problem: &str) -> Error {
    Error::invalid(format!("parameter {key:?}"), problem)
}

/// The name of a Kubernetes object.
fn parse_object(key: &str, value: &str) -> Result<String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if !(1..=MAX_OBJECT_NAME).contains(&value.len()) || !value.chars().all(allowed) {
        let problem = format!("{value:?} is not the name of a Kubernetes object");
        return Err(parameter(key, &problem));
    }
    Ok(value.to_owned())
}

fn parse_id(key: &str, value: &str) -> Result<u32> {
    number(value).filter(|id| *id <= MAX_ID).ok_or_else(|| {
        let problem = format!("{value:?} is not a number from 0 to {MAX_ID}");
        parameter(key, &problem)
    })
}
