//! The objects in the steps: the pods that import and export, and the old objects as they were.

use objects::manifest::{
    Container, Document, Metadata, Object, PodSpec, SecurityContext, Toleration,
};
use objects::{ObjectId, ReclaimPolicy};
use serde_json::Value;

use crate::Options;
use crate::planned::Facts;
use crate::shell::{annotations, fresh};

/// The longest name of the new `PersistentVolume` before its ending.
const MAX_STEM: usize = 200;

pub(super) fn import_command(facts: &Facts<'_>, options: &Options) -> Vec<String> {
    let mut words: Vec<String> = ["/rootcellar", "volume", "import"]
        .map(str::to_owned)
        .to_vec();
    words.push(facts.source().to_owned());
    words.push("--host".to_owned());
    let mut flag = |flag: &str, value: &str| words.extend([flag.to_owned(), value.to_owned()]);
    flag("--endpoint", &options.endpoint());
    flag("--pool", &facts.pool.name);
    flag("--name", facts.name.as_str());
    flag(
        "--claim",
        &format!("{}/{}", facts.namespace(), facts.claim_name()),
    );
    flag("--size", &facts.size.to_string());
    for mode in &facts.modes {
        flag("--access-mode", mode.short());
    }
    if !facts.class.is_empty() {
        flag("--class", &facts.class);
    }
    flag("--policy", facts.policy.as_str());
    if facts.modes.iter().any(|mode| mode.is_shared()) {
        flag("--sharing", "node");
    }
    for option in &facts.mount_options {
        flag("--mount-option", option);
    }
    words
}

/// The name of the pod that runs a command for a volume.
pub(super) fn pod_name(facts: &Facts<'_>, verb: &str) -> String {
    format!("rootcellar-{verb}-{}", facts.handle.hash())
}

/// A pod that runs a command in the mount namespace of the node, once.
pub(super) fn pod(
    facts: &Facts<'_>,
    options: &Options,
    verb: &'static str,
    command: Vec<String>,
) -> Document {
    Document::Pod(Object {
        api_version: "v1",
        kind: "Pod",
        metadata: Metadata {
            name: pod_name(facts, verb),
            namespace: Some(options.pod_namespace.clone()),
            ..Metadata::default()
        },
        spec: PodSpec {
            node_name: facts.node.to_owned(),
            host_pid: true,
            restart_policy: "Never",
            tolerations: vec![Toleration { operator: "Exists" }],
            containers: vec![Container {
                name: verb,
                image: options.image.clone(),
                command,
                security_context: SecurityContext { privileged: true },
            }],
        },
    })
}

/// The name of a second `PersistentVolume` for the same data.
pub(super) fn second_name(old: &str) -> String {
    let stem = old
        .get(..MAX_STEM)
        .unwrap_or(old)
        .trim_end_matches(['.', '-']);
    format!("{stem}-rootcellar")
}

/// The old volume as it is created again, with policy Retain until the first step is undone. The claim
/// keeps its uid, because it exists.
pub(super) fn old_volume(json: &Value) -> Value {
    let mut json = fresh(json);
    let spec = &mut json["spec"];
    spec["persistentVolumeReclaimPolicy"] = Value::from(ReclaimPolicy::Retain.as_str());
    if let Some(claim) = spec["claimRef"].as_object_mut() {
        claim.remove("resourceVersion");
    }
    json
}

/// The old claim as it is created again. Annotations about its binding would make it Lost.
pub(super) fn old_claim(json: &Value) -> Value {
    let mut json = fresh(json);
    if let Some(metadata) = json["metadata"].as_object_mut() {
        metadata.remove("ownerReferences");
    }
    if let Some(annotations) = annotations(&mut json) {
        annotations.retain(|key, _| {
            !key.starts_with("pv.kubernetes.io/")
                && !key.starts_with("volume.kubernetes.io/")
                && !key.starts_with("volume.beta.kubernetes.io/")
        });
    }
    if let Some(spec) = json["spec"].as_object_mut() {
        spec.retain(|key, _| !key.starts_with("dataSource") && key != "volumeAttributesClassName");
    }
    json
}
