//! Objects of others, and commands in a wrong order. No data is lost, or shown to others.

use super::claim_steps::{BEFORE_REMOVE, Cluster, VOLUME};
use super::claims::NAME;

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
    cluster.runs("undo", "finish");
    cluster.runs("undo", "start");
    cluster.refuses("undo", "swap", "another one has its name");
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
}
