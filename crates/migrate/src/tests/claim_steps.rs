//! The steps of a plan for a claim with a stand-in for kubectl, as a person runs them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command as Process, Output};

use super::claims::{NAME, objects, report, two_claims};
use crate::claim::Report;

const KUBECTL: &str = include_str!("claim-kubectl.sh");
pub(super) const VOLUME: &str = "pvc-11";

/// A plan, and the objects of its cluster.
pub(super) struct Cluster {
    dir: tempfile::TempDir,
    pub(super) need: u64,
}

impl Cluster {
    pub(super) fn new(line: &str) -> Self {
        Self::of(&report(&objects(), &format!("{NAME} {line}")).unwrap())
    }

    pub(super) fn of(report: &Report) -> Self {
        let cluster = Self {
            dir: tempfile::tempdir().unwrap(),
            need: 100,
        };
        fs::write(cluster.path("plan.sh"), report.script().to_string()).unwrap();
        fs::write(cluster.path("kubectl.sh"), KUBECTL).unwrap();
        fs::create_dir(cluster.path("state")).unwrap();
        cluster.write("replicas.statefulset.db", "2");
        cluster.write("deletion.statefulset.db", "Delete");
        for plan in &report.claims {
            assert_eq!(plan.refusals, Vec::<String>::new());
            let variable = |name: &str| {
                let mut variables = plan.variables.iter();
                variables
                    .find(|(known, _)| *known == name)
                    .unwrap()
                    .1
                    .clone()
            };
            let (claim, volume) = (variable("claim"), variable("volume"));
            cluster.write(&format!("old.{}", variable("name")), &volume);
            for (name, text) in [
                ("policy", "Delete"),
                ("source", &volume),
                ("data", "content"),
            ] {
                cluster.write(&format!("pv.{volume}.{name}"), text);
            }
            let uid = format!("uid-{claim}");
            cluster.write(&format!("pv.{volume}.claim"), &format!("shop.{claim}"));
            cluster.write(&format!("pv.{volume}.uid"), &uid);
            cluster.write(&format!("pvc.shop.{claim}.uid"), &uid);
            cluster.write(&format!("pvc.shop.{claim}.volume"), &volume);
        }
        cluster
    }

