//! Tables of good and bad configurations.

use clap::Parser;
use objects::MAX_NAME;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    config: Config,
}

/// The configuration of good flags, on a kubelet directory that exists, replaced by those in `line`.
fn configured(kubelet: &Path, line: &str) -> Result<(Config, PoolList), String> {
    let kubelet = format!("--kubelet-dir={}", kubelet.display());
    let good = ["--endpoint=unix:///csi/csi.sock", "--node=node1", &kubelet];
    let given: Vec<&str> = line.split_whitespace().collect();
    let is_replaced = |good: &&str| {
        let (flag, _) = good.split_once('=').unwrap();
        given
            .iter()
            .any(|given| given.split_once('=').unwrap().0 == flag)
    };
    let kept = good.into_iter().filter(|good| !is_replaced(good));
    let words = ["rootcellar"].into_iter().chain(kept);
    let config = Command::try_parse_from(words.chain(given.iter().copied()));
    let config = config.map_err(|error| error.to_string())?.config;
    let pools = config.pools().map_err(|error| error.to_string())?;
    Ok((config, pools.pools))
}

#[test]
fn the_defaults_are_as_documented() {
    let kubelet = tempfile::tempdir().unwrap();
    let (config, pools) = configured(kubelet.path(), "").unwrap();
    assert_eq!(pools, []);
    let expected = Config {
        endpoint: "/csi/csi.sock".into(),
        node: "node1".parse().unwrap(),
        driver: DriverArgs {
            driver_name: "csi.rootcellar.dev".into(),
            topology_key: "topology.rootcellar.dev/node".into(),
        },
        kubelet_dir: kubelet.path().into(),
        processes: "/proc".into(),
        cgroup: CgroupArgs {
            cgroups: "/sys/fs/cgroup".into(),
            pods_cgroup: None,
        },
        state: StateArgs {
            state_dir: "/var/lib/rootcellar/state".into(),
        },
        pools: PoolArgs {
            pools: Vec::new(),
            sets: Vec::new(),
        },
        http: None,
        inventory_key: None,
        log_format: LogFormat::Text,
        lock_wait: 30,
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
        "--pool-set=a=/a,match=nvme*,init,overcommit=2,reserve=1% --pool-set=b=/a,match=sd?",
    ];
    let kubelet = tempfile::tempdir().unwrap();
    for line in cases {
        configured(kubelet.path(), line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// Flags, of which the error names the first, and a part of its message.
const MISTAKES: &[(&str, &str)] = &[
    ("--endpoint=", "not a Unix socket; write unix:///"),
    ("--endpoint=/csi/csi.sock", "not a Unix socket"),
    ("--endpoint=tcp://127.0.0.1:1", "not a Unix socket"),
    (
        "--endpoint=unix://csi/csi.sock",
        "\"csi/csi.sock\" is not absolute",
    ),
    ("--endpoint=unix:csi.sock", "not a Unix socket"),
    ("--endpoint=unix:///csi/csi", "does not end in .sock"),
    ("--endpoint=unix:///csi/.sock", "does not end in .sock"),
    ("--endpoint=unix:///csi/csi.sock/", "does not end in .sock"),
    ("--endpoint=unix:///csi/../csi.sock", "has \"..\""),
    ("--endpoint=unix:///", "root directory"),
    ("--node=", "1 to 253 characters"),
    ("--node=a/b", "node name \"a/b\""),
    ("--node=-a", "node name \"-a\""),
    ("--driver-name=", "not a driver name"),
    ("--driver-name=CSI.example", "'CSI.example'"),
    ("--driver-name=csi..example", "'csi..example'"),
    ("--driver-name=csi.-example", "'csi.-example'"),
    ("--driver-name=csi.example1", "ends with a letter"),
    (
        "--driver-name=1csi.example",
        "begins and ends with a letter",
    ),
    ("--driver-name=csi_example", "'csi_example'"),
    ("--topology-key=", "not a topology key"),
    ("--topology-key=node", "'node'"),
    ("--topology-key=/node", "'/node'"),
    ("--topology-key=a.b/", "'a.b/'"),
    ("--topology-key=a.b/c/d", "'a.b/c/d'"),
    ("--topology-key=A.b/c", "'A.b/c'"),
    ("--topology-key=a.b/-c", "'a.b/-c'"),
    ("--topology-key=a.b/c.", "'a.b/c.'"),
    ("--state-dir=state", "not absolute"),
    ("--state-dir=/a/./b", "has \".\""),
    ("--state-dir=/", "root directory"),
    (
        "--state-dir=/csi/",
        "/csi is in the directory of the socket",
    ),
    (
        "--state-dir=/csi/state",
        "/csi/state is in the directory of the socket",
    ),
    ("--kubelet-dir=kubelet", "not absolute"),
    ("--kubelet-dir=/no/such/directory", "cannot be examined"),
    ("--kubelet-dir=/dev/null", "/dev/null is not a directory"),
    ("--http=9808", "<ADDR:PORT>"),
    ("--http=localhost:9808", "'localhost:9808'"),
    ("--http=", "socket address"),
    ("--pool=", "names no pool"),
    ("--pool=a", "no '='"),
    ("--pool=a=/a,b", "unknown option \"b\""),
    ("--pool=a=/a --pool=a=/b", "two pools have the name a"),
    (
        "--pool=a=/a --pool=b=/a/",
        "pool b at /a has the path of pool a",
    ),
    (
        "--pool=a=/a --pool=b=/a/b",
        "pool b at /a/b is inside pool a",
    ),
    (
        "--pool=b=/a/b --pool=a=/a",
        "pool a at /a is above pool b at /a/b",
    ),
    (
        "--endpoint=unix:///csi/csi.sock --pool=a=/csi",
        "/csi/csi.sock is inside pool a at /csi",
    ),
    (
        "--state-dir=/var/lib/rootcellar --pool=a=/var/lib/rootcellar",
        "is inside pool a",
    ),
    ("--state-dir=/s --pool=a=/s", "/s is inside pool a"),
    (
        "--state-dir=/s --pool=a=/s/a",
        "pool a at /s/a is inside /s",
    ),
    ("--kubelet-dir=/k/l --pool=a=/k", "/k/l is inside pool a"),
    (
        "--pool-set=a=/a,require-mount",
        "unknown option \"require-mount\"",
    ),
    ("--pool-set=a=/a,match", "option \"match\" needs a value"),
    ("--pool-set=a=/a,match=[", "match \"[\""),
    ("--pool-set=a=/a,init=yes", "option \"init\" takes no value"),
    ("--pool-set=a", "no '='"),
    ("--pool-set=", "write NAME=DIR"),
    ("--pool-set=a/b=/a", "pool name \"a/b\""),
    ("--pool-set=a=/a --pool=a=/b", "two pools have the name a"),
    (
        "--pool-set=a=/a --pool=b=/a/b",
        "pool set a at /a is above pool b at /a/b",
    ),
    (
        "--pool-set=b=/a/b --pool=a=/a",
        "pool set b at /a/b is inside pool a at /a",
    ),
    (
        "--pool-set=a=/a --pool-set=b=/a,match=b*",
        "give each a match of its own",
    ),
    (
        "--kubelet-dir=/k/l --pool-set=a=/k",
        "/k/l is inside pool set a at /k",
    ),
    (
        "--state-dir=/s --pool-set=a=/s/a",
        "pool set a at /s/a is inside /s",
    ),
];

#[test]
fn every_mistake_names_its_flag() {
    let long = "n".repeat(MAX_NAME + 1);
    let sock = format!("unix:///{}.sock", "s".repeat(MAX_SOCKET_PATH - 5));
    let node = "n".repeat(254);
    let too_long = [
        (
            format!("--endpoint={sock}"),
            "has 108 bytes, and a socket allows 107",
        ),
        (format!("--node={node}"), "1 to 253 characters, not 254"),
        (format!("--driver-name={long}"), "at most 63"),
        (format!("--topology-key={long}/a"), "at most 63"),
        (format!("--topology-key=a/{long}"), "at most 63"),
    ];
    let too_long = too_long.iter().map(|(line, part)| (line.as_str(), *part));
    let kubelet = tempfile::tempdir().unwrap();
    for (line, fragment) in MISTAKES.iter().copied().chain(too_long) {
        let (flag, _) = line.split_once('=').unwrap();
        assert_invalid(configured(kubelet.path(), line), flag, fragment);
    }
}

fn assert_invalid(result: Result<(Config, PoolList), String>, flag: &str, fragment: &str) {
    let message = result.expect_err(fragment);
    for part in [flag, fragment] {
        assert!(message.contains(part), "expected {part:?} in {message:?}");
    }
}

#[test]
fn a_kubelet_directory_behind_a_link_and_with_a_slash_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/proc/self", &link).unwrap();
    let flag = format!("--kubelet-dir={}/", link.display());
    let (config, _) = configured(dir.path(), &flag).unwrap();
    assert_eq!(config.kubelet_dir, link);
}

#[test]
fn a_semicolon_separates_pools() {
    let names = |text| {
        let pools = parse_pools(text).unwrap();
        let names = pools.iter().map(|pool| pool.name.to_string());
        names.collect::<Vec<_>>()
    };
    for none in ["", " ; "] {
        let problem = parse_pools(none).unwrap_err();
        assert!(problem.contains("names no pool"), "{problem}");
    }
    assert_eq!(names("a=/a"), ["a"]);
    assert_eq!(names("a=/a,init;\n b=/b;"), ["a", "b"]);
    let problem = parse_pools("a=/a;b").unwrap_err();
    assert!(problem.contains("\"b\": it has no '='"), "{problem}");
    let kubelet = tempfile::tempdir().unwrap();
    let twice = configured(kubelet.path(), "--pool=a=/a;a=/b");
    assert_invalid(twice, "ROOTCELLAR_POOLS", "two pools");
}

#[test]
fn a_member_must_be_a_mount_point() {
    let configured = PoolArgs {
        pools: vec![vec![
            "a=/a".parse().unwrap(),
            "b=/b,require-mount".parse().unwrap(),
        ]],
        sets: vec![vec!["c=/c,match=d*".parse().unwrap()]],
    };
    let configured = configured.all().unwrap();
    for (path, expected) in [
        ("/a", false),
        ("/b", true),
        ("/c", false),
        ("/c/d1", true),
        ("/c/e", false),
        ("/c/d1/d2", false),
    ] {
        assert_eq!(
            configured.requires_mount(Path::new(path)),
            expected,
            "{path}"
        );
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
