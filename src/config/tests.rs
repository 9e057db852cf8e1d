//! Tables of good and bad configurations.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: ServeArgs,
}

/// Flags that are all good, on a kubelet directory that exists.
fn good(kubelet: &Path) -> ServeArgs {
    let kubelet = format!("--kubelet-dir={}", kubelet.display());
    let line = [
        "rootcellar",
        "--endpoint=unix:///csi/csi.sock",
        "--node=node1",
        &kubelet,
    ];
    Command::parse_from(line).args
}

/// The configuration of good flags but for those in `line`.
fn configured(kubelet: &Path, line: &str) -> Result<Config> {
    let mut args = good(kubelet);
    for word in line.split(' ') {
        let (flag, value) = word.split_once('=').unwrap();
        let value = value.to_owned();
        match flag {
            "--endpoint" => args.endpoint = value,
            "--node" => args.node = value,
            "--pool" => args.pools.push(value),
            "--state-dir" => args.state_dir = value,
            "--kubelet-dir" => args.kubelet_dir = value,
            "--driver-name" => args.driver_name = value,
            "--topology-key" => args.topology_key = value,
            "--http" => args.http = Some(value),
            _ => panic!("no flag {flag}"),
        }
    }
    Config::from_args(args, None)
}

#[test]
fn the_defaults_are_as_documented() {
    let kubelet = tempfile::tempdir().unwrap();
    let config = Config::from_args(good(kubelet.path()), None).unwrap();
    let expected = Config {
        endpoint: "/csi/csi.sock".into(),
        node: "node1".parse().unwrap(),
        driver_name: "csi.rootcellar.dev".into(),
        topology_key: "topology.rootcellar.dev/node".into(),
        kubelet_dir: kubelet.path().into(),
        state_dir: "/var/lib/rootcellar/state".into(),
        pools: Vec::new(),
        http: None,
        log_format: LogFormat::Text,
        lock_wait: Duration::from_secs(30),
    };
    assert_eq!(config, expected);
}

