//! A plan, and the facts about its claim.

use std::collections::BTreeSet;

use objects::manifest::ClaimMode;
use objects::{Bytes, ReclaimPolicy};

use crate::cluster::{Claim, Class, PodSpec, Stored, Volume};
use crate::planned::Runners;

/// The fields of a `PersistentVolume` next to its source.
const FIELDS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeMode",
    "mountOptions",
    "nodeAffinity",
    "volumeAttributesClassName",
];

/// The plan of a claim.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(super) claim: String,
    /// The change, in words.
    pub(super) change: String,
    /// The workloads and the pods that use the claim.
    pub(super) users: BTreeSet<String>,
    /// The claims that must get to the same node.
    pub(super) companions: BTreeSet<String>,
    pub(crate) refusals: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Plan {
    pub(super) fn or_refuse<T>(&mut self, value: Result<T, String>) -> Option<T> {
        value.map_err(|reason| self.refusals.push(reason)).ok()
    }

    pub(super) fn refuse(&mut self, reason: impl Into<String>) {
        self.refusals.push(reason.into());
    }
}

/// The nodes of a copy.
#[derive(Debug)]
pub(super) struct Nodes<'a> {
    /// That of the old volume; `None` if several nodes reach it.
    pub(super) source: Option<&'a str>,
    /// That of the new volume; `None` for any but the source.
    pub(super) target: Option<&'a str>,
}

impl Nodes<'_> {
    /// Whether one pod mounts both volumes.
    pub(super) fn is_one_pod(&self) -> bool {
        self.source.is_none() || self.source == self.target
    }
}

/// Everything that the objects and variables are made of.
pub(super) struct Facts<'a> {
    pub(super) claim: &'a Stored<Claim>,
    pub(super) volume: &'a Stored<Volume>,
    /// The field of the `PersistentVolume` that names its source, such as csi.
    pub(super) source: &'a str,
    pub(super) nodes: Nodes<'a>,
    pub(super) class: &'a Class,
    pub(super) size: &'a str,
    pub(super) bytes: Bytes,
    pub(super) policy: ReclaimPolicy,
    pub(super) runners: Runners,
    /// A pod of the claim, which the node of the new volume must suit.
    pub(super) user: Option<&'a PodSpec>,
    pub(super) snapshots: Vec<&'a str>,
    pub(super) hash: String,
}

impl Facts<'_> {
    pub(super) fn is_block(&self) -> bool {
        is_block(&self.claim.object)
    }

    /// Whether no second pod may use the old volume while its application runs.
    pub(super) fn is_exclusive(&self) -> bool {
        let modes = &self.claim.object.spec.access_modes;
        self.is_block() || modes.contains(&ClaimMode::ReadWriteOncePod)
    }
}

pub(super) fn is_block(claim: &Claim) -> bool {
    claim.spec.volume_mode.as_deref() == Some("Block")
}

/// The field that names the source of a volume.
pub(super) fn source_of(volume: &Stored<Volume>) -> Result<&str, String> {
    let spec = volume.json["spec"].as_object();
    let mut keys = spec.into_iter().flat_map(|spec| spec.keys());
    let key = keys.find(|key| !FIELDS.contains(&key.as_str()));
    let key = key.filter(|key| key.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    key.map(String::as_str)
        .ok_or_else(|| "its PersistentVolume has no source".to_owned())
}
