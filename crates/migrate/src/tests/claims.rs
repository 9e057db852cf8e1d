//! The plans for claims: which claims they are for, what they refuse, and the objects in them.

use serde_json::{Value, json};

use super::{fixture, parsed};
use crate::claim::{Options, Plan, Report};
use crate::cluster::Cluster as Objects;
use crate::{Cli, Command};

use clap::Parser;

pub(super) const NAME: &str = "shop/data-db-0";

fn options(line: &str) -> Options {
    let words = [
        "rootcellar-migrate",
        "claim",
        "--objects=o",
        "--image=registry.example/rc:1",
    ];
    let words = words.into_iter().chain(line.split_whitespace());
    match Cli::try_parse_from(words).unwrap().command {
        Command::Claim(options) => *options,
        Command::Plan(_) => unreachable!(),
    }
}

fn class(name: &str, mode: &str, provisioner: &str) -> Value {
    json!({"kind": "StorageClass", "metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": provisioner,
           "allowVolumeExpansion": true})
}

pub(super) fn objects() -> Vec<Value> {
    let mut objects = fixture("local-path");
    objects.push(class("fast", "WaitForFirstConsumer", "csi.rootcellar.dev"));
    objects.push(class("now", "Immediate", "csi.rootcellar.dev"));
    objects.push(class(
        "none",
        "WaitForFirstConsumer",
        "kubernetes.io/no-provisioner",
    ));
    objects
}

/// The first object of a kind; of the claims, that of `NAME`.
pub(super) fn object<'a>(objects: &'a mut [Value], kind: &str) -> &'a mut Value {
    let mut found = objects.iter_mut().filter(|object| object["kind"] == kind);
    found
        .find(|object| kind != "PersistentVolumeClaim" || object["metadata"]["name"] == "data-db-0")
        .unwrap()
}

pub(super) fn variable<'a>(plan: &'a Plan, name: &str) -> &'a str {
    let mut variables = plan.variables.iter();
    &variables.find(|(known, _)| *known == name).unwrap().1
}

pub(super) fn report(objects: &[Value], line: &str) -> Result<Report, String> {
    let text: String = objects.iter().map(Value::to_string).collect();
    Report::new(&Objects::parse(text.as_bytes()).unwrap(), &options(line))
}

pub(super) fn only(objects: &[Value], line: &str) -> Plan {
    let mut report = report(objects, line).unwrap();
    assert_eq!(report.claims.len(), 1);
    report.claims.remove(0)
}

pub(super) fn refuses(objects: &[Value], line: &str, reason: &str) {
    let plan = only(objects, &format!("{NAME} {line}"));
    let is_named = plan.refusals.iter().any(|found| found.contains(reason));
    assert!(is_named, "{line}: {plan:?}");
    assert!(plan.variables.is_empty(), "{line}");
}

#[test]
fn each_state_that_is_refused_has_its_reason() {
    let now = json!("2026-01-01T00:00:00Z");
    let (volume, claim) = ("PersistentVolume", "PersistentVolumeClaim");
    let cases = [
        (
            claim,
            "/metadata/deletionTimestamp",
            now.clone(),
            "being deleted",
        ),
        (volume, "/metadata/deletionTimestamp", now, "being deleted"),
        (claim, "/status/phase", json!("Lost"), "it is Lost"),
        (claim, "/status/phase", json!("Pending"), "it is Pending"),
        (
            volume,
            "/status/phase",
            json!("Released"),
            "not bound to it",
        ),
        (
            claim,
            "/spec/accessModes",
            json!(["ReadOnlyMany"]),
            "allows to write",
        ),
        (
            claim,
            "/spec/accessModes",
            json!(["ReadWriteMany"]),
            "sharing: node",
        ),
        (
            volume,
            "/spec/persistentVolumeReclaimPolicy",
            json!("Recycle"),
            "Recycle",
        ),
        (
            claim,
            "/metadata/ownerReferences",
            json!([{"kind": "Pod", "name": "p"}]),
            "ephemeral",
        ),
    ];
    for (kind, pointer, value, reason) in cases {
        let mut all = objects();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object(&mut all, kind).pointer_mut(parent).unwrap()[key] = value;
        refuses(&all, "--class fast", reason);
    }
    let mut all = objects();
    object(&mut all, claim)["spec"]["volumeMode"] = json!("Block");
    refuses(&all, "--class fast --size 100Mi", "cannot become smaller");
}