#[test]
fn good_values_are_accepted() {
    let long = "n".repeat(MAX_NAME);
    let cases = [
        "--endpoint=unix:///a.sock",
        "--endpoint=unix:////a//b.sock",
        &format!(
            "--endpoint=unix:///{}.sock",
            "s".repeat(MAX_SOCKET_PATH - 6)
        ),
        "--node=ip-10-0-0-1.eu.compute.internal",
        "--driver-name=a",
        "--driver-name=csi-1.example.org",
        &format!("--driver-name={long}"),
        "--topology-key=a/b",
        "--topology-key=kubernetes.io/Host_name.1",
        &format!("--topology-key={long}/{long}"),
        "--state-dir=/state/",
        "--http=127.0.0.1:9808",
        "--http=[::]:0",
        "--pool=fast=/srv/a",
        "--pool=fast=/srv/a --pool=bulk=/srv/ab,require-mount",
        "--pool=fast=/var/lib/rootcellar/pool",
        "--kubelet-dir=/proc --pool=fast=/proc/pool",
    ];
    let kubelet = tempfile::tempdir().unwrap();
    for line in cases {
        configured(kubelet.path(), line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

const ENDPOINT: &str = "--endpoint (or CSI_ENDPOINT)";
const NODE: &str = "--node (or NODE_NAME)";

/// Flags, the flag that is named, and a part of what is said of it.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "--endpoint=",
        ENDPOINT,
        "\"\" is not a Unix socket; write unix:///",
    ),
    ("--endpoint=/csi/csi.sock", ENDPOINT, "not a Unix socket"),
    (
        "--endpoint=tcp://127.0.0.1:1",
        ENDPOINT,
        "not a Unix socket",
    ),
    (
        "--endpoint=unix://csi/csi.sock",
        ENDPOINT,
        "\"csi/csi.sock\" is not absolute",
    ),
    ("--endpoint=unix:csi.sock", ENDPOINT, "not a Unix socket"),
    (
        "--endpoint=unix:///csi/csi",
        ENDPOINT,
        "does not end in .sock",
    ),
    (
        "--endpoint=unix:///csi/.sock",
        ENDPOINT,
        "does not end in .sock",
    ),
    (
        "--endpoint=unix:///csi/csi.sock/",
        ENDPOINT,
        "does not end in .sock",
    ),
    (
        "--endpoint=unix:///csi/../csi.sock",
        ENDPOINT,
        "holds \"..\"",
    ),
    ("--endpoint=unix:///", ENDPOINT, "root directory"),
    ("--node=", NODE, "1 to 253 characters"),
    ("--node=a/b", NODE, "node name \"a/b\""),
    ("--node=-a", NODE, "node name \"-a\""),
    ("--driver-name=", "--driver-name", "not a driver name"),
    (
        "--driver-name=CSI.example",
        "--driver-name",
        "\"CSI.example\"",
    ),
    (
        "--driver-name=csi..example",
        "--driver-name",
        "\"csi..example\"",
    ),
    (
        "--driver-name=csi.-example",
        "--driver-name",
        "\"csi.-example\"",
    ),
    (
        "--driver-name=csi.example1",
        "--driver-name",
        "ends with a letter",
    ),
    (
        "--driver-name=1csi.example",
        "--driver-name",
        "begins and ends with a letter",
    ),
    (
        "--driver-name=csi_example",
        "--driver-name",
        "\"csi_example\"",
    ),
    ("--topology-key=", "--topology-key", "not a topology key"),
    ("--topology-key=node", "--topology-key", "\"node\""),
    ("--topology-key=/node", "--topology-key", "\"/node\""),
    ("--topology-key=a.b/", "--topology-key", "\"a.b/\""),
    ("--topology-key=a.b/c/d", "--topology-key", "\"a.b/c/d\""),
    ("--topology-key=A.b/c", "--topology-key", "\"A.b/c\""),
    ("--topology-key=a.b/-c", "--topology-key", "\"a.b/-c\""),
    ("--topology-key=a.b/c.", "--topology-key", "\"a.b/c.\""),
    ("--state-dir=state", "--state-dir", "not absolute"),
    ("--state-dir=/a/./b", "--state-dir", "holds \".\""),
    ("--state-dir=/", "--state-dir", "root directory"),
    (
        "--state-dir=/csi/",
        "--state-dir",
        "/csi is in the directory of the socket",
    ),
    (
        "--state-dir=/csi/state",
        "--state-dir",
        "/csi/state is in the directory of the socket",
    ),
    ("--kubelet-dir=kubelet", "--kubelet-dir", "not absolute"),
    (
        "--kubelet-dir=/no/such/directory",
        "--kubelet-dir",
        "cannot be looked at",
    ),
    (
        "--kubelet-dir=/dev/null",
        "--kubelet-dir",
        "/dev/null is not a directory",
    ),
    ("--http=9808", "--http", "\"9808\" is not ADDR:PORT"),
    ("--http=localhost:9808", "--http", "\"localhost:9808\""),
    ("--http=", "--http", "write 127.0.0.1:9808"),
    ("--pool=", "--pool", "no '='"),
    ("--pool=a=/a,b", "--pool", "unknown option \"b\""),
    (
        "--pool=a=/a --pool=a=/b",
        "--pool",
        "two pools are called a",
    ),
    (
        "--pool=a=/a --pool=b=/a/",
        "--pool",
        "pool b at /a has the path of pool a",
    ),
    (
        "--pool=a=/a --pool=b=/a/b",
        "--pool",
        "pool b at /a/b is inside pool a",
    ),
    (
        "--pool=b=/a/b --pool=a=/a",
        "--pool",
        "pool b at /a/b is inside pool a",
    ),
    (
        "--pool=a=/csi",
        "--endpoint",
        "/csi/csi.sock is inside pool a at /csi",
    ),
    (
        "--pool=a=/var/lib/rootcellar",
        "--state-dir",
        "is inside pool a",
    ),
    (
        "--pool=a=/s --state-dir=/s",
        "--state-dir",
        "/s is inside pool a",
    ),
    (
        "--pool=a=/s/a --state-dir=/s",
        "--state-dir",
        "pool a at /s/a is inside /s",
    ),
    (
        "--pool=a=/k --kubelet-dir=/k/l",
        "--kubelet-dir",
        "/k/l is inside pool a",
    ),
];

#[test]
fn every_mistake_is_a_sentence_that_names_its_flag() {
    let long = "n".repeat(MAX_NAME + 1);
    let sock = format!("unix:///{}.sock", "s".repeat(MAX_SOCKET_PATH - 5));
    let too_long = [
        (
            format!("--endpoint={sock}"),
            ENDPOINT,
            "has 108 bytes, and at most 107",
        ),
        (
            format!("--node={}", "n".repeat(254)),
            NODE,
            "1 to 253 characters, not 254",
        ),
        (
            format!("--driver-name={long}"),
            "--driver-name",
            "at most 63",
        ),
        (
            format!("--topology-key={long}/a"),
            "--topology-key",
            "at most 63",
        ),
        (
            format!("--topology-key=a/{long}"),
            "--topology-key",
            "at most 63",
        ),
    ];
    let too_long = too_long
        .iter()
        .map(|(line, flag, part)| (line.as_str(), *flag, *part));
    let kubelet = tempfile::tempdir().unwrap();
    for (line, flag, fragment) in MISTAKES.iter().copied().chain(too_long) {
        assert_invalid(configured(kubelet.path(), line), flag, fragment);
    }
}

fn assert_invalid(result: Result<Config>, expected: &str, fragment: &str) {
    let Err(Error::Invalid(Invalid { field, problem })) = result else {
        panic!("expected {fragment:?}, not {result:?}");
    };
    assert_eq!(field, expected, "{problem}");
    assert!(
        problem.contains(fragment),
        "expected {fragment:?} in {problem:?}"
    );
    assert!(
        !problem.ends_with('.') && !problem.contains('\n'),
        "{problem:?}"
    );
}

#[test]
fn a_kubelet_directory_behind_a_link_and_with_a_slash_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/proc/self", &link).unwrap();
    let mut args = good(dir.path());
    args.kubelet_dir = format!("{}/", link.display());
    assert_eq!(Config::from_args(args, None).unwrap().kubelet_dir, link);
}

