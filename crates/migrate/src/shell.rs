//! Commands for a POSIX shell. Each is safe to repeat, and stops where its condition does not hold.

use objects::manifest::{self, Document};
use serde_json::{Map, Value};

/// A command that creates an object from its YAML.
pub(crate) fn create(yaml: &str) -> String {
    format!(
        "kubectl create --filename - <<'EOF'\n{}\nEOF",
        yaml.trim_end()
    )
}

/// As [`create`], and then another command if the object was created.
pub(crate) fn create_then(yaml: &str, next: &str) -> String {
    format!(
        "kubectl create --filename - <<'EOF' &&\n{}\nEOF\n{next}",
        yaml.trim_end()
    )
}

/// A word of a shell.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The YAML of one object that this program builds.
pub(crate) fn yaml(document: &Document) -> Result<String, String> {
    let text = manifest::yaml(std::slice::from_ref(document));
    let text = text.map_err(|error| format!("encode YAML: {error}"))?;
    Ok(text.trim_start_matches("---\n").to_owned())
}

/// The YAML of an object that the cluster had.
pub(crate) fn yaml_of(object: &Value) -> Result<String, String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text = serde_saphyr::to_string_with_options(object, options);
    text.map_err(|error| format!("encode YAML: {error}"))
}

/// Refuses to go on unless the `PersistentVolume` has policy Retain and is the one of this driver and
/// handle. The text is empty for a volume that is not of CSI.
pub(crate) fn check_volume(name: &str, csi: &str) -> String {
    let state = "{.spec.persistentVolumeReclaimPolicy} {.spec.csi.driver} {.spec.csi.volumeHandle}";
    let expected = if csi.is_empty() {
        "Retain  "
    } else {
        &format!("Retain {csi}")
    };
    format!("test \"$(kubectl get pv {name} --output jsonpath='{state}')\" = '{expected}'")
}

/// As [`check_volume`], whatever the policy is.
pub(crate) fn check_handle(name: &str, csi: &str) -> String {
    let handle = "{.spec.csi.driver} {.spec.csi.volumeHandle}";
    format!("test \"$(kubectl get pv {name} --output jsonpath='{handle}')\" = '{csi}'")
}

/// Waits for the end of a pod, and fails if the pod did.
pub(crate) fn wait_pod(pod: &str) -> String {
    let phase = format!("kubectl get {pod} --output jsonpath='{{.status.phase}}'");
    format!(
        "until {phase} | grep -qxE 'Succeeded|Failed'; do\n    sleep 2\ndone &&\n    \
         test \"$({phase})\" = Succeeded"
    )
}

/// Deletes a `PersistentVolume` that [`check_volume`] accepts. Its data stays because of the policy. The
/// finalizer of a bound one is removed; one that is not bound has disappeared by then.
pub(crate) fn delete_volume(name: &str, csi: &str) -> String {
    format!(
        "{} &&\n    kubectl delete pv {name} --wait=false &&\n    \
         {{ kubectl patch pv {name} --type merge --patch '{{\"metadata\": {{\"finalizers\": null}}}}' || \
         {{ {}; }}; }}",
        check_volume(name, csi),
        check_absent(&format!("pv {name}"))
    )
}

/// Lets a volume bind to a new claim of the same name.
pub(crate) fn forget_claim(name: &str) -> String {
    format!(
        "kubectl patch pv {name} --type merge \
         --patch '{{\"spec\": {{\"claimRef\": {{\"uid\": null, \"resourceVersion\": null}}}}}}'"
    )
}

pub(crate) fn patch_policy(name: &str, policy: &str) -> String {
    format!(
        "kubectl patch pv {name} --patch '{{\"spec\": {{\"persistentVolumeReclaimPolicy\": \"{policy}\"}}}}'"
    )
}

pub(crate) fn check_policy(name: &str, policy: &str) -> String {
    format!(
        "test \"$(kubectl get pv {name} --output jsonpath='{{.spec.persistentVolumeReclaimPolicy}}')\" = {policy}"
    )
}

/// Succeeds if no object has this name. A failing kubectl is no proof.
pub(crate) fn check_absent(object: &str) -> String {
    format!("found=$(kubectl get {object} --ignore-not-found --output name) && test -z \"$found\"")
}

/// Succeeds if no pod of the namespace names the claim, ended and terminating ones included.
pub(crate) fn check_no_pods(namespace: &str, claim: &str) -> String {
    format!(
        "claims=$(kubectl --namespace {namespace} get pods \
         --output jsonpath='{{.items[*].spec.volumes[*].persistentVolumeClaim.claimName}}') &&\n    \
         ! echo \"$claims\" | tr ' ' '\\n' | grep -qxF {claim}"
    )
}

pub(crate) fn wait_phase(object: &str, phase: &str, timeout: &str) -> String {
    format!("kubectl wait {object} --for=jsonpath='{{.status.phase}}'={phase} --timeout={timeout}")
}

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

/// An object as it can be created again.
pub(crate) fn fresh(json: &Value) -> Value {
    let mut json = json.clone();
    if let Some(object) = json.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = json["metadata"].as_object_mut() {
        metadata.retain(|key, _| !FOREIGN.contains(&key.as_str()));
    }
    if let Some(annotations) = annotations(&mut json) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    json
}

pub(crate) fn annotations(json: &mut Value) -> Option<&mut Map<String, Value>> {
    json["metadata"].get_mut("annotations")?.as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_created_without_the_fields_of_the_server() {
        let json = serde_json::json!({
            "kind": "PersistentVolume",
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "1", "finalizers": ["x"], "labels": {"b": "c"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "d": "e"},
            },
            "spec": {"claimRef": {"uid": "v"}},
            "status": {"phase": "Bound"},
        });
        let expected = serde_json::json!({
            "kind": "PersistentVolume",
            "metadata": {"name": "a", "labels": {"b": "c"}, "annotations": {"d": "e"}},
            "spec": {"claimRef": {"uid": "v"}},
        });
        assert_eq!(fresh(&json), expected);
    }
}
