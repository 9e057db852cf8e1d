//! The pods of a claim, and the workloads that run them.

use std::collections::BTreeMap;

use crate::cluster::{Claim, Cluster, PodSpec, Volume};
use crate::planned::Runners;

/// The runners of a claim. Those that cannot be scaled are also a warning.
pub(crate) fn runners(claim: &Claim, cluster: &Cluster, warnings: &mut Vec<String>) -> Runners {
    let mut workloads = BTreeMap::new();
    let mut runners = Runners::default();
    let kinds = [
        ("deployment", &cluster.deployments),
        ("statefulset", &cluster.stateful_sets),
    ];
    for (kind, all) in kinds {
        for workload in all.iter().filter(|workload| workload.uses(&claim.metadata)) {
            workloads.insert((kind, workload.metadata.name.as_str()), workload);
        }
    }
    for pod in cluster.pods_of(claim) {
        let name = &pod.metadata.name;
        let mut owners = pod.metadata.owner_references.iter();
        let owner = match owners.find(|owner| owner.controller) {
            None => {
                warnings.push(format!(
                    "pods: pod {name} has no controller: the step stop deletes it, and you create it again"
                ));
                runners.bare_pods.push(name.clone());
                continue;
            }
            Some(owner) => {
                let of = workload_of(&owner.kind, &owner.name);
                if of.is_some_and(|of| workloads.contains_key(&of)) {
                    continue;
                }
                format!("{} {}", owner.kind, owner.name)
            }
        };
        warnings.push(format!(
            "pods: pod {name} is of {owner}, which this plan cannot scale: stop it yourself"
        ));
        runners
            .others
            .push(format!("{owner}, which runs pod {name}"));
    }
    for ((kind, name), workload) in workloads {
        let replicas = workload.replicas();
        if replicas == 0 {
            continue;
        }
        let workload_name = format!("{kind}/{name}");
        runners
            .workloads
            .push(format!("{workload_name}={replicas}"));
        let retention = &workload.spec.persistent_volume_claim_retention_policy;
        if retention.when_scaled == "Delete" {
            runners.deleting.push(workload_name);
        }
    }
    runners
}

/// The workload behind the controller of a pod. A `ReplicaSet` has the name of its Deployment and a hash.
fn workload_of<'a>(kind: &str, name: &'a str) -> Option<(&'static str, &'a str)> {
    match kind {
        "StatefulSet" => Some(("statefulset", name)),
        "ReplicaSet" => Some(("deployment", name.rsplit_once('-')?.0)),
        _ => None,
    }
}

/// Refuses a claim that is deleted with a pod, and warns of an owner that may make the claim again.
pub(crate) fn check_owners(claim: &Claim, refusals: &mut Vec<String>, warnings: &mut Vec<String>) {
    for owner in &claim.metadata.owner_references {
        match owner.kind.as_str() {
            "Pod" => refusals.push(format!(
                "its claim is an ephemeral volume of pod {} and is deleted with it",
                owner.name
            )),
            "StatefulSet" => {}
            kind => warnings.push(format!(
                "{kind} {} owns the claim and may make it again: stop its controller first",
                owner.name
            )),
        }
    }
}

/// Refuses a directory of another node than that of its pods, because a pod on the wrong node gets an empty directory.
pub(crate) fn check_node(
    claim: &Claim,
    volume: &Volume,
    cluster: &Cluster,
    node: &str,
) -> Result<(), String> {
    let spec = &volume.spec;
    let is_directory = spec.host_path.is_some() || spec.local.is_some();
    let is_elsewhere = |on: &str| is_directory && !on.is_empty() && on != node;
    let mut pods = cluster.pods_of(claim);
    match pods.find(|pod| is_elsewhere(&pod.spec.node_name)) {
        Some(pod) => Err(format!(
            "its pod {} runs on node {}, so its files may not be on node {node}",
            pod.metadata.name, pod.spec.node_name
        )),
        None => Ok(()),
    }
}

/// Warns of pods with fsGroup. Kubernetes leaves hostPath volumes alone, and changes the others.
pub(crate) fn warn_fs_group(
    claim: &Claim,
    volume: &Volume,
    cluster: &Cluster,
    warnings: &mut Vec<String>,
) {
    if volume.spec.local.is_some() {
        return;
    }
    let pods = cluster.pods_of(claim).map(|pod| &pod.spec);
    let workloads = cluster.stateful_sets.iter().chain(&cluster.deployments);
    let used = workloads.filter(|workload| workload.uses(&claim.metadata));
    let specs = pods.chain(used.map(|workload| &workload.spec.template.spec));
    let mut groups: Vec<(i64, bool)> = specs.filter_map(group).collect();
    groups.sort_unstable();
    groups.dedup();
    for (group, only_on_mismatch) in groups {
        let policy = if only_on_mismatch {
            "unless the root already has this group, g+rwx and setgid"
        } else {
            "at each start; fsGroupChangePolicy: OnRootMismatch limits that"
        };
        warnings.push(format!(
            "fsGroup: the pods have fsGroup {group}, which begins to act: the kubelet gives every file \
             this group and group rights, {policy}; databases such as PostgreSQL refuse such a directory"
        ));
    }
}

fn group(spec: &PodSpec) -> Option<(i64, bool)> {
    let context = &spec.security_context;
    let policy = context.fs_group_change_policy.as_deref();
    Some((context.fs_group?, policy == Some("OnRootMismatch")))
}
