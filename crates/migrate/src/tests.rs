mod claim_attacks;
mod claim_faults;
mod claim_steps;
mod claims;
mod steps;

use serde_json::{Value, json};

use super::*;
use crate::planned::Planned;

const CLUSTER: &str = include_str!("../clusters/cluster.json");
const POOLS: &str = include_str!("../clusters/pools.json");

/// The fixture of each system, also of those that no code knows: mazdermind, kutti and csi-host-path.
const FIXTURES: [(&str, &str); 9] = [
    ("local-path", include_str!("../clusters/local-path.json")),
    ("k3s", include_str!("../clusters/k3s.json")),
    ("static", include_str!("../clusters/static.json")),
    (
        "kubevirt-legacy",
        include_str!("../clusters/kubevirt-legacy.json"),
    ),
    (
        "kubevirt-csi",
        include_str!("../clusters/kubevirt-csi.json"),
    ),
    ("mazdermind", include_str!("../clusters/mazdermind.json")),
    ("kutti", include_str!("../clusters/kutti.json")),
    (
        "csi-host-path",
        include_str!("../clusters/csi-host-path.json"),
    ),
    ("manual", include_str!("../clusters/manual.json")),
];

fn fixture(name: &str) -> Vec<Value> {
    let (_, text) = FIXTURES.iter().find(|(of, _)| *of == name).unwrap();
    objects::script::stream(format!("{CLUSTER}{text}").as_bytes()).unwrap()
}

fn options(line: &str) -> Options {
    let words = [
        "rootcellar-migrate",
        "plan",
        "--objects=o",
        "--pools=p",
        "--image=registry.example/rc:1",
    ];
    let words = words.into_iter().chain(line.split_whitespace());
    match Cli::try_parse_from(words).unwrap().command {
        Command::Plan(options) => *options,
        Command::Claim(_) => unreachable!(),
    }
}

fn report(objects: &[Value], line: &str) -> Report {
    report_with(objects, POOLS, line)
}

fn report_with(objects: &[Value], pools: &str, line: &str) -> Report {
    let text: String = objects.iter().map(Value::to_string).collect();
    let cluster = Cluster::parse(text.as_bytes()).unwrap();
    Report::new(
        &cluster,
        &Pools::parse(pools.as_bytes()).unwrap(),
        &options(line),
    )
}

fn only(mut report: Report) -> Plan {
    assert_eq!(report.claims.len(), 1, "{report:?}");
    report.claims.pop().unwrap()
}

fn planned(name: &str, line: &str) -> Planned {
    let plan = only(report(&fixture(name), line));
    assert_eq!(plan.refusals, Vec::<String>::new(), "{name}");
    plan.planned.unwrap()
}

fn parsed(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"))
}

fn variable<'a>(planned: &'a Planned, name: &str) -> &'a str {
    let mut variables = planned.variables.iter();
    let (_, value) = variables.find(|(of, _)| *of == name).unwrap();
    value
}

/// The object of this kind of a fixture.
fn object<'a>(objects: &'a mut [Value], kind: &str) -> &'a mut Value {
    objects
        .iter_mut()
        .find(|object| object["kind"] == kind)
        .unwrap()
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn each_command_has_an_example_that_parses() {
    support::help::check_examples::<Cli>();
}

/// The flags for a hostPath volume that names no node.
const BY_HAND: &str = "--from manual --claim shop/files --node n1";

