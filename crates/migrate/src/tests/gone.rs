//! The plan for a lost node. `make e2e-fleet` runs its steps on a real API server.

use super::*;
use crate::gone;

const HANDLE: &str = "v1-00000000000040008000000000000000-00000000000000000000000000000001";

/// A volume of the driver on a node, and its claim.
fn volume(name: &str, node: &str, claim: &str, policy: &str) -> [Value; 2] {
    [
        json!({"kind": "PersistentVolume", "metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": {
            "csi": {"driver": "csi.rootcellar.dev", "volumeHandle": HANDLE}, "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "shop", "name": claim, "uid": format!("uid-{claim}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.rootcellar.dev/node", "operator": "In", "values": [node]}]}]}}},
            "status": {"phase": "Bound"}}),
        json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": claim,
            "uid": format!("uid-{claim}")}, "spec": {"volumeName": name}}),
    ]
}

fn others() -> Vec<Value> {
    vec![
        json!({"kind": "Node", "metadata": {"name": "node2"}}),
        json!({"kind": "StatefulSet", "metadata": {"namespace": "shop", "name": "db"},
            "spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}}),
    ]
}

fn plan(node: &str, objects: &[Value]) -> Result<String, String> {
    let words = ["rootcellar-migrate", "gone", node, "--objects=o"];
    let Command::Gone(options) = Cli::try_parse_from(words).unwrap().command else {
        panic!("another command");
    };
    let text: String = objects.iter().map(Value::to_string).collect();
    let cluster = Cluster::parse(text.as_bytes())?;
    let report = gone::Report::new(&cluster, &options)?;
    Ok(report.script().to_string())
}

/// Proves: F13.
#[test]
fn the_plan_has_the_objects_of_the_lost_node_alone() {
    let mut objects = others();
    objects.extend(volume("pv1", "node1", "data-db-0", "Delete"));
    objects.extend(volume("pv2", "node1", "kept", "Retain"));
    objects.extend(volume("pv3", "node2", "other", "Delete"));
    let [mut released, _] = volume("pv4", "node1", "gone", "Delete");
    released["status"]["phase"] = "Released".into();
    let [mut foreign, _] = volume("pv5", "node1", "foreign", "Delete");
    foreign["spec"]["csi"]["driver"] = "other.example".into();
    let [mut anew, claim] = volume("pv6", "node1", "anew", "Delete");
    anew["spec"]["claimRef"]["uid"] = "uid-before".into();
    objects.extend([released, foreign, anew, claim]);
    objects.push(
        json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": "waits",
        "uid": "u", "annotations": {"volume.kubernetes.io/selected-node": "node1"}}, "spec": {}}),
    );
    objects.push(json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "content", "uid": "u",
        "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {"snapshot.storage.kubernetes.io/managed-by": "node1"}},
        "spec": {"driver": "csi.rootcellar.dev"}}));
    let text = plan("node1", &objects).unwrap();
    for line in [
        "claim shop/data-db-0, PersistentVolume pv1, policy Delete: retain claim volume",
        "- StatefulSet db makes the claim again",
        "claim shop/kept, PersistentVolume pv2, policy Retain: claim\n",
        "- nobody is known to make the claim again",
        "PersistentVolume pv4, Released, policy Delete: retain volume",
        "PersistentVolume pv6, Bound, policy Delete: retain volume",
        "unbound claim shop/waits waits for the node: forget",
        "VolumeSnapshotContent content waits for its deletion: snapshot",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    for other in ["pv3", "pv5", "shop/anew"] {
        assert!(!text.contains(other), "{other}");
    }
}

/// Proves: F13.
#[test]
fn a_node_that_may_be_there_has_no_plan() {
    let mut objects = others();
    objects.extend(volume("pv1", "node2", "data-db-0", "Delete"));
    let error = plan("node2", &objects).unwrap_err();
    assert!(error.contains("node2 is in the cluster"), "{error}");
    let renamed = json!({"kind": "Node", "metadata": {"name": "new", "labels": {"topology.rootcellar.dev/node": "node1"}}});
    objects.push(renamed);
    let error = plan("node1", &objects).unwrap_err();
    assert!(error.contains("as new"), "{error}");
    let error = plan("node1", &objects[2..4]).unwrap_err();
    assert!(error.contains("no Node"), "{error}");
    assert!(
        plan("node3", &objects)
            .unwrap()
            .contains("left nothing behind")
    );
}

/// Proves: F13.
#[test]
fn names_are_words_and_long_nodes_are_found() {
    let node = "n".repeat(80);
    let place = node.parse::<objects::NodeName>().unwrap().topology_value();
    let mut objects = others();
    objects.extend(volume("pv'$(id)", &place, "a'b", "Delete"));
    let text = plan(&node, &objects).unwrap();
    assert!(text.contains(r"volume='pv'\''$(id)'"), "{text}");
    assert!(text.contains(&format!("place='{place}'")), "{text}");
}
