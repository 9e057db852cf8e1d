//! The sentences of the controller's events.

use std::fmt;

use objects::{Bytes, NameHash, NodeName, PoolName};

use crate::command::{Command, Unprintable};
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
    NodeFull {
        class: String,
        node: String,
        size: Bytes,
        free: Bytes,
    },
    #[error(
        "the PersistentVolumes of its pool name the nodes {}, and only one of them has the disk; label the snapshot content \
         with that node, by {MANAGED_BY}",
        nodes.join(" and ")
    )]
    PoolOnTwoNodes { nodes: [String; 2] },
    #[error(
        "no PersistentVolume and no label names the node of the snapshot; label its content with {MANAGED_BY}"
    )]
    SourceUnknown,
    #[error(
        "the handle of the snapshot content is not one of this driver; `rootcellar snapshot list` prints the handles"
    )]
    MalformedHandle,
    #[error(
        "the name of node {node} is longer than the 63 characters of a label, so its volumes can have no snapshots"
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
    #[error(
        "node {node} is missing, so its part of the deletion was left out; if the disk comes back, the controller reports \
         the data as without an object"
    )]
    FinishedDeletion { node: String },
    #[error(
        "node {node}, which was to provision the claim, is missing; any node may provision it now"
    )]
    ForgotNode { node: NodeName },
    #[error(
        "{absent} of {all} nodes with volumes are absent, which is more than a tenth, so the controller finishes and \
         releases nothing by itself; see `rootcellar-fleet plan`"
    )]
    TooManyNodesAbsent { absent: usize, all: usize },
    #[error(
        "the pool of the volume was retired on node {node}; the claim will be released, unless `rootcellar pool adopt` \
         takes the pool back"
    )]
    ReleaseSoon { node: String },
    #[error(
        "the disk on node {node} is lost, and the class releases such claims; the volume has the policy Retain from now \
         on, and the claim will be deleted"
    )]
    ReleaseBegun { node: String },
    #[error(
        "the claim was deleted, because its volume {volume} was lost with node {node}; its StatefulSet makes it again, \
         empty, on another node"
    )]
    ReleasedClaim { volume: String, node: String },
    #[error(
        "the release stopped, because node {node} is back or may have the volume, the class does not ask for it, or an \
         earlier version began it. The volume keeps the policy Retain{}", choices(ways.as_deref(), *is_bound)
    )]
    ReleaseKept {
        node: String,
        /// Whether the claim is still there.
        is_bound: bool,
        /// The commands that keep the data, and that let it go. None if the object has a name that cannot be printed.
        ways: Option<Box<[Command; 2]>>,
    },
    #[error("the volume is lost, and its claim is not released: {why}")]
    ReleaseWaits { why: String },
    #[error("volume {} has no PersistentVolume; {}", .0, .0.remedy)]
    VolumeWithoutPersistentVolume(Box<Alone>),
    #[error("snapshot {} has no VolumeSnapshotContent; {}", .0, .0.remedy)]
    SnapshotWithoutContent(Box<Alone>),
    #[error("node {node} {gone}")]
    PersistentVolumeWithoutVolume { node: String, gone: Gone },
    #[error("{}", on_two_pages(name, other, *is_copy))]
    PoolOnTwoPages {
        name: PoolName,
        other: String,
        /// Whether the `PersistentVolumes` name the other node and not this one.
        is_copy: bool,
    },
    #[error("the driver serves the node, so its taint {key} was removed")]
    TaintRemoved { key: String },
    #[error("the node keeps the taint {key}, because {why}")]
    TaintStays { key: String, why: String },
}

/// A volume or a snapshot that no object names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alone {
    pub(crate) hash: NameHash,
    pub(crate) bytes: Bytes,
    pub(crate) node: String,
    pub(crate) pool: PoolName,
    pub(crate) remedy: Remedy,
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hash, pool, .. } = self;
        write!(f, "{hash} of {} in pool {pool}", self.bytes.rounded())
    }
}

/// So many differences that one cause is likelier than as many mistakes, such as an older backup or a wrong disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Many {
    lack: usize,
    all: usize,
    /// The node, or all nodes.
    nodes: &'static str,
}