#[test]
fn pools_come_from_the_environment_only_without_the_flag() {
    let names = |flags: &[&str], env| {
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let pools = parse_pools(&flags, env).unwrap();
        pools
            .iter()
            .map(|pool| pool.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[], None), [""; 0]);
    assert_eq!(names(&[], Some("")), [""; 0]);
    assert_eq!(names(&[], Some(" ; ")), [""; 0]);
    assert_eq!(names(&[], Some("a=/a")), ["a"]);
    assert_eq!(names(&[], Some("a=/a,init;\n b=/b;")), ["a", "b"]);
    assert_eq!(names(&["c=/c"], Some("a=/a;bad")), ["c"]);

    let kubelet = tempfile::tempdir().unwrap();
    for (env, fragment) in [
        ("a=/a;b", "\"b\": it has no '='"),
        ("a=/a;a=/b", "two pools"),
    ] {
        let result = Config::from_args(good(kubelet.path()), Some(env));
        assert_invalid(result, "--pool (from ROOTCELLAR_POOLS)", fragment);
    }
}

#[test]
fn flags_outside_their_range_are_refused_by_the_parser() {
    for bad in [
        "--lock-wait=-1",
        "--lock-wait=3601",
        "--log-format=xml",
        "--pool",
    ] {
        let line = ["rootcellar", "--endpoint=unix:///a.sock", "--node=n", bad];
        assert!(Command::try_parse_from(line).is_err(), "{bad}");
    }
}
