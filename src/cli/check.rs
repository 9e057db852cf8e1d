//! `rootcellar check`: finds the faults of pools, with or without a running server.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use clap::Args;
use objects::NodeName;
use serde_json::{Value, json};

use super::inspect::{InspectArgs, NO_POOL};
use super::output::print;
use super::pool::pool_json;
use super::progress;
use crate::check::{self, Finding, Report, Surroundings};
use crate::config::parse_node;
use crate::error::Result;
use pool::{Advance, PoolOptions, Unit};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    inspect: InspectArgs,

    /// Expect the pools to be of this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = parse_node)]
    node: Option<NodeName>,

    /// Expect the kubelet's directory here, whose filesystem the node itself needs
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet",
          value_parser = PoolOptions::absolute_path)]
    kubelet_dir: PathBuf,
}

/// Prints the findings. False if anything is wrong.
pub(super) fn run(args: &CheckArgs) -> Result<bool> {
    let known_pools = args.inspect.known_pools()?;
    let pools = args.inspect.pools(known_pools.as_ref())?;
    let reports = check::check(
        &pools,
        Surroundings {
            node: args.node.as_ref(),
            known_pools: known_pools.as_ref(),
            needed: &[
                Path::new("/"),
                &args.kubelet_dir,
                &args.inspect.state.state_dir,
            ],
            progress: if progress::is_shown() {
                &show_progress
            } else {
                &|_, _, _| {}
            },
        },
    );
    if args.inspect.json {
        let reports: Vec<Value> = reports.iter().map(to_json).collect();
        print(format_args!("{:#}", Value::from(reports)))?;
    } else {
        print(lines(&reports).join("\n"))?;
    }
    Ok(!reports.iter().any(Report::is_wrong))
}

fn show_progress(pool: &PoolOptions, done: usize, of: usize) {
    let about = format!("pool {}, volumes and snapshots measured", pool.name);
    let advance = Advance {
        done: done as u64,
        total: Some(of as u64),
        unit: Unit::Objects,
    };
    progress::show(&about, advance);
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
    let mut json = pool_json(&report.pool);
    json["enforcement"] = json!(report.enforcement);
    json["shares_blocks"] = json!(report.shares_blocks);
    json["findings"] = Value::from(findings);
    json
}

fn lines(reports: &[Report]) -> Vec<String> {
    if reports.is_empty() {
        return vec![NO_POOL.to_owned()];
    }
    let names = reports.iter().map(|report| report.pool.name.as_str().len());
    let width = names.max().unwrap_or_default();
    let findings = reports.iter().flat_map(|report| {
        let findings = report.findings.iter();
        findings.map(|finding| (report.pool.name.as_str(), finding))
    });
    let line = |(pool, finding): (&str, &Finding)| {
        let word = |word: &dyn Debug| format!("{word:?}").to_lowercase();
        let (level, about, what) = (word(&finding.level), word(&finding.about), &finding.what);
        let volume = finding.volume.as_ref();
        let volume = volume.map_or(String::new(), |path| format!("{}: ", path.display()));
        let remedy = finding.remedy.as_ref();
        let remedy = remedy.map_or(String::new(), |remedy| format!("; way out: {remedy}"));
        format!("{level:5}  {pool:width$}  {about:11}  {volume}{what}{remedy}")
    };
    findings.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{About, Inspection, Level};
    use linux::quota::Enforcement;

    fn report() -> Report {
        let finding = |level, about, volume: Option<&str>, remedy: Option<&str>| Finding {
            level,
            about,
            volume: volume.map(Into::into),
            what: "it is so".into(),
            remedy: remedy.map(Into::into),
        };
        Report {
            pool: Inspection::healthy(),
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
        let expected = [
            "ok     fast  pool         it is so",
            "wrong  fast  limits       volumes/x: it is so; way out: mend",
        ];
        assert_eq!(lines(&[report()]), expected);
        assert_eq!(lines(&[]), [NO_POOL]);
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
            "cordoned": false,
            "shares_blocks": true,
            "volumes": 12,
            "snapshots": 3,
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
