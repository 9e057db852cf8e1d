//! `rootcellar-migrate gone`: the plan with which a person releases the objects that a lost node leaves behind.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use clap::Args;
use objects::{DriverArgs, NodeName, ReclaimPolicy};

use crate::cluster::{Claim, Cluster, Content, Stored, Volume};
use crate::script::{Script, list, printable};

const STEPS: &str = include_str!("gone.sh");
const SELECTED: &str = "volume.kubernetes.io/selected-node";
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
/// The kinds without which the plan would be wrong.
const NEEDED: [&str; 4] = [
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StatefulSet",
];

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(crate) struct Options {
    /// Plan for this node, which was removed from the cluster
    #[arg(value_name = "NODE")]
    node: NodeName,

    /// Read the objects of the cluster from this file, the output of
    /// kubectl get pv,pvc,pods,nodes,statefulsets,volumesnapshotcontents -A -o json; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) objects: PathBuf,

    /// Write the script to this new file, and not to stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,

    #[command(flatten)]
    driver: DriverArgs,
}

/// An object that the node left behind.
#[derive(Debug)]
struct Left {
    /// The name by which the script knows it.
    key: String,
    about: String,
    warnings: Vec<String>,
    /// The variables that `gone.sh` uses.
    variables: Vec<(&'static str, String)>,
}

#[derive(Debug)]
pub(crate) struct Report {
    node: NodeName,
    unchecked: Vec<String>,
    left: Vec<Left>,
}

impl Report {
    pub(crate) fn new(cluster: &Cluster, options: &Options) -> Result<Self, String> {
        let missing: Vec<&str> = NEEDED
            .into_iter()
            .filter(|kind| !cluster.has(kind))
            .collect();
        if missing.contains(&"Node") {
            return Err(
                "the input has no Node, so nobody knows which one is lost; add nodes".to_owned(),
            );
        }
        let (node, place) = (&options.node, options.node.topology_value());
        let key = &options.driver.topology_key;
        let mut nodes = cluster.nodes.iter().map(|node| &node.metadata);
        if let Some(found) = nodes.find(|found| {
            found.name == node.as_str() || found.labels.get(key).is_some_and(|at| *at == place)
        }) {
            return Err(format!(
                "node {node} is in the cluster as {}; nothing on it is lost",
                found.name
            ));
        }
        let volumes = cluster.volumes.iter().filter(|volume| {
            let spec = &volume.object.spec;
            let of_driver = |driver: &str| driver == options.driver.driver_name;
            spec.csi.as_ref().is_some_and(|csi| of_driver(&csi.driver)) && is_at(spec, key, &place)
        });
        let mut left: Vec<Left> = volumes
            .map(|volume| volume_left(cluster, &volume.object))
            .collect();
        let claims = cluster.claims.iter().map(|claim| &claim.object);
        let unbound = claims.filter(|claim| {
            let named = claim.metadata.annotations.get(SELECTED);
            claim.spec.volume_name.is_empty() && named.is_some_and(|name| name == node.as_str())
        });
        left.extend(unbound.map(claim_left));
        let contents = cluster.contents.iter().filter(|content| {
            let named = content.metadata.labels.get(MANAGED_BY);
            content.metadata.deletion_timestamp.is_some()
                && content.spec.driver == options.driver.driver_name
                && named.is_some_and(|name| name == node.as_str())
        });
        left.extend(contents.map(content_left));
        for one in &mut left {
            one.variables.extend([
                ("node", node.to_string()),
                ("place", place.clone()),
                ("topology_key", key.clone()),
            ]);
        }
        left.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self {
            node: node.clone(),
            unchecked: missing
                .into_iter()
                .map(|kind| format!("the input has no {kind}"))
                .collect(),
            left,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn script(&self) -> Script<'_> {
        let facts = self.left.iter().map(|one| (&*one.key, &one.variables[..]));
        Script {
            title: "The objects that a lost node left behind. Read the report before the first step.",
            argument: "OBJECT",
            report: self.to_string(),
            facts: facts.collect(),
            steps: STEPS,
        }
    }
}

/// Whether a volume requires the place alone.
fn is_at(spec: &crate::cluster::VolumeSpec, key: &str, place: &str) -> bool {
    let affinity = spec.node_affinity.as_ref();
    let terms = affinity.map_or(&[][..], |one| &one.required.node_selector_terms);
    !terms.is_empty()
        && terms.iter().all(|term| {
            term.match_expressions
                .iter()
                .any(|found| found.key == key && found.operator == "In" && found.values == [place])
        })
}

fn volume_left(cluster: &Cluster, volume: &Volume) -> Left {
    let (metadata, spec) = (&volume.metadata, &volume.spec);
    let handle = spec.csi.as_ref().map(|csi| csi.volume_handle.clone());
    let policy = spec
        .persistent_volume_reclaim_policy
        .unwrap_or(ReclaimPolicy::Retain);
    let claim = spec.claim_ref.as_ref();
    let claim = claim.and_then(|owner| {
        let found = cluster.claim(&owner.namespace, &owner.name)?;
        (found.object.metadata.uid == owner.uid).then_some(found)
    });
    let ends = policy == ReclaimPolicy::Delete;
    let mut steps = Vec::new();
    if ends {
        steps.push("retain");
    }
    if claim.is_some() {
        steps.push("claim");
    }
    if ends {
        steps.push("volume");
    }
    let steps = steps.join(" ");
    let name = &metadata.name;
    let (key, about) = match claim {
        Some(claim) => {
            let key = claim_key(&claim.object);
            let about = format!("claim {key}, PersistentVolume {name}, policy {policy}");
            (key, about)
        }
        None => (
            format!("pv/{name}"),
            format!(
                "PersistentVolume {name}, {}, policy {policy}",
                volume.status.phase
            ),
        ),
    };
    let of_claim = |field: fn(&crate::cluster::Metadata) -> &String| {
        claim.map_or_else(String::new, |claim| field(&claim.object.metadata).clone())
    };
    Left {
        about: format!("{about}: {steps}"),
        warnings: claim.map_or_else(Vec::new, |claim| warnings(cluster, claim)),
        variables: vec![
            ("steps", steps),
            ("volume", name.clone()),
            ("volume_uid", metadata.uid.clone()),
            ("handle", handle.unwrap_or_default()),
            ("policy", policy.to_string()),
            ("namespace", of_claim(|metadata| &metadata.namespace)),
            ("claim", of_claim(|metadata| &metadata.name)),
            ("claim_uid", of_claim(|metadata| &metadata.uid)),
        ],
        key,
    }
}

/// Who makes the claim again.
fn warnings(cluster: &Cluster, claim: &Stored<Claim>) -> Vec<String> {
    let mut sets = cluster.stateful_sets.iter();
    let set = sets.find(|set| set.makes(&claim.object.metadata));
    vec![match set {
        Some(set) => format!(
            "StatefulSet {} makes the claim again, empty; delete its pod by force if that is still on the lost node",
            set.metadata.name
        ),
        None => "nobody is known to make the claim again: do it yourself, by your GitOps or by the operator, such as \
                 CloudNativePG"
            .to_owned(),
    }]
}

fn claim_left(claim: &Claim) -> Left {
    let key = claim_key(claim);
    Left {
        about: format!("unbound claim {key} waits for the node: forget"),
        warnings: Vec::new(),
        variables: vec![
            ("steps", "forget".to_owned()),
            ("namespace", claim.metadata.namespace.clone()),
            ("claim", claim.metadata.name.clone()),
            ("claim_uid", claim.metadata.uid.clone()),
        ],
        key,
    }
}

fn content_left(content: &Content) -> Left {
    let name = &content.metadata.name;
    Left {
        key: format!("content/{name}"),
        about: format!("VolumeSnapshotContent {name} waits for its deletion: snapshot"),
        warnings: Vec::new(),
        variables: vec![
            ("steps", "snapshot".to_owned()),
            ("content", name.clone()),
            ("content_uid", content.metadata.uid.clone()),
        ],
    }
}

fn claim_key(claim: &Claim) -> String {
    format!("{}/{}", claim.metadata.namespace, claim.metadata.name)
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, "Unchecked", &self.unchecked)?;
        let node = &self.node;
        if self.is_empty() {
            return writeln!(f, "Node {node} left nothing behind.");
        }
        writeln!(
            f,
            "Node {node} is not in the cluster. If it comes back with its disks, the data is there, and no object names it:\n\
             `rootcellar volume manifest` makes the PersistentVolumes again."
        )?;
        for one in &self.left {
            writeln!(f, "\n{}", printable(&one.about))?;
            list(f, "Note", &one.warnings)?;
        }
        Ok(())
    }
}
