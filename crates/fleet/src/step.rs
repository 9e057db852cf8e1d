//! The steps of a round: an object, the facts to confirm, a change, and an event.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use objects::{NodeName, VolumeId};
use serde_json::Value;

use crate::objects::{Identity, SnapshotContent, Volume};
use crate::report::Report;
use crate::wire::Kind;

/// Something to do: a change, an event, or a change and the event that reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) about: About,
    /// Facts that the API server has to confirm first, because the caches may be late.
    pub(crate) confirm: Vec<Live>,
    pub(crate) change: Option<Change>,
    pub(crate) report: Option<Report>,
    /// The object of the event, if it is another one.
    pub(crate) event_on: Option<About>,
}

/// The object of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) kind: Kind,
    pub(crate) object: Identity,
    /// The namespace whose share of the round the step uses; empty if it is nobody's.
    pub(crate) namespace: String,
}

/// A change of the step's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Write the node on a claim, instead of the node that it names.
    Select {
        node: String,
        instead_of: Option<NodeName>,
    },
    /// Remove the node from a claim.
    ForgetNode(NodeName),
    /// Label a content with the node.
    Label(String),
    /// Keep the data of a volume after its claim, and note the uid of the claim that is released.
    Retain {
        claim: String,
    },
    /// Keep the other finalizers alone.
    DropFinalizer {
        name: &'static str,
        rest: Vec<String>,
    },
    /// Keep the other taints of a node alone.
    RemoveTaint {
        key: String,
        rest: Vec<Value>,
    },
    Delete,
}

impl Step {
    /// The namespace of the claim, if it is an attempt to release one, whose facts may take long to confirm.
    pub(crate) fn releases(&self) -> Option<&str> {
        let mut facts = self.confirm.iter();
        let is_attempt = facts.any(|fact| matches!(fact, Live::MadeAgain(_)));
        is_attempt.then_some(&*self.about.namespace)
    }

    /// Whether it begins a release.
    pub(crate) fn begins(&self) -> bool {
        matches!(self.change, Some(Change::Retain { .. }))
    }
}

impl Verdict {
    pub(crate) fn about(&self) -> Option<&About> {
        match self {
            Self::Nothing => None,
            Self::Refuse(about, _) => Some(about),
            Self::Write(step) => Some(&step.about),
        }
    }
}

impl Change {
    pub(crate) fn drop_finalizer(name: &'static str, all: &[String]) -> Self {
        let rest = all.iter().filter(|found| *found != name);
        Self::DropFinalizer {
            name,
            rest: rest.cloned().collect(),
        }
    }
}

/// The decision about an object of a lost node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "most are Rest, and are not kept")]
pub(crate) enum Verdict {
    Nothing,
    /// Nothing is done, and the event says why.
    Refuse(About, Report),
    Write(Step),
}

/// A fact about the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Live {
    /// No node has this name.
    NoNode(String),
    /// No node has this place.
    NoPlace(String),
    /// There are no other nodes than these, and none has the place, if one is named.
    NoOtherNode {
        place: Option<String>,
        known: Arc<BTreeSet<String>>,
    },
    /// The driver of the node still says that the pool of the volume was declared lost, and that no other pool has the volume.
    /// The addresses are those of its pods: during an update a node has two.
    Retired {
        node: String,
        pages: Vec<SocketAddr>,
        volume: VolumeId,
    },
    /// The volume did not change, and its data outlives its claim.
    Retained(Identity),
    /// A `StatefulSet` makes the claim again, and no scheduled pod names it.
    MadeAgain(Identity),
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The uid of the object.
    pub(crate) uid: String,
    /// Whether it was a report alone.
    pub(crate) report: bool,
    /// The namespace of the claim, if it was an attempt to release one.
    pub(crate) releases: Option<String>,
    /// Whether it was the beginning of a release.
    pub(crate) begins: bool,
    pub(crate) outcome: Outcome,
    /// Somebody for whom the change has to wait.
    pub(crate) waits: Option<Report>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The object changed since it was read.
    Changed,
    /// The API server did not answer, or could not.
    Unanswered,
    /// The API server refused it.
    Refused,
    /// It has to wait for somebody.
    Waits,
}

impl About {
    pub(crate) fn claim(object: Identity) -> Self {
        let namespace = object.namespace.clone();
        Self {
            kind: Kind::CLAIM,
            object,
            namespace,
        }
    }

    pub(crate) fn volume(volume: &Volume) -> Self {
        let claim = volume.claim.as_ref();
        let namespace = claim.map_or("", |claim| claim.namespace());
        Self::of(Kind::VOLUME, volume.identity.clone(), namespace)
    }

    pub(crate) fn content(content: &SnapshotContent) -> Self {
        let namespace = content.snapshot.namespace();
        Self::of(Kind::CONTENT, content.identity.clone(), namespace)
    }

    /// An object without a namespace that belongs to one in this namespace.
    pub(crate) fn of(kind: Kind, object: Identity, namespace: &str) -> Self {
        Self {
            kind,
            object,
            namespace: namespace.to_owned(),
        }
    }
}
