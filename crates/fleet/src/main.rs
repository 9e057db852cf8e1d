//! The `rootcellar-fleet` binary: an optional controller that knows all nodes. It sends restores and clones to the node
//! of their source, and names the node of each snapshot. It compares volumes with their objects, and removes the objects
//! that a lost node leaves behind. It removes the startup taint of nodes. It deletes no data, and keeps nothing but its
//! caches.
//!
//! Nothing simpler replaces it. A `MutatingAdmissionPolicy`, on from Kubernetes 1.36, is evaluated for every
//! `PersistentVolume` and does not see that a snapshot becomes ready. No stock sidecar reads the topology of snapshots,
//! and its part of the scheduler is out of tree.

//! A module imports modules of the lines below its own (`hack/lint/check-imports.sh`):
//!
//! ```text
//! main
//! plan, round                                 all decisions about a file, or about a view
//! finish, release, relist, machines, label, steer, http, list
//! cluster, compare, lost, pages, place, status, untaint
//! write, live, view                           questions before a write, and the writes; the cluster in memory
//! api, difference, due, makers, feed
//! step, reader
//! report                                      the sentences of events
//! command                                     the lines for people in them
//! answer, objects, pager
//! settings, wire
//! ```

#![forbid(unsafe_code)]

mod answer;
mod api;
mod cluster;
mod command;
mod compare;
mod difference;
mod due;
mod feed;
mod finish;
mod http;
mod label;
mod list;
mod live;
mod lost;
mod machines;
mod makers;
mod objects;
mod pager;
mod pages;
mod place;
mod plan;
mod reader;
mod release;
mod relist;
mod report;
mod round;
mod settings;
mod status;
mod steer;
mod step;
#[cfg(test)]
mod tests;
mod untaint;
mod view;
mod wire;
mod write;

