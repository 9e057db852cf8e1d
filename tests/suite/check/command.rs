//! The command, with and without a running server.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use support::messages::create;
use support::picture::{picture, with_times};
use support::server::Server;
use support::{NODE, Node};

use super::images::ATTACHED;

fn rootcellar(node: &Node, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rootcellar"));
    command.arg("check").args(arguments);
    command.arg("--state-dir").arg(node.path("state"));
    command.arg("--kubelet-dir").arg(node.path("kubelet"));
    for variable in ["NODE_NAME", "ROOTCELLAR_POOLS"] {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The findings of a level in the JSON output, each with its subject.
fn found<'a>(report: &'a Value, level: &str) -> Vec<(&'a str, &'a str)> {
    let findings = report["findings"].as_array().unwrap().iter();
    let found = findings.filter(|finding| finding["level"] == level);
    let text = |finding: &'a Value, key: &str| finding[key].as_str().unwrap();
    found
        .map(|finding| (text(finding, "about"), text(finding, "what")))
        .collect()
}

/// While a server runs, the command changes nothing and takes no lock. If nothing is wrong, the
/// exit code is 0, with any notes. The lines say the same as the JSON.
///
/// Proves: T1.
#[tokio::test]
async fn an_inspection_beside_a_server_changes_nothing() {
    let node = Node::new();
    let server = Server::start(&node).await;
    let volume = create("watched", 3 << 20);
    server.clients().await.create(volume).await.unwrap();
    let before = with_times(&node.pool());
    let pool = format!("--pool={}", node.pool_option());

    let output = rootcellar(&node, &[&pool, "--json", "--node", NODE]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let reports = json(&output);
    assert_eq!(reports[0]["name"], "default");
    assert_eq!(reports[0]["volumes"], 1);
    assert_eq!(reports[0]["enforcement"], "none");
    assert_eq!(found(&reports[0], "wrong"), []);
    let notes = found(&reports[0], "note");
    let is_shared = |(about, what): &(&str, &str)| *about == "space" && what.contains("the node");
    assert!(notes.iter().any(is_shared), "{notes:?}");

    let lines = rootcellar(&node, &[&pool]);
    let lines = String::from_utf8(lines.stdout).unwrap();
    // Other tests may attach files to devices of the driver meanwhile.
    let lines = lines.lines().filter(|line| !line.contains(ATTACHED));
    let lines: Vec<&str> = lines.collect();
    let findings = reports[0]["findings"].as_array().unwrap().iter();
    let findings = findings.filter(|finding| !finding["what"].to_string().contains(ATTACHED));
    let findings: Vec<&Value> = findings.collect();
    assert_eq!(lines.len(), findings.len(), "{lines:?}");
    for (line, finding) in lines.into_iter().zip(findings) {
        for key in ["level", "about"] {
            assert!(line.contains(finding[key].as_str().unwrap()), "{line}");
        }
        if !["space"].contains(&finding["about"].as_str().unwrap()) {
            assert!(line.contains(finding["what"].as_str().unwrap()), "{line}");
        }
    }
    assert_eq!(with_times(&node.pool()), before);
    assert_eq!(server.stop(), Some(0));
    let output = rootcellar(&node, &[&pool]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "without a server: {output:?}"
    );
}

/// Exit code 1 reports to a script that something is wrong with any pool, and 64 that its arguments
/// are invalid.
///
/// Proves: T2.
#[test]
fn the_exit_code_distinguishes_wrong_from_well() {
    let node = Node::new();
    drop(node.volumes(&support::Fakes::default()));
    let well = format!("--pool={}", node.pool_option());
    let missing = format!("--pool=gone={}", node.path("gone").display());
    let cases = [
        (vec![well.as_str()], 0),
        (vec![], 0),
        (vec![&well, &missing], 1),
        (vec![&well, "--node=another"], 1),
        (vec!["--pool=frob"], 64),
        (vec!["--frob"], 64),
        (vec![&well, "--state-dir=relative"], 64),
    ];
    for (arguments, code) in cases {
        let output = rootcellar(&node, &arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
    }
}

/// The command compares the server's record of each path with the present pool, and records nothing
/// itself.
///
/// Proves: T4.
#[test]
fn another_pool_than_the_server_knew_is_wrong() {
    let node = Node::new();
    drop(node.volumes(&support::Fakes::default()));
    let marker = node.pool().join(".rootcellar/pool.json");
    let text = fs::read_to_string(&marker).unwrap();
    let id = text.split('"').nth(5).unwrap();
    let swapped = text.replace(id, "00000000-0000-4000-8000-000000000000");
    fs::write(&marker, swapped).unwrap();
    let before = picture(&node.path(""), &[]);
    let pool = format!("--pool={}", node.pool_option());
    let reports = json(&rootcellar(&node, &[&pool, "--json"]));
    let wrong = found(&reports[0], "wrong");
    assert!(wrong[0].1.contains("before"), "{wrong:?}");
    fs::rename(node.pool().join(".rootcellar"), node.path("away")).unwrap();
    let reports = json(&rootcellar(&node, &[&pool, "--json"]));
    let wrong = found(&reports[0], "wrong");
    assert!(wrong[0].1.contains("holds none now"), "{wrong:?}");
    fs::rename(node.path("away"), node.pool().join(".rootcellar")).unwrap();
    assert_eq!(picture(&node.path(""), &[]), before);
}
