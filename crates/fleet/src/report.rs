//! The sentences of the controller's events.

use objects::{Bytes, NodeName, PoolId};

use crate::objects::MANAGED_BY;

/// A fact about a claim or a content that a person should know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Report {
    #[error("the source is on node {node}, which provisions the claim{}", instead(instead_of.as_ref()))]
    Steered {
        node: String,
        instead_of: Option<NodeName>,
    },
    #[error("node {node} handles this snapshot")]
    Labelled { node: String },
    #[error(
        "the source is on node {node}, which is not in the cluster; bring the node back, or restore from a backup"
    )]
    NodeGone { node: String },
    #[error(
        "the source is on node {node}, and the allowedTopologies of class {class} exclude it; use a class that allows \
         it"
    )]
    ClassExcludesNode { class: String, node: String },
    #[error(
        "the source is on node {node}, which has {} for class {class}, and the claim needs {}; delete volumes there, or \
         add space", free.rounded(), size.rounded()
    )]
    NoRoom {
        class: String,
        node: String,
        size: Bytes,
        free: Bytes,
    },
    #[error(
        "the PersistentVolumes of pool {pool} name the nodes {}, and only one has the disk; name that node yourself",
        nodes.join(" and ")
    )]
    PoolOnTwoNodes { pool: PoolId, nodes: [String; 2] },
    #[error(
        "no PersistentVolume and no label names the node of the snapshot; label its content with {MANAGED_BY}"
    )]
    SourceUnknown,
    #[error(
        "the handle of the snapshot content is none of this driver; `rootcellar snapshot list` prints the handles"
    )]
    MalformedHandle,
    #[error(
        "the name of node {node} is longer than the 63 characters of a label, so it can have no snapshots"
    )]
    NodeNameTooLong { node: String },
    #[error(
        "the label {MANAGED_BY} names {label}, and the volumes of the pool are on {node}; correct it if the disk is in \
         {node}"
    )]
    OtherNode { label: String, node: String },
    #[error(
        "the snapshot was asked for more than an hour ago and never taken; now it would have the data of today: delete \
         it, or label its content with {MANAGED_BY}"
    )]
    TooOld,
}

fn instead(of: Option<&NodeName>) -> String {
    of.map_or_else(String::new, |other| format!(" instead of {other}"))
}

impl Report {
    /// The reason of the event, for programs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Steered { .. } => "SteeredToNode",
            Self::Labelled { .. } => "LabelledWithNode",
            Self::NodeGone { .. } => "SourceNodeGone",
            Self::ClassExcludesNode { .. } => "ClassExcludesNode",
            Self::NoRoom { .. } => "NoRoomOnNode",
            Self::PoolOnTwoNodes { .. } => "PoolOnTwoNodes",
            Self::SourceUnknown => "SourceUnknown",
            Self::MalformedHandle => "MalformedHandle",
            Self::NodeNameTooLong { .. } => "NodeNameTooLong",
            Self::OtherNode { .. } => "LabelOfOtherNode",
            Self::TooOld => "SnapshotTooOld",
        }
    }

    /// The node that it is about.
    pub(crate) fn node(&self) -> Option<&str> {
        match self {
            Self::Steered { node, .. }
            | Self::Labelled { node }
            | Self::NodeGone { node }
            | Self::ClassExcludesNode { node, .. }
            | Self::NoRoom { node, .. }
            | Self::NodeNameTooLong { node }
            | Self::OtherNode { node, .. } => Some(node),
            Self::PoolOnTwoNodes { .. }
            | Self::SourceUnknown
            | Self::MalformedHandle
            | Self::TooOld => None,
        }
    }

    /// Whether the controller did its work. Otherwise somebody has to act.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Steered { .. } | Self::Labelled { .. })
    }
}
