//! Objects of others, and commands in a wrong order. No data is lost, or shown to others.

use super::claim_steps::{BEFORE_REMOVE, Cluster, VOLUME};
use serde_json::json;

use super::claims::{NAME, object, objects, only, refuses, report, variable};
use super::parsed;

/// The name of the old volume, which was removed, is that of a volume of another tenant now.
#[test]
fn a_volume_that_took_the_name_is_not_taken_from_its_claim() {
    let cluster = Cluster::new("--class fast");
    assert!(cluster.run(&["move", NAME]).status.success());
    cluster.runs("do", "remove");
    for (name, text) in [
        ("again", "-2"),
        ("policy", "Retain"),
        ("source", VOLUME),
        ("data", "of another tenant"),
        ("claim", "other.theirs"),
        ("uid", "uid-theirs"),
    ] {
        cluster.write(&format!("pv.{VOLUME}.{name}"), text);
    }
    cluster.write("pvc.other.theirs.uid", "uid-theirs");
    cluster.write("pvc.other.theirs.volume", VOLUME);
    for step in ["finish", "start"] {
        cluster.refuses("undo", step, "another one has its name");
    }
    assert_eq!(cluster.read("replicas.statefulset.db"), "2");
    let undone = cluster.run(&["undo", "swap", NAME]);
    assert!(!undone.status.success(), "{undone:?}");
    assert_eq!(cluster.read("pv.pvc-11.claim"), "other.theirs");
    assert_eq!(cluster.data(), "content");
}

/// An administrator gave the old volume to another claim.
#[test]
fn a_volume_that_another_claim_has_is_not_taken_from_it() {
    let cluster = Cluster::new("--class fast");
    for step in &BEFORE_REMOVE[..5] {
        cluster.runs("do", step);
    }
    cluster.write("pv.pvc-11.claim", "other.theirs");
    cluster.write("pv.pvc-11.uid", "uid-theirs");
    cluster.write("pvc.other.theirs.uid", "uid-theirs");
    cluster.write("pvc.other.theirs.volume", VOLUME);
    cluster.refuses("undo", "swap", "is of claim other/theirs");
    assert_eq!(cluster.read("pv.pvc-11.claim"), "other.theirs");
    assert_eq!(cluster.data(), "content");
}

/// Another plan has moved the claim since, and this one does not reserve its own volumes for it.
#[test]
fn an_old_plan_changes_nothing() {
    let cluster = Cluster::new("--class fast");
    for step in &BEFORE_REMOVE[..5] {
        cluster.runs("do", step);
    }
    let new = cluster.read("pvc.shop.data-db-0.volume");
    cluster.write("pv.third.policy", "Delete");
    cluster.write("pv.third.data", "newer");
    cluster.write("pv.third.claim", "shop.data-db-0");
    cluster.write("pv.third.uid", &cluster.read("pvc.shop.data-db-0.uid"));
    cluster.write("pvc.shop.data-db-0.volume", "third");
    cluster.write(&format!("pv.{new}.uid"), "uid-before");
    let before = cluster.objects();
    for (verb, step) in [
        ("do", "prepare"),
        ("do", "copy"),
        ("do", "swap"),
        ("do", "start"),
        ("do", "finish"),
        ("do", "remove"),
        ("undo", "swap"),
        ("undo", "copy"),
        ("undo", "prepare"),
        ("undo", "retain"),
    ] {
        cluster.refuses(verb, step, "");
        assert_eq!(cluster.objects(), before, "{verb} {step}");
    }
    assert_eq!(cluster.data(), "newer");
    let status = String::from_utf8(cluster.run(&["status"]).stdout).unwrap();
    assert!(status.contains("moved on to third"), "{status}");
}

/// A pod started just before the claim was deleted, and wrote until it ended. The claim went with it.
#[test]
fn what_a_pod_wrote_before_the_claim_was_gone_is_not_left_behind() {
    let cluster = Cluster::new("--class fast");
    for step in &BEFORE_REMOVE[..4] {
        cluster.runs("do", step);
    }
    let mut swap = cluster.command(&["do", "swap", NAME]);
    let calls = cluster.copy();
    calls.runs("do", "swap");
    let calls = calls.read("calls");
    let deleted = calls.lines().position(|call| call.contains("delete --raw"));
    swap.env("FAIL", number_of(&cluster, deleted.unwrap()))
        .env("HOW", "killed");
    swap.output().unwrap();
    assert_eq!(cluster.read("pvc.shop.data-db-0.uid"), "");
    cluster.write("pv.pvc-11.data", "more");
    cluster.refuses("do", "swap", "changed after the copy");
    assert_eq!(cluster.data(), "more");
    for step in ["copy", "stop", "prepare", "retain"] {
        cluster.runs("undo", step);
    }
    assert_eq!(cluster.data(), "more");
}

/// The number of a call that follows the calls that were made.
fn number_of(cluster: &Cluster, index: usize) -> String {
    let made: usize = cluster.read("number").parse().unwrap();
    (made + index + 1).to_string()
}

/// Kubernetes gives the claim of the new volume one that was made Available for another claim, with data.
#[test]
fn a_volume_that_was_there_before_is_neither_filled_nor_deleted() {
    for mode in ["ReadWriteOnce", "ReadWriteOncePod"] {
        let mut all = objects();
        object(&mut all, "PersistentVolumeClaim")["spec"]["accessModes"] = json!([mode]);
        let cluster = Cluster::of(&report(&all, &format!("{NAME} --class fast")).unwrap());
        for (name, text) in [
            ("policy", "Delete"),
            ("source", "precious"),
            ("data", "of another tenant"),
            ("free", "yes"),
        ] {
            cluster.write(&format!("pv.precious.{name}"), text);
        }
        cluster.runs("do", "retain");
        cluster.refuses("do", "prepare", "which was there before");
        cluster.runs("undo", "prepare");
        assert_eq!(cluster.read("lost"), "");
        assert_eq!(cluster.read("pv.precious.data"), "of another tenant");
        assert_eq!(cluster.read("pv.precious.policy"), "Retain");
        // It is Released now, so the next new volume is another one.
        for step in ["prepare", "stop", "copy", "swap"] {
            cluster.runs("do", step);
        }
        assert_eq!(cluster.data(), "content");
    }
}

/// The garbage collector deletes a claim whose owner has another uid, such as a `StatefulSet` that was made again.
#[test]
fn a_claim_does_not_go_with_a_stateful_set_that_was_made_again() {
    let owner = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "db", "uid": "u"});
    let mut all = objects();
    object(&mut all, "PersistentVolumeClaim")["metadata"]["ownerReferences"] =
        json!([owner("StatefulSet"), owner("Cluster")]);
    let plan = only(&all, &format!("{NAME} --class fast"));
    for name in ["old_claim", "new_claim"] {
        let claim = parsed(variable(&plan, name));
        assert_eq!(
            claim["metadata"]["ownerReferences"],
            json!([owner("Cluster")])
        );
    }
}

/// The container runtime makes a directory that is missing, so the copy of the wrong node would be empty.
#[test]
fn a_directory_is_not_taken_from_a_node_on_which_its_pods_do_not_run() {
    let mut all = objects();
    let volume = object(&mut all, "PersistentVolume");
    volume["spec"]["nodeAffinity"] = serde_json::Value::Null;
    refuses(&all, "--class fast --source-node n2", "runs on node n1");
    let plan = only(&all, &format!("{NAME} --class fast --source-node n1"));
    assert_eq!(plan.refusals, Vec::<String>::new());
}
