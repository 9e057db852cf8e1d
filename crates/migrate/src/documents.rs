//! The objects in a plan: the pods that import and export, and the old volume as it was.

use objects::manifest::{self, Container, Document, Metadata, Object, PodSpec};
use objects::{ObjectId, ReclaimPolicy};
use serde_json::{Value, json};

use crate::Options;
use crate::planned::Facts;

/// The fields that the API server writes, and those that would make an object another one.
const FOREIGN: [&str; 8] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "finalizers",
];

pub(crate) fn import_command(facts: &Facts<'_>, options: &Options) -> Vec<String> {
    let mut words: Vec<String> = ["/rootcellar", "volume", "import"]
        .map(str::to_owned)
        .to_vec();
    words.push(facts.directory.clone());
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

pub(crate) fn export_command(facts: &Facts<'_>, options: &Options) -> Vec<String> {
    let (handle, endpoint) = (facts.handle.to_string(), options.endpoint());
    let words = ["/rootcellar", "volume", "export", &handle, "--host"];
    let words = words.into_iter().chain(["--endpoint", &endpoint]);
    words.map(str::to_owned).collect()
}

/// The name of the pod that runs a command for a volume.
pub(crate) fn pod_name(facts: &Facts<'_>, verb: &str) -> String {
    format!("rootcellar-{verb}-{}", facts.handle.hash())
}

/// A pod that runs a command in the mount namespace of the node, once.
pub(crate) fn pod(
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
            namespace: Some(options.common.pod_namespace.clone()),
            ..Metadata::default()
        },
        spec: PodSpec {
            node_name: facts.node.to_owned(),
            host_pid: true,
            restart_policy: "Never",
            tolerations: json!([{ "operator": "Exists" }]),
            containers: vec![Container {
                name: verb,
                image: options.common.image.clone(),
                command,
                security_context: json!({ "privileged": true }),
            }],
        },
    })
}

/// The old volume as it is created again, with policy Retain until the first step is undone. The claim
/// keeps its uid, because it exists.
pub(crate) fn old_volume(json: &Value) -> Result<String, String> {
    let mut json = json.clone();
    if let Some(object) = json.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = json["metadata"].as_object_mut() {
        metadata.retain(|key, _| !FOREIGN.contains(&key.as_str()));
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    let spec = &mut json["spec"];
    spec["persistentVolumeReclaimPolicy"] = Value::from(ReclaimPolicy::Retain.as_str());
    if let Some(claim) = spec["claimRef"].as_object_mut() {
        claim.remove("resourceVersion");
    }
    yaml_of(&json)
}

/// The YAML of a value.
pub(crate) fn yaml_of(json: &Value) -> Result<String, String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text = serde_saphyr::to_string_with_options(json, options);
    text.map_err(|error| format!("encode YAML: {error}"))
}

/// The YAML of one object that this program builds.
pub(crate) fn yaml(document: &Document) -> Result<String, String> {
    let text = manifest::yaml(std::slice::from_ref(document));
    let text = text.map_err(|error| format!("encode YAML: {error}"))?;
    Ok(text.trim_start_matches("---\n").to_owned())
}