/// A fixture, the flags, and the system, node, directory and last words of the import.
type Case = (
    &'static str,
    &'static str,
    System,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const CASES: [Case; 7] = [
    (
        "local-path",
        "",
        System::LocalPath,
        "n1",
        "/opt/local-path-provisioner/pvc-11_shop_data-db-0",
        &["Delete"],
    ),
    (
        "k3s",
        "",
        System::LocalPath,
        "n1",
        "/var/lib/rancher/k3s/storage/pvc-12_shop_data-db-0",
        &["Delete"],
    ),
    (
        "kubevirt-legacy",
        "",
        System::Kubevirt,
        "n2",
        "/var/hpvolumes/pvc-14",
        &["Delete"],
    ),
    (
        "kubevirt-csi",
        "--path /var/hpvolumes/csi/{handle}/",
        System::Kubevirt,
        "n2",
        "/var/hpvolumes/csi/pvc-15",
        &["Delete"],
    ),
    (
        "mazdermind",
        BY_HAND,
        System::Manual,
        "n1",
        "/var/kubernetes/shop-files-pvc-16",
        &["--sharing", "node"],
    ),
    (
        "kutti",
        "",
        System::Manual,
        "n2",
        "/kutti/vols/pvc-17",
        &["Delete"],
    ),
    (
        "manual",
        "",
        System::Manual,
        "n2",
        "/srv/my files",
        &["Retain", "--mount-option", "noatime"],
    ),
];

#[test]
fn each_system_is_recognised_with_its_node_and_directory() {
    for (name, line, system, node, directory, last) in CASES {
        let plan = only(report(&fixture(name), line));
        assert_eq!(plan.system, system, "{name}");
        let planned = planned(name, line);
        assert_eq!(
            (planned.node.as_str(), planned.directory.as_str()),
            (node, directory),
            "{name}"
        );

        let pod = parsed(variable(&planned, "import_pod"));
        let spec = &pod["spec"];
        assert_eq!(spec["nodeName"], node, "{name}");
        assert_eq!(
            (&spec["hostPID"], &spec["restartPolicy"]),
            (&json!(true), &json!("Never"))
        );
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"]["privileged"], true);
        assert_eq!(container["image"], "registry.example/rc:1");
        let words = container["command"].as_array().unwrap();
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        let volume = plan.persistent_volume.as_str();
        let size = planned.size.to_string();
        let first = [
            "/rootcellar",
            "volume",
            "import",
            directory,
            "--host",
            "--endpoint",
            "unix:///var/lib/kubelet/plugins/csi.rootcellar.dev/csi.sock",
            "--pool",
            "default",
            "--name",
            volume,
            "--claim",
            &plan.claim,
            "--size",
            &size,
            "--access-mode",
        ];
        assert_eq!(words[..first.len()], first, "{name}");
        assert!(words.ends_with(last), "{name}: {words:?}");
    }
}

/// The claim keeps its uid, so the new volume must name it.
#[test]
fn the_new_volume_replaces_the_old_one_for_the_same_claim() {
    for (name, line, _, node, ..) in CASES {
        let planned = planned(name, line);
        let mut objects = fixture(name);
        let old = object(&mut objects, "PersistentVolume").clone();
        let new = parsed(variable(&planned, "new_volume"));
        assert_eq!(
            new["metadata"],
            json!({"name": old["metadata"]["name"]}),
            "no annotation: {name}"
        );
        let spec = &new["spec"];
        assert_eq!(
            spec["claimRef"]["uid"], old["spec"]["claimRef"]["uid"],
            "{name}"
        );
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain", "{name}");
        assert_eq!(
            spec["storageClassName"], old["spec"]["storageClassName"],
            "{name}"
        );
        assert_eq!(spec["csi"]["volumeHandle"], planned.handle, "{name}");
        let terms = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(
            terms[0]["matchExpressions"][0]["values"],
            json!([node]),
            "{name}"
        );
    }
}

#[test]
fn sizes_come_from_the_claim() {
    for (name, size) in [("manual", 1_500_000_000_u64), ("kutti", 1 << 30)] {
        assert_eq!(planned(name, "").size, size, "{name}");
    }
}

#[test]
fn the_handle_is_that_of_the_driver() {
    use objects::{ObjectId, PoolId, VolumeId};
    let pool = PoolId::parse("11111111-2222-4333-8444-555555555555").unwrap();
    let id = VolumeId::new(pool, &"pvc-11".parse().unwrap());
    assert_eq!(planned("local-path", "").handle, id.to_string());
}

#[test]
fn a_long_name_is_shortened_and_stays_unique() {
    let (a, b) = (
        format!("{}a", "p".repeat(250)),
        format!("{}b", "p".repeat(250)),
    );
    let [short, other] = [&a, &b].map(|name| plan::volume_name(name).unwrap());
    assert_eq!(short.as_str().len(), 128);
    assert_ne!(short, other);
    assert_eq!(plan::volume_name("pvc-1").unwrap().as_str(), "pvc-1");
}

#[test]
fn a_claim_that_could_lose_data_is_refused() {
    type Spoil = fn(&mut Vec<Value>);
    fn pv(objects: &mut [Value]) -> &mut Value {
        object(objects, "PersistentVolume")
    }
    fn claim(objects: &mut [Value]) -> &mut Value {
        object(objects, "PersistentVolumeClaim")
    }
    /// Another volume with this path.
    fn second(objects: &mut Vec<Value>, path: &str) {
        let mut other = pv(objects).clone();
        other["metadata"]["name"] = "other".into();
        other["spec"]["hostPath"]["path"] = path.into();
        other["spec"]["claimRef"] = Value::Null;
        objects.push(other);
    }
    #[rustfmt::skip]
    let cases: &[(&str, Spoil, &str, &str)] = &[
        ("block", |o| pv(o)["spec"]["volumeMode"] = "Block".into(), "", "volumeMode Block"),
        ("label of no node", |o| o.retain(|o| o["metadata"]["name"] != "n1"), "", "no node"),
        ("two nodes", |o| for o in o { if o["kind"] == "Node" { o["metadata"]["labels"]["kubernetes.io/hostname"] = "host-1".into() } }, "", "several nodes, n1, n2"),
        ("no node", |o| pv(o)["spec"]["nodeAffinity"] = Value::Null, "", "give --node"),
        ("wrong node", |o| pv(o)["spec"]["nodeAffinity"] = Value::Null, "--claim shop/data-db-0 --node n3", "no node"),
        ("strange affinity", |o| pv(o)["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["operator"] = "Gt".into(), "", "Gt"),
        ("same path", |o| second(o, "/opt//local-path-provisioner/pvc-11_shop_data-db-0/"), "", "PersistentVolume other"),
        ("parent", |o| second(o, "/opt"), "", "is inside that of PersistentVolume other"),
        ("child", |o| second(o, "/opt/local-path-provisioner/pvc-11_shop_data-db-0/a"), "", "contains that"),
        ("root", |o| pv(o)["spec"]["hostPath"]["path"] = "/".into(), "", "not an absolute path"),
        ("upwards", |o| pv(o)["spec"]["hostPath"]["path"] = "/a/../b".into(), "", "not an absolute path"),
        ("file", |o| pv(o)["spec"]["hostPath"]["type"] = "File".into(), "", "type File"),
        ("in the pool", |o| pv(o)["spec"]["hostPath"]["path"] = "/var/lib/rootcellar/pools/default/x".into(), "", "inside each other"),
        ("above the pool", |o| pv(o)["spec"]["hostPath"]["path"] = "/var/lib/rootcellar".into(), "", "inside each other"),
        ("no request", |o| claim(o)["spec"]["resources"] = json!({}), "", "requests no size"),
        ("no mode", |o| claim(o)["spec"]["accessModes"] = json!([]), "", "no access mode"),
        ("terminating claim", |o| claim(o)["metadata"]["deletionTimestamp"] = "t".into(), "", "claim is being deleted"),
        ("terminating volume", |o| pv(o)["metadata"]["deletionTimestamp"] = "t".into(), "", "PersistentVolume is being deleted"),
        ("ephemeral", |o| claim(o)["metadata"]["ownerReferences"] = json!([{"kind": "Pod", "name": "p"}]), "", "deleted with it"),
        ("unknown pool", |_| (), "--pool fast", "no pool fast of node n1"),
        ("pool of the other node", |_| (), "--pool away", "no pool away of node n1"),
    ];
    for (case, spoil, line, fragment) in cases {
        let mut objects = fixture("local-path");
        spoil(&mut objects);
        let plan = only(report(&objects, line));
        assert!(plan.planned.is_none(), "{case}");
        assert!(
            plan.refusals.iter().any(|reason| reason.contains(fragment)),
            "{case}: {plan:?}"
        );
    }
    for (line, fragment) in [
        ("--pool away", "its disk is not mounted"),
        ("--pool disks", "disks/d1, disks/d2"),
    ] {
        let plan = only(report(&fixture("kutti"), line));
        assert!(plan.refusals[0].contains(fragment), "{plan:?}");
    }
}

/// The import would find another directory of this path, or an empty one.
#[test]
fn a_directory_is_of_the_node_of_its_pods() {
    let mut all = fixture("mazdermind");
    all.push(json!({
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "nodeName": "n1",
            "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": "files"}}],
        },
    }));
    let line = BY_HAND.replace("n1", "n2");
    let plan = only(report(&all, &line));
    assert!(plan.refusals[0].contains("web runs on node n1"), "{plan:?}");
}