impl Many {
    /// Of the objects of a node or, if each node has few, of all nodes: how many differ, and how many there are.
    pub(crate) fn of(node: [usize; 2], all: [usize; 2]) -> Option<Self> {
        let are_many = |[lack, all]: [usize; 2]| lack >= 3 && lack * 10 > all;
        let many = [(node, "the node"), (all, "all nodes")];
        let ([lack, all], nodes) = many.into_iter().find(|(counts, _)| are_many(*counts))?;
        Some(Self { lack, all, nodes })
    }
}

/// The commands about data without an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remedy {
    Each {
        /// Prints the object, if there is a command for one.
        manifest: Option<Command>,
        delete: Command,
    },
    /// The node lacks so many objects that nobody should be led to delete the data.
    Restore { command: Command, many: Many },
    /// No pod of the driver can be named.
    Nothing,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each {
                manifest: Some(manifest),
                delete,
            } => write!(f, "`{manifest}` prints one, `{delete}` deletes the data"),
            Self::Each {
                manifest: None,
                delete,
            } => write!(f, "`{delete}` deletes it"),
            Self::Restore {
                command,
                many: Many { lack, all, nodes },
            } => write!(
                f,
                "{lack} of the {all} volumes and snapshots of {nodes} have no object, as after a restore of the API server \
                 from an older backup; `{command}` writes them: read the file, and then `kubectl create -f restore.yaml`"
            ),
            Self::Nothing => {
                f.write_str("no pod of the driver on the node can be named in a command")
            }
        }
    }
}

/// The missing data of a `PersistentVolume`, after the words that name the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Gone {
    #[error("deleted the volume, and its pool still keeps the data; {}", undelete(.0.as_ref()))]
    Kept(Option<Command>),
    #[error("does not have the volume; remove the object{}, and then restore a backup", removal(.0.as_ref()))]
    Lost(Option<Result<Command, Unprintable>>),
    #[error(
        "does not have the volume; {} of the {} volumes of {} are missing, as with a wrong disk; inspect its disks with \
         `rootcellar check` before you remove anything", .0.lack, .0.all, .0.nodes
    )]
    Many(Many),
}

fn undelete(command: Option<&Command>) -> String {
    command.map_or_else(
        || "bring it back with `rootcellar volume undelete` there".to_owned(),
        |command| format!("`{command}` brings it back"),
    )
}

fn removal(command: Option<&Result<Command, Unprintable>>) -> String {
    match command {
        Some(Ok(command)) if command.len() <= MOST - LONGER => format!(" (`{command}`)"),
        Some(Ok(_)) => " (its names are too long for a command)".to_owned(),
        Some(Err(why)) => format!(" (no command is printed, because {why})"),
        None => " (no command is printed, because its claim is not seen)".to_owned(),
    }
}

/// The most bytes of commands in a note, which has 1024 at most.
const MOST: usize = 790;
/// So much less is left after the name of a node in full length.
const LONGER: usize = 100;

/// The choice about data that a release kept.
fn choices(ways: Option<&[Command; 2]>, is_bound: bool) -> String {
    let Some([keep, let_go]) = ways else {
        return String::new();
    };
    let text = if is_bound {
        format!(
            ": `{keep}` keeps the data when the claim is deleted, `{let_go}` deletes it with the claim"
        )
    } else {
        format!(", and its claim is deleted: `{keep}` keeps the data, `{let_go}` deletes it")
    };
    // Two commands with a long name do not fit into an event.
    if text.len() > MOST {
        return "; its name is too long for commands".to_owned();
    }
    text
}

