//! The steps of a plan for a claim when calls fail, when the plan ends, and when the cluster refuses an object.

use std::thread;

use serde_json::json;

use super::claim_steps::{BEFORE_REMOVE, Cluster};
use super::claims::{NAME, object, objects, report};

/// Takes or undoes a step with a failure of each of its calls, and again. The objects are then those of a run without failure.
fn interrupt(before: &Cluster, verb: &str, step: &str) -> Cluster {
    let wanted = before.copy();
    wanted.runs(verb, step);
    for (fail, call) in wanted.read("calls").lines().enumerate() {
        let words = [
            "create", "patch", "delete", "label", "annotate", "scale", "local", "receive",
        ];
        let is_change = call.split(' ').any(|word| words.contains(&word));
        // The effect of a call that only reads is none.
        let ways: &[&str] = if is_change {
            &["late", "killed"]
        } else {
            &["early"]
        };
        for how in ways {
            let cluster = before.copy();
            let mut command = cluster.command(&[verb, step, NAME]);
            command.env("FAIL", (fail + 1).to_string()).env("HOW", how);
            command.output().unwrap();
            let again = cluster.run(&[verb, step, NAME]);
            let log = format!(
                "{verb} {step}, {how} {call}: {again:?}\n{}",
                cluster.read("calls")
            );
            assert!(again.status.success(), "{log}");
            assert_eq!(cluster.objects(), wanted.objects(), "{log}");
            assert_eq!(cluster.read("lost"), wanted.read("lost"), "{log}");
        }
    }
    wanted
}

/// After any call that fails, before or after its effect, and after any end of the plan, a step can be repeated.
#[test]
fn every_interruption_is_mended() {
    let lines = [
        ("--class fast --node n2", &BEFORE_REMOVE[..]),
        // With one pod, these steps differ.
        ("--class fast", &["prepare", "copy"]),
    ];
    thread::scope(|scope| {
        for (line, steps) in lines {
            scope.spawn(move || {
                let before = Cluster::new(line);
                let mut cluster = before.copy();
                for step in BEFORE_REMOVE {
                    cluster = if steps.contains(&step) {
                        interrupt(&cluster, "do", step)
                    } else {
                        cluster.runs("do", step);
                        cluster.copy()
                    };
                }
                if steps.contains(&"finish") {
                    interrupt(&cluster, "do", "remove");
                    for step in BEFORE_REMOVE.iter().rev() {
                        cluster = interrupt(&cluster, "undo", step);
                    }
                    assert_eq!(cluster.objects(), before.objects());
                }
            });
        }
    });
}

/// A move that was interrupted goes on.
#[test]
fn an_interrupted_move_goes_on() {
    let before = Cluster::new("--class fast --node n2");
    let wanted = before.copy();
    assert!(wanted.run(&["move", NAME]).status.success());
    let number: u32 = wanted.read("number").parse().unwrap();
    for fail in (1..=number).step_by(7) {
        let cluster = before.copy();
        let mut command = cluster.command(&["move", "all"]);
        command.env("FAIL", fail.to_string()).env("HOW", "late");
        command.output().unwrap();
        let again = cluster.run(&["move", "all"]);
        assert!(
            again.status.success(),
            "{fail}: {again:?}\n{}",
            cluster.read("calls")
        );
        assert_eq!(cluster.objects(), wanted.objects(), "{fail}");
    }
}

/// The refusal of a pod is found while the application runs.
#[test]
fn a_refused_pod_is_found_before_anything_stops() {
    for mode in ["ReadWriteOnce", "ReadWriteOncePod"] {
        let mut all = objects();
        object(&mut all, "PersistentVolumeClaim")["spec"]["accessModes"] = json!([mode]);
        let cluster = Cluster::of(&report(&all, &format!("{NAME} --class fast")).unwrap());
        cluster.write("forbid", "");
        let moved = cluster.run(&["move", NAME]);
        let text = String::from_utf8(moved.stderr).unwrap();
        assert!(text.contains("violates PodSecurity"), "{text}");
        assert!(text.contains("prepare failed"), "{text}");
        assert_eq!(cluster.read("replicas.statefulset.db"), "2");
    }
}

