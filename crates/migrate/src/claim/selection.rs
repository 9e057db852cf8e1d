//! The options, and the claims that they select.

use clap::Args;

use crate::cluster::{Claim, Cluster, Metadata, Stored, Volume};
use crate::{Common, parse_namespace, source};

pub(super) const STEPS: &str = "retain prepare stop copy swap start finish remove";
/// The beginning of the names of the objects that a plan makes.
pub(super) const PREFIX: &str = "rootcellar-move-";

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(crate) struct Options {
    /// Move these claims
    #[arg(value_name = "NAMESPACE/CLAIM", required_unless_present = "from_node")]
    pub(super) claims: Vec<String>,

    /// Move all claims whose volumes are on this node, to the node of --node, or to any other node
    #[arg(long, value_name = "NAME", conflicts_with_all = ["claims", "source_node"])]
    pub(super) from_node: Option<String>,

    /// With --from-node, move only claims of this namespace
    #[arg(long, value_name = "NAMESPACE", requires = "from_node", value_parser = parse_namespace)]
    pub(super) namespace: Option<String>,

    /// Move to this node; without it, a claim stays on its node
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<String>,

    /// Give the claim this StorageClass; default: its class
    #[arg(long, value_name = "CLASS")]
    pub(super) class: Option<String>,

    /// Give the claim this size, larger or smaller, such as 20Gi; default: its request
    #[arg(long, value_name = "SIZE")]
    pub(super) size: Option<String>,

    /// The node of a volume whose PersistentVolume names no node
    #[arg(long, value_name = "NAME")]
    pub(super) source_node: Option<String>,

    #[command(flatten)]
    pub(super) common: Common,
}

/// Whether a claim is to be moved, or the reason why that is unknown.
pub(super) fn selects(cluster: &Cluster, claim: &Claim, options: &Options) -> Result<bool, String> {
    let metadata = &claim.metadata;
    let Some(node) = &options.from_node else {
        return Ok(options.claims.contains(&metadata.key()));
    };
    let is_other = |asked: &String| *asked != metadata.namespace;
    if is_of_plan(metadata, &options.common) || options.namespace.as_ref().is_some_and(is_other) {
        return Ok(false);
    }
    is_on(cluster, claim, node)
}

/// Whether a claim is one that a plan has made.
fn is_of_plan(claim: &Metadata, common: &Common) -> bool {
    claim.namespace == common.pod_namespace && claim.name.starts_with(PREFIX)
}

/// Whether the volume of a claim is on a node, or the reason why that is unknown.
fn is_on(cluster: &Cluster, claim: &Claim, node: &str) -> Result<bool, String> {
    if claim.spec.volume_name.is_empty() {
        return Ok(false);
    }
    let volume = &volume_of(cluster, claim)?.object;
    let spec = &volume.spec;
    let is_directory = spec.host_path.is_some() || spec.local.is_some();
    if spec.node_affinity.is_none() && !is_directory {
        // Each node reaches it.
        return Ok(false);
    }
    match source::node(volume, &cluster.nodes, None) {
        Ok(found) => Ok(found == node),
        Err(_) if !source::may_be_on(volume, &cluster.nodes, node) => Ok(false),
        Err(reason) => Err(reason.replace("--node with --claim", "the claim and --source-node")),
    }
}

/// The volume to which a claim is bound.
pub(super) fn volume_of<'a>(
    cluster: &'a Cluster,
    claim: &Claim,
) -> Result<&'a Stored<Volume>, String> {
    let (name, phase) = (&claim.spec.volume_name, &claim.status.phase);
    if phase != "Bound" {
        return Err(format!(
            "it is {phase}, and only Bound claims have a volume to copy"
        ));
    }
    let mut volumes = cluster.volumes.iter();
    let volume = volumes.find(|volume| volume.object.metadata.name == *name);
    let volume =
        volume.ok_or_else(|| format!("its PersistentVolume {name:?} is not in the input"))?;
    let named = volume.object.spec.claim_ref.as_ref();
    let is_bound = volume.object.status.phase == "Bound"
        && named.is_some_and(|named| named.uid == claim.metadata.uid);
    if is_bound {
        Ok(volume)
    } else {
        Err(format!("PersistentVolume {name} is not bound to it"))
    }
}