fn on_two_pages(name: &PoolName, other: &str, is_copy: bool) -> String {
    let serials = "the serial numbers of the disks (`lsblk -o NAME,SERIAL,MOUNTPOINT`)";
    if is_copy {
        return format!(
            "pool {name} is a copy of a disk that node {other} has, which the PersistentVolumes name; `umount` the copy on \
             this node, and compare {serials} before you format it"
        );
    }
    format!(
        "node {other} has the disk of pool {name} too, and the PersistentVolumes do not say which one is the copy; compare \
         {serials} and `rootcellar volume list` on both nodes before you change either"
    )
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
            Self::NodeFull { .. } => "NoRoomOnNode",
            Self::PoolOnTwoNodes { .. } => "PoolOnTwoNodes",
            Self::SourceUnknown => "SourceUnknown",
            Self::MalformedHandle => "MalformedHandle",
            Self::NodeNameTooLong { .. } => "NodeNameTooLong",
            Self::OtherNode { .. } => "LabelOfOtherNode",
            Self::TooOld => "SnapshotTooOld",
            Self::FinishedDeletion { .. } => "FinishedDeletion",
            Self::ForgotNode { .. } => "ForgotNode",
            Self::TooManyNodesAbsent { .. } => "TooManyNodesAbsent",
            Self::ReleaseSoon { .. } => "ReleaseSoon",
            Self::ReleaseBegun { .. } => "ReleaseBegun",
            Self::ReleasedClaim { .. } => "ReleasedClaim",
            Self::ReleaseKept { .. } => "ReleaseKept",
            Self::ReleaseWaits { .. } => "ReleaseWaits",
            Self::VolumeWithoutPersistentVolume(_) => "VolumeWithoutPersistentVolume",
            Self::SnapshotWithoutContent(_) => "SnapshotWithoutContent",
            Self::PersistentVolumeWithoutVolume { .. } => "PersistentVolumeWithoutVolume",
            Self::PoolOnTwoPages { .. } => "PoolOnTwoPages",
            Self::TaintRemoved { .. } => "StartupTaintRemoved",
            Self::TaintStays { .. } => "StartupTaintStays",
        }
    }

    /// The node or the circumstance that it is about, which distinguishes two reports of one reason.
    pub(crate) fn subject(&self) -> Option<&str> {
        match self {
            Self::Steered { node, .. }
            | Self::Labelled { node }
            | Self::NodeGone { node }
            | Self::ClassExcludesNode { node, .. }
            | Self::NodeFull { node, .. }
            | Self::NodeNameTooLong { node }
            | Self::OtherNode { node, .. }
            | Self::FinishedDeletion { node }
            | Self::PersistentVolumeWithoutVolume { node, .. }
            | Self::ReleaseSoon { node }
            | Self::ReleaseBegun { node }
            | Self::ReleasedClaim { node, .. }
            | Self::ReleaseKept { node, .. } => Some(node),
            Self::ForgotNode { node } => Some(node.as_str()),
            Self::VolumeWithoutPersistentVolume(alone) | Self::SnapshotWithoutContent(alone) => {
                Some(&alone.node)
            }
            Self::PoolOnTwoPages { other, .. } => Some(other),
            Self::ReleaseWaits { why } | Self::TaintStays { why, .. } => Some(why),
            Self::TooManyNodesAbsent { .. }
            | Self::PoolOnTwoNodes { .. }
            | Self::SourceUnknown
            | Self::MalformedHandle
            | Self::TooOld
            | Self::TaintRemoved { .. } => None,
        }
    }

    /// Whether the controller did its work. Otherwise somebody has to act.
    pub(crate) fn is_done(&self) -> bool {
        matches!(
            self,
            Self::Steered { .. }
                | Self::Labelled { .. }
                | Self::FinishedDeletion { .. }
                | Self::ForgotNode { .. }
                | Self::TaintRemoved { .. }
        )
    }

    /// The action of the event, for programs.
    pub(crate) fn action(&self) -> &'static str {
        match self {
            Self::FinishedDeletion { .. } | Self::TooManyNodesAbsent { .. } => "FinishDeletion",
            Self::ReleaseSoon { .. }
            | Self::ReleaseBegun { .. }
            | Self::ReleasedClaim { .. }
            | Self::ReleaseKept { .. }
            | Self::ReleaseWaits { .. } => "ReleaseClaim",
            Self::VolumeWithoutPersistentVolume(_)
            | Self::SnapshotWithoutContent(_)
            | Self::PersistentVolumeWithoutVolume { .. }
            | Self::PoolOnTwoPages { .. } => "Compare",
            Self::TaintRemoved { .. } | Self::TaintStays { .. } => "RemoveTaint",
            _ => "PlaceOnNode",
        }
    }
}
