//! The command line `rootcellar-migrate`: plans that move the volumes of other systems into pools. It reads files, writes
//! only the plan, and needs neither a cluster nor privileges.

#![forbid(unsafe_code)]

mod claim;
mod cluster;
mod documents;
mod plan;
mod planned;
mod pods;
mod pools;
mod script;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use objects::script::read;
use objects::{DriverArgs, manifest};

use cluster::{Cluster, Metadata};
use planned::Plan;
use pools::Pools;
use source::System;

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;

/// Plan the migration of volumes of other systems into pools of rootcellar
#[derive(Debug, Parser)]
#[command(name = "rootcellar-migrate", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a shell script with the steps for each claim, their checks and the way back; changes nothing
    #[command(
        after_help = "Example:\n  rootcellar-migrate plan --objects objects.json --pools pools.json --image registry.example/rootcellar:0.1.0-rc.1 --claim shop/data --to plan-shop-data.sh"
    )]
    Plan(Box<Options>),

    /// Print a shell script that gives claims copies of their volumes: on another node, of another class, or of another size
    #[command(
        after_help = "Example:\n  rootcellar-migrate claim shop/data --node node-b --objects objects.json --image registry.example/rootcellar:0.1.0-rc.1 --to move-shop-data.sh"
    )]
    Claim(Box<claim::Options>),
}

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Read the pools from this file, the outputs of rootcellar pool list --json of all nodes; - is stdin
    #[arg(long, value_name = "FILE")]
    pools: PathBuf,

    /// Move the volumes into the pools or pool sets with this name, or into this member of a set
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_pool)]
    pool: String,

    /// Plan only volumes of these systems, separated by commas: local-path (also of k3s), static, kubevirt,
    /// manual (of type hostPath or local without a known provisioner)
    #[arg(long, value_name = "SYSTEM", default_value = "all", value_parser = parse_systems)]
    from: Systems,

    /// Plan only claims of this namespace
    #[arg(long, value_name = "NAMESPACE", value_parser = parse_namespace)]
    namespace: Option<String>,

    /// Plan only this claim
    #[arg(long, value_name = "NAMESPACE/NAME")]
    claim: Option<String>,

    /// The directory of a volume of KubeVirt's CSI driver on its node, with {handle} in place of its volumeHandle
    #[arg(long, value_name = "TEMPLATE")]
    path: Option<String>,

    /// The node of volumes that name none
    #[arg(long, value_name = "NAME", requires = "claim")]
    node: Option<String>,
}

/// The options of every plan.
#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
struct Common {
    /// Read the objects of the cluster from this file, the output of
    /// kubectl get pv,pvc,pods,nodes,statefulsets,deployments,storageclasses -A -o json; - is stdin. Add volumesnapshots to
    /// the kinds if the cluster has them, and the plan of claim lists those of the claim
    #[arg(long, value_name = "FILE")]
    objects: PathBuf,

    /// Write the script to this new file, and not to stdout. An existing file, which may be the only way back of a claim,
    /// is refused
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Use this image of the driver for the pods that move data
    #[arg(long, value_name = "REFERENCE", value_parser = NonEmptyStringValueParser::new())]
    image: String,

    /// Run these pods in this namespace, which allows privileged ones
    #[arg(long, value_name = "NAMESPACE", default_value = "rootcellar-system",
          value_parser = parse_namespace)]
    pod_namespace: String,

    #[command(flatten)]
    driver: DriverArgs,

    /// Reach the driver below this directory of the kubelet on its nodes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet",
          value_parser = parse_kubelet_dir)]
    kubelet_dir: String,
}

/// The systems whose volumes are planned.
#[derive(Debug, Clone)]
struct Systems(Vec<System>);

fn parse_systems(text: &str) -> Result<Systems, String> {
    let parse = |name: &str| System::from_str(name, false);
    Ok(Systems(match text {
        "all" => System::value_variants().to_vec(),
        names => names.split(',').map(parse).collect::<Result<_, _>>()?,
    }))
}

fn parse_pool(text: &str) -> Result<String, String> {
    let (set, member) = text
        .split_once('/')
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_member = |name: &str| !name.is_empty() && name.chars().all(allowed);
    if manifest::is_namespace(set) && member.is_none_or(is_member) {
        Ok(text.to_owned())
    } else {
        Err("not the name of a pool, a pool set or a member".to_owned())
    }
}

fn parse_namespace(text: &str) -> Result<String, String> {
    let is_valid = manifest::is_namespace(text);
    is_valid
        .then(|| text.to_owned())
        .ok_or_else(|| "not the name of a namespace".to_owned())
}

fn parse_kubelet_dir(text: &str) -> Result<String, String> {
    let clean = source::clean(text);
    clean.ok_or_else(|| "not an absolute path below /".to_owned())
}

impl Options {
    /// The socket of the driver, as its node sees it. The pods that import work on the node's mounts.
    fn endpoint(&self) -> String {
        let (kubelet, driver) = (&self.common.kubelet_dir, &self.common.driver.driver_name);
        format!("unix://{kubelet}/plugins/{driver}/csi.sock")
    }

    fn selects(&self, claim: &Metadata) -> bool {
        let Metadata {
            namespace, name, ..
        } = claim;
        let named = self.claim.as_ref();
        self.namespace
            .as_ref()
            .is_none_or(|asked| asked == namespace)
            && named.is_none_or(|asked| *asked == format!("{namespace}/{name}"))
    }
}

/// The commands, for the manual.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    let Cli { command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let is_mistake = error.use_stderr();
            let printed = error.print();
            return match printed {
                Ok(()) if !is_mistake => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    let done = match command {
        Command::Plan(options) => run(&options),
        Command::Claim(options) => claim::run(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("rootcellar-migrate: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the plans. False if a claim is refused, or if there is none.
fn run(options: &Options) -> Result<bool, String> {
    if options.common.objects == options.pools {
        return Err("--objects and --pools are the same".to_owned());
    }
    let cluster = read(&options.common.objects, Cluster::parse)?;
    let pools = read(&options.pools, Pools::parse)?;
    let report = Report::new(&cluster, &pools, options);
    report.script().print(options.common.to.as_deref())?;
    let is_refused = report.claims.iter().any(|plan| !plan.refusals.is_empty());
    Ok(!is_refused && !report.claims.is_empty())
}

/// Everything that is printed.
#[derive(Debug)]
struct Report {
    /// The parts of the input that are missing.
    unchecked: Vec<String>,
    /// The volumes without a bound claim.
    skipped: Vec<String>,
    claims: Vec<Plan>,
}

impl Report {
    fn new(cluster: &Cluster, pools: &Pools, options: &Options) -> Self {
        let (bound, skipped) = plan::bound(cluster, options);
        let plans = bound
            .iter()
            .map(|bound| Plan::new(bound, cluster, pools, options));
        Self {
            unchecked: cluster.unchecked(),
            skipped,
            claims: plans.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
