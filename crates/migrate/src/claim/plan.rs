//! The plan of a claim: the facts about it, the reasons to refuse it, and the warnings.

use objects::{Bytes, ReclaimPolicy, manifest, quantity};
use uuid::Uuid;

use super::checks::users;
use super::facts::{Facts, Nodes, Plan, source_of};
use super::selection::{Options, volume_of};
use crate::cluster::{Claim, Class, Cluster, PodSpec, Stored, Volume};
use crate::{pods, source};

impl Plan {
    pub(super) fn new(claim: &Stored<Claim>, cluster: &Cluster, options: &Options) -> Self {
        let mut plan = Self {
            claim: claim.object.metadata.key(),
            users: users(&claim.object, cluster),
            ..Self::default()
        };
        let Some(facts) = plan.facts(claim, cluster, options) else {
            return plan;
        };
        plan.change = facts.change();
        plan.check_facts(&facts, options);
        plan.check_companions(&facts, cluster, options);
        plan.warn(&facts, cluster);
        plan.warn_begun(&facts, cluster, &options.common.pod_namespace);
        if plan.refusals.is_empty() {
            match facts.variables(&options.common) {
                Ok(variables) => plan.variables = variables,
                Err(reason) => plan.refusals.push(reason),
            }
        }
        plan
    }

    /// Gathers the facts. Every reason to refuse is reported, not only the first.
    fn facts<'a>(
        &mut self,
        claim: &'a Stored<Claim>,
        cluster: &'a Cluster,
        options: &'a Options,
    ) -> Option<Facts<'a>> {
        let object = &claim.object;
        self.check_claim(object);
        let volume = self.or_refuse(volume_of(cluster, object))?;
        self.check_alone(volume, cluster);
        if volume.object.metadata.deletion_timestamp.is_some() {
            self.refuse("its PersistentVolume is being deleted");
        }
        let source = self.or_refuse(source_of(volume));
        let nodes = self.or_refuse(nodes(&volume.object, cluster, options));
        if let Some(source) = nodes.as_ref().and_then(|nodes| nodes.source) {
            let checked = pods::check_node(object, &volume.object, cluster, source);
            self.or_refuse(checked);
        }
        let class = options.class.as_deref();
        let class = class.or(object.spec.storage_class_name.as_deref());
        let class = self.or_refuse(class_of(cluster, class.unwrap_or_default()));
        let request = object.spec.resources.requests.get("storage");
        let size = options.size.as_ref().or(request);
        let size = self.or_refuse(size.ok_or("its claim requests no size; give --size".to_owned()));
        let bytes = size.map(|size| {
            let bytes = quantity::bytes(size).filter(|bytes| *bytes > 0);
            bytes.ok_or_else(|| {
                format!("{size:?} is not a size; give --size a quantity such as 20Gi")
            })
        });
        let bytes = bytes.and_then(|bytes| self.or_refuse(bytes));
        let policy = volume.object.spec.persistent_volume_reclaim_policy;
        let policy =
            self.or_refuse(policy.ok_or(
                "its reclaim policy is missing or Recycle; set it to Retain first".to_owned(),
            ));
        let runners = pods::runners(object, cluster, &mut self.warnings);
        let snapshots = cluster.snapshots.iter().filter(|snapshot| {
            snapshot.metadata.namespace == object.metadata.namespace
                && snapshot.spec.source.persistent_volume_claim_name == object.metadata.name
        });
        let key = format!("{}/{}", self.claim, volume.object.metadata.name);
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_URL, key.as_bytes());
        Some(Facts {
            claim,
            volume,
            source: source?,
            nodes: nodes?,
            class: class?,
            size: size?,
            bytes: Bytes(bytes?),
            policy: policy?,
            runners,
            user: user(object, cluster),
            snapshots: snapshots
                .map(|snapshot| snapshot.metadata.name.as_str())
                .collect(),
            hash: hash.simple().to_string().chars().take(16).collect(),
        })
    }

    /// Warns if a plan for the claim was begun, because the objects may be those of a stopped application.
    fn warn_begun(&mut self, facts: &Facts<'_>, cluster: &Cluster, pod_namespace: &str) {
        let name = facts.name();
        if cluster.claim(pod_namespace, &name).is_some() {
            self.warnings.push(format!(
                "begun: claim {name} in namespace {pod_namespace} is of an earlier plan. Go on with that script, or undo its \
                 steps and save the objects again, because this plan does not know the former replicas and the former policy"
            ));
        }
    }

    fn warn(&mut self, facts: &Facts<'_>, cluster: &Cluster) {
        let spec = &facts.claim.json["spec"];
        if !spec["dataSource"].is_null() || !spec["dataSourceRef"].is_null() {
            self.warnings.push(
                "source: the new claim does not name the source from which its data once came"
                    .to_owned(),
            );
        }
        if !spec["volumeAttributesClassName"].is_null() {
            self.warnings
                .push("volumeAttributesClassName: the new claim has none".to_owned());
        }
        if !facts.snapshots.is_empty() {
            self.warnings.push(format!(
                "snapshots: {} stay with the old volume on its node",
                facts.snapshots.join(", ")
            ));
        }
        let leaves = facts.nodes.target.is_none() || !facts.nodes.is_one_pod();
        if leaves && facts.user.is_some_and(PodSpec::chooses_node) {
            self.warnings.push(
                "node: pods that a nodeSelector or an affinity binds to the old node do not start"
                    .to_owned(),
            );
        }
        if facts.policy == ReclaimPolicy::Retain {
            self.warnings.push(
                "policy: the old volume has Retain, so the new one gets it too; if a step of an earlier plan set it, undo that"
                    .to_owned(),
            );
        }
        let capacity = facts.volume.object.spec.capacity.get("storage");
        let capacity = capacity.and_then(|capacity| quantity::bytes(capacity));
        if facts.is_exclusive() && capacity > Some(facts.bytes.0) {
            self.warnings.push(
                "space: only one pod can use the old volume, so only the step copy, after the stop, shows whether its files fit"
                    .to_owned(),
            );
        }
        let class = facts.class;
        let name = &class.metadata.name;
        if !class.allow_volume_expansion {
            self.warnings.push(format!(
                "growth: class {name} has no allowVolumeExpansion, so the claim cannot grow"
            ));
        }
        if class.volume_binding_mode != "WaitForFirstConsumer" {
            self.warnings.push(format!(
                "binding: class {name} does not wait for the first pod, so its driver chooses the node; if that does not \
                 suit, the step prepare fails before anything is stopped"
            ));
        }
        let (claim, volume) = (&facts.claim.object, &facts.volume.object);
        if volume.spec.csi.is_none() && class.provisioner != "rancher.io/local-path" {
            pods::warn_fs_group(claim, volume, cluster, &mut self.warnings);
        }
    }
}

