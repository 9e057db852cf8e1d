//! A client that calls the socket of any CSI driver as provisioner and kubelet do, and reports the
//! time of each call and the resources of the server's process.

mod client;
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use client::process::{self, Process};
use client::{Call, Driver, Volume, Wanted, steady};
use common::{Phase, Work};

/// The fewest calls for the time of a call that does nothing.
const PROBES: usize = 1000;

/// The concurrent calls in phases that are not timed.
const UNTIMED_IN_FLIGHT: u16 = 8;

/// Call a CSI driver through its socket and report the time of its calls
///
/// Calls are made as the provisioner and the kubelet make them: Probe, the call that does nothing,
/// GetCapacity, then CreateVolume, NodePublishVolume, NodeGetVolumeStats, NodeUnpublishVolume and
/// DeleteVolume. NodeStageVolume and NodeUnstageVolume are included if the driver has them.
/// --in-flight calls run at the same time over one connection.
///
/// Without --measure, all of --volumes go through each call. With it, --volumes are created first,
/// eight at a time, and stay while that many more are timed. A failed call is counted under its
/// code, not tried again, and makes the exit status 1.
///
/// The directory for targets must have the same path for the driver, its process and this one.
#[derive(Debug, Parser)]
#[command(name = "load", version)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct Args {
    /// Call the driver at this Unix socket, as unix:///csi/csi.sock
    #[arg(long, value_name = "URL")]
    endpoint: String,

    /// Have the volumes mounted below this directory, which must be in the driver's kubelet
    /// directory
    #[arg(long, value_name = "DIR")]
    target_dir: PathBuf,

    #[command(flatten)]
    work: Work,

    /// Request this class parameter; repeat for more
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = key_value)]
    parameters: Vec<(String, String)>,

    /// Request volumes of this size
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(i64).range(0..))]
    size: i64,

    /// Write this number of files into each timed volume before it is unpublished and deleted
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    files: usize,

    /// Run this shell command on each timed volume while it is published; VOLUME names its target
    #[arg(long, value_name = "COMMAND")]
    during: Option<String>,

    /// Request block volumes
    #[arg(long, conflicts_with_all = ["files", "snapshots"])]
    block: bool,

    /// Write a block into each volume that is not timed, and create a snapshot of it, which stays
    #[arg(long, requires = "measure")]
    snapshots: bool,

    /// Keep the volumes that are not timed
    #[arg(long, requires = "measure")]
    keep: bool,

    /// Measure memory and descriptors of this process [default: the one that serves the socket]
    #[arg(long)]
    pid: Option<i32>,

    /// Wait this long for a reply, as 90s, 5m or 1h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    /// Create and delete volumes for this long instead, and report every --interval
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "files")]
    lasts: Option<Duration>,

    /// Call nothing for this long at the end, and report the CPU time of the driver in each
    /// --interval
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "lasts")]
    rest: Option<Duration>,

    /// Report this often during --for or --rest
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    interval: Duration,

    /// Print one JSON object in one line; with --for, one for each interval
    #[arg(long)]
    json: bool,

    /// Do nothing: `cargo bench` passes it to every program
    #[arg(long = "bench", hide = true)]
    _by_cargo: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once('=')
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
    pair.ok_or_else(|| "write KEY=VALUE".into())
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    match number.parse::<u64>() {
        Ok(number) if number > 0 => Ok(Duration::from_secs(number.saturating_mul(unit))),
        _ => Err("write a time above zero, as 90s, 5m or 1h".into()),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // One thread, because on a small machine the server needs the rest.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .map_err(|error| format!("cannot start: {error}"))
        .and_then(|runtime| runtime.block_on(run(args)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("load: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Serialize)]
struct Facts {
    in_flight: u16,
    volumes: usize,
    files: usize,
    server: Process,
    rest_cpu_ms: Vec<u128>,
}

/// Runs the requested phases; returns whether none failed.
async fn run(args: Args) -> Result<bool, String> {
    let socket = args.endpoint.strip_prefix("unix://").map(Path::new);
    let socket = socket.ok_or_else(|| format!("{:?} is not unix:///PATH", args.endpoint))?;
    let pid = match args.pid {
        Some(pid) => pid,
        None => process::listener_of(socket).await?,
    };
    let wanted = Wanted {
        target_dir: args.target_dir.clone(),
        size: args.size,
        parameters: args.parameters.iter().cloned().collect::<BTreeMap<_, _>>(),
        block: args.block,
        timeout: args.timeout,
    };
    let driver = Arc::new(Driver::connect(socket, wanted).await?);
    let (present, timed) = match (args.work.measure, args.lasts) {
        (None, None) => (0, args.work.volumes),
        (measure, _) => (args.work.volumes, measure.unwrap_or(0)),
    };
    let fill = driver.volumes(present);
    let mut phases = filled(&driver, &fill, &args).await;
    let mut shown = made(&fill);
    shown.truncate(args.work.published);
    phases.extend(shown_by(&driver, [Call::Stage, Call::Publish], &shown).await?);
    let mut good = true;
    if let Some(lasts) = args.lasts {
        let (interval, in_flight, json) = (args.interval, args.work.in_flight, args.json);
        let plan = steady::Plan {
            lasts,
            interval,
            in_flight,
            pid,
            json,
        };
        good = steady::run(&driver, plan).await?;
    } else {
        phases.extend(questions(&driver, timed, args.work.in_flight).await);
        phases.extend(lives(&driver, timed, &args).await?);
    }
    let server = Process::look(pid)?;
    phases.extend(shown_by(&driver, [Call::Unpublish, Call::Unstage], &shown).await?);
    if !args.keep && present > 0 {
        phases.push(untimed(&driver, "clear", Call::Delete, &made(&fill)).await);
    }
    let facts = Facts {
        in_flight: args.work.in_flight,
        volumes: present,
        files: args.files,
        server,
        rest_cpu_ms: rest(pid, &args).await?,
    };
    if !phases.is_empty() {
        common::print(args.json, &facts, &phases).map_err(|error| error.to_string())?;
    }
    Ok(good && phases.iter().all(Phase::is_good))
}

/// Creates the volumes that are not timed.
async fn filled(driver: &Arc<Driver>, fill: &[Arc<Volume>], args: &Args) -> Vec<Phase> {
    let mut phases = Vec::new();
    if !fill.is_empty() {
        phases.push(untimed(driver, "fill", Call::Create, fill).await);
    }
    if args.snapshots {
        for call in [Call::Pod, Call::Snapshot] {
            phases.push(untimed(driver, call.name(), call, &made(fill)).await);
        }
    }
    phases
}

/// Makes one call on every volume that is not timed.
async fn untimed(driver: &Arc<Driver>, name: &str, call: Call, on: &[Arc<Volume>]) -> Phase {
    client::phase(driver, name, call, on, UNTIMED_IN_FLIGHT).await
}

/// Publishes or unpublishes the volumes of --published, by those of two calls that the driver has.
async fn shown_by(
    driver: &Arc<Driver>,
    calls: [Call; 2],
    shown: &[Arc<Volume>],
) -> Result<Vec<Phase>, String> {
    let told = |error| format!("cannot make or remove targets: {error}");
    let mut phases = Vec::new();
    if calls.contains(&Call::Publish) {
        shown
            .iter()
            .try_for_each(|it| it.make_places())
            .map_err(told)?;
    }
    let calls = driver
        .life()
        .into_iter()
        .filter(|call| calls.contains(call));
    for call in calls.filter(|_| !shown.is_empty()) {
        phases.push(untimed(driver, "untimed", call, shown).await);
        if call == Call::Unpublish {
            shown
                .iter()
                .try_for_each(|it| it.remove_places())
                .map_err(told)?;
        }
    }
    Ok(phases)
}

/// Makes the calls that concern no volume.
async fn questions(driver: &Arc<Driver>, timed: usize, in_flight: u16) -> Vec<Phase> {
    let mut asked = vec![(Call::Probe, timed.max(PROBES))];
    if timed > 0 && driver.tells_capacity() {
        asked.push((Call::Capacity, timed));
    }
    let mut phases = Vec::new();
    for (call, times) in asked {
        let nobody = driver.volumes(times);
        phases.push(client::phase(driver, call.name(), call, &nobody, in_flight).await);
    }
    phases
}

/// Calls nothing for --rest; returns the CPU time of the server in each --interval, in
/// milliseconds.
async fn rest(pid: i32, args: &Args) -> Result<Vec<u128>, String> {
    let mut left = args.rest.unwrap_or_default();
    let mut taken = Vec::new();
    while !left.is_zero() {
        let interval = args.interval.min(left);
        let before = Process::look(pid)?.cpu_ms;
        tokio::time::sleep(interval).await;
        taken.push(Process::look(pid)?.cpu_ms.saturating_sub(before));
        left -= interval;
    }
    Ok(taken)
}

/// Makes all calls of a volume's life, each on every volume before the next one.
async fn lives(driver: &Arc<Driver>, count: usize, args: &Args) -> Result<Vec<Phase>, String> {
    let volumes = driver.volumes(count);
    for volume in &volumes {
        volume
            .make_places()
            .map_err(|error| format!("cannot make targets: {error}"))?;
    }
    let mut phases = Vec::new();
    for call in driver.life() {
        let mut on = volumes.clone();
        if call != Call::Create {
            on = made(&volumes);
        }
        if call == Call::Unpublish {
            for volume in &on {
                fill_with_files(volume.target(), args.files)
                    .map_err(|error| format!("cannot put files into a volume: {error}"))?;
                run_on(volume.target(), args.during.as_deref())?;
            }
        }
        phases.push(client::phase(driver, call.name(), call, &on, args.work.in_flight).await);
    }
    for volume in &volumes {
        volume
            .remove_places()
            .map_err(|error| format!("cannot remove targets: {error}"))?;
    }
    Ok(phases)
}

/// Returns the volumes that exist. The others get no further calls.
fn made(volumes: &[Arc<Volume>]) -> Vec<Arc<Volume>> {
    let made = volumes.iter().filter(|volume| volume.is_made());
    made.cloned().collect()
}

/// Runs the command of --during on a published volume.
fn run_on(target: &Path, command: Option<&str>) -> Result<(), String> {
    let Some(command) = command else {
        return Ok(());
    };
    let status = Command::new("sh")
        .args(["-c", command])
        .env("VOLUME", target)
        .status()
        .map_err(|error| format!("cannot run sh: {error}"))?;
    if !status.success() {
        return Err(format!("the command on a volume failed: {status}"));
    }
    Ok(())
}

/// Writes files and syncs them, because the files of a deleted volume are usually on the disk.
fn fill_with_files(target: &Path, count: usize) -> std::io::Result<()> {
    const PER_DIRECTORY: usize = 1000;
    if count == 0 {
        return Ok(());
    }
    let mut directory = PathBuf::new();
    for number in 0..count {
        if number % PER_DIRECTORY == 0 {
            directory = target.join(format!("{number}"));
            fs::create_dir(&directory)?;
        }
        fs::write(directory.join(number.to_string()), b"x")?;
    }
    rustix::fs::syncfs(fs::File::open(target)?)?;
    Ok(())
}