/// No second pod mounts the volume before its application has stopped.
#[test]
fn a_volume_of_one_pod_is_mounted_after_the_stop() {
    let mut all = objects();
    object(&mut all, "PersistentVolumeClaim")["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    let cluster = Cluster::of(&report(&all, &format!("{NAME} --class fast")).unwrap());
    let before = cluster.objects();
    for step in &BEFORE_REMOVE[..2] {
        cluster.runs("do", step);
    }
    let names = cluster.objects();
    assert!(
        !names.iter().any(|(name, _)| name.contains("-source")),
        "{names:?}"
    );
    assert!(
        names.iter().any(|(name, _)| name == "pv.pvc-new-1.label"),
        "{names:?}"
    );
    for step in &BEFORE_REMOVE[2..] {
        cluster.runs("do", step);
    }
    assert_eq!(cluster.data(), "content");
    for step in BEFORE_REMOVE.iter().rev() {
        cluster.runs("undo", step);
    }
    assert_eq!(cluster.objects(), before);
}

#[test]
fn a_full_target_leaves_the_old_volume() {
    let cluster = Cluster::new("--class fast");
    cluster.write("full", "");
    let moved = cluster.run(&["move", NAME]);
    let text = String::from_utf8(moved.stderr).unwrap();
    assert!(
        text.contains("No space left") && text.contains("undo copy and stop"),
        "{text}"
    );
    cluster.refuses("undo", "stop", "undo copy first");
    for step in ["copy", "stop", "prepare", "retain"] {
        cluster.runs("undo", step);
    }
    assert_eq!(cluster.data(), "content");
    assert_eq!(cluster.read("replicas.statefulset.db"), "2");
    assert_eq!(cluster.read("pv.pvc-11.policy"), "Delete");
}

/// Objects of an earlier attempt that no longer serve, or that are being deleted, are made again.
#[test]
fn objects_of_an_earlier_attempt_are_made_again() {
    let cluster = Cluster::new("--class fast");
    for step in ["retain", "prepare"] {
        cluster.runs("do", step);
    }
    let names: Vec<String> = cluster
        .objects()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let find = |start: &str, end: &str| {
        let mut names = names.iter();
        names
            .find(|name| name.starts_with(start) && name.ends_with(end))
            .unwrap()
    };
    let pod = find("pod.", "");
    cluster.write(pod, "Failed");
    cluster.runs("do", "prepare");
    assert_eq!(cluster.read(pod), "Running");
    cluster.write(&format!("{pod}.deleted"), "");
    cluster.runs("do", "prepare");
    assert_eq!(cluster.read(pod), "Running");
    // The claim was deleted, so its PersistentVolume is Released.
    let claim = find("pvc.rootcellar-system.", "-source.uid");
    for name in [claim.clone(), claim.replace(".uid", ".volume")] {
        std::fs::remove_file(cluster.path("state").join(name)).unwrap();
    }
    cluster.runs("do", "prepare");
    let volume = find("pv.rootcellar-move-", "-source.uid");
    assert_eq!(cluster.read(volume), cluster.read(claim));
}

/// A volume stays with its snapshots, unless its driver keeps them by themselves.
#[test]
fn snapshots_of_another_driver_keep_the_old_volume() {
    for (driver, is_kept) in [("other.example", true), ("csi.rootcellar.dev", false)] {
        let mut all = objects();
        let volume = object(&mut all, "PersistentVolume");
        volume["spec"].as_object_mut().unwrap().remove("hostPath");
        volume["spec"]["csi"] = json!({"driver": driver, "volumeHandle": "h1"});
        let cluster = Cluster::of(&report(&all, &format!("{NAME} --class fast")).unwrap());
        let snapshots = format!("{driver} h2 shop/other\n{driver} h1 shop/nightly\n");
        cluster.write("snapshots", &snapshots);
        let moved = cluster.run(&["move", NAME]);
        assert!(moved.status.success(), "{moved:?}");
        let text = String::from_utf8(moved.stdout).unwrap();
        assert!(
            text.contains("shop/nightly") && !text.contains("shop/other"),
            "{text}"
        );
        let removed = cluster.run(&["do", "remove", NAME]);
        let text = String::from_utf8(removed.stdout).unwrap();
        assert!(text.contains("shop/nightly"), "{text}");
        assert_eq!(removed.status.success(), !is_kept);
        assert_eq!(cluster.read("lost").is_empty(), is_kept);
    }
}

/// The removal of a volume that was made by hand removes only its object.
#[test]
fn the_files_of_a_volume_made_by_hand_stay() {
    let mut all = objects();
    object(&mut all, "PersistentVolume")["metadata"]["annotations"] = json!({});
    let cluster = Cluster::of(&report(&all, &format!("{NAME} --class fast")).unwrap());
    assert!(cluster.run(&["move", NAME]).status.success());
    let text = cluster.runs("do", "remove");
    assert!(text.contains("so its files stay"), "{text}");
    cluster.runs("do", "remove");
    assert_eq!(cluster.read("lost"), "");
    assert_eq!(cluster.read("pv.pvc-11.policy"), "");
}