#[test]
fn a_flag_that_is_missing_is_named() {
    for (name, fragment) in [
        ("kubevirt-csi", "give --path"),
        ("mazdermind", "give --node with --claim"),
    ] {
        let plan = only(report(&fixture(name), ""));
        assert!(plan.refusals[0].contains(fragment), "{plan:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_renamed_is_refused_with_the_way() {
    let quota = POOLS.replacen("\"none\"", "\"squota\"", 1);
    let cases = [
        ("static", POOLS, "", "is a mount"),
        (
            "kutti",
            POOLS,
            "--pool disks/d2",
            "pool disks/d2 is a member",
        ),
        (
            "local-path",
            &quota,
            "",
            "pool default enforces sizes by the simple quota",
        ),
    ];
    for (name, pools, line, fragment) in cases {
        let plan = only(report_with(&fixture(name), pools, line));
        assert!(plan.planned.is_none(), "{plan:?}");
        let reason = plan.refusals.join("\n");
        assert!(reason.contains(fragment), "{reason}");
        let way = format!("`rootcellar-migrate claim {}`", plan.claim);
        assert!(reason.contains(&way), "{reason}");
    }
}

#[test]
fn volumes_without_a_bound_claim_are_named_and_not_planned() {
    type Spoil = fn(&mut Vec<Value>);
    let cases: &[(Spoil, &str)] = &[
        (
            |o| object(o, "PersistentVolume")["spec"]["claimRef"] = Value::Null,
            "no claim",
        ),
        (
            |o| o.retain(|o| o["kind"] != "PersistentVolumeClaim"),
            "not in the input",
        ),
        (
            |o| object(o, "PersistentVolume")["status"]["phase"] = "Released".into(),
            "Released",
        ),
        (
            |o| object(o, "PersistentVolumeClaim")["metadata"]["uid"] = "other".into(),
            "is Bound",
        ),
        (
            |o| object(o, "PersistentVolumeClaim")["status"]["phase"] = "Lost".into(),
            "Lost",
        ),
    ];
    for (spoil, fragment) in cases {
        let mut objects = fixture("k3s");
        spoil(&mut objects);
        let report = report(&objects, "");
        assert!(report.claims.is_empty(), "{fragment}");
        assert!(report.skipped[0].contains(fragment), "{:?}", report.skipped);
    }
}

#[test]
fn flags_select_claims() {
    let mut objects = fixture("k3s");
    objects.extend(fixture("kutti"));
    let cases = [
        ("", 2),
        ("--from local-path", 1),
        ("--from manual,static", 1),
        ("--from all", 2),
        ("--namespace shop", 2),
        ("--namespace other", 0),
        ("--claim shop/files", 1),
    ];
    for (line, count) in cases {
        assert_eq!(report(&objects, line).claims.len(), count, "{line}");
    }
}

#[test]
fn differences_are_warnings() {
    let cases = [
        ("local-path", "", "fsGroup 999"),
        ("local-path", "", "class old has no allowVolumeExpansion"),
        ("local-path", "", "pool default enforces none"),
        ("static", "", "capacity of 98Gi"),
        ("mazdermind", BY_HAND, "RWX"),
        ("mazdermind", BY_HAND, "provisioner: hostpath is unknown"),
        ("kutti", "", "localvolume is unknown"),
        ("manual", "", "hard are unknown"),
    ];
    for (name, line, fragment) in cases {
        let plan = only(report(&fixture(name), line));
        assert!(
            plan.warnings.iter().any(|line| line.contains(fragment)),
            "{name}: {plan:?}"
        );
    }
    // The kubelet applies fsGroup to local volumes already.
    let plan = only(report(&fixture("k3s"), ""));
    assert!(
        !plan.warnings.iter().any(|line| line.contains("fsGroup")),
        "{plan:?}"
    );
}

#[test]
fn missing_kinds_are_named() {
    let objects = fixture("k3s");
    assert_eq!(report(&objects, "").unchecked, Vec::<String>::new());
    for (kind, consequence) in cluster::KINDS {
        let rest: Vec<Value> = objects
            .iter()
            .filter(|o| o["kind"] != kind)
            .cloned()
            .collect();
        let unchecked = report(&rest, "").unchecked;
        assert_eq!(
            unchecked,
            [format!("the input has no {kind}: {consequence}")]
        );
    }
}

/// The old volume comes back as it was, but with policy Retain and for the claim that exists.
#[test]
fn a_rollback_makes_the_old_volume_again() {
    let planned = planned("local-path", "");
    let old = parsed(variable(&planned, "old_volume"));
    let mut objects = fixture("local-path");
    let was = object(&mut objects, "PersistentVolume");
    was["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    let claim = was["spec"]["claimRef"].as_object_mut().unwrap();
    claim.remove("resourceVersion");
    assert_eq!(old["spec"], was["spec"]);
    let annotations = was["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    assert_eq!(
        old["metadata"]["annotations"],
        was["metadata"]["annotations"]
    );
    for key in ["uid", "resourceVersion", "finalizers", "creationTimestamp"] {
        assert_eq!(old["metadata"][key], Value::Null, "{key}");
    }
}

#[test]
fn workloads_and_pods_of_a_claim_are_found() {
    let found = |objects: &[Value]| {
        let plan = only(report(objects, ""));
        let planned = plan.planned.unwrap();
        let names = ["workloads", "deleting", "bare_pods", "others"];
        (
            names.map(|name| variable(&planned, name).to_owned()),
            plan.warnings.join("\n"),
        )
    };
    let mut objects = fixture("local-path");
    let (names, _) = found(&objects);
    assert_eq!(names, ["statefulset/db=2", "statefulset/db", "", ""]);
    let (names, _) = found(&fixture("kutti"));
    assert_eq!(names, ["deployment/web=3", "", "", ""]);
    objects.retain(|object| object["kind"] != "StatefulSet");
    let (names, warnings) = found(&objects);
    assert_eq!(names, ["", "", "", "StatefulSet db, which runs pod db-0"]);
    assert!(warnings.contains("of StatefulSet db"), "{warnings}");
    object(&mut objects, "Pod")["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(found(&objects).0, ["", "", "db-0", ""]);
}

/// The pods enter the mounts of the node, where the socket has another path than in the driver's pod.
#[test]
fn the_pods_reach_the_driver_below_the_directory_of_the_kubelet() {
    let line = "--kubelet-dir=/var/lib/k0s/kubelet/ --driver-name=disks.example";
    let planned = planned("local-path", line);
    for name in ["import_pod", "export_pod"] {
        let text = variable(&planned, name);
        let socket = "unix:///var/lib/k0s/kubelet/plugins/disks.example/csi.sock";
        assert!(text.contains(socket), "{text}");
    }
}

/// The plan of a claim that was moved cannot be made again.
#[test]
fn an_existing_plan_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let objects: String = fixture("k3s").iter().map(Value::to_string).collect();
    std::fs::write(at("objects"), objects).unwrap();
    std::fs::write(at("pools"), POOLS).unwrap();
    let line = format!("--to {}", at("plan.sh"));
    let mut options = options(&line);
    options.common.objects = at("objects").into();
    options.pools = at("pools").into();
    assert_eq!(run(&options), Ok(true));
    let plan = std::fs::read_to_string(at("plan.sh")).unwrap();
    assert!(plan.contains("shop/data-db-0"));
    assert!(run(&options).unwrap_err().contains("exists"));
    assert_eq!(std::fs::read_to_string(at("plan.sh")).unwrap(), plan);
}

#[test]
fn an_input_that_is_no_list_is_an_error() {
    for text in [
        "[1]",
        "{\"kind\": \"Node\"}",
        "x",
        "{\"items\": [{\"kind\": \"Pod\"}]}",
    ] {
        assert!(Cluster::parse(text.as_bytes()).is_err(), "{text}");
    }
    assert!(Pools::parse(b"{\"name\": \"a\"}").is_err());
}
