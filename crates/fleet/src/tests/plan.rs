//! The plan for a lost node. `make e2e-fleet` runs its steps on a real API server.

use std::io::Write;
use std::process::{Command as Process, Stdio};

use clap::Parser;

use super::*;
use crate::Command;
use crate::plan::{Input, NoPlan};

const HANDLE: &str = "v1-00000000000040008000000000000000-00000000000000000000000000000001";
/// The uids end with the name of the object, in digits.
const UID: &str = "00000000-0000-4000-8000-0000000000";

/// A volume of the driver on the lost node, and its claim.
fn volume(name: &str, claim: &str, number: u8) -> [Value; 2] {
    let finalizer = "external-provisioner.volume.kubernetes.io/finalizer";
    [
        json!({"kind": "PersistentVolume",
            "metadata": {"name": name, "uid": format!("{UID}{number:02}"), "finalizers": [finalizer]},
            "spec": {"csi": {"driver": "csi.rootcellar.dev", "volumeHandle": HANDLE}, "storageClassName": "fast",
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "shop", "name": claim, "uid": format!("{UID}{:02}", number + 1)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.rootcellar.dev/node", "operator": "In", "values": [HERE]}]}]}}},
            "status": {"phase": "Bound"}}),
        json!({"kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "shop", "name": claim, "uid": format!("{UID}{:02}", number + 1)},
            "spec": {"volumeName": name, "storageClassName": "fast"}, "status": {"phase": "Bound"}}),
    ]
}

/// The pod of a `StatefulSet` that waits for the claim `data-db-0`, and what else there is.
fn others() -> Vec<Value> {
    let owner = json!({"kind": "StatefulSet", "name": "db", "uid": "uid-db", "controller": true});
    vec![
        json!({"kind": "Node", "metadata": {"name": OTHER}}),
        json!({"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "csi.rootcellar.dev"}),
        json!({"kind": "Pod", "metadata": {"namespace": "shop", "name": "db-0", "ownerReferences": [owner]},
            "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]}}),
        json!({"kind": "StatefulSet", "metadata": {"namespace": "shop", "name": "db", "uid": "uid-db"},
            "spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}}),
    ]
}

fn changed(objects: [Value; 2], of_volume: Value, of_claim: Value) -> Vec<Value> {
    let [mut volume, mut claim] = objects;
    merge(&mut volume, of_volume);
    merge(&mut claim, of_claim);
    vec![volume, claim]
}

/// A claim that names the lost node and no volume.
fn unbound(other: Value) -> Value {
    let mut claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": "waits",
        "uid": format!("{UID}90"), "annotations": {"volume.kubernetes.io/selected-node": HERE}},
        "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}});
    merge(&mut claim, other);
    claim
}

/// A content in deletion that the lost node handles.
fn content(other: Value) -> Value {
    let held = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    let mut content = json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "content",
        "uid": format!("{UID}80"), "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [held],
        "labels": {"snapshot.storage.kubernetes.io/managed-by": HERE}},
        "spec": {"driver": "csi.rootcellar.dev", "source": {}, "volumeSnapshotRef": {}}});
    merge(&mut content, other);
    content
}

fn plan_of(node: &str, objects: &[Value]) -> Result<String, NoPlan> {
    let cli = Cli::try_parse_from(["rootcellar-fleet", "plan", node, "--objects=o"]).unwrap();
    let Some(Command::Plan(args)) = &cli.command else {
        panic!("another command");
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let input = Input::parse(list.to_string().as_bytes(), args).unwrap();
    let plan = args.plan(&input, &cli.delays)?;
    Ok(plan.script().to_string())
}

/// Rows of a table: the columns, without the spaces around them.
fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.split(" | ").map(str::trim).collect())
}

/// A row has changes of the volume `pv1` and of its claim `data-db-0`, or of an object of another kind.
fn of_row(first: &str, second: &str) -> Vec<Value> {
    let json = |text: &str| -> Value { text.replace("UID", UID).parse().unwrap() };
    match first {
        "unbound" => vec![unbound(json(second))],
        "content" => vec![content(json(second))],
        _ => changed(volume("pv1", "data-db-0", 1), json(first), json(second)),
    }
}

/// The changes, and a part of the plan.
const PLANNED: &str = r#"
{} | {} | claim shop/data-db-0, PersistentVolume pv1: retain claim volume
{} | {} | - class fast does not ask for the release of its claims
{} | {} | - StatefulSet db makes the claim again, empty
{} | {} | No driver was asked
{"spec": {"persistentVolumeReclaimPolicy": "Retain"}} | {} | steps='claim'
{"spec": {"persistentVolumeReclaimPolicy": "Retain"}} | {} | - the PersistentVolume stays, because its policy is Retain
{"metadata": {"annotations": {"rootcellar.dev/released-claim": "UID02"}}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}} | {} | steps='claim volume'
{"metadata": {"annotations": {"rootcellar.dev/released-claim": "UID09"}}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}} | {} | steps='claim'
{"status": {"phase": "Released"}} | {"metadata": {"uid": "again"}} | PersistentVolume pv1, whose claim is deleted: volume
{"status": {"phase": "Released"}} | {"metadata": {"uid": "again"}} | policy='Delete'
unbound | {} | unbound claim shop/waits waits for the node: forget
content | {} | VolumeSnapshotContent content waits for its deletion: snapshot
"#;

