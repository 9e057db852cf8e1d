//! A plan, and the facts from which its steps are made.

use objects::manifest::ClaimMode;
use objects::{ReclaimPolicy, VolumeId, VolumeName};
use serde::Serialize;

use crate::cluster::{Claim, Stored, Volume};
use crate::pools::Pool;
use crate::source::System;

/// The plan for one claim.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    /// Its namespace and name.
    pub(crate) claim: String,
    pub(crate) persistent_volume: String,
    pub(crate) system: System,
    /// The reasons why it is not planned. With any, there are no steps.
    pub(crate) refusals: Vec<String>,
    pub(crate) warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) planned: Option<Planned>,
}

/// The part of a plan that only a claim without refusals has.
#[derive(Debug, Serialize)]
pub(crate) struct Planned {
    pub(crate) node: String,
    pub(crate) directory: String,
    pub(crate) size_bytes: u64,
    pub(crate) pool: String,
    pub(crate) volume_handle: String,
    /// The pod that imports, as YAML.
    pub(crate) import_pod: String,
    /// The final `PersistentVolume`, as YAML.
    pub(crate) new_persistent_volume: String,
    pub(crate) steps: Vec<Step>,
}

/// Everything that the steps need to know about a claim.
pub(crate) struct Facts<'a> {
    pub(crate) claim: &'a Stored<Claim>,
    pub(crate) volume: &'a Stored<Volume>,
    pub(crate) directory: String,
    /// The path to which its mount moves before the import.
    pub(crate) mount: Option<String>,
    pub(crate) node: &'a str,
    pub(crate) pool: Pool,
    pub(crate) size: u64,
    pub(crate) name: VolumeName,
    pub(crate) handle: VolumeId,
    pub(crate) modes: Vec<ClaimMode>,
    pub(crate) mount_options: Vec<String>,
    /// The class of the new objects.
    pub(crate) class: String,
    /// The policy before the migration.
    pub(crate) policy: ReclaimPolicy,
    pub(crate) runners: Vec<Runner>,
}

/// A step: its commands, the commands that fail if it is not done, and those that undo it. The way back
/// is to undo the steps that were begun, the last one first.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) title: &'static str,
    /// Sentences for the person who runs it.
    pub(crate) text: String,
    /// Whether the commands are for a root shell of the node.
    pub(crate) on_node: bool,
    pub(crate) run: String,
    pub(crate) verify: String,
    pub(crate) rollback: String,
}

/// Something that runs pods with a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Runner {
    /// A workload that `kubectl scale` stops.
    Scalable {
        kind: &'static str,
        name: String,
        replicas: u32,
        /// Whether it deletes the claim of a pod that a scale-down removes.
        deletes_claims: bool,
    },
    /// A pod of another owner, which a person stops.
    Pod { name: String, owner: String },
}
