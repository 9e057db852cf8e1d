//! The script of a plan with a stand-in for kubectl, as a person runs it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output};

use super::*;

const KUBECTL: &str = include_str!("kubectl.sh");

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// A plan of one claim, and the objects of its cluster.
struct Cluster {
    dir: tempfile::TempDir,
    plan: Plan,
}

impl Cluster {
    fn new(objects: &[Value], line: &str) -> Self {
        let report = report(objects, line);
        let dir = tempfile::tempdir().unwrap();
        let script = report.script().to_string();
        let cluster = Self {
            dir,
            plan: only(report),
        };
        fs::write(cluster.path("plan.sh"), script).unwrap();
        fs::write(cluster.path("kubectl"), KUBECTL).unwrap();
        fs::set_permissions(cluster.path("kubectl"), fs::Permissions::from_mode(0o755)).unwrap();
        let state = [
            ("pv", ""),
            ("policy", cluster.variable("policy")),
            ("csi", cluster.variable("old_csi")),
        ];
        for (name, text) in state {
            fs::write(cluster.path(name), text).unwrap();
        }
        for workload in cluster.variable("workloads").split_whitespace() {
            let (workload, replicas) = workload.split_once('=').unwrap();
            let name = workload.replace('/', ".");
            let deletes = cluster.variable("deleting").contains(workload);
            let deletion = if deletes { "Delete" } else { "Retain" };
            fs::write(cluster.path(&format!("replicas.{name}")), replicas).unwrap();
            fs::write(cluster.path(&format!("deletion.{name}")), deletion).unwrap();
        }
        cluster
    }