#[test]
fn each_option_that_is_refused_has_its_reason() {
    for (line, reason) in [
        ("", "nothing would change"),
        ("--node n1", "nothing would change"),
        ("--class none", "makes no volumes"),
        ("--class missing", "no StorageClass"),
        ("--class fast --size much", "not a size"),
        ("--class fast --size 0", "not a size"),
        ("--class fast --size=-1", "not a size"),
    ] {
        refuses(&objects(), line, reason);
    }
    for (line, reason) in [
        ("shop/other --class fast", "no claim shop/other"),
        ("shop/data-db-0 --node n9", "no node n9"),
        ("shop/data-db-0 --source-node n9", "no node n9"),
        ("--from-node n9", "no node n9"),
        ("--from-node n1 --node n1", "--node is the node"),
    ] {
        let problem = report(&objects(), line).unwrap_err();
        assert!(problem.contains(reason), "{problem}");
    }
}

#[test]
fn the_claims_of_a_node_are_found() {
    let found = report(&objects(), "--from-node n1 --class fast").unwrap();
    let script = found.script().to_string();
    assert!(script.contains("objects='shop/data-db-0'"), "{script}");
    assert!(script.contains("NotIn"), "{script}");
    let none = report(&objects(), "--from-node n2 --class fast").unwrap();
    assert!(none.claims.is_empty());
}

#[test]
fn no_claim_of_a_node_is_left_out_in_silence() {
    let line = "--from-node n1 --class fast";
    let mut all = objects();
    let volume = object(&mut all, "PersistentVolume");
    volume["spec"]["nodeAffinity"] = Value::Null;
    let skipped = report(&all, line).unwrap().to_string();
    let reason = "shop/data-db-0: it names no node; give the claim and --source-node";
    assert!(skipped.contains(reason), "{skipped}");
    let claim = object(&mut all, "PersistentVolumeClaim");
    claim["status"]["phase"] = "Lost".into();
    let skipped = report(&all, line).unwrap().to_string();
    assert!(skipped.contains("shop/data-db-0: it is Lost"), "{skipped}");
    // The objects of a plan that was begun.
    let claim = object(&mut all, "PersistentVolumeClaim");
    claim["metadata"]["namespace"] = "rootcellar-system".into();
    claim["metadata"]["name"] = "rootcellar-move-1-source".into();
    let skipped = report(&all, line).unwrap().to_string();
    assert!(!skipped.contains("rootcellar-move"), "{skipped}");
}

#[test]
fn a_source_is_another_volume_if_any_part_differs() {
    let line = &format!("{NAME} --class fast");
    let mut all = objects();
    let mut other = object(&mut all, "PersistentVolume").clone();
    other["metadata"]["name"] = "other".into();
    let values = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values";
    let mut elsewhere = other.clone();
    *elsewhere.pointer_mut(values).unwrap() = json!(["n2"]);
    all.push(elsewhere);
    assert_eq!(only(&all, line).refusals, Vec::<String>::new());
    all.push(other);
    assert!(only(&all, line).refusals[0].contains("PersistentVolume other has the same volume"));

    let mut all = objects();
    let volume = object(&mut all, "PersistentVolume");
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.remove("hostPath");
    spec.remove("nodeAffinity");
    volume["spec"]["nfs"] = json!({"server": "a", "path": "/one"});
    let mut other = volume.clone();
    other["metadata"]["name"] = "other".into();
    other["spec"]["nfs"]["path"] = "/two".into();
    all.push(other.clone());
    assert_eq!(only(&all, line).refusals, Vec::<String>::new());
    other["spec"]["nfs"]["path"] = "/one".into();
    all.push(other);
    assert_eq!(only(&all, line).refusals.len(), 1);
}