/// A pod that uses a claim, or the template of one.
fn user<'a>(claim: &'a Claim, cluster: &'a Cluster) -> Option<&'a PodSpec> {
    let workloads = cluster.stateful_sets.iter().chain(&cluster.deployments);
    let mut used = workloads.filter(|workload| workload.uses(&claim.metadata));
    let template = used.next().map(|workload| &workload.spec.template.spec);
    template.or_else(|| cluster.pods_of(claim).next().map(|pod| &pod.spec))
}

fn class_of<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Class, String> {
    let mut classes = cluster.classes.iter();
    let class = classes.find(|class| class.metadata.name == name && manifest::is_name(name));
    let class =
        class.ok_or_else(|| format!("the input has no StorageClass {name:?}; give --class"))?;
    if class.provisioner == "kubernetes.io/no-provisioner" {
        return Err(format!(
            "class {name} makes no volumes; give another --class"
        ));
    }
    Ok(class)
}

fn nodes<'a>(
    volume: &Volume,
    cluster: &'a Cluster,
    options: &'a Options,
) -> Result<Nodes<'a>, String> {
    let spec = &volume.spec;
    let is_directory = spec.host_path.is_some() || spec.local.is_some();
    let names = cluster.nodes.iter().map(|node| &node.metadata.name);
    let reached = names.filter(|name| source::may_be_on(volume, &cluster.nodes, name));
    let is_shared = !is_directory && options.source_node.is_none() && reached.count() > 1;
    let source = if is_shared {
        None
    } else {
        let found = source::node(volume, &cluster.nodes, options.source_node.as_deref());
        Some(found.map_err(|reason| reason.replace("--node with --claim", "--source-node"))?)
    };
    let target = match options.node.as_deref() {
        None if options.from_node.is_none() => source,
        target => target,
    };
    Ok(Nodes { source, target })
}
