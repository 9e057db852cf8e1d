//! The order and the content of the steps.

use std::fs;
use std::process::{Command as Process, Stdio};

use super::*;
use crate::planned::Step;

fn position(steps: &[Step], fragment: &str) -> usize {
    let position = steps.iter().position(|step| step.run.contains(fragment));
    position.unwrap_or_else(|| panic!("no step has {fragment}"))
}

/// Nothing is stopped before the policy is Retain, the import needs a claim without a volume, and the
/// policy is Delete at the end only.
#[test]
fn the_steps_with_the_same_claim_are_safe_in_their_order() {
    for (name, line, ..) in CASES {
        let steps = planned(name, line).steps;
        let order = [
            position(&steps, "\"persistentVolumeReclaimPolicy\": \"Retain\""),
            position(&steps, "until claims="),
            position(&steps, "kubectl delete pv"),
            position(&steps, "kind: Pod"),
            position(&steps, "kind: PersistentVolume\n"),
            steps.len() - 2,
        ];
        assert!(order.is_sorted(), "{name}: {order:?}");
        assert!(steps[order[2]].run.contains("= 'Retain "), "{name}");
        assert!(steps[order[3]].run.starts_with("test ") && steps[order[3]].run.contains("= Lost"));
        for step in &steps[..steps.len() - 2] {
            assert!(!step.run.contains("\"Delete\""), "{name}: {}", step.run);
        }
    }
}

#[test]
fn the_volume_of_a_new_claim_is_there_before_the_old_claim_is_deleted() {
    for (name, line, ..) in CASES {
        let line = format!("{line} --swap class --class new");
        let planned = planned(name, &line);
        let new = parsed(&planned.new_persistent_volume);
        assert_eq!(new["spec"]["claimRef"]["uid"], Value::Null, "{name}");
        assert_eq!(new["spec"]["storageClassName"], "new", "{name}");
        let steps = planned.steps;
        let order = [
            position(&steps, "until claims="),
            position(&steps, "kind: Pod"),
            position(&steps, "kind: PersistentVolume\n"),
            position(&steps, "delete pvc"),
            position(&steps, "kind: PersistentVolumeClaim\nmetadata"),
            position(&steps, "kubectl delete pv"),
        ];
        assert!(order.is_sorted(), "{name}: {order:?}");
        assert!(steps[order[3]].run.contains("= Available &&"), "{name}");
        assert_eq!(order[5], steps.len() - 2);
        // Annotations about the binding of the old claim would make the new one Lost.
        assert!(!steps[order[4]].run.contains("bind-completed"));
        assert!(steps[order[4]].run.contains("example.com/kept"));
    }
}

/// The static provisioner makes a volume again for a mount that it finds, so the mount moves away before its
/// volume is deleted.
#[test]
fn only_a_mount_moves_and_its_original_is_the_mount() {
    for (name, line, system, ..) in CASES {
        for swap in ["", " --swap class --class new"] {
            let steps = planned(name, &format!("{line}{swap}")).steps;
            let moved = steps
                .iter()
                .position(|step| step.run.contains("mount --bind"));
            let last = steps.last().unwrap();
            assert!(last.on_node && last.rollback.is_empty(), "{name}");
            if system != System::Static {
                assert_eq!(moved, None, "{name}");
                assert!(
                    last.run.contains("/.rootcellar-v1-"),
                    "{name}: {}",
                    last.run
                );
                continue;
            }
            let moved = moved.unwrap();
            assert!(steps[moved].on_node);
            assert_eq!(moved, position(&steps, "until claims=") + 1);
            let import = &steps[position(&steps, "kind: Pod")];
            assert!(
                import.verify.contains("former content"),
                "{}",
                import.verify
            );
            for commands in [&steps[moved].run, &last.run] {
                assert!(
                    commands.contains("'/mnt/disks.rootcellar/vol1'"),
                    "{commands}"
                );
            }
        }
    }
}