#[test]
fn the_claim_keeps_its_texts() {
    let mut all = objects();
    let claim = object(&mut all, "PersistentVolumeClaim");
    claim["metadata"]["annotations"]["volume.example.com/kept"] = "volumeName: NEW-VOLUME".into();
    let plan = only(&all, &format!("{NAME} --class fast --size 2Gi"));
    let new = variable(&plan, "new_claim");
    let claim = parsed(&format!("{new}  volumeName: pvc-new\n"));
    let annotations =
        json!({"example.com/kept": "1", "volume.example.com/kept": "volumeName: NEW-VOLUME"});
    assert_eq!(claim["metadata"]["annotations"], annotations);
    assert_eq!(claim["metadata"]["labels"], json!({"app": "data-db-0"}));
    assert_eq!(
        claim["spec"],
        json!({
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "2Gi"}},
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "volumeName": "pvc-new",
        })
    );
    let old = parsed(&format!(
        "{}  volumeName: pvc-11\n",
        variable(&plan, "old_claim")
    ));
    assert_eq!(old["spec"]["storageClassName"], "old");
    assert_eq!(old["spec"]["resources"]["requests"]["storage"], "1Gi");
}

#[test]
fn the_pods_of_a_block_volume_have_devices() {
    let mut all = objects();
    for kind in ["PersistentVolume", "PersistentVolumeClaim"] {
        object(&mut all, kind)["spec"]["volumeMode"] = "Block".into();
    }
    let plan = only(&all, &format!("{NAME} --class fast --node n2"));
    let devices = |name: &str| {
        let pod = parsed(variable(&plan, name));
        assert_eq!(pod["metadata"]["namespace"], "rootcellar-system");
        pod["spec"]["containers"][0]["volumeDevices"].clone()
    };
    let (source, target) = (
        json!([{"name": "source", "devicePath": "/source"}]),
        json!([{"name": "target", "devicePath": "/target"}]),
    );
    assert_eq!(devices("source_pod"), source);
    assert_eq!(devices("target_pod"), target);
    assert_eq!(devices("probe_pod"), target);
    for name in ["source_volume", "source_claim", "target_claim"] {
        assert_eq!(parsed(variable(&plan, name))["spec"]["volumeMode"], "Block");
    }
}

