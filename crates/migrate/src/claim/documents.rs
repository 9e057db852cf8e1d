//! The objects that the steps make for a claim, and the variables of its plan.

use objects::manifest::{self, ClaimMode};
use objects::script::printable;
use serde_json::{Value, json};

use super::facts::Facts;
use super::selection::{PREFIX, STEPS};
use crate::documents::yaml_of;
use crate::{Common, source};

/// The annotations that describe the claim's binding, or that belong to the object that the claim was.
const FOREIGN: [&str; 9] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "pv.kubernetes.io/migrated-to",
    "volume.beta.kubernetes.io/storage-class",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-resizer",
];

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// The label of the pods of a plan, and of the new volume.
const MOVE: &str = "rootcellar.dev/move";

/// The volumes that a pod mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Target,
    Both,
}

impl Facts<'_> {
    pub(super) fn name(&self) -> String {
        format!("{PREFIX}{}", self.hash)
    }

    /// The name of the old volume's second `PersistentVolume`, of its claim, and of a pod that mounts only that.
    fn source_name(&self) -> String {
        format!("{}-source", self.name())
    }

    pub(super) fn change(&self) -> String {
        let to = |node: Option<&str>, other: &str| {
            node.map_or(other.to_owned(), |node| format!("node {node}"))
        };
        let place = match (self.nodes.source, self.nodes.target) {
            (Some(from), Some(to)) if from == to => format!("on node {from}"),
            (Some(from), target) => {
                format!("from node {from} to {}", to(target, "any other node"))
            }
            (None, target) => format!("on {}", to(target, "any node")),
        };
        format!(
            "PersistentVolume {} is copied into a new volume of class {} with {}, {place}",
            self.volume.object.metadata.name, self.class.metadata.name, self.size
        )
    }

    fn modes(&self) -> Vec<&'static str> {
        let modes = &self.claim.object.spec.access_modes;
        let names = modes.iter().map(|mode| match mode {
            ClaimMode::ReadWriteOnce => "ReadWriteOnce",
            ClaimMode::ReadWriteOncePod => "ReadWriteOncePod",
            ClaimMode::ReadOnlyMany => "ReadOnlyMany",
            ClaimMode::ReadWriteMany => "ReadWriteMany",
        });
        names.collect()
    }

    fn mode(&self) -> &'static str {
        if self.is_block() {
            "Block"
        } else {
            "Filesystem"
        }
    }

    pub(super) fn variables(&self, common: &Common) -> Result<Vec<(&'static str, String)>, String> {
        let metadata = &self.claim.object.metadata;
        let volume = &self.volume.object;
        for name in [&metadata.name, &volume.metadata.name] {
            if !manifest::is_name(name) {
                return Err(format!("{name:?} is not a name"));
            }
        }
        let provisioned = volume.spec.csi.is_some() || !source::provisioner(volume).is_empty();
        let is_ours = self.class.provisioner == common.driver.driver_name;
        let word = |is: bool| if is { "yes" } else { "" }.to_owned();
        let mut variables = vec![
            ("steps", STEPS.to_owned()),
            ("namespace", metadata.namespace.clone()),
            ("claim", metadata.name.clone()),
            ("volume", volume.metadata.name.clone()),
            ("volume_uid", volume.metadata.uid.clone()),
            ("policy", self.policy.as_str().to_owned()),
            ("node", self.nodes.source.unwrap_or("any").to_owned()),
            ("size", self.bytes.0.to_string()),
            ("source_fields", self.source_fields()),
            ("provisioned", word(provisioned)),
            ("driver", word(is_ours)),
            ("workloads", self.runners.workloads.join(" ")),
            ("deleting", self.runners.deleting.join(" ")),
            ("bare_pods", self.runners.bare_pods.join(" ")),
            ("others", printable(&self.runners.others.join("; "))),
            ("pod_namespace", common.pod_namespace.clone()),
            ("name", self.name()),
            ("id", self.hash.clone()),
        ];
        variables.extend(self.snapshot_variables(common));
        variables.extend(self.object_variables(common)?);
        Ok(variables)
    }

    /// The fields by which kubectl prints the source of a volume.
    fn source_fields(&self) -> String {
        let fields = match self.source {
            "csi" => "{.spec.csi.driver} {.spec.csi.volumeHandle}",
            "hostPath" => "{.spec.hostPath.path} {.spec.nodeAffinity}",
            other => return format!("{{.spec.{other}}} {{.spec.nodeAffinity}}"),
        };
        fields.to_owned()
    }

    fn snapshot_variables(&self, common: &Common) -> [(&'static str, String); 3] {
        let csi = self.volume.object.spec.csi.as_ref();
        let is_ours = csi.is_some_and(|csi| csi.driver == common.driver.driver_name);
        let node = self.nodes.source.unwrap_or("their node");
        let fate = if is_ours {
            format!(
                "They stay on {node} until you delete them, and a restore makes its volume there."
            )
        } else {
            "Their driver may need the old volume for them, or delete them with it. Delete them first, or keep the old volume."
                .to_owned()
        };
        let handle = csi.map(|csi| format!("{} {}", csi.driver, csi.volume_handle));
        [
            ("old_handle", handle.unwrap_or_default()),
            (
                "keeps_snapshots",
                if is_ours { "yes" } else { "" }.to_owned(),
            ),
            ("snapshots_fate", fate),
        ]
    }

    fn object_variables(&self, common: &Common) -> Result<Vec<(&'static str, String)>, String> {
        let (target_pod, source_at, source_pod) = if self.nodes.is_one_pod() {
            let pod = self.pod(common, &self.name(), Side::Both);
            (pod, self.name(), String::new())
        } else {
            let [target, source] = [
                (self.name(), Side::Target),
                (self.source_name(), Side::Source),
            ]
            .map(|(name, side)| self.with_key(self.pod(common, &name, side)));
            (target, self.source_name(), yaml_of(&source)?)
        };
        let probe_pod = if self.is_exclusive() {
            yaml_of(&self.pod(common, &format!("{}-probe", self.name()), Side::Target))?
        } else {
            String::new()
        };
        Ok(vec![
            ("source_at", source_at),
            ("source_volume", yaml_of(&self.source_volume(common))?),
            ("source_claim", yaml_of(&self.source_claim(common))?),
            ("target_claim", yaml_of(&self.target_claim(common))?),
            ("source_pod", source_pod),
            ("target_pod", yaml_of(&target_pod)?),
            ("probe_pod", probe_pod),
            ("old_claim", yaml_of(&self.own_claim(true))?),
            ("new_claim", yaml_of(&self.own_claim(false))?),
            ("key_secret", yaml_of(&self.key_secret(common))?),
        ])
    }

    /// A second `PersistentVolume` of the old volume, for the pods of the plan.
    fn source_volume(&self, common: &Common) -> Value {
        let old = &self.volume.json["spec"];
        let name = self.source_name();
        let mut spec = json!({
            "accessModes": self.modes(),
            "capacity": old["capacity"],
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": name,
                "namespace": common.pod_namespace,
            },
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "volumeMode": self.mode(),
        });
        for key in ["mountOptions", "nodeAffinity", self.source] {
            if !old[key].is_null() {
                spec[key] = old[key].clone();
            }
        }
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    }

    fn source_claim(&self, common: &Common) -> Value {
        let name = self.source_name();
        let capacity = &self.volume.json["spec"]["capacity"]["storage"];
        let mut spec = self.claim_spec("", capacity);
        spec["volumeName"] = name.clone().into();
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": common.pod_namespace},
            "spec": spec,
        })
    }

    /// The claim of the new volume, until the claim that is moved has it. The step adds the volume, if there is one.
    fn target_claim(&self, common: &Common) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.name(), "namespace": common.pod_namespace},
            "spec": self.claim_spec(&self.class.metadata.name, &self.size.into()),
        })
    }

    /// The Secret of the key with which one pod sends to the other. The step adds the key, so it is in no file of the plan.
    fn key_secret(&self, common: &Common) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name(), "namespace": common.pod_namespace},
        })
    }

    fn claim_spec(&self, class: &str, size: &Value) -> Value {
        json!({
            "accessModes": self.modes(),
            "resources": {"requests": {"storage": size}},
            "storageClassName": class,
            "volumeMode": self.mode(),
        })
    }

    /// The claim that is moved, as it is made again. The step adds its old or its new volume.
    fn own_claim(&self, is_old: bool) -> Value {
        let old = &self.claim.json;
        let metadata = &self.claim.object.metadata;
        let annotations = metadata.annotations.iter();
        let annotations: serde_json::Map<String, Value> = annotations
            .filter(|(key, _)| !FOREIGN.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone().into()))
            .collect();
        let mut kept = json!({"name": metadata.name, "namespace": metadata.namespace});
        for (key, value) in [
            ("labels", old["metadata"]["labels"].clone()),
            ("annotations", annotations.into()),
        ] {
            if value.as_object().is_some_and(|map| !map.is_empty()) {
                kept[key] = value;
            }
        }
        // A StatefulSet adds itself again. If it was made again meanwhile, its old uid would have the claim deleted.
        let owners = old["metadata"]["ownerReferences"].as_array();
        let owners = owners.into_iter().flatten();
        let owners: Vec<&Value> = owners
            .filter(|owner| owner["kind"] != "StatefulSet")
            .collect();
        if !owners.is_empty() {
            kept["ownerReferences"] = json!(owners);
        }
        let spec = if is_old {
            let class = self.claim.object.spec.storage_class_name.as_deref();
            let size = &old["spec"]["resources"]["requests"]["storage"];
            self.claim_spec(class.unwrap_or_default(), size)
        } else {
            self.claim_spec(&self.class.metadata.name, &self.size.into())
        };
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": kept, "spec": spec})
    }

    /// A pod that mounts one volume or both, and waits for commands.
    fn pod(&self, common: &Common, name: &str, side: Side) -> Value {
        let (mut mounts, mut devices, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
        for (other, volume, claim) in [
            (Side::Target, "source", self.source_name()),
            (Side::Source, "target", self.name()),
        ] {
            if side == other {
                continue;
            }
            volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
            let path = format!("/{volume}");
            if self.is_block() {
                devices.push(json!({"name": volume, "devicePath": path}));
            } else {
                let is_source = volume == "source";
                mounts.push(json!({"name": volume, "mountPath": path, "readOnly": is_source}));
            }
        }
        let driver = &common.driver.driver_name;
        if side != Side::Source && self.class.provisioner == *driver {
            let path = format!("{}/plugins/{driver}", common.kubelet_dir);
            mounts.push(json!({"name": "driver", "mountPath": "/driver"}));
            volumes.push(json!({"name": "driver", "hostPath": {"path": path}}));
        }
        let mut spec = json!({
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "copy",
                "image": common.image,
                "command": ["/rootcellar-copy", "idle"],
                // Root alone reads and makes every file. A privileged container is also one whose volumes no runtime
                // labels again.
                "securityContext": {"privileged": true, "runAsUser": 0},
                "volumeDevices": devices,
                "volumeMounts": mounts,
            }],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 5,
            "volumes": volumes,
        });
        self.place(side, &mut spec);
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "labels": {MOVE: self.name()},
                "name": name,
                "namespace": common.pod_namespace,
            },
            "spec": spec,
        })
    }

    /// A pod that mounts the key as well.
    fn with_key(&self, mut pod: Value) -> Value {
        let secret = json!({"secretName": self.name(), "defaultMode": 0o400});
        for (pointer, added) in [
            (
                "/spec/containers/0/volumeMounts",
                json!({"name": "key", "mountPath": "/key", "readOnly": true}),
            ),
            ("/spec/volumes", json!({"name": "key", "secret": secret})),
        ] {
            let list = pod.pointer_mut(pointer).and_then(Value::as_array_mut);
            if let Some(list) = list {
                list.push(added);
            }
        }
        pod
    }

    /// Chooses the node of a pod: a certain one in any state, or one that suits the pods of the claim.
    fn place(&self, side: Side, spec: &mut Value) {
        let at = match (side, self.nodes.target) {
            (Side::Source, _) => self.nodes.source,
            (_, target) => target,
        };
        let field = |operator: &str, node: &str| json!({"key": "metadata.name", "operator": operator, "values": [node]});
        let mut terms = vec![json!({})];
        if let Some(node) = at {
            spec["tolerations"] = json!([{"operator": "Exists"}]);
            terms = vec![json!({"matchFields": [field("In", node)]})];
        } else {
            if let Some(user) = self.user {
                for (key, value) in [
                    ("tolerations", &user.tolerations),
                    ("nodeSelector", &user.node_selector),
                ] {
                    if !value.is_null() {
                        spec[key] = value.clone();
                    }
                }
                let pointer = format!("/nodeAffinity/{REQUIRED}/nodeSelectorTerms");
                let required = user.affinity.pointer(&pointer).and_then(Value::as_array);
                if let Some(required) = required {
                    terms.clone_from(required);
                }
            }
            if let Some(node) = self.nodes.source {
                for term in &mut terms {
                    let mut fields = term["matchFields"].as_array().cloned().unwrap_or_default();
                    fields.push(field("NotIn", node));
                    term["matchFields"] = fields.into();
                }
            }
        }
        terms.retain(|term| term.as_object().is_some_and(|term| !term.is_empty()));
        if !terms.is_empty() {
            spec["affinity"] = json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}});
        }
    }
}
