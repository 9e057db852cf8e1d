//! Flags, environment, and the commands for pools.

mod cordon;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Output;
use support::require;

use super::{last_line, rootcellar};
use support::loops::run;
use support::picture::picture;
use support::server::Server;
use support::skip;
use support::{NODE, Node, eventually, fuse};

/// Replaces `@` by the node's directory.
fn fill(node: &Node, arguments: &[&str]) -> Vec<String> {
    let root = node.path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    arguments
        .iter()
        .map(|text| text.replace('@', root))
        .collect()
}

/// Valid flags, which the cases alter.
const GOOD: &[&str] = &[
    "serve",
    "--endpoint=unix://@/run/csi.sock",
    "--node=n1",
    "--state-dir=@/new-state",
    "--kubelet-dir=@/kubelet",
];

/// A flag that is added to the valid flags or replaces one of them, and the flag that the error
/// names.
const MISTAKES: &[(&str, &str)] = &[
    ("--endpoint=tcp://127.0.0.1:1", "--endpoint"),
    ("--endpoint=@/run/csi.sock", "--endpoint"),
    ("--endpoint=unix://run/csi.sock", "--endpoint"),
    ("--endpoint=unix://@/run/csi", "--endpoint"),
    ("--endpoint=unix://@/run/../csi.sock", "--endpoint"),
    ("--endpoint=unix://@/new-state/csi.sock", "--state-dir"),
    ("--endpoint=", "--endpoint"),
    ("--node=", "--node"),
    ("--node=a/b", "--node"),
    ("--node=-a", "--node"),
    ("--state-dir=state", "--state-dir"),
    ("--state-dir=/", "--state-dir"),
    ("--kubelet-dir=kubelet", "--kubelet-dir"),
    ("--kubelet-dir=@/missing", "--kubelet-dir"),
    ("--kubelet-dir=@/file", "--kubelet-dir"),
    ("--pool=fast", "--pool"),
    ("--pool=fast=relative", "--pool"),
    ("--pool=Fast=@/pool", "--pool"),
    ("--pool=fast=@/pool,frob", "--pool"),
    ("--pool=fast=@/pool,overcommit=0", "--pool"),
    ("--pool=fast=@/pool,reserve=101%", "--pool"),
    ("--pool=a=@/pool --pool=a=@/other", "--pool"),
    ("--pool=a=@/pool --pool=b=@/pool", "--pool"),
    ("--pool=a=@/pool --pool=b=@/pool/b", "--pool"),
    ("--pool=a=@/run", "--endpoint"),
    ("--pool=a=@/new-state", "--state-dir"),
    ("--pool=a=@/new-state/a", "--state-dir"),
    ("--pool=a=@/kubelet", "--kubelet-dir"),
    ("--driver-name=1csi", "--driver-name"),
    ("--driver-name=Csi.Example", "--driver-name"),
    ("--topology-key=node", "--topology-key"),
    ("--topology-key=a/b/c", "--topology-key"),
    ("--http=9808", "--http"),
    ("--http=localhost:9808", "--http"),
    ("--http=127.0.0.1:65536", "--http"),
    ("--log-format=xml", "--log-format"),
    ("--lock-wait=never", "--lock-wait"),
    ("--frob", "--frob"),
    ("extra", "extra"),
];

/// A mistake in the flags ends the server with exit code 64 and one sentence that names the flag,
/// before it creates, binds or opens anything.
///
/// Proves: SV1.
#[test]
fn a_bad_configuration_is_one_sentence_and_touches_nothing() {
    let node = Node::new();
    fs::write(node.path("file"), "").unwrap();
    let before = picture(&node.path(""), &[]);
    for (mistake, flag) in MISTAKES {
        let given: Vec<&str> = mistake.split(' ').collect();
        let replaced = |good: &&&str| {
            let name = good.split('=').next().unwrap_or_default();
            !good.starts_with("--") || !given.iter().any(|g| g.starts_with(&format!("{name}=")))
        };
        let kept: Vec<&str> = GOOD.iter().filter(replaced).copied().collect();
        let arguments = fill(&node, &[kept, given].concat());
        assert_mistake(mistake, &run_to_its_end(&node, &arguments, &[]), flag);
        assert_eq!(picture(&node.path(""), &[]), before, "{mistake}");
    }
}

/// A missing required flag is also named.
///
/// Proves: SV1.
#[test]
fn a_missing_flag_is_named() {
    let node = Node::new();
    for missing in ["--endpoint", "--node"] {
        let kept: Vec<&str> = GOOD
            .iter()
            .filter(|flag| !flag.starts_with(missing))
            .copied()
            .collect();
        assert_mistake(
            missing,
            &run_to_its_end(&node, &fill(&node, &kept), &[]),
            missing,
        );
    }
}

