//! `rootcellar pool init` and `rootcellar pool list`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{cannot_print, environment};
use crate::config::{POOLS_ENV, parse_dir, parse_node, parse_pools};
use crate::error::Result;
use crate::pool::{self, Inspection, Wanted};
use crate::types::PoolId;

/// What to do with pools.
#[derive(Debug, Subcommand)]
pub(super) enum PoolCommand {
    /// Make an empty directory a pool
    Init(InitArgs),
    /// List the configured pools, without disturbing a server
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Make this directory a pool; it may hold nothing but lost+found, and must be a mount point if it is a configured
    /// pool with require-mount
    path: String,

    /// Make it a pool of this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: String,

    /// Allow any filesystem
    #[arg(long, hide = true)]
    any_filesystem: bool,
}

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(super) struct ListArgs {
    /// List this pool, in the form that serve takes; repeat for more [env: ROOTCELLAR_POOLS=]
    #[arg(long = "pool", value_name = "NAME=PATH[,OPTION...]")]
    pools: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs one of the commands.
pub(super) fn run(command: PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::Init(args) => init(&args),
        PoolCommand::List(args) => list(&args),
    }
}

fn init(args: &InitArgs) -> Result<ExitCode> {
    let path = parse_dir("PATH", &args.path)?;
    let node = parse_node("--node (or NODE_NAME)", &args.node)?;
    let configured = parse_pools(&[], environment(POOLS_ENV)?.as_deref())?;
    let wanted = Wanted {
        require_mount: configured
            .iter()
            .any(|pool| pool.path == path && pool.require_mount),
        any_filesystem: args.any_filesystem,
    };
    let id = pool::init(&path, &node, wanted)?;
    print_made(&mut io::stdout().lock(), &path, node.as_str(), id).map_err(cannot_print)?;
    Ok(ExitCode::SUCCESS)
}