    /// The same plan and objects, with a count of calls of its own.
    pub(super) fn copy(&self) -> Self {
        let copy = Self {
            dir: tempfile::tempdir().unwrap(),
            need: self.need,
        };
        fs::create_dir(copy.path("state")).unwrap();
        for name in ["plan.sh", "kubectl.sh"] {
            fs::copy(self.path(name), copy.path(name)).unwrap();
        }
        for entry in fs::read_dir(self.path("state")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name != "number" && name != "calls" {
                copy.write(&name, &self.read(&name));
            }
        }
        copy
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.path("state").join(name), text).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("state").join(name))
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    pub(super) fn command(&self, words: &[&str]) -> Process {
        let mut shell = Process::new("sh");
        shell.args(["-c", ". \"$KUBECTL\"; . \"$PLAN\"", "plan.sh"]);
        shell.args(words);
        shell.env("KUBECTL", self.path("kubectl.sh"));
        shell.env("PLAN", self.path("plan.sh"));
        shell.env("STATE", self.path("state"));
        shell.env("CLAIM", "data-db-0 wal-db-0");
        shell.env("NEED", self.need.to_string());
        // The stand-in ends its process group.
        shell.process_group(0);
        shell
    }

    pub(super) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub(super) fn runs(&self, verb: &str, step: &str) -> String {
        let output = self.run(&[verb, step, NAME]);
        assert!(
            output.status.success(),
            "{verb} {step}: {output:?}\n{}",
            self.read("calls")
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn refuses(&self, verb: &str, step: &str, problem: &str) {
        let output = self.run(&[verb, step, NAME]);
        assert!(!output.status.success(), "{verb} {step}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(problem), "{verb} {step}: {text}");
    }

    /// The data of the volume that the claim has.
    pub(super) fn data(&self) -> String {
        self.read(&format!(
            "pv.{}.data",
            self.read("pvc.shop.data-db-0.volume")
        ))
    }

    /// The objects that a rollback must restore, and nothing else may be there.
    pub(super) fn objects(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.path("state")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let kinds = ["pv.", "pvc.", "pod.", "secret.", "deletion.", "replicas."];
        let objects = names.filter(|name| kinds.iter().any(|kind| name.starts_with(kind)));
        let mut objects: Vec<_> = objects
            .map(|name| {
                // A claim that is made again is another object, so only whether a volume is bound to it counts.
                let content = match name.strip_suffix(".uid") {
                    Some(volume) if volume.starts_with("pv.") => {
                        let claim = self.read(&format!("{volume}.claim"));
                        let is_bound = self.read(&name) == self.read(&format!("pvc.{claim}.uid"));
                        is_bound.to_string()
                    }
                    Some(_) => String::new(),
                    // Each key is another one.
                    None if name.starts_with("secret.") => String::new(),
                    None => self.read(&name),
                };
                (name, content)
            })
            .collect();
        objects.sort();
        objects
    }
}

pub(super) const BEFORE_REMOVE: [&str; 7] = [
    "retain", "prepare", "stop", "copy", "swap", "start", "finish",
];

/// Each step can be repeated, and the rollbacks restore everything from each of them.
#[test]
fn a_claim_comes_back_from_each_step() {
    for line in ["--class fast", "--class fast --node n2"] {
        let cluster = Cluster::new(line);
        let before = cluster.objects();
        for (last, step) in BEFORE_REMOVE.iter().enumerate() {
            cluster.runs("do", step);
            cluster.runs("do", step);
            cluster.runs("check", step);
            assert_eq!(cluster.data(), "content", "{line} {step}");
            let back = cluster.copy();
            for step in BEFORE_REMOVE[..=last].iter().rev() {
                back.runs("undo", step);
                back.runs("undo", step);
                assert_eq!(back.data(), "content", "{line} {step}");
            }
            assert_eq!(back.objects(), before, "{line} until {step}");
        }
    }
}

/// The claim has its new volume at the end, and the old one is deleted only by the last step.
#[test]
fn a_claim_moves() {
    let cluster = Cluster::new("--class fast --node n2");
    let moved = cluster.run(&["move", NAME]);
    assert!(moved.status.success(), "{moved:?}");
    let new = cluster.read("pvc.shop.data-db-0.volume");
    assert!(new.starts_with("pvc-new"), "{new}");
    assert_eq!(cluster.data(), "content");
    assert_eq!(cluster.read("lost"), "");
    assert_eq!(cluster.read(&format!("pv.{new}.policy")), "Delete");
    assert_eq!(cluster.read("replicas.statefulset.db"), "2");
    let again = cluster.run(&["move", "all"]);
    assert!(again.status.success(), "{again:?}");
    let status = cluster.run(&["status"]);
    let status = String::from_utf8(status.stdout).unwrap();
    assert_eq!(
        status,
        format!("{NAME}: moved; new volume: {new} on node n2; old volume: {VOLUME} on node n1\n")
    );
    cluster.runs("do", "remove");
    cluster.runs("do", "remove");
    assert_eq!(cluster.read("lost"), VOLUME);
    assert_eq!(cluster.data(), "content");
    cluster.refuses("undo", "remove", "cannot come back");
}

/// The data goes from pod to pod if it can, and otherwise through the API server. The step says which.
#[test]
fn a_copy_between_nodes_finds_a_way() {
    for is_reachable in [true, false] {
        let cluster = Cluster::new("--class fast --node n2");
        if !is_reachable {
            cluster.write("unreachable", "");
        }
        for step in ["retain", "prepare", "stop"] {
            cluster.runs("do", step);
        }
        let text = cluster.runs("do", "copy");
        assert_eq!(text.contains("directly from pod to pod"), is_reachable);
        assert_eq!(text.contains("through the API server"), !is_reachable);
        let objects = cluster.objects();
        assert!(objects.iter().any(|(name, _)| name.starts_with("secret.")));
        cluster.runs("do", "swap");
        assert_eq!(cluster.data(), "content");
        let objects = cluster.objects();
        assert!(!objects.iter().any(|(name, _)| name.starts_with("secret.")));
    }
}

/// A copy without the last changes is not used.
#[test]
fn a_stale_copy_is_not_used() {
    let cluster = Cluster::new("--class fast");
    for step in ["retain", "prepare", "stop", "copy"] {
        cluster.runs("do", step);
    }
    cluster.refuses("undo", "stop", "undo copy first");
    cluster.write("pv.pvc-11.data", "more");
    cluster.refuses("do", "swap", "undo copy");
    cluster.runs("undo", "copy");
    for step in ["copy", "swap", "start"] {
        cluster.runs("do", step);
    }
    assert_eq!(cluster.data(), "more");
}

/// A volume that is too small is refused while the pods still run.
#[test]
fn a_small_target_is_refused_before_anything_stops() {
    let mut cluster = Cluster::new("--class fast");
    cluster.need = 2000;
    cluster.runs("do", "retain");
    cluster.refuses("do", "prepare", "too small");
    assert_eq!(cluster.read("replicas.statefulset.db"), "2");
    cluster.runs("undo", "prepare");
    cluster.runs("undo", "retain");
    assert_eq!(cluster.data(), "content");
}

/// If the claim cannot be made again, it gets its old volume back at once.
#[test]
fn a_refused_claim_gets_its_old_volume_back() {
    let cluster = Cluster::new("--class fast");
    for step in ["retain", "prepare", "stop", "copy"] {
        cluster.runs("do", step);
    }
    cluster.write("refuse.shop", "");
    cluster.refuses("do", "swap", "gets its old volume back");
    assert_eq!(cluster.read("pvc.shop.data-db-0.volume"), VOLUME);
    assert_eq!(cluster.data(), "content");
    fs::remove_file(cluster.path("state/refuse.shop")).unwrap();
    for step in ["swap", "start", "finish"] {
        cluster.runs("do", step);
    }
    assert!(
        cluster
            .read("pvc.shop.data-db-0.volume")
            .starts_with("pvc-new")
    );
}

/// The old volume stays if it may be in use.
#[test]
fn a_removal_is_refused_if_anything_differs() {
    let cluster = Cluster::new("--class fast");
    cluster.refuses("do", "remove", "no new volume");
    assert!(cluster.run(&["move", NAME]).status.success());
    let moved = cluster.copy();
    moved.write("pv.pvc-11.claim", "shop.other");
    moved.refuses("do", "remove", "the phase and claim");
    let moved = cluster.copy();
    moved.write("pv.same.source", VOLUME);
    moved.refuses("do", "remove", "the number of PersistentVolumes");
    let moved = cluster.copy();
    moved.runs("undo", "finish");
    moved.refuses("do", "remove", "policy");
    assert_eq!(moved.read("pv.pvc-11.data"), "content");
}

/// The old volume would be deleted with its data.
#[test]
fn undo_retain_is_refused_after_the_swap() {
    let cluster = Cluster::new("--class fast");
    assert!(cluster.run(&["move", NAME]).status.success());
    cluster.refuses("undo", "retain", "undo swap first");
    assert_eq!(cluster.read("lost"), "");
    assert_eq!(cluster.read("pv.pvc-11.policy"), "Retain");
}

#[test]
fn a_step_before_the_swap_is_refused_after_it() {
    let cluster = Cluster::new("--class fast");
    for step in ["retain", "prepare", "stop", "copy", "swap"] {
        cluster.runs("do", step);
    }
    for step in ["prepare", "copy"] {
        cluster.refuses("do", step, "undo swap first");
        cluster.refuses("undo", step, "undo swap first");
    }
    cluster.runs("do", "start");
}

#[test]
fn a_repeated_move_keeps_the_replicas_of_today() {
    let cluster = Cluster::new("--class fast");
    assert!(cluster.run(&["move", NAME]).status.success());
    cluster.write("replicas.statefulset.db", "5");
    assert!(cluster.run(&["move", "all"]).status.success());
    assert_eq!(cluster.read("replicas.statefulset.db"), "5");
}

/// The pods stop once, after both volumes are prepared, and start after both claims have their new volumes.
#[test]
fn the_claims_of_a_workload_move_together() {
    let report = report(&two_claims(), "--from-node n1 --node n2 --class fast").unwrap();
    let cluster = Cluster::of(&report);
    let moved = cluster.run(&["move", "all"]);
    assert!(moved.status.success(), "{moved:?}");
    let calls = cluster.read("calls");
    let at = |word: &str| {
        let lines = calls
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(word));
        lines.map(|(number, _)| number).collect::<Vec<_>>()
    };
    let (label, stop) = (at("label pv"), at("--replicas 0"));
    let (swap, start) = (at("delete --raw"), at("--replicas 2"));
    assert_eq!((stop.len(), swap.len(), start.len()), (2, 2, 2));
    assert!(label[1] < stop[0], "{calls}");
    assert!(stop[1] < swap[0] && swap[1] < start[0], "{calls}");
    for claim in ["data-db-0", "wal-db-0"] {
        let volume = cluster.read(&format!("pvc.shop.{claim}.volume"));
        assert!(volume.starts_with("pvc-new"), "{volume}");
    }
}
