//! Who needs a claim whose volume is lost.

use super::*;
use crate::makers::{Need, Set, User, need, sets};
use crate::objects::Identity;

/// The pod `db-0` of the `StatefulSet` `db`, which waits for the claim `data-db-0`, and the set.
fn waiting() -> (Value, Value) {
    let owner = json!({"kind": "StatefulSet", "name": "db", "uid": "uid-db", "controller": true});
    let pod = json!({"metadata": {"namespace": "shop", "name": "db-0", "ownerReferences": [owner]},
        "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]}});
    let set = json!({"metadata": {"namespace": "shop", "name": "db", "uid": "uid-db"},
        "spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}});
    (pod, set)
}

/// Proves: F9.
#[test]
fn a_claim_is_made_again_for_a_waiting_pod_of_its_stateful_set_alone() {
    let used = |pod| Need::Used { pod, node: HERE };
    let deleting = r#"{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}"#;
    let scheduled = r#"{"spec": {"nodeName": "node1"}}"#;
    let ephemeral = r#"{"metadata": {"name": "data-db"},
        "spec": {"nodeName": "node1", "volumes": [{"name": "0", "ephemeral": {}}]}}"#;
    let other = r#"{"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "other"}}]}}"#;
    let template = r#"{"spec": {"volumeClaimTemplates": [{"metadata": {"name": "log"}}]}}"#;
    let owner =
        |of: &str| format!(r#"{{"metadata": {{"ownerReferences": [{{{of}, "name": "db"}}]}}}}"#);
    let before = owner(r#""kind": "StatefulSet", "uid": "uid-before", "controller": true"#);
    let operator = owner(r#""kind": "Operator", "uid": "uid-db", "controller": true"#);
    let no_controller = owner(r#""kind": "StatefulSet", "uid": "uid-db", "controller": false"#);
    let cases = [
        ("waits", "{}", "{}", Need::Made { set: "db" }),
        ("is scheduled", scheduled, "{}", used("db-0")),
        ("has its own volume", ephemeral, "{}", used("data-db")),
        ("is being deleted", deleting, "{}", Need::Nobody),
        ("names another claim", other, "{}", Need::Nobody),
        ("has another template", "{}", template, Need::Nobody),
        ("has a set in deletion", "{}", deleting, Need::Nobody),
        ("is of an earlier set", &before, "{}", Need::Nobody),
        ("is of an operator", &operator, "{}", Need::Nobody),
        ("is not controlled", &no_controller, "{}", Need::Nobody),
    ];
    let claim = Identity {
        namespace: "shop".into(),
        name: "data-db-0".into(),
        uid: "uid".into(),
        version: "1".into(),
    };
    for (case, of_pod, of_set, expected) in cases {
        let (mut pod, mut set) = waiting();
        merge(&mut pod, of_pod.parse().unwrap());
        merge(&mut set, of_set.parse().unwrap());
        let users = Vec::from_iter(User::read(object(&pod)));
        let found = Vec::from_iter(Set::read(object(&set)));
        assert_eq!(need(&users, &found, &claim), expected, "the pod {case}");
        assert!(sets(&users).iter().all(|name| *name == "db"), "{case}");
    }
}