/// The error about a mistake in the environment names the variable.
///
/// Proves: SV1.
#[test]
fn a_mistake_in_the_environment_names_the_variable() {
    let node = Node::new();
    let before = picture(&node.path(""), &[]);
    let cases = [
        ("CSI_ENDPOINT", "/csi.sock"),
        ("NODE_NAME", "a b"),
        ("ROOTCELLAR_POOLS", "a=/srv/a;a=/srv/b"),
        ("RUST_LOG", "rootcellar=loud=very"),
    ];
    for (variable, value) in cases {
        let flag = match variable {
            "CSI_ENDPOINT" => "--endpoint",
            "NODE_NAME" => "--node",
            _ => "no flag",
        };
        let kept: Vec<&str> = GOOD
            .iter()
            .filter(|good| !good.starts_with(flag))
            .copied()
            .collect();
        let output = run_to_its_end(&node, &fill(&node, &kept), &[(variable, value)]);
        assert_mistake(variable, &output, variable);
        assert_eq!(picture(&node.path(""), &[]), before, "{variable}");
    }
}

/// So does the error about a variable that is not UTF-8, which the parser of the flags does not name.
///
/// Proves: SV1.
#[test]
fn a_variable_that_is_not_utf8_is_named() {
    for variable in ["NODE_NAME", "ROOTCELLAR_POOLS"] {
        let mut command = rootcellar(&["pool", "adopt", "/nowhere"]);
        command
            .env("NODE_NAME", NODE)
            .env(variable, OsStr::from_bytes(b"a=/srv/\xff"));
        assert_mistake(variable, &command.output().unwrap(), variable);
    }
}

fn run_to_its_end(node: &Node, arguments: &[String], env: &[(&str, &str)]) -> Output {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = rootcellar(&arguments);
    command
        .envs(env.iter().copied())
        .current_dir(node.path("run"));
    // If it serves by mistake, `timeout` ends it with an exit code that no case expects.
    let mut limited = std::process::Command::new("timeout");
    limited.arg("30").current_dir(node.path("run"));
    support::server::run_by(limited, &command).output().unwrap()
}

#[track_caller]
fn assert_mistake(case: &str, output: &Output, named: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{case}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{case}: {stderr}");
    assert!(
        stderr.starts_with("rootcellar: ") && stderr.contains(named),
        "{case}: {stderr}"
    );
}

/// Endpoint, node and pools may come from the environment.
///
/// Proves: SV1.
#[test]
fn the_environment_configures_what_the_flags_leave_open() {
    let node = Node::new();
    let flags = fill(
        &node,
        &["serve", "--state-dir=@/state", "--kubelet-dir=@/kubelet"],
    );
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut command = rootcellar(&flags);
    command
        .env(
            "CSI_ENDPOINT",
            format!("unix://{}", node.path("run/csi.sock").display()),
        )
        .env("NODE_NAME", NODE)
        .env("ROOTCELLAR_POOLS", format!(" {} ;", node.pool_option()));
    let server = Server::spawn(&node, &mut command);
    eventually("the pool is made", || {
        node.pool().join(".rootcellar/pool.json").is_file()
    });
    assert_eq!(server.stop(), Some(0));
}

/// A kubelet directory that is a mount but not shared is refused, because the host would never see
/// a volume. A shared one is accepted.
///
/// Proves: SV1.
#[test]
fn a_kubelet_directory_that_shares_no_mounts_is_refused() {
    require!(loop_devices);
    let node = Node::new();
    let kubelet = node.path("kubelet");
    let mount = |arguments: &[&str]| {
        run(std::process::Command::new("mount")
            .args(arguments)
            .arg(&kubelet));
    };
    mount(&["-t", "tmpfs", "kubelet"]);
    let (code, log) = Server::spawn(&node, &mut Server::command(&node, &[])).end();
    assert_eq!(code, Some(64), "{log}");
    assert!(
        last_line(&log).contains("--kubelet-dir") && log.contains("Bidirectional"),
        "{log}"
    );
    mount(&["--make-shared"]);
    let server = Server::spawn(&node, &mut Server::command(&node, &[]));
    eventually("it serves", || {
        std::os::unix::net::UnixStream::connect(&server.socket).is_ok()
    });
    assert_eq!(server.stop(), Some(0));
    run(std::process::Command::new("umount").arg(&kubelet));
}