/// The new volume is on a node on which the pods of the claim can run.
#[test]
fn any_other_node_suits_the_pods() {
    let mut all = objects();
    let pods = &mut object(&mut all, "StatefulSet")["spec"]["template"]["spec"];
    let expressions = json!([{"key": "disk", "operator": "Exists"}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    pods["nodeSelector"] = json!({"zone": "a"});
    pods["tolerations"] = json!([{"key": "db"}]);
    pods["affinity"] = json!({"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}});
    let report = report(&all, "--from-node n1 --class fast").unwrap();
    let pod = parsed(variable(&report.claims[0], "target_pod"));
    assert_eq!(pod["spec"]["nodeSelector"], json!({"zone": "a"}));
    assert_eq!(pod["spec"]["tolerations"], json!([{"key": "db"}]));
    let terms = &pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    let fields = json!([{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]);
    assert_eq!(
        *terms,
        json!([{"matchExpressions": expressions, "matchFields": fields}])
    );
    // The node of the old volume may be about to leave.
    let pod = parsed(variable(&report.claims[0], "source_pod"));
    assert_eq!(pod["spec"]["tolerations"], json!([{"operator": "Exists"}]));
}

/// A second claim of the same pod.
pub(super) fn two_claims() -> Vec<Value> {
    let mut all = objects();
    for (kind, name) in [
        ("PersistentVolume", "pvc-12"),
        ("PersistentVolumeClaim", "wal-db-0"),
    ] {
        let mut second = object(&mut all, kind).clone();
        second["metadata"]["name"] = name.into();
        second["metadata"]["uid"] = format!("uid-{name}").into();
        if kind == "PersistentVolume" {
            second["metadata"]["uid"] = format!("uid-pv-{name}").into();
            second["spec"]["hostPath"]["path"] = "/opt/wal".into();
            second["spec"]["claimRef"]["name"] = "wal-db-0".into();
            second["spec"]["claimRef"]["uid"] = "uid-wal-db-0".into();
        } else {
            second["spec"]["volumeName"] = "pvc-12".into();
        }
        all.push(second);
    }
    let templates = &mut object(&mut all, "StatefulSet")["spec"]["volumeClaimTemplates"];
    *templates = json!([{"metadata": {"name": "data"}}, {"metadata": {"name": "wal"}}]);
    all
}

#[test]
fn the_claims_of_a_pod_come_to_the_same_node() {
    let refusal = |line: &str| {
        let report = report(&two_claims(), line).unwrap();
        report.claims[0].refusals.join("; ")
    };
    let both = "shop/data-db-0 shop/wal-db-0 --class fast";
    for (line, reason) in [
        ("shop/data-db-0 --class fast", ""),
        (
            "shop/data-db-0 --class fast --node n2",
            "move both by one plan",
        ),
        (&format!("{both} --node n2"), ""),
        ("--from-node n1 --class fast --node n2", ""),
        ("--from-node n1 --class fast", "give --node"),
    ] {
        let refusal = refusal(line);
        let is_right = if reason.is_empty() {
            refusal.is_empty()
        } else {
            refusal.contains(reason)
        };
        assert!(is_right, "{line}: {refusal}");
    }
    let mut all = two_claims();
    let last = all.len() - 1;
    all[last]["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
    let report = report(&all, &format!("{both} --node n2")).unwrap();
    assert!(report.claims[0].refusals[0].contains("shop/wal-db-0, which is refused"));
    assert!(report.script().facts.is_empty());
}

#[test]
fn the_warnings_name_what_changes() {
    let mut all = objects();
    all.push(json!({
        "kind": "VolumeSnapshot",
        "metadata": {"namespace": "shop", "name": "nightly"},
        "spec": {"source": {"persistentVolumeClaimName": "data-db-0"}},
    }));
    let set = object(&mut all, "StatefulSet");
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({"zone": "a"});
    object(&mut all, "PersistentVolume")["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    let text = report(&all, &format!("{NAME} --class now --node n2"))
        .unwrap()
        .to_string();
    for part in [
        "from node n1 to node n2",
        "snapshots: nightly",
        "fsGroup 999",
        "binding: class now",
        "node: pods",
        "policy: the old volume has Retain",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let same = report(&all, &format!("{NAME} --class old --size 2Gi"))
        .unwrap()
        .to_string();
    assert!(!same.contains("fsGroup"), "{same}");
}

/// The objects of a stopped application lack its replicas.
#[test]
fn a_plan_that_was_begun_is_named() {
    let mut all = objects();
    let plan = only(&all, &format!("{NAME} --class fast"));
    let is_begun = |plan: &Plan| plan.warnings.iter().any(|text| text.starts_with("begun: "));
    assert!(!is_begun(&plan), "{plan:?}");
    all.push(json!({
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": variable(&plan, "name"), "namespace": "rootcellar-system", "uid": "u"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }));
    let plan = only(&all, &format!("{NAME} --class fast"));
    assert!(is_begun(&plan), "{plan:?}");
}

/// No object names the directory of such a volume, and the copy needs none.
#[test]
fn a_volume_of_csi_driver_host_path_is_copied() {
    for mode in ["Filesystem", "Block"] {
        let mut all = fixture("csi-host-path");
        all.push(class("fast", "WaitForFirstConsumer", "csi.rootcellar.dev"));
        for object in &mut all {
            if object["spec"].get("volumeMode").is_some() {
                object["spec"]["volumeMode"] = mode.into();
            }
        }
        assert!(super::report(&all, "").claims.is_empty());
        let plan = only(&all, "shop/files --class fast");
        assert_eq!(plan.refusals, Vec::<String>::new(), "{mode}");
        assert_eq!(variable(&plan, "node"), "n1");
        let source = &parsed(variable(&plan, "source_volume"))["spec"];
        assert_eq!(source["volumeMode"], mode);
        let handle = json!({"driver": "hostpath.csi.k8s.io", "volumeHandle": "7d8e-9f"});
        assert_eq!(source["csi"], handle);
        let old = object(&mut all, "PersistentVolume")["spec"]["nodeAffinity"].clone();
        assert_eq!(source["nodeAffinity"], old);
    }
}
