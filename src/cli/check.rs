//! `rootcellar check`: whether pools are as they should be, beside a running server or without.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::look::NO_POOL;
use super::{cannot_print, environment};
use crate::check::{self, Finding, Report, Surroundings};
use crate::config::{POOLS_ENV, parse_dir, parse_node, parse_pools};
use crate::error::Result;
use crate::os::Os;
use crate::pool::{Memory, PoolOptions};

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(super) struct CheckArgs {
    /// Check this pool, in the form that serve takes; repeat for more [env: ROOTCELLAR_POOLS=]
    #[arg(long = "pool", value_name = "NAME=PATH[,OPTION...]")]
    pools: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Expect the pools to be of this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: Option<String>,

    /// The directory in which the server of this node remembers which pool each path held
    #[arg(long, value_name = "DIR", default_value = "/var/lib/rootcellar/state")]
    state_dir: String,

    /// The kubelet's directory, whose filesystem the node itself needs
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: String,
}

/// Checks, prints what was found, and tells by the exit code whether anything is wrong.
pub(super) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let pools = parse_pools(&args.pools, environment(POOLS_ENV)?.as_deref())?;
    let node = args.node.as_deref();
    let node = node.map(|node| parse_node("--node (or NODE_NAME)", node));
    let node = node.transpose()?;
    let state_dir = parse_dir("--state-dir", &args.state_dir)?;
    let kubelet_dir = parse_dir("--kubelet-dir", &args.kubelet_dir)?;
    // It is not made here: what is not there remembers nothing.
    let memory = state_dir.is_dir();
    let memory = memory.then(|| Memory::open(Os::default(), &state_dir));
    let memory = memory.transpose()?;
    let reports = check::check(
        &pools,
        Surroundings {
            node: node.as_ref(),
            memory: memory.as_ref(),
            needed: &[Path::new("/"), &kubelet_dir, &state_dir],
            progress: if io::stderr().is_terminal() {
                &show_progress
            } else {
                &|_, _, _| {}
            },
        },
    );
    let mut out = io::stdout().lock();
    if args.json {
        let reports: Vec<Value> = reports.iter().map(to_json).collect();
        writeln!(out, "{:#}", Value::from(reports)).map_err(cannot_print)?;
    } else {
        print(&mut out, &reports).map_err(cannot_print)?;
    }
    Ok(if reports.iter().any(Report::is_wrong) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Shows one line that is written over, and nothing in the end.
fn show_progress(pool: &PoolOptions, done: usize, of: usize) {
    let line = if done < of {
        format!(
            "pool {}: {done} of {of} volumes and snapshots measured",
            pool.name
        )
    } else {
        String::new()
    };
    // It is only for whoever watches.
    let _ = write!(io::stderr(), "\r{line}\x1b[K");
}

fn to_json(report: &Report) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "level": finding.level,
            "about": finding.about,
            "volume": finding.volume.as_ref().map(|volume| volume.to_string_lossy()),
            "what": finding.what,
            "remedy": finding.remedy,
        })
    };
    let findings: Vec<Value> = report.findings.iter().map(finding).collect();
    json!({
        "name": report.pool.name,
        "path": report.pool.path.to_string_lossy(),
        "id": report.pool.id,
        "node": report.pool.node,
        "filesystem": report.pool.filesystem,
        "enforcement": report.enforcement,
        "shares_blocks": report.shares_blocks,
        "volumes": report.pool.volumes,
        "snapshots": report.pool.snapshots,
        "findings": findings,
    })
}

/// One line for each finding.
fn print(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    if reports.is_empty() {
        return writeln!(out, "{NO_POOL}");
    }
    let names = reports.iter().map(|report| report.pool.name.as_str().len());
    let width = names.max().unwrap_or_default();
    for report in reports {
        for finding in &report.findings {
            let (level, about) = (finding.level, finding.about);
            let name = report.pool.name.as_str();
            write!(out, "{level:5}  {name:width$}  {about:11}  ")?;
            if let Some(volume) = &finding.volume {
                write!(out, "{}: ", volume.display())?;
            }
            write!(out, "{}", finding.what)?;
            if let Some(remedy) = &finding.remedy {
                write!(out, "; way out: {remedy}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::check::{About, Inspection, Level};
    use crate::quota::Enforcement;
    use crate::types::{Bytes, PoolId};

    fn report() -> Report {
        let finding = |level, about, volume: Option<&str>, remedy: Option<&str>| Finding {
            level,
            about,
            volume: volume.map(Into::into),
            what: "it is so".into(),
            remedy: remedy.map(Into::into),
        };
        Report {
            pool: Inspection {
                name: "fast".parse().unwrap(),
                path: "/srv/fast".into(),
                id: Some(PoolId(Uuid::nil())),
                node: Some("node1".parse().unwrap()),
                filesystem: "xfs".into(),
                volumes: 1,
                snapshots: 2,
                reserved: Bytes(1),
                quarantined: Vec::new(),
                enforcement: None,
                unenforced: None,
                problem: None,
            },
            enforcement: Enforcement::Project,
            shares_blocks: Some(true),
            findings: vec![
                finding(Level::Ok, About::Pool, None, None),
                finding(Level::Wrong, About::Limits, Some("volumes/x"), Some("mend")),
            ],
        }
    }

    /// Proves: T3.
    #[test]
    fn a_finding_is_a_line() {
        let mut out = Vec::new();
        print(&mut out, &[report()]).unwrap();
        let expected = "\
ok     fast  pool         it is so
wrong  fast  limits       volumes/x: it is so; way out: mend
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        print(&mut out, &[]).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("ROOTCELLAR_POOLS"));
    }

    /// Proves: T3.
    #[test]
    fn the_json_has_stable_keys() {
        let expected = json!({
            "name": "fast",
            "path": "/srv/fast",
            "id": "00000000-0000-0000-0000-000000000000",
            "node": "node1",
            "filesystem": "xfs",
            "enforcement": "project",
            "shares_blocks": true,
            "volumes": 1,
            "snapshots": 2,
            "findings": [
                { "level": "ok", "about": "pool", "volume": null, "what": "it is so", "remedy": null },
                {
                    "level": "wrong",
                    "about": "limits",
                    "volume": "volumes/x",
                    "what": "it is so",
                    "remedy": "mend",
                },
            ],
        });
        assert_eq!(to_json(&report()), expected);
    }
}