    fn of(name: &str, line: &str) -> Self {
        Self::new(&fixture(name), line)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn variable(&self, name: &str) -> &str {
        variable(self.plan.planned.as_ref().unwrap(), name)
    }

    fn run(&self, verb: &str, step: &str) -> Output {
        self.command(verb, step).output().unwrap()
    }

    fn command(&self, verb: &str, step: &str) -> Process {
        let mut shell = Process::new("sh");
        shell.arg(self.path("plan.sh"));
        shell.args([verb, step, self.plan.claim.as_str()]);
        let path = std::env::var("PATH").unwrap();
        shell.env("PATH", format!("{}:{path}", self.dir.path().display()));
        shell.env("STATE", self.dir.path());
        shell.env("CLAIM", self.variable("claim"));
        shell.env("HANDLE", self.variable("handle"));
        shell
    }

    fn runs(&self, verb: &str, step: &str) {
        let output = self.run(verb, step);
        assert!(output.status.success(), "{verb} {step}: {output:?}");
    }

    fn refuses(&self, verb: &str, step: &str, problem: &str) {
        let output = self.run(verb, step);
        assert!(!output.status.success(), "{verb} {step}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(problem), "{verb} {step}: {text}");
    }

    /// The steps for kubectl.
    fn steps(&self) -> Vec<&'static str> {
        let steps = self.plan.planned.as_ref().unwrap().steps;
        steps.split(' ').collect()
    }

    /// The objects that a rollback must restore.
    fn objects(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let is_object = |name: &String| {
            name == "policy"
                || name == "csi"
                || name.starts_with("pod.")
                || name.contains(".statefulset")
        };
        let mut objects: Vec<_> = names
            .filter(is_object)
            .map(|name| (self.read(&name), name))
            .collect();
        objects.sort();
        objects
    }
}

/// Each step can be repeated after it is done, and the rollbacks restore the objects from each of them.
#[test]
fn a_claim_comes_back_from_each_step() {
    let cluster = Cluster::of("local-path", "");
    let (steps, before) = (cluster.steps(), cluster.objects());
    for last in 0..steps.len() {
        for step in &steps[..=last] {
            cluster.runs("do", step);
            // The repetition may be refused, but changes nothing.
            cluster.run("do", step);
            cluster.runs("check", step);
        }
        for step in steps[..=last].iter().rev() {
            cluster.runs("undo", step);
        }
        assert_eq!(cluster.objects(), before, "after {}", steps[last]);
    }
}

#[test]
fn a_claim_of_each_system_moves_and_comes_back() {
    for (name, line, ..) in CASES {
        let cluster = Cluster::of(name, line);
        let (steps, before) = (cluster.steps(), cluster.objects());
        for step in &steps {
            cluster.runs("do", step);
        }
        assert_eq!(cluster.read("policy"), cluster.variable("policy"), "{name}");
        assert_eq!(cluster.read("csi"), cluster.variable("new_csi"), "{name}");
        for step in steps.iter().rev() {
            cluster.runs("undo", step);
        }
        assert_eq!(cluster.objects(), before, "{name}");
    }
}

/// A step whose condition does not hold changes nothing.
#[test]
fn a_step_out_of_order_is_refused() {
    let cluster = Cluster::of("local-path", "");
    let before = cluster.objects();
    cluster.refuses(
        "check",
        "retain",
        "the policy of pvc-11 is 'Delete', not 'Retain'",
    );
    cluster.refuses(
        "do",
        "stop",
        "the policy of pvc-11 is 'Delete', not 'Retain'",
    );
    cluster.refuses("do", "drop", "a pod names claim data-db-0");
    cluster.refuses(
        "do",
        "import",
        "the phase of claim data-db-0 is 'Bound', not 'Lost'",
    );
    cluster.refuses("do", "bind", "the phase of pod rootcellar-import-");
    cluster.refuses(
        "do",
        "finish",
        "the driver and handle of pvc-11 is ' ', not 'csi.rootcellar.dev ",
    );
    cluster.refuses("undo", "import", "a pod names claim data-db-0");
    cluster.refuses(
        "do",
        "move",
        "the steps of claim shop/data-db-0 are: retain stop drop",
    );
    assert_eq!(cluster.objects(), before);

    // Another claim of the StatefulSet may be finished, and its deletion be allowed again.
    cluster.runs("do", "retain");
    fs::write(cluster.path("deletion.statefulset.db"), "Delete").unwrap();
    cluster.refuses("do", "stop", "statefulset/db deletes claims");
    let full = fs::File::create("/dev/full").unwrap();
    let unheard = cluster.command("do", "stop").stderr(full).status();
    assert!(!unheard.unwrap().success());
    assert_eq!(cluster.read("replicas.statefulset.db"), "2");

    // The old volume does not come back while the import may be at work.
    for step in ["retain", "stop", "drop", "import"] {
        cluster.runs("do", step);
    }
    cluster.refuses("undo", "drop", "pod/rootcellar-import-");
    fs::write(cluster.path("replicas.statefulset.db"), "1").unwrap();
    cluster.refuses("undo", "import", "a pod names claim data-db-0");
}

#[test]
fn the_script_says_how_to_use_it() {
    let cluster = Cluster::of("local-path", "");
    let script = cluster.path("plan.sh");
    let run = |arguments: &[&str]| {
        Process::new("sh")
            .arg(&script)
            .args(arguments)
            .output()
            .unwrap()
    };
    let report = run(&[]);
    assert!(report.status.success());
    let text = String::from_utf8(report.stdout).unwrap();
    for part in [
        "Usage: sh PLAN",
        "fsGroup 999",
        "Steps: retain stop drop import",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for arguments in [
        &["do"][..],
        &["do", "stop", "shop/other"],
        &["do", "jump", "shop/data-db-0"],
        &["redo", "stop", "shop/data-db-0"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(64), "{arguments:?}");
    }
}

/// No text of the cluster is a command.
#[test]
fn every_text_of_the_cluster_is_quoted() {
    let mut objects = fixture("local-path");
    let mut other = object(&mut objects, "PersistentVolume").clone();
    other["metadata"]["name"] = "other".into();
    other["spec"]["claimRef"]["name"] = "x'; touch broken\nEOF\ntouch broken".into();
    other["spec"]["hostPath"]["path"] = "/srv/other".into();
    let text = "'; touch broken; '\nEOF\n$(touch broken)";
    let annotations = &mut object(&mut objects, "PersistentVolume")["metadata"]["annotations"];
    annotations["example.com/text"] = text.into();
    objects.push(other);
    let cluster = Cluster::new(&objects, "");
    cluster.runs("do", "retain");
    cluster.runs("do", "stop");
    cluster.runs("do", "drop");
    cluster.runs("undo", "drop");
    assert!(!is_there(&cluster.path("broken")));
    let again = parsed(&cluster.read("pv"));
    assert_eq!(again["metadata"]["annotations"]["example.com/text"], text);
}

/// A deletion that ended before the finalizer was removed is brought to its end, so that the volume which comes back
/// stays.
#[test]
fn an_interrupted_deletion_ends_before_the_volume_comes_back() {
    let cluster = Cluster::of("local-path", "");
    for step in ["retain", "stop"] {
        cluster.runs("do", step);
    }
    fs::write(cluster.path("deleted"), "").unwrap();
    cluster.runs("undo", "drop");
    assert!(is_there(&cluster.path("pv")) && !is_there(&cluster.path("deleted")));
    let again = parsed(&cluster.read("pv"));
    assert_eq!(again["spec"]["claimRef"]["name"], "data-db-0");
}