fn print_made(out: &mut impl Write, path: &Path, node: &str, id: PoolId) -> io::Result<()> {
    let path = path.display();
    writeln!(out, "{id}")?;
    writeln!(out, "{path} is now this pool of node {node}")?;
    writeln!(
        out,
        "serve it under a name of your choice: --pool NAME={path}"
    )
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let options = parse_pools(&args.pools, environment(POOLS_ENV)?.as_deref())?;
    let pools: Vec<Inspection> = options.iter().map(pool::inspect).collect();
    let mut out = io::stdout().lock();
    if args.json {
        let pools: Vec<Value> = pools.iter().map(to_json).collect();
        writeln!(out, "{:#}", Value::from(pools)).map_err(cannot_print)?;
    } else {
        print_table(&mut out, &pools).map_err(cannot_print)?;
    }
    let healthy = |pool: &Inspection| pool.problem.is_none() && pool.quarantined.is_empty();
    Ok(if pools.iter().all(healthy) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn to_json(pool: &Inspection) -> Value {
    let quarantined: Vec<Value> = pool
        .quarantined
        .iter()
        .map(|(path, reason)| json!({ "path": path.to_string_lossy(), "reason": reason }))
        .collect();
    json!({
        "name": pool.name,
        "path": pool.path.to_string_lossy(),
        "id": pool.id,
        "node": pool.node,
        "filesystem": pool.filesystem,
        "volumes": pool.volumes,
        "reserved_bytes": pool.reserved,
        "quarantined": quarantined,
        "problem": pool.problem.as_ref().map(ToString::to_string),
    })
}

const HEADS: [&str; 8] = [
    "NAME",
    "STATE",
    "VOLUMES",
    "RESERVED",
    "FILESYSTEM",
    "NODE",
    "ID",
    "PATH",
];

fn print_table(out: &mut impl Write, pools: &[Inspection]) -> io::Result<()> {
    if pools.is_empty() {
        return writeln!(out, "no pool is configured; give --pool or {POOLS_ENV}");
    }
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(pools.iter().map(row));
    let mut widths = [0; HEADS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    for pool in pools {
        if let Some(problem) = &pool.problem {
            writeln!(out, "pool {}: {problem}", pool.name)?;
        }
        for (path, reason) in &pool.quarantined {
            let path = path.display();
            writeln!(
                out,
                "pool {}: quarantined, not touched: {path}: {reason}",
                pool.name
            )?;
        }
    }
    Ok(())
}

fn row(pool: &Inspection) -> [String; HEADS.len()] {
    let state = match (&pool.problem, pool.quarantined.len()) {
        (Some(_), _) => "sick".to_owned(),
        (None, 0) => "ok".to_owned(),
        (None, quarantined) => format!("{quarantined} quarantined"),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        pool.name.to_string(),
        state,
        pool.volumes.to_string(),
        pool.reserved.rounded(),
        or_dash(Some(pool.filesystem.clone()).filter(|text| !text.is_empty())),
        or_dash(pool.node.as_ref().map(ToString::to_string)),
        or_dash(pool.id.map(|id| id.to_string())),
        pool.path.display().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::pool::Sickness;
    use crate::types::Bytes;

    fn pools() -> Vec<Inspection> {
        let healthy = Inspection {
            name: "fast".parse().unwrap(),
            path: "/srv/fast".into(),
            id: Some(PoolId(Uuid::nil())),
            node: Some("node1".parse().unwrap()),
            filesystem: "xfs".into(),
            volumes: 12,
            reserved: Bytes(10 << 30),
            quarantined: Vec::new(),
            problem: None,
        };
        let damaged = Inspection {
            name: "old".parse().unwrap(),
            quarantined: vec![("volumes/x".into(), "no volume.json".into())],
            ..healthy.clone()
        };
        let sick = Inspection {
            name: "bulk".parse().unwrap(),
            path: "/srv/b".into(),
            id: None,
            node: None,
            filesystem: String::new(),
            volumes: 0,
            reserved: Bytes::ZERO,
            quarantined: Vec::new(),
            problem: Some(Sickness::Absent),
        };
        vec![healthy, damaged, sick]
    }

    fn text(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_is_aligned_and_says_what_is_wrong() {
        let expected = "\
NAME  STATE          VOLUMES  RESERVED  FILESYSTEM  NODE   ID                                    PATH
fast  ok             12       10 GiB    xfs         node1  00000000-0000-0000-0000-000000000000  /srv/fast
old   1 quarantined  12       10 GiB    xfs         node1  00000000-0000-0000-0000-000000000000  /srv/fast
bulk  sick           0        0 B       -           -      -                                     /srv/b
pool old: quarantined, not touched: volumes/x: no volume.json
pool bulk: nothing is at its path; make the directory or mount the disk
";
        assert_eq!(text(|out| print_table(out, &pools())), expected);
        assert!(text(|out| print_table(out, &[])).contains("ROOTCELLAR_POOLS"));
    }

    #[test]
    fn the_json_has_stable_keys() {
        let [_, damaged, sick] = pools().try_into().unwrap();
        let expected = json!({
            "name": "old",
            "path": "/srv/fast",
            "id": "00000000-0000-0000-0000-000000000000",
            "node": "node1",
            "filesystem": "xfs",
            "volumes": 12,
            "reserved_bytes": 10_u64 << 30,
            "quarantined": [{ "path": "volumes/x", "reason": "no volume.json" }],
            "problem": null,
        });
        assert_eq!(to_json(&damaged), expected);
        let sick = to_json(&sick);
        assert_eq!(sick["id"], Value::Null);
        assert_eq!(sick["problem"], Sickness::Absent.to_string());
    }

    #[test]
    fn a_new_pool_is_told_with_the_next_step() {
        let id = PoolId(Uuid::nil());
        let told = text(|out| print_made(out, Path::new("/srv/a"), "node1", id));
        assert!(
            told.starts_with("00000000-0000-0000-0000-000000000000\n"),
            "{told}"
        );
        assert!(told.contains("--pool NAME=/srv/a\n"), "{told}");
    }
}