/// Proves: F13.
#[test]
fn the_plan_has_the_steps_of_the_controller() {
    for row in rows(PLANNED) {
        let objects = [others(), of_row(row[0], row[1])].concat();
        let text = plan_of(HERE, &objects).unwrap();
        assert!(text.contains(row[2]), "{}\n{text}", row[2]);
        assert!(!text.contains("Not planned"), "{text}");
    }
}

/// Proves: F13.
#[test]
fn the_plan_says_who_makes_a_claim_again() {
    let pv1 = volume("pv1", "data-db-0", 1);
    let class = json!({"kind": "StorageClass", "provisioner": "csi.rootcellar.dev",
        "metadata": {"name": "fast", "annotations": {"rootcellar.dev/release-claims": "true"}}});
    let mut objects = [others(), pv1.to_vec()].concat();
    objects.push(class);
    let text = plan_of(HERE, &objects).unwrap();
    let part = "retain claim volume\nNote:\n- StatefulSet db makes";
    assert!(text.contains(part), "the class asks for it: {text}");
    objects[2]["spec"]["nodeName"] = HERE.into();
    let text = plan_of(HERE, &objects).unwrap();
    let part = "- pod db-0 on node node1 names the claim";
    assert!(text.contains(part), "{text}");
    objects.remove(2);
    let text = plan_of(HERE, &objects).unwrap();
    let part = "- nobody is known to make the claim again";
    assert!(text.contains(part), "{text}");
}

