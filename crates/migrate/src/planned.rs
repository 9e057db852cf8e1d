//! A plan, and the facts from which its steps are made.

use objects::manifest::ClaimMode;
use objects::{ReclaimPolicy, VolumeId, VolumeName};

use crate::cluster::{Claim, Stored, Volume};
use crate::pools::Pool;
use crate::source::System;

#[derive(Debug)]
pub(crate) struct Plan {
    /// Its namespace and name.
    pub(crate) claim: String,
    pub(crate) persistent_volume: String,
    pub(crate) system: System,
    /// The reasons why it is not planned. With any, there are no steps.
    pub(crate) refusals: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) planned: Option<Planned>,
}

/// The part of a plan that only a claim without refusals has.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) node: String,
    pub(crate) directory: String,
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) pool: String,
    pub(crate) handle: String,
    /// The names of the steps, in their order.
    pub(crate) steps: &'static str,
    /// The variables that `plan.sh` uses.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// Everything that the steps need to know about a claim.
pub(crate) struct Facts<'a> {
    pub(crate) claim: &'a Stored<Claim>,
    pub(crate) volume: &'a Stored<Volume>,
    pub(crate) directory: String,
    pub(crate) node: &'a str,
    pub(crate) pool: Pool,
    pub(crate) size: u64,
    pub(crate) name: VolumeName,
    pub(crate) handle: VolumeId,
    pub(crate) modes: Vec<ClaimMode>,
    pub(crate) mount_options: Vec<String>,
    pub(crate) class: String,
    /// The policy before the migration.
    pub(crate) policy: ReclaimPolicy,
    pub(crate) runners: Runners,
}

/// The pods of a claim, and the workloads that run them.
#[derive(Debug, Default)]
pub(crate) struct Runners {
    /// Workloads that `kubectl scale` stops and starts, as `KIND/NAME=REPLICAS`.
    pub(crate) workloads: Vec<String>,
    /// Those of them that delete the claim of a pod that a scale-down removes, as `KIND/NAME`.
    pub(crate) deleting: Vec<String>,
    /// Pods without a controller.
    pub(crate) bare_pods: Vec<String>,
    /// The controllers that a person stops, and their pods.
    pub(crate) others: Vec<String>,
}