/// Only the line of the mount changes, also if its path has a space.
#[test]
fn a_line_of_fstab_follows_its_mount() {
    let dir = tempfile::tempdir().unwrap();
    let fstab = dir.path().join("fstab");
    let text = "# /mnt/my\\040disks/vol1\nA /mnt/my\\040disks/vol1 ext4 noatime 0 2\n\nB /mnt/my\\040disks/vol10 xfs\n";
    fs::write(&fstab, text).unwrap();
    let mut objects = fixture("static");
    object(&mut objects, "PersistentVolume")["spec"]["local"]["path"] = "/mnt/my disks/vol1".into();
    let steps = only(report(&objects, "")).planned.unwrap().steps;
    let run = |commands: &str| {
        let stubs = "mountpoint() { :; }; umount() { :; }; mount() { :; }; rmdir() { :; }\n";
        let commands = commands.replace("/etc/fstab", fstab.to_str().unwrap());
        let shell = Process::new("sh")
            .args(["-c", &format!("{stubs}{commands}")])
            .status();
        assert!(shell.unwrap().success(), "{commands}");
        fs::read_to_string(&fstab).unwrap()
    };
    let moved = text.replacen("A /mnt/my\\040disks/", "A /mnt/my\\040disks.rootcellar/", 1);
    assert_eq!(run(&steps[2].run), moved);
    assert_eq!(run(&steps[2].run), moved, "again");
    run(&steps[2].verify);
    assert_eq!(run(&steps[2].rollback), text);
    run(&steps[2].run);
    assert!(!run(&steps.last().unwrap().run).contains("\nA "));
}

#[test]
fn workloads_are_stopped_and_started_with_their_number_of_pods() {
    let steps = planned("local-path", "").steps;
    assert!(
        steps[0].run.contains("patch statefulset db"),
        "{}",
        steps[0].run
    );
    assert!(steps[1].run.contains("scale statefulset db --replicas 0"));
    // Another claim of the StatefulSet may be finished, and its deletion be allowed again.
    for commands in [&steps[1].run, &steps[5].rollback] {
        let [check, scale] = ["!= Delete &&", "--replicas 0"].map(|text| commands.find(text));
        assert!(check.is_some() && check < scale, "{commands}");
    }
    assert!(
        steps[1]
            .rollback
            .contains("scale statefulset db --replicas 2")
    );
    assert!(
        planned("kutti", "").steps[1]
            .rollback
            .contains("scale deployment web --replicas 3")
    );

    let mut objects = fixture("local-path");
    objects.retain(|object| object["kind"] != "StatefulSet");
    let plan = only(report(&objects, ""));
    assert!(
        plan.warnings
            .iter()
            .any(|line| line.contains("of StatefulSet db")),
        "{plan:?}"
    );
    object(&mut objects, "Pod")["metadata"]["ownerReferences"] = json!([]);
    let plan = only(report(&objects, ""));
    assert!(
        plan.planned.unwrap().steps[1]
            .run
            .contains("delete pod db-0")
    );
}

/// The old volume comes back as it was, but with policy Retain and for the claim that exists.
#[test]
fn a_rollback_makes_the_old_volume_again() {
    let steps = planned("local-path", "").steps;
    let step = &steps[position(&steps, "kubectl delete pv")];
    let yaml = step.rollback.split("<<'EOF' &&\n").nth(1).unwrap();
    let old = parsed(yaml.split("\nEOF\n").next().unwrap());
    let mut objects = fixture("local-path");
    let was = object(&mut objects, "PersistentVolume");
    was["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    was["spec"]["claimRef"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    assert_eq!(old["spec"], was["spec"]);
    assert_eq!(
        old["metadata"]["annotations"],
        was["metadata"]["annotations"]
    );
    for key in ["uid", "resourceVersion", "finalizers", "creationTimestamp"] {
        assert_eq!(old["metadata"][key], Value::Null, "{key}");
    }
    assert!(steps[0].rollback.contains("\"Delete\""));
}

/// Checks the syntax of the commands with a shell.
fn check_syntax(commands: &str) {
    let mut shell = Process::new("sh")
        .args(["-n", "-s"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(commands.as_bytes())
        .unwrap();
    assert!(shell.wait().unwrap().success(), "{commands}");
}

#[test]
fn every_command_is_one_of_a_posix_shell() {
    for (name, line, ..) in CASES {
        for swap in ["", " --swap class --class new"] {
            for step in planned(name, &format!("{line}{swap}")).steps {
                for commands in [&step.run, &step.verify, &step.rollback] {
                    check_syntax(commands);
                }
                assert!(
                    !step.run.is_empty() && !step.verify.is_empty(),
                    "{name}: {}",
                    step.title
                );
            }
        }
    }
}

/// The pods enter the mounts of the node, where the socket has another path than in the driver's pod.
#[test]
fn the_pods_reach_the_driver_below_the_directory_of_the_kubelet() {
    let line = "--kubelet-dir=/var/lib/k0s/kubelet/ --driver-name=disks.example";
    let steps = planned("local-path", line).steps;
    let step = &steps[position(&steps, "volume\n    - import")];
    for text in [&step.run, &step.rollback] {
        let socket = "unix:///var/lib/k0s/kubelet/plugins/disks.example/csi.sock";
        assert!(text.contains(socket), "{text}");
    }
}