/// The changes, and why there is no step.
const KEPT: &str = r#"
{"spec": {"claimRef": {"uid": "before"}}} | {} | do not name each other
{} | {"spec": {"volumeName": "pv2"}} | do not name each other
{} | {"status": {"phase": "Lost"}} | do not name each other
{} | {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}} | the claim is being deleted
{} | {"metadata": {"finalizers": ["a.example/needed"]}} | other than kubernetes.io/pvc-protection
{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}} | {} | PersistentVolume is being deleted
{"spec": {"persistentVolumeReclaimPolicy": "Recycle"}} | {} | neither Delete nor Retain
{"metadata": {"annotations": {"rootcellar.dev/policy-before-release": "Delete"}}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}} | {} | an earlier version
{"spec": {"persistentVolumeReclaimPolicy": "Retain"}, "status": {"phase": "Released"}} | {} | its policy is Retain
{"metadata": {"deletionTimestamp": "now", "finalizers": []}, "status": {"phase": "Released"}} | {} | of others hold it
{"metadata": {"name": "pv'$(id)"}} | {"spec": {"volumeName": "pv'$(id)"}} | its name has characters
{"spec": {"claimRef": {"name": "--all"}}} | {"metadata": {"name": "--all"}} | its name has characters
{"metadata": {"uid": "'; id"}} | {} | its uid has characters
unbound | {"spec": {"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}} | names a source
unbound | {"spec": {"storageClassName": "other"}} | its class is none of the driver
content | {"metadata": {"finalizers": ["a.example/b"]}} | of others hold it
"#;

/// Proves: F13.
#[test]
fn the_plan_leaves_alone_what_the_controller_leaves_alone() {
    for row in rows(KEPT) {
        let objects = [others(), of_row(row[0], row[1])].concat();
        let text = plan_of(HERE, &objects).unwrap();
        let (_, kept) = text.split_once("\nNot planned:\n- ").unwrap();
        let (kept, facts) = kept.split_once("'\n\nfacts()").unwrap();
        assert!(kept.contains(row[2]), "{}: {kept}", row[2]);
        let none = " { # OBJECT\n    case $1 in\n    *)";
        assert!(facts.starts_with(none), "{}: {facts}", row[2]);
    }
}

/// Objects that are not of the driver or not of the node.
const OF_OTHERS: &str = r#"
{"spec": {"csi": {"driver": "other.example"}}} | {}
{"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "topology.rootcellar.dev/node", "operator": "In", "values": ["node2"]}]}]}}}} | {}
content | {"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": "node2"}}}
content | {"spec": {"driver": "other.example"}}
unbound | {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node2"}}}
"#;

/// Proves: F13.
#[test]
fn the_plan_has_nothing_of_others() {
    for row in rows(OF_OTHERS) {
        let objects = [others(), of_row(row[0], row[1])].concat();
        let text = plan_of(HERE, &objects).unwrap();
        assert!(text.contains("There is no step for this node"), "{text}");
        assert!(!text.contains("Not planned"), "{text}");
    }
}

/// Proves: F13.
#[test]
fn a_node_that_may_be_there_has_no_plan() {
    let mut objects = [others(), volume("pv1", "data-db-0", 1).to_vec()].concat();
    let error = plan_of(OTHER, &objects).unwrap_err().to_string();
    assert!(error.contains("node2 is in the cluster"), "{error}");
    let labels = json!({"topology.rootcellar.dev/node": HERE});
    objects.push(json!({"kind": "Node", "metadata": {"name": "new", "labels": labels}}));
    let error = plan_of(HERE, &objects).unwrap_err().to_string();
    assert!(error.contains("as new"), "{error}");
    let error = plan_of(HERE, &objects[1..4]).unwrap_err().to_string();
    assert!(error.contains("no Node"), "{error}");
}

/// Proves: F13.
#[test]
fn a_kind_that_the_input_lacks_is_named_and_long_nodes_are_found() {
    let text = plan_of(HERE, &others()[..1]).unwrap();
    for kind in [
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "StatefulSet",
        "StorageClass",
        "VolumeSnapshotContent",
    ] {
        assert!(
            text.contains(&format!("- the input has no {kind}: ")),
            "{kind}\n{text}"
        );
    }
    let node = "n".repeat(80);
    let place = node.parse::<objects::NodeName>().unwrap().topology_value();
    let mut objects = serde_json::to_string(&volume("pv1", "data-db-0", 1)).unwrap();
    objects = objects.replace(HERE, &place);
    let objects: Vec<Value> = serde_json::from_str(&objects).unwrap();
    let text = plan_of(&node, &[others(), objects].concat()).unwrap();
    assert!(text.contains(&format!("place='{place}'")), "{text}");
}

/// A stand-in for kubectl, which shows one state of the cluster and says what it was asked to write.
const KUBECTL: &str = r#"
sleep() { :; }
kubectl() {
    case "$*" in
    "get node "*) printf %s "$is_node" ;;
    "get nodes "*) printf %s "$is_labelled" ;;
    "get pods "*) printf %s "$is_used" ;;
    "get pv/"*.metadata.uid*) printf %s "$is_volume" ;;
    "get pv/"*.status.phase*) printf %s "$is_phase" ;;
    "get pv/"*ReclaimPolicy*) printf %s "$is_policy" ;;
    "get pv/"*finalizers*) printf %s "$is_held" ;;
    "get pvc/"*.metadata.uid*) printf %s "$is_claim" ;;
    "get pvc/"*selected-node*) printf %s "$is_selected" ;;
    "get pvc/"*) ;;
    "get volumesnapshotcontent/"*.metadata.uid*) printf %s "$is_content" ;;
    "get volumesnapshotcontent/"*deletionTimestamp*) printf now ;;
    "get volumesnapshotcontent/"*finalizers*) printf '%s\n' other "$snapshotter" ;;
    "get "*resourceVersion*) printf 7 ;;
    "patch "*) echo "$*" ;;
    "delete --raw "*) echo "$3 $(cat)" >&2 ;;
    *) return 1 ;;
    esac
}
is_node='' is_labelled='' is_used='' is_phase=Bound is_policy=Delete is_held='' is_selected=node1
is_volume=00000000-0000-4000-8000-000000000001 is_claim=00000000-0000-4000-8000-000000000002
is_content=00000000-0000-4000-8000-000000000080
"#;