/// `pool init` makes an empty directory a pool and prints its id first. It refuses a directory that
/// is not empty, an existing pool, and a filesystem without the required guarantees, and then
/// changes nothing.
///
/// Proves: P1.
#[test]
fn pool_init_makes_a_pool_of_an_empty_directory_alone() {
    let node = Node::new();
    fs::create_dir(node.path("full")).unwrap();
    fs::write(node.path("full/file"), "mine").unwrap();
    let init = |path: &str| {
        run_to_its_end(
            &node,
            &fill(&node, &["pool", "init", path, "--node=n1"]),
            &[],
        )
    };
    for path in ["@/pool", "@/made"] {
        let made = init(path);
        let stdout = String::from_utf8_lossy(&made.stdout);
        assert!(made.status.success(), "{made:?}");
        let marker = node
            .path(&path.replace("@/", ""))
            .join(".rootcellar/pool.json");
        let marker: serde_json::Value = serde_json::from_slice(&fs::read(marker).unwrap()).unwrap();
        assert_eq!(stdout.lines().next(), marker["id"].as_str(), "{stdout}");
        assert_eq!(marker["node"], "n1");
    }
    let before = picture(&node.path(""), &[]);
    let cases = [
        ("@/full", 1, "not empty"),
        ("@/pool", 1, "is pool"),
        ("@/missing/pool", 1, "nothing is at its path"),
        ("/proc/self/task", 1, "proc"),
        ("pool", 64, "not absolute"),
    ];
    for (path, code, says) in cases {
        let refused = init(path);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{path}: {stderr}");
        assert!(
            stderr.contains(says) && stderr.lines().count() == 1,
            "{path}: {stderr}"
        );
    }
    assert_eq!(picture(&node.path(""), &[]), before);
}

/// With `require-mount` and an unmounted disk, `pool init` creates nothing, and `pool list` reports
/// the missing mount.
///
/// Proves: P1.
#[test]
fn pool_init_and_list_want_the_disk_mounted() {
    let node = Node::new();
    let pools = format!("late={},require-mount", node.pool().display());
    let env = [("ROOTCELLAR_POOLS", pools.as_str())];
    let before = picture(&node.path(""), &[]);
    let init = fill(&node, &["pool", "init", "@/pool", "--node=n1"]);
    let list = fill(&node, &["pool", "list"]);
    for arguments in [init, list] {
        let refused = run_to_its_end(&node, &arguments, &env);
        let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.contains("nothing is mounted at its path"),
            "{arguments:?}: {said}"
        );
    }
    assert_eq!(picture(&node.path(""), &[]), before);
}

/// A pool whose disk does not answer is listed as such, and does not delay the others.
///
/// Proves: P12.
#[test]
fn pool_list_waits_for_no_disk_that_does_not_answer() {
    require!(loop_devices);
    let node = Node::new();
    let hung = node.path("hung");
    fs::create_dir(&hung).unwrap();
    let Some(_daemon) = fuse::mount_hanging(&hung) else {
        skip!("no FUSE");
    };
    let list = ["pool", "list", "--pool=hung=@/hung", "--pool=gone=@/gone"];
    let listed = run_to_its_end(&node, &fill(&node, &list), &[]);
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    let text = String::from_utf8(listed.stdout).unwrap();
    let row = |at| text.lines().nth(at).unwrap_or_default();
    assert!(row(1).starts_with("hung  not answering "), "{text}");
    assert!(row(2).starts_with("gone  unavailable "), "{text}");
    assert!(
        text.contains("pool hung: its disk has not answered for 5 s"),
        "{text}"
    );
}

/// `pool list` shows every configured pool with its state, its volumes and its reserved bytes, also
/// while a server serves the pools. `--json` gives the same information to programs.
///
/// Proves: P12.
#[tokio::test]
async fn pool_list_describes_every_pool() {
    let node = Node::new();
    let server = Server::start(&node).await;
    let request = support::messages::create("listed", 3 << 20);
    server.clients().await.create(request).await.unwrap();
    let healthy = format!("--pool={}", node.pool_option());
    let list = |arguments: &[&str]| {
        run_to_its_end(
            &node,
            &fill(&node, &[&["pool", "list"], arguments].concat()),
            &[],
        )
    };

    let all_well = list(&[&healthy]);
    let text = String::from_utf8_lossy(&all_well.stdout);
    assert!(all_well.status.success(), "{all_well:?}");
    let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        row[..6],
        ["default", "healthy", "1", "0", "3", "MiB"],
        "{text}"
    );

    let one_unavailable = list(&[&healthy, "--pool=gone=@/gone", "--json"]);
    assert_eq!(
        one_unavailable.status.code(),
        Some(1),
        "a script learns of the unavailable one"
    );
    let json: serde_json::Value = serde_json::from_slice(&one_unavailable.stdout).unwrap();
    assert_eq!(json[0]["name"], "default");
    assert_eq!(json[0]["volumes"], 1);
    assert_eq!(json[0]["snapshots"], 0);
    assert_eq!(json[0]["reserved_bytes"], 3 << 20);
    assert_eq!(json[0]["problem"], serde_json::Value::Null);
    assert_eq!(json[1]["name"], "gone");
    assert!(
        json[1]["problem"]
            .as_str()
            .unwrap()
            .contains("nothing is at its path")
    );
}

