//! The reasons to refuse a claim.

use std::collections::BTreeSet;

use objects::manifest::ClaimMode;
use objects::quantity;
use serde_json::Value;

use super::facts::{Facts, Nodes, Plan, source_of};
use super::selection::{Options, PREFIX, selects, volume_of};
use crate::cluster::{Claim, Cluster, Node, Stored, Volume, Workload};
use crate::{pods, source};

impl Plan {
    pub(super) fn check_claim(&mut self, claim: &Claim) {
        let modes = &claim.spec.access_modes;
        if claim.metadata.deletion_timestamp.is_some() {
            self.refuse("its claim is being deleted");
        }
        if modes.iter().all(|mode| *mode == ClaimMode::ReadOnlyMany) {
            self.refuse("its claim has no access mode that allows to write, which the copy does");
        }
        pods::check_owners(claim, &mut self.refusals, &mut self.warnings);
    }

    /// Refuses a volume of which another object exists, because the removal of the old one would remove its data too.
    pub(super) fn check_alone(&mut self, volume: &Stored<Volume>, cluster: &Cluster) {
        let others = cluster.volumes.iter().filter(|other| {
            let name = &other.object.metadata.name;
            // A plan that was begun has made it.
            *name != volume.object.metadata.name && !name.starts_with(PREFIX)
        });
        let same = others.filter(|other| is_same(volume, other, cluster));
        self.refusals.extend(same.map(|other| {
            format!(
                "PersistentVolume {} has the same volume; delete one of them first",
                other.object.metadata.name
            )
        }));
    }

    /// Refuses a change that needs nothing, or that the new class cannot make.
    pub(super) fn check_facts(&mut self, facts: &Facts<'_>, options: &Options) {
        let spec = &facts.claim.object.spec;
        let size = |text: Option<&String>| text.and_then(|text| quantity::bytes(text));
        let (class, bytes) = (&facts.class.metadata.name, Some(facts.bytes.0));
        if facts.nodes.is_one_pod()
            && (facts.nodes.target.is_none() || facts.nodes.source == facts.nodes.target)
            && spec.storage_class_name.as_ref() == Some(class)
            && size(spec.resources.requests.get("storage")) == bytes
        {
            self.refuse("nothing would change; give another --node, --class or --size");
        }
        let capacity = size(facts.volume.object.spec.capacity.get("storage"));
        if facts.is_block() && capacity > bytes {
            self.refuse(
                "a block volume cannot become smaller; give a --size of its capacity or more",
            );
        }
        let is_ours = facts.class.provisioner == options.common.driver.driver_name;
        let is_shared = spec.access_modes.iter().any(|mode| mode.is_shared());
        if is_ours && is_shared {
            let sharing = facts.class.parameters.get("sharing");
            if sharing.is_some_and(|sharing| sharing == "node") {
                self.warnings.push(
                    "access modes: all pods of the claim must be on the node of the new volume"
                        .to_owned(),
                );
            } else {
                self.refuse(format!(
                    "class {class} makes no ReadWriteMany or ReadOnlyMany volumes without the parameter sharing: node"
                ));
            }
        }
    }

    /// Refuses to part volumes that a pod uses together, because no node could run the pod.
    pub(super) fn check_companions(
        &mut self,
        facts: &Facts<'_>,
        cluster: &Cluster,
        options: &Options,
    ) {
        let Nodes { source, target } = facts.nodes;
        if source == target {
            return;
        }
        for name in companions(&facts.claim.object, cluster) {
            let namespace = &facts.claim.object.metadata.namespace;
            let Some(other) = cluster.claim(namespace, &name) else {
                continue;
            };
            self.companions.insert(format!("{namespace}/{name}"));
            let is_asked = selects(cluster, &other.object, options) == Ok(true);
            let volume = volume_of(cluster, &other.object);
            let reaches = |node: &str| {
                let volume = volume.as_ref();
                volume.map_or(true, |volume| {
                    source::may_be_on(&volume.object, &cluster.nodes, node)
                })
            };
            let mut nodes = cluster.nodes.iter().map(|node| node.metadata.name.as_str());
            match target {
                None if is_asked => self.refuse(format!(
                    "its pods also use claim {name}; give --node, so that both volumes come to the same node"
                )),
                Some(target) if !is_asked && !reaches(target) => self.refuse(format!(
                    "its pods also use claim {name}, whose volume no pod on node {target} can use; move both by one plan"
                )),
                None if !nodes.any(|node| Some(node) != source && reaches(node)) => {
                    self.refuse(format!(
                        "its pods also use claim {name}, whose volume stays on node {}; move both by one plan",
                        source.unwrap_or_default()
                    ));
                }
                _ => {}
            }
        }
    }
}

/// The other claims that a pod with this claim uses.
fn companions(claim: &Claim, cluster: &Cluster) -> BTreeSet<String> {
    let metadata = &claim.metadata;
    let workloads = cluster.stateful_sets.iter().chain(&cluster.deployments);
    let used: Vec<&Workload> = workloads
        .filter(|workload| workload.uses(metadata))
        .collect();
    let templates = used.iter().map(|workload| &workload.spec.template.spec);
    let specs = cluster.pods_of(claim).map(|pod| &pod.spec).chain(templates);
    let volumes = specs.flat_map(|spec| &spec.volumes);
    let mounted = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let mut names: BTreeSet<String> = mounted.map(|source| source.claim_name.clone()).collect();
    let ordinal = metadata.name.rsplit('-').next().unwrap_or_default();
    for workload in used.iter().filter(|workload| workload.makes(metadata)) {
        let templates = workload.spec.volume_claim_templates.iter();
        let set = &workload.metadata.name;
        names.extend(
            templates.map(|template| format!("{}-{set}-{ordinal}", template.metadata.name)),
        );
    }
    names.remove(&metadata.name);
    names
}

/// The workloads and the pods that use a claim.
pub(super) fn users(claim: &Claim, cluster: &Cluster) -> BTreeSet<String> {
    let pods = cluster.pods_of(claim).map(|pod| ("pod", &pod.metadata));
    let kinds = [
        ("deployment", &cluster.deployments),
        ("statefulset", &cluster.stateful_sets),
    ];
    let workloads = kinds.into_iter().flat_map(|(kind, all)| {
        let used = all.iter().filter(|workload| workload.uses(&claim.metadata));
        used.map(move |workload| (kind, &workload.metadata))
    });
    let users = pods.chain(workloads);
    users
        .map(|(kind, metadata)| format!("{kind} {}", metadata.key()))
        .collect()
}

/// Whether two volumes have the same data.
fn is_same(a: &Stored<Volume>, b: &Stored<Volume>, cluster: &Cluster) -> bool {
    let (Ok(source), Ok(other)) = (source_of(a), source_of(b)) else {
        return false;
    };
    let part = |volume: &Stored<Volume>| {
        let source = &volume.json["spec"][source];
        match source.as_object() {
            Some(_) if other == "csi" => [source["driver"].clone(), source["volumeHandle"].clone()],
            Some(_) if other == "hostPath" => [source["path"].clone(), Value::Null],
            _ => [source.clone(), Value::Null],
        }
    };
    let may_be = |volume: &Stored<Volume>, node: &Node| {
        source::may_be_on(&volume.object, &cluster.nodes, &node.metadata.name)
    };
    let mut nodes = cluster.nodes.iter();
    source == other
        && part(a) == part(b)
        && (cluster.nodes.is_empty() || nodes.any(|node| may_be(a, node) && may_be(b, node)))
}
