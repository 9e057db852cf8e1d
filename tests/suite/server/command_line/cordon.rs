//! `pool cordon` and `pool uncordon`.

use serde_json::Value;
use support::memory::MemorySet;
use support::messages::create;
use support::page::{free_address, page};

use super::{Node, fill};
use super::{Output, Server, assert_refused, fs, picture, require, run_to_its_end, with_pool};

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `pool cordon` and `pool uncordon` report the result and can be repeated. A refusal is one sentence with
/// an exit code, and changes nothing.
///
/// Proves: PC3.
#[test]
fn pool_cordon_says_what_it_did() {
    let node = Node::new();
    let (id, run) = with_pool(&node);
    let cordon = |command: &str, name: &str, state: &str| {
        let pools = ["--pool=p=@/pool", "--pool=new=@/run", "--state-dir", state];
        run(&[&["pool", command, name], &pools[..]].concat())
    };
    let before = picture(&node.path(""), &[]);
    assert_refused(&cordon("cordon", "p", "@/none"), 64, "--state-dir: ");
    let unknown = cordon("cordon", "q", "@/state");
    assert_refused(&unknown, 64, "no pool has the name \"q\"");
    let unopened = cordon("cordon", "new", "@/state");
    let way_out =
        "pool new was never opened and cannot be cordoned: its path holds no pool; make one";
    assert_refused(&unopened, 1, way_out);
    assert_eq!(picture(&node.path(""), &[]), before);

    for (command, said) in [
        ("uncordon", "pool p was not cordoned\n"),
        ("cordon", "pool p is cordoned now: it gets no new volumes"),
        ("cordon", "pool p was cordoned already\n"),
        ("uncordon", "pool p is not cordoned any more\n"),
        ("cordon", "pool p is cordoned now"),
    ] {
        let text = stdout(&cordon(command, "p", "@/state"));
        assert!(text.starts_with(said), "{text}");
    }
    let memory = fs::read_to_string(node.path("state/pools.json")).unwrap();
    let memory: Value = serde_json::from_str(&memory).unwrap();
    assert_eq!(memory["cordoned"], Value::from([id]));
}

/// A set names all its members that are mounted or were served before. While a server runs, all places
/// that list pools show the cordon at once, and `check` gives the way out.
///
/// Proves: PC1, PC3.
#[tokio::test]
async fn a_cordon_is_shown_wherever_pools_are_listed() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 16 << 20), ("b", 16 << 20)]);
    let set = format!("--pool-set={}", node.option(""));
    let address = free_address();
    let mut command = Server::command(&node, &[]);
    command.args([&set, "--http", &address.to_string()]);
    let server = Server::spawn(&node, &mut command);
    server.wait_ready().await;
    let mut clients = server.clients().await;
    let run = |command: &[&str]| {
        let flags = [&set, "--state-dir=@/state"];
        run_to_its_end(&node, &fill(&node, &[command, &flags].concat()), &[])
    };

    node.unmount("b");
    let said = stdout(&run(&["pool", "cordon", "set"]));
    assert!(said.contains("pool set/a is cordoned now"), "{said}");
    assert!(said.contains("pool set/b is cordoned now"), "{said}");
    stdout(&run(&["pool", "uncordon", "set/a"]));
    node.mount("b");
    clients.create(create("v", 1 << 20)).await.unwrap();

    let listed = run(&["pool", "list"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    let row = |at| text.lines().nth(at).unwrap_or_default();
    assert!(row(1).starts_with("set/a  healthy   1 "), "{text}");
    assert!(row(2).starts_with("set/b  cordoned  0 "), "{text}");
    let (_, ready) = page(address, "/readyz").unwrap();
    let line = "pool set/b: cordoned; `rootcellar pool uncordon set/b` ends that\n";
    assert!(
        ready.contains(line) && !ready.contains("set/a: cordoned"),
        "{ready}"
    );
    let (_, metrics) = page(address, "/metrics").unwrap();
    for line in [
        "rootcellar_pool_cordoned{pool=\"set\",member=\"a\"} 0",
        "rootcellar_pool_cordoned{pool=\"set\",member=\"b\"} 1",
        "rootcellar_pool_available_bytes{pool=\"set\",member=\"b\"} 0",
    ] {
        assert!(
            metrics.lines().any(|got| got == line),
            "{line} is not in\n{metrics}"
        );
    }
    let reports = json(&run(&["check", "--json"]));
    let cordoned = [&reports[0], &reports[1]].map(|report| report["cordoned"] == true);
    assert_eq!(cordoned, [false, true]);
    let finding = &reports[1]["findings"][0];
    assert_eq!(finding["level"], "note");
    let way_out: Vec<&str> = finding["remedy"].as_str().unwrap().split(' ').collect();
    assert_eq!(
        stdout(&run(&way_out[1..])),
        "pool set/b is not cordoned any more\n"
    );
}
