//! The code of other features that the creation of an empty volume enters, as gdb(1) sees it in the real server.
//!
//! A breakpoint on each function of these features records its callers. Debug builds call functions of their own instead
//! of inlining them, so no call is missed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by a panic"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use support::disk::Disk;
use support::messages::create;
use support::server::Server;
use support::{Node, eventually, require, rootcellar};

/// The modules of moves, imports, copies, snapshots, images and kept objects, in `volume` and `pool`.
const FEATURES: [&str; 18] = [
    "moving",
    "moved",
    "moves",
    "relocate",
    "conversion",
    "import",
    "imports",
    "incoming",
    "copies",
    "copy",
    "snapshot",
    "snapshots",
    "images",
    "image",
    "kept",
    "keep",
    "retained",
    "shares",
];

/// The functions of these features that the creation may enter. The admission asks whether an import waits for the id, a
/// request without a source has a default, and a reservation reads the sums of a pool.
const ALLOWED: [&str; 9] = [
    "pool::conversion::check_no_import",
    "pool::conversion::find_incoming",
    "pool::copies::origin::CopyPolicy as core::default::Default>::default",
    "pool::state::kept::KeptObjects::is_empty",
    "pool::state::kept::KeptObjects::sizes",
    "pool::state::kept::KeptObjects::used",
    "pool::state::retained::Retained::of",
    "pool::state::retained::Retained::with",
    "pool::store::incoming::incoming",
];

/// The module that each creation enters, so that a recording of nothing is noticed.
const CREATION: &str = "volume::create::";

/// The line of gdb before the callers of a function.
const ENTERED: &str = "\nentered: ";
/// The line of gdb before the server goes on.
const READY: &str = "all breakpoints are set";

/// A function of the server: its address in the program, and its name.
struct Function {
    address: u64,
    name: String,
}

/// The functions of the features and of the creation in the server's program.
fn functions() -> Vec<Function> {
    let output = Command::new("nm")
        .args(["--demangle", "--defined-only"])
        .arg(rootcellar())
        .output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let function = |line: &str| {
        let (address, line) = line.split_once(' ')?;
        let name = line.strip_prefix("t ").or(line.strip_prefix("T "))?;
        let name = name.replace("::{{closure}}", "");
        let path = name.trim_start_matches('<').strip_prefix("rootcellar::")?;
        let (module, _) = path.split_once("::<impl ").or(path.rsplit_once("::"))?;
        let mut parts = module.split("::");
        let is_domain = parts
            .next()
            .is_some_and(|first| ["pool", "volume"].contains(&first));
        let is_wanted = path.starts_with(CREATION) || parts.any(|part| FEATURES.contains(&part));
        (is_domain && is_wanted).then(|| Function {
            address: u64::from_str_radix(address, 16).unwrap(),
            name: short(path),
        })
    };
    output.lines().filter_map(function).collect()
}

/// The path of a function without the type of its `impl`.
fn short(path: &str) -> String {
    match (path.split_once("::<impl "), path.rsplit_once(">::")) {
        (Some((module, _)), Some((_, function))) => format!("{module}::{function}"),
        _ => path.to_owned(),
    }
}

/// The address at which the server has its program.
fn base(server: &Server) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.id())).unwrap();
    let program = rootcellar();
    let first = maps
        .lines()
        .find(|line| line.ends_with(program.to_str().unwrap()));
    let (base, _) = first.unwrap().split_once('-').unwrap();
    u64::from_str_radix(base, 16).unwrap()
}

/// The commands of gdb that print the callers of each function, and then let the server run.
fn script(functions: &[Function], base: u64) -> String {
    let mut script = "set pagination off\nset confirm off\n".to_owned();
    for Function { address, name } in functions {
        writeln!(script, "break *{}", base + address).unwrap();
        let entered = ENTERED.replace('\n', "\\n");
        let print = format!("printf \"{entered}{name}\\n\"\nbacktrace -frame-arguments none");
        writeln!(script, "commands\nsilent\n{print}\ncontinue\nend").unwrap();
    }
    format!("{script}printf \"{READY}\\n\"\ncontinue\n")
}

/// The functions that calls of the service entered, and not background work.
fn entered(output: &str) -> BTreeSet<&str> {
    let parts = output.split(ENTERED).skip(1);
    let in_call = parts.filter(|part| part.contains("src/rpc/"));
    in_call.map(|part| part.lines().next().unwrap()).collect()
}

/// The creation of an empty volume enters no code of moves, imports, copies, snapshots, images and kept objects, although
/// the pool can have all of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_creation_of_an_empty_volume_enters_no_other_feature() {
    require!(simple_quota);
    require!(debugger);
    let node = Node::new();
    let _disks = ["a", "b"].map(|member| {
        let disk = Disk::new("btrfs").with_simple_quota();
        disk.make(&node.path(member), &node.path("disks").join(member))
    });
    let mut command = Server::command(&node, &[]);
    let set = format!("set={},init,keep=1h", node.path("disks").display());
    let server = Server::spawn(&node, command.args(["--pool-set", &set]));
    server.wait_ready().await;
    let mut clients = server.clients().await;
    let functions = functions();
    assert!(functions.len() > 100, "{} functions", functions.len());

    let (commands, log) = (node.path("gdb.script"), node.path("gdb.log"));
    fs::write(&commands, script(&functions, base(&server))).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.env_remove("DEBUGINFOD_URLS");
    gdb.args(["-q", "-nx", "-batch", "-x"])
        .arg(&commands)
        .args(["-p", &server.id().to_string()]);
    let output = File::create(&log).unwrap();
    let mut gdb = gdb
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let read = || String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    eventually("gdb is ready", || read().contains(READY));
    clients.create(create("pvc", 1 << 20)).await.unwrap();
    // It leaves the server when it is interrupted.
    kill_process(Pid::from_child(&gdb), Signal::INT).unwrap();
    gdb.wait().unwrap();
    let output = read();
    let (creation, others): (BTreeSet<_>, BTreeSet<_>) =
        { entered(&output).into_iter() }.partition(|name| name.starts_with(CREATION));
    assert!(!creation.is_empty(), "gdb has seen nothing: {output}");
    eprintln!("{others:#?}");
    let unexpected = others.iter().filter(|name| !ALLOWED.contains(name));
    let unexpected: Vec<_> = unexpected.collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    assert_eq!(server.stop(), Some(0));
}