use std::fmt;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::objects::DriverArgs;
use clap::{Parser, Subcommand, ValueEnum};
use futures_util::{FutureExt, StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::Config;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use cluster::Cluster;
use compare::compare;
use difference::{Differences, agreed};
use http::Pulse;
use list::ListArgs;
use live::Shared;
use plan::PlanArgs;
use reader::Reader;
use round::Memory;
use settings::{Delays, Functions, Settings};
use step::Step;
use write::Writer;

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;
/// The processor lacks an instruction.
const PROCESSOR: u8 = 2;
/// Changes that come together make one round.
const TOGETHER: Duration = Duration::from_millis(250);
/// The longest time between two rounds.
const IDLE: Duration = Duration::from_mins(1);
/// The longest time without a byte from the API server. A watch gets a bookmark each minute.
const SILENCE: Duration = Duration::from_mins(5);
/// A node that restarts can be absent for so long.
const SHORT: Duration = Duration::from_mins(5);
/// How many steps are under way at once.
const AT_ONCE: usize = 8;

/// Send restores of rootcellar to their node, label snapshots, release the objects of lost nodes, and remove startup taints
#[derive(Debug, Parser)]
#[command(
    name = "rootcellar-fleet",
    version,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  rootcellar-fleet --steer --label --compare --key /etc/rootcellar/inventory/key"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    functions: Functions,

    #[command(flatten)]
    delays: Delays,

    /// Read the pages of the drivers with the key in this file
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    #[command(flatten)]
    driver: DriverArgs,

    /// Read the storage capacities of this namespace, in which the driver runs; default: that of the pod
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    namespace: Option<String>,

    /// Serve /healthz, /readyz, /metrics and /nodes here
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9809")]
    http: SocketAddr,

    /// Log in this format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the nodes, their disks, their free space and the problems, from the page of the running controller
    #[command(after_help = "Example:\n  rootcellar-fleet list --namespace rootcellar-system")]
    List(ListArgs),

    /// Print a shell script that releases the objects which a lost node left behind, with checks and the way back; changes
    /// nothing
    #[command(
        after_help = "Example:\n  rootcellar-fleet plan node1 --objects objects.json --to plan.sh"
    )]
    Plan(PlanArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Why the controller ends.
#[derive(Debug, thiserror::Error)]
enum Fatal {
    #[error("cannot find out how to reach the API server: {0}; run in a pod, or set KUBECONFIG")]
    Config(#[from] kube::config::InferConfigError),
    #[error("cannot make a client of the API server: {0}")]
    Client(#[from] kube::Error),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("cannot start the log: {0}")]
    Log(String),
    #[error("{0}")]
    List(#[from] list::NoList),
    #[error("{0}")]
    Plan(#[from] plan::NoPlan),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            // Without a terminal there is nobody to read it.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let done = if let Some(Command::Plan(plan)) = &cli.command {
        // It needs no TLS, so every processor can run it.
        plan.run(&cli.delays).map_err(Fatal::from)
    } else if let Some(missing) = missing_instruction() {
        complain(&format!(
            "this processor lacks {missing}, which TLS needs; run the controller on a node that has it"
        ));
        return ExitCode::from(PROCESSOR);
    } else {
        run(&cli)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stderr, reason = "the log may not have started")]
fn complain(error: &dyn fmt::Display) {
    eprintln!("rootcellar-fleet: {error}");
}

/// An instruction that graviola, the cryptography of TLS, needs and this processor does not have. The library itself
/// would panic.
fn missing_instruction() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let needed = [
        ("AES", std::arch::is_x86_feature_detected!("aes")),
        (
            "PCLMULQDQ",
            std::arch::is_x86_feature_detected!("pclmulqdq"),
        ),
        ("BMI1", std::arch::is_x86_feature_detected!("bmi1")),
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("ADX", std::arch::is_x86_feature_detected!("adx")),
    ];
    #[cfg(target_arch = "aarch64")]
    let needed = [
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("AES", std::arch::is_aarch64_feature_detected!("aes")),
        ("PMULL", std::arch::is_aarch64_feature_detected!("pmull")),
        ("SHA-2", std::arch::is_aarch64_feature_detected!("sha2")),
    ];
    needed
        .into_iter()
        .find(|(_, has)| !has)
        .map(|(name, _)| name)
}

#[tokio::main(worker_threads = 2)]
async fn run(cli: &Cli) -> Result<(), Fatal> {
    // It fails only if there is one already.
    let _ = rustls_graviola::default_provider().install_default();
    if let Some(Command::List(list)) = &cli.command {
        let text = list.text().await?;
        return Ok(writeln!(std::io::stdout(), "{text}")?);
    }
    start_log(cli.log_format)?;
    let stop = stopped()?;
    let mut config = Config::infer().await?;
    // Without these, a list would never stop waiting for an API server that lost its power.
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    let namespace = cli
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    let client = wire::client(config)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), functions = ?cli.functions, namespace, "rootcellar-fleet starts"
    );
    if cli.delays.absent_for < SHORT {
        tracing::warn!(
            absent_for = ?cli.delays.absent_for,
            "--absent-for is so short that a node that restarts may count as lost; use 5m or more"
        );
    }
    let cluster = Cluster::start(&client, &cli.functions, &cli.driver, &namespace);
    let reader = cli.key.clone().map(Reader::new);
    let (writer, pulse) = (
        Writer::new(client, cli.driver.clone(), reader),
        Pulse::new(),
    );
    let settings = Settings {
        functions: cli.functions.clone(),
        delays: cli.delays.clone(),
        driver: cli.driver.clone(),
        namespace,
    };
    http::start(cli.http, &cluster, pulse.clone())
        .map_err(|error| Fatal::Listen(cli.http, error))?;
    tokio::select! {
        () = read_pages(&cluster, &writer, &settings) => {}
        () = rounds(&cluster, &writer, &settings, &pulse, stop) => {}
    }
    tracing::info!("rootcellar-fleet ends");
    Ok(())
}

/// Does the due steps whenever the cluster changed, until `stop`. A step that has begun is finished. A round waits for its
/// steps, except for releases: their facts can take a minute, and nobody else waits for them.
async fn rounds(
    cluster: &Cluster,
    writer: &Writer,
    settings: &Settings,
    pulse: &Pulse,
    stop: impl Future<Output = ()>,
) {
    let stop = stop.shared();
    let mut memory = Memory::default();
    let mut releases = JoinSet::new();
    let mut next = None;
    loop {
        let idle = Instant::now() + IDLE;
        let due = next.map_or(idle, |next: Instant| next.min(idle));
        tokio::select! {
            () = stop.clone() => break,
            () = cluster.changed() => tokio::time::sleep(TOGETHER).await,
            Some(ended) = releases.join_next() => memory.released(ended.ok(), Instant::now()),
            () = tokio::time::sleep_until(due.into()) => {}
        }
        pulse.beat();
        if !cluster.missing().is_empty() {
            // Its list, or an error of its watch, begins the next round.
            memory.was_blind();
            next = None;
            continue;
        }
        let due = memory.round(&cluster.view(), settings, Instant::now(), Timestamp::now());
        next = due.next;
        let (apart, steps): (Vec<Step>, _) = due
            .steps
            .into_iter()
            .partition(|step| step.releases().is_some());
        for step in apart {
            let writer = writer.clone();
            releases.spawn(async move { writer.act(step, &Shared::default()).await });
        }
        let shared = Shared::default();
        let steps = pin!(stream::iter(steps).take_until(stop.clone()));
        let steps = steps.map(|step| writer.act(step, &shared));
        let mut outcomes = steps.buffer_unordered(AT_ONCE);
        while let Some(outcome) = outcomes.next().await {
            pulse.beat();
            let retry = memory.ended(&outcome, Instant::now());
            next = [next, retry].into_iter().flatten().min();
        }
    }
    while releases.join_next().await.is_some() {}
}

/// Reads the pages of the drivers again and again, and compares them with the objects of the cluster. Without a key, waits
/// permanently.
async fn read_pages(cluster: &Cluster, writer: &Writer, settings: &Settings) {
    let Some(reader) = &writer.server.reader else {
        return std::future::pending().await;
    };
    let mut last: Option<(Instant, Differences)> = None;
    loop {
        let begun = Instant::now();
        let is_due = |at: Instant| begun.duration_since(at) >= settings.delays.compare_every;
        let compares = settings.functions.compare
            && cluster.missing().is_empty()
            && last.as_ref().is_none_or(|(at, _)| is_due(*at));
        if settings.functions.release && cluster.missing().is_empty() {
            machines::observe(&writer.server, &settings.namespace, cluster).await;
        }
        // The objects come first; see `compare`.
        let objects = if compares {
            relist::objects(&writer.server).await.ok()
        } else {
            None
        };
        let pods = pages::pods(&cluster.view());
        cluster.take_pages(pages::read(reader, pods).await);
        if let Some(objects) = objects {
            let view = &mut *cluster.view();
            let found = compare(&objects, view, settings.functions.watch_claims());
            if let Some((_, before)) = &last {
                view.differences = agreed(before, found.clone());
                view.compared = Some(Instant::now());
            }
            last = Some((begun, found));
        }
        cluster
            .view()
            .drop_old_differences(Instant::now(), &settings.delays);
        tokio::time::sleep(settings.delays.between_pages()).await;
    }
}

/// Ends when the process has to end.
fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn start_log(format: LogFormat) -> Result<(), Fatal> {
    // At a warning the client prints the complete answer, with objects of all tenants.
    let directives = format!(
        "kube_client=error,{}",
        std::env::var("RUST_LOG").unwrap_or_default()
    );
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(&directives)
        .map_err(|error| Fatal::Log(format!("RUST_LOG {directives:?}: {error}")))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    }
    .map_err(|error| Fatal::Log(error.to_string()))
}