/// Takes a step in this state. Returns whether it succeeded, and what was written and said.
fn take(script: &str, state: &str, step: &str) -> (bool, String) {
    let (facts, steps) = script.split_once("\nset -eu\n").unwrap();
    let script = format!("{facts}\nset -eu\n{KUBECTL}{state}\n{steps}");
    let mut shell = Process::new("sh");
    shell.args(["-s", "--"]).args(step.split(' '));
    let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.stderr(Stdio::piped()).spawn().unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let output = shell.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The step, the state of the cluster, whether it succeeds, and a part of the write or of the message.
const STEPS: &str = r#"
do retain shop/data-db-0 | is_policy=Delete | no | {"uid": "UID01"}, "spec": {"persistentVolumeReclaimPolicy": "Retain"
do retain shop/data-db-0 | is_policy=Retain | yes | {"uid": "UID01"}
do retain shop/data-db-0 | is_node=node/node1 | no | node node1 is in the cluster
do retain shop/data-db-0 | is_labelled=node/new | no | node/new has the label
do retain shop/data-db-0 | is_volume=again | no | is not the one of the plan
do retain shop/data-db-0 | is_volume= | no | is not the one of the plan
do retain shop/data-db-0 | is_volume= is_claim= | yes | retain: done
do claim shop/data-db-0 | is_volume=again is_policy=Delete | no | is not the one of the plan
do claim shop/data-db-0 | is_volume= | no | is not the one of the plan
undo retain shop/data-db-0 | is_policy=Retain | yes | {"uid": "UID01"}, "spec": {"persistentVolumeReclaimPolicy": "Delete"
undo retain shop/data-db-0 | is_claim=again | no | the claim of pv1 is 'again'
do claim shop/data-db-0 | is_policy=Delete | no | the policy of pv1 is 'Delete', not 'Retain'
do claim shop/data-db-0 | is_policy=Retain | no | {"uid": "UID02"}
do claim shop/data-db-0 | is_policy=Retain is_used='node1 db-0 data-db-0 /' | no | db-0 on node node1
do claim shop/data-db-0 | is_policy=Retain is_used='node1 data-db / 0' | no | data-db on node node1
do claim shop/data-db-0 | is_policy=Retain is_claim=again | yes | claim: done
do volume shop/data-db-0 | is_policy=Retain is_phase=Released | no | not yet: claim shop/data-db-0 of uid UID02
do volume shop/data-db-0 | is_policy=Retain is_claim=again | no | not yet: PersistentVolume pv1 is Released
do volume shop/data-db-0 | is_policy=Delete is_claim= is_phase=Released | no | the policy of pv1 is 'Delete', not 'Retain'
do volume shop/data-db-0 | is_policy=Retain is_claim= is_phase=Released | no | {"uid": "UID01"}
do volume shop/data-db-0 | is_volume= is_claim= | yes | volume: done
do volume PersistentVolume/pv3 | is_volume=UID03 is_phase=Released | no | {"uid": "UID03"}
do retain PersistentVolume/pv3 | is_volume=UID03 | no | the steps of PersistentVolume/pv3 are: volume
do forget shop/waits | is_claim=UID90 | no | {"uid": "UID90", "annotations": {"volume.kubernetes.io/selected-node": null}}
do forget shop/waits | is_claim=again | yes | forget: done
do forget shop/waits | is_claim=UID90 is_selected=node2 | yes | forget: done
do snapshot VolumeSnapshotContent/content | is_content=UID80 | no | {"uid": "UID80", "resourceVersion": "7", "finalizers": ["other"]}
do snapshot VolumeSnapshotContent/content | is_content=again | yes | snapshot: done
do retain shop/other | is_policy=Delete | no | shop/other is not in the plan
"#;

/// Proves: F13.
#[test]
fn a_step_writes_one_object_by_its_uid_and_none_that_was_made_again() {
    let [pv1, claim] = volume("pv1", "data-db-0", 1);
    let [mut pv3, _] = volume("pv3", "gone", 3);
    pv3["status"]["phase"] = "Released".into();
    let left = vec![pv1, claim, pv3, unbound(json!({})), content(json!({}))];
    let script = plan_of(HERE, &[others(), left].concat()).unwrap();
    for row in rows(STEPS) {
        let [step, state, succeeds, part] = row[..] else {
            panic!("{row:?}");
        };
        let (state, part) = (state.replace("UID", UID), part.replace("UID", UID));
        let (success, text) = take(&script, &state, step);
        assert_eq!(success, succeeds == "yes", "{step}, {state}: {text}");
        assert!(text.contains(&part), "{step}, {state}: {text}, not {part}");
        let written = text.matches(r#"{"uid": ""#).count();
        let expected = part.matches(r#"{"uid": ""#).count();
        assert_eq!(written, expected, "{step}, {state}: {text}");
    }
}
