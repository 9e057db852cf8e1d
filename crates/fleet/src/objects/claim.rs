//! Claims.

use std::collections::BTreeMap;

use objects::{NodeName, quantity};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Identity, Kept};
use crate::wire::{Object, SNAPSHOTS, named};

/// The node that is to provision a claim. The scheduler writes it, and the csi-provisioner of that node obeys it.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The finalizer that a claim has until no scheduled pod names it.
const IN_USE: &str = "kubernetes.io/pvc-protection";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The source of a claim: an object in the claim's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Claim(String),
    Snapshot(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Claim {
    pub(crate) identity: Identity,
    pub(crate) deleting: bool,
    /// A finalizer of somebody who needs the claim, besides [`IN_USE`].
    pub(crate) held: bool,
    pub(crate) class: String,
    /// `spec.volumeName`, which is set when the claim is bound or reserved for a volume.
    pub(crate) volume: Option<String>,
    pub(crate) bound: bool,
    pub(crate) selector: bool,
    /// The annotation [`SELECTED_NODE`], if it can be the name of a node.
    pub(crate) selected: Option<NodeName>,
    pub(crate) source: Option<Source>,
    /// Whether it names a source of any kind.
    pub(crate) copies: bool,
    /// The requested bytes, unless they cannot be read.
    pub(crate) size: Option<u64>,
}

impl Kept for Claim {
    fn identity(&mut self) -> Option<&mut Identity> {
        Some(&mut self.identity)
    }
}

impl Claim {
    pub(crate) fn read(claim: Object) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            storage_class_name: Option<String>,
            volume_name: Option<String>,
            selector: Option<IgnoredAny>,
            data_source: Option<Reference>,
            data_source_ref: Option<Reference>,
            #[serde(default)]
            resources: Resources,
        }
        #[derive(Deserialize, Default)]
        struct Resources {
            requests: Option<BTreeMap<String, String>>,
        }
        #[derive(Deserialize, Default)]
        struct Status {
            phase: Option<String>,
        }
        let (identity, deleting) = (Identity::of(&claim), claim.deleting);
        let held = claim.finalizers.iter().any(|found| found != IN_USE);
        let selected = claim.annotation(SELECTED_NODE);
        let old_class = claim
            .meta
            .annotations
            .as_ref()
            .and_then(|all| all.get(OLD_CLASS))
            .cloned();
        let Fields { spec, status } = claim.fields()?;
        let source = spec.data_source_ref.or(spec.data_source);
        Some(Self {
            identity,
            deleting,
            held,
            class: named(old_class.or(spec.storage_class_name)?)?,
            volume: spec.volume_name.and_then(named),
            bound: status.phase.as_deref() == Some("Bound"),
            selector: spec.selector.is_some(),
            selected: selected.and_then(|name| name.parse().ok()),
            copies: source.is_some(),
            source: source.and_then(Reference::source),
            size: spec
                .resources
                .requests
                .and_then(|all| quantity::bytes(all.get("storage")?)),
        })
    }
}

/// A `dataSource` or `dataSourceRef`. The API server fills both for the two kinds that are sources here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    api_group: Option<String>,
    kind: String,
    name: String,
    namespace: Option<String>,
}

impl Reference {
    fn source(self) -> Option<Source> {
        // Kubernetes treats a reference with a namespace, even the claim's own, as one to another namespace.
        if self
            .namespace
            .is_some_and(|namespace| !namespace.is_empty())
        {
            return None;
        }
        let name = named(self.name)?;
        match (self.api_group.as_deref().unwrap_or_default(), &*self.kind) {
            ("", "PersistentVolumeClaim") => Some(Source::Claim(name)),
            (SNAPSHOTS, "VolumeSnapshot") => Some(Source::Snapshot(name)),
            _ => None,
        }
    }
}