/// Runs commands on the only pool of a node, made by `pool init`; also returns the pool's id.
fn with_pool(node: &Node) -> (String, impl Fn(&[&str]) -> Output) {
    super::init_pool(node);
    let run = |arguments: &[&str]| run_to_its_end(node, &fill(node, arguments), &[]);
    let listed = run(&["pool", "list", "--json", "--pool=p=@/pool"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    (listed[0]["id"].as_str().unwrap().to_owned(), run)
}

fn assert_refused(output: &Output, code: i32, says: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(
        stderr.contains(says) && stderr.lines().count() == 1,
        "{stderr}"
    );
}

/// `pool adopt` reports the result for the pool. A refusal is one sentence with an exit code, and
/// changes nothing.
///
/// Proves: P12.
#[test]
fn pool_adopt_says_what_it_did() {
    let node = Node::new();
    let (id, run) = with_pool(&node);
    let adopt = |path: &str, node: &str| {
        let node = format!("--node={node}");
        let flags = ["--state-dir=@/state", "--any-filesystem", &node];
        run(&[&["pool", "adopt", path], &flags[..]].concat())
    };
    // The list has the reason for which a server of the node would refuse the pool.
    let listed = run(&["pool", "list", "--pool=p=@/pool", "--node=n2"]);
    let shown = String::from_utf8_lossy(&listed.stdout);
    assert_eq!(listed.status.code(), Some(1), "{shown}");
    assert!(
        shown.contains("of node test-node; mount the right disk"),
        "{shown}"
    );
    let said = String::from_utf8(adopt("@/pool", "n2").stdout).unwrap();
    assert!(
        said.starts_with(&id) && said.contains("of node test-node"),
        "{said}"
    );
    std::fs::rename(node.path("pool"), node.path("aside")).unwrap();
    std::fs::create_dir(node.path("pool")).unwrap();
    let listed = run(&["pool", "list", "--pool=p=@/pool", "--state-dir=@/state"]);
    let shown = String::from_utf8_lossy(&listed.stdout);
    assert!(
        shown.contains(&format!("held pool {id} before and holds none now")),
        "{shown}"
    );
    std::fs::remove_dir(node.path("pool")).unwrap();
    std::fs::rename(node.path("aside"), node.path("pool")).unwrap();
    let before = picture(&node.path(""), &[]);
    assert_refused(&adopt("@/kubelet", "n2"), 1, "holds no pool");
    assert_refused(&adopt("@/none", "n2"), 1, "nothing is at its path");
    assert_refused(&adopt("pool", "n2"), 64, "not absolute");
    assert_refused(&adopt("@/pool", "a/b"), 64, "--node");
    let _held = super::hold_lock(&node);
    assert_refused(&adopt("@/pool", "n3"), 75, "has its lock");
    assert_eq!(picture(&node.path(""), &[]), before);
}

/// `pool retire` takes the id of the pool or of one of its volumes, and reports the result. A
/// refusal is one sentence with an exit code, and changes nothing.
///
/// Proves: P12.
#[test]
fn pool_retire_says_what_it_did() {
    let node = Node::new();
    let (id, run) = with_pool(&node);
    let retire = |id: &str, state: &str| run(&["pool", "retire", id, "--state-dir", state]);
    let remembered = "--state-dir=@/state";
    let adopted = run(&[
        "pool",
        "adopt",
        "@/pool",
        "--node=n2",
        "--any-filesystem",
        remembered,
    ]);
    assert!(adopted.status.success(), "{adopted:?}");

    let before = picture(&node.path(""), &[]);
    assert_refused(&retire(&id, "@/state"), 1, "is not lost");
    assert_refused(&retire(&id, "@/none"), 64, "--state-dir: ");
    assert_refused(&retire("default", "@/state"), 64, "<ID>");
    assert_eq!(picture(&node.path(""), &[]), before);

    fs::rename(node.pool(), node.path("away")).unwrap();
    let listed = run(&["pool", "list", remembered, "--pool=p=@/pool"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains(&id), "which pool it was: {listed}");
    let volume = format!("v1-{}-{}", id.replace('-', ""), "0".repeat(32));
    for (id, says) in [
        (&volume, "may hold another pool now"),
        (&id, "check the id and the node"),
    ] {
        let retired = retire(id, "@/state");
        let said = String::from_utf8_lossy(&retired.stdout);
        assert!(
            retired.status.success() && said.contains(says),
            "{retired:?}"
        );
    }
}
