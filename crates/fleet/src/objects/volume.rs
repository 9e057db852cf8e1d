//! Volumes.

use objects::{DriverArgs, ObjectId, VolumeId};
use serde::Deserialize;

use super::{Identity, Kept, Owner};
use crate::wire::{Object, named};

/// The finalizer of a volume whose policy is `Delete`. The csi-provisioner of the volume's node removes it after it has
/// deleted the data.
pub(crate) const PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The uid of the claim for whose release the controller wrote the policy `Retain`. If the volume has another claim since,
/// somebody decided otherwise, and the controller has no part in it any more.
pub(crate) const RELEASED: &str = "rootcellar.dev/released-claim";
/// The annotation of an earlier version, which did not name the claim.
pub(crate) const POLICY_BEFORE: &str = "rootcellar.dev/policy-before-release";
/// The policy with which the data is deleted after the claim.
pub(crate) const DELETE: &str = "Delete";
pub(crate) const RETAIN: &str = "Retain";

/// A `PersistentVolume` of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) identity: Identity,
    pub(crate) deleting: bool,
    pub(crate) finalizers: Vec<String>,
    pub(crate) class: String,
    pub(crate) policy: Policy,
    pub(crate) phase: Phase,
    pub(crate) claim: Option<Owner>,
    pub(crate) id: VolumeId,
    /// The value of the topology key that the volume requires of its node.
    pub(crate) place: String,
}

/// The fate of the data after the claim is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Delete,
    Retain,
    /// `Retain`, which the controller wrote instead of `Delete` to release the present claim.
    Released,
    /// `Retain`, which an earlier version of the controller wrote, for a claim that it did not name.
    ReleasedBefore,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Bound,
    /// The claim is deleted.
    Released,
    Other,
}

impl Kept for Volume {
    fn identity(&mut self) -> Option<&mut Identity> {
        Some(&mut self.identity)
    }
}

impl Volume {
    /// The id in the handle of a volume of any driver and any form. An object that cannot be used still names its data.
    pub(crate) fn handle(volume: &Object) -> Option<VolumeId> {
        VolumeId::parse(volume.text(&["spec", "csi", "volumeHandle"])?)
    }

    /// Whether a csi-provisioner has its finalizer on it.
    pub(crate) fn is_held(&self) -> bool {
        self.finalizers.iter().any(|found| found == PROVISIONER)
    }

    pub(crate) fn read(mut volume: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        struct Status {
            phase: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            csi: Csi,
            claim_ref: Option<Owner>,
            node_affinity: Affinity,
            persistent_volume_reclaim_policy: Option<String>,
            storage_class_name: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Csi {
            driver: String,
            volume_handle: String,
        }
        #[derive(Deserialize)]
        struct Affinity {
            required: Selector,
        }
        let (identity, deleting) = (Identity::of(&volume), volume.deleting);
        let finalizers = std::mem::take(&mut volume.finalizers);
        let released = [RELEASED, POLICY_BEFORE].map(|key| volume.annotation(key));
        let Fields { spec, status } = volume.fields()?;
        if spec.csi.driver != driver.driver_name {
            return None;
        }
        Some(Self {
            identity,
            deleting,
            finalizers,
            class: spec.storage_class_name.unwrap_or_default(),
            policy: Policy::of(
                spec.persistent_volume_reclaim_policy.as_deref(),
                released,
                spec.claim_ref.as_ref(),
            ),
            phase: match status.phase.as_deref() {
                Some("Bound") => Phase::Bound,
                Some("Released") => Phase::Released,
                _ => Phase::Other,
            },
            claim: spec.claim_ref,
            id: VolumeId::parse(&spec.csi.volume_handle)?,
            place: spec
                .node_affinity
                .required
                .only_value(&driver.topology_key)?,
        })
    }
}

impl Policy {
    /// `released` are the values of the annotations [`RELEASED`] and [`POLICY_BEFORE`].
    fn of(policy: Option<&str>, released: [Option<String>; 2], claim: Option<&Owner>) -> Self {
        match (policy, released) {
            (Some(DELETE), _) => Self::Delete,
            (Some(RETAIN), [Some(uid), _]) => match claim {
                Some(owner) if owner.uid.as_ref() == Some(&uid) => Self::Released,
                _ => Self::Retain,
            },
            (Some(RETAIN), [None, Some(_)]) => Self::ReleasedBefore,
            (Some(RETAIN), [None, None]) => Self::Retain,
            _ => Self::Other,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    node_selector_terms: Vec<SelectorTerm>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorTerm {
    #[serde(default)]
    match_expressions: Vec<Expression>,
}

#[derive(Deserialize)]
struct Expression {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl Selector {
    /// The value of the key if the selector allows one alone, as csi-provisioner writes it.
    fn only_value(&self, key: &str) -> Option<String> {
        let [term] = self.node_selector_terms.as_slice() else {
            return None;
        };
        let of_key = term
            .match_expressions
            .iter()
            .find(|found| found.key == key)?;
        match of_key.values.as_slice() {
            [value] if of_key.operator == "In" => named(value.clone()),
            _ => None,
        }
    }
}
