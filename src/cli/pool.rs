//! `rootcellar pool`: pools made, listed, taken over and declared gone, without a server.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::look::{NO_POOL, print_quarantined};
use super::{cannot_print, environment, table};
use crate::check::{self, Inspection};
use crate::config::{POOLS_ENV, parse_dir, parse_node, parse_pools};
use crate::error::{Error, Result};
use crate::os::Os;
use crate::pool::{self, Adopted, Memory, Unavailable, Unenforced, Wanted};
use crate::quota::AtInit;
use crate::types::{NodeName, ObjectId, PoolId, VolumeId};

/// How long the disks of pools may take to be listed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do with pools.
#[derive(Debug, Subcommand)]
pub(super) enum PoolCommand {
    /// Make an empty directory a pool
    Init(InitArgs),
    /// Switch on simple quota on the btrfs of a pool, so that volumes made from then on are held to their sizes
    EnableQuota(EnableQuotaArgs),
    /// List the configured pools, without disturbing a server
    List(ListArgs),
    /// Take over the pool at a path: another node's, another one than the path held, or one that was retired
    Adopt(AdoptArgs),
    /// Declare a pool gone for good, so that its volumes can be deleted and its path may hold another
    Retire(RetireArgs),
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    #[command(flatten)]
    place: PlaceArgs,
}

/// A directory and the node it is to belong to.
#[derive(Debug, Args)]
struct PlaceArgs {
    /// Make the pool in, or take over the pool at, this directory, which must be a mount point if it is a configured
    /// pool with require-mount; a new pool is made only where nothing is but lost+found
    path: String,

    /// Make it a pool of this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: String,

    /// Allow any filesystem
    #[arg(long, hide = true)]
    any_filesystem: bool,
}

#[derive(Debug, Args)]
pub(super) struct EnableQuotaArgs {
    /// Switch it on for the btrfs that this directory is on
    path: String,
}

#[derive(Debug, Args)]
struct StateArgs {
    /// The directory in which the server of this node remembers which pool each path held
    #[arg(long, value_name = "DIR", default_value = "/var/lib/rootcellar/state")]
    state_dir: String,
}

#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    #[command(flatten)]
    place: PlaceArgs,

    #[command(flatten)]
    state: StateArgs,
}

#[derive(Debug, Args)]
pub(super) struct RetireArgs {
    /// Retire the pool with this id; the id of one of its volumes names it too
    id: String,

    #[command(flatten)]
    state: StateArgs,
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

    #[command(flatten)]
    state: StateArgs,
}

/// Runs one of the commands.
pub(super) fn run(command: PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::Init(args) => init(&args),
        PoolCommand::EnableQuota(args) => enable_quota(&args),
        PoolCommand::List(args) => list(&args),
        PoolCommand::Adopt(args) => adopt(&args),
        PoolCommand::Retire(args) => retire(&args),
    }
}

impl PlaceArgs {
    fn parse(&self) -> Result<(PathBuf, NodeName, Wanted)> {
        let path = parse_dir("PATH", &self.path)?;
        let node = parse_node("--node (or NODE_NAME)", &self.node)?;
        let configured = parse_pools(&[], environment(POOLS_ENV)?.as_deref())?;
        let wanted = Wanted {
            require_mount: configured
                .iter()
                .any(|pool| pool.path == path && pool.require_mount),
            any_filesystem: self.any_filesystem,
        };
        Ok((path, node, wanted))
    }
}

impl StateArgs {
    fn parse(&self) -> Result<PathBuf> {
        parse_dir("--state-dir", &self.state_dir)
    }
}

fn init(args: &InitArgs) -> Result<ExitCode> {
    let (path, node, wanted) = args.place.parse()?;
    let made = pool::init(&Os::default(), &path, &node, wanted)?;
    let mut out = io::stdout().lock();
    print_made(&mut out, &path, node.as_str(), made.id)
        .and_then(|()| print_enforcement(&mut out, made.quota, check::why_unenforced(&path)))
        .map_err(cannot_print)?;
    Ok(ExitCode::SUCCESS)
}

fn enable_quota(args: &EnableQuotaArgs) -> Result<ExitCode> {
    let path = parse_dir("PATH", &args.path)?;
    let shown = path.display();
    let said = if pool::enable_quota(&path)? {
        format!(
            "simple quota is on for the btrfs of {shown}; a driver that serves it sees that in seconds"
        )
    } else {
        format!("simple quota was on already for the btrfs of {shown}")
    };
    writeln!(io::stdout().lock(), "{said}").map_err(cannot_print)?;
    Ok(ExitCode::SUCCESS)
}

fn adopt(args: &AdoptArgs) -> Result<ExitCode> {
    let (path, node, wanted) = args.place.parse()?;
    let memory = Memory::open(Os::default(), &args.state.parse()?)?;
    let adopted = pool::adopt(&memory, &path, &node, wanted)?;
    print_adopted(&mut io::stdout().lock(), &path, &node, &adopted).map_err(cannot_print)?;
    Ok(ExitCode::SUCCESS)
}

fn print_adopted(
    out: &mut impl Write,
    path: &Path,
    node: &NodeName,
    adopted: &Adopted,
) -> io::Result<()> {
    let Adopted { id, from, volumes } = adopted;
    writeln!(out, "{id}")?;
    writeln!(
        out,
        "{} is now this pool of node {node}, with {volumes} volumes",
        path.display()
    )?;
    if from == node {
        return Ok(());
    }
    writeln!(
        out,
        "it was of node {from}: write its PersistentVolumes anew for this node before that node \
         retires the pool"
    )
}

fn retire(args: &RetireArgs) -> Result<ExitCode> {
    let id = parse_pool_id(&args.id)?;
    let state_dir = args.state.parse()?;
    // A new one would be nobody's, and the pool be retired for nobody.
    if !state_dir.is_dir() {
        let shown = state_dir.display();
        let problem = format!("{shown} is not there; give the one that the server uses");
        return Err(Error::invalid("--state-dir", problem));
    }
    let held = pool::retire(&Memory::open(Os::default(), &state_dir)?, id)?;
    print_retired(&mut io::stdout().lock(), id, &held).map_err(cannot_print)?;
    Ok(ExitCode::SUCCESS)
}

fn parse_pool_id(text: &str) -> Result<PoolId> {
    let problem = || {
        let problem = format!("{text:?} is the id of neither a pool nor a volume");
        Error::invalid("ID", problem)
    };
    let of_volume = || VolumeId::parse(text).map(|volume| volume.pool());
    PoolId::parse(text).or_else(of_volume).ok_or_else(problem)
}

fn print_retired(out: &mut impl Write, id: PoolId, held: &[PathBuf]) -> io::Result<()> {
    writeln!(out, "{id} is retired: its volumes can be deleted")?;
    for path in held {
        writeln!(out, "{} may hold another pool now", path.display())?;
    }
    if held.is_empty() {
        writeln!(
            out,
            "no path of this node held it when it was last seen; if that is news, check the id and \
             the node"
        )?;
    }
    Ok(())
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

/// Says before any data is written whether sizes will be enforced.
fn print_enforcement(
    out: &mut impl Write,
    quota: AtInit,
    unenforced: Result<Option<Unenforced>, Unavailable>,
) -> io::Result<()> {
    if let Some(said) = pool::said_at_init(quota) {
        writeln!(out, "{said}")?;
    }
    match unenforced {
        Ok(Some(Unenforced { reason, remedy })) => {
            writeln!(out, "sizes are NOT enforced: {reason}; {remedy}")
        }
        Ok(None) => writeln!(out, "sizes are enforced"),
        Err(unavailable) => writeln!(
            out,
            "it is not known whether sizes are enforced: {unavailable}"
        ),
    }
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let options = parse_pools(&args.pools, environment(POOLS_ENV)?.as_deref())?;
    let mut pools = check::inspect_all(&options, PATIENCE).map_err(|source| Error::Io {
        what: "start a thread for",
        path: "pool list".into(),
        source,
    })?;
    recall(&mut pools, &args.state.parse()?)?;
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

/// Tells of a pool that is not to be seen which one it was.
fn recall(pools: &mut [Inspection], state_dir: &Path) -> Result<()> {
    if state_dir.is_dir() {
        let memory = Memory::open(Os::default(), state_dir)?;
        for pool in pools.iter_mut().filter(|pool| pool.id.is_none()) {
            pool.id = memory.recall(&pool.path)?;
        }
    }
    Ok(())
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
        "enforcement": pool.enforcement,
        "volumes": pool.volumes,
        "snapshots": pool.snapshots,
        "reserved_bytes": pool.reserved,
        "quarantined": quarantined,
        "problem": pool.problem.as_ref().map(ToString::to_string),
    })
}

const HEADS: [&str; 10] = [
    "NAME",
    "STATE",
    "VOLUMES",
    "SNAPSHOTS",
    "RESERVED",
    "FILESYSTEM",
    "ENFORCEMENT",
    "NODE",
    "ID",
    "PATH",
];

fn print_table(out: &mut impl Write, pools: &[Inspection]) -> io::Result<()> {
    if pools.is_empty() {
        return writeln!(out, "{NO_POOL}");
    }
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    rows.extend(pools.iter().map(row));
    table::print(out, &rows)?;
    for pool in pools {
        if let Some(problem) = &pool.problem {
            writeln!(out, "pool {}: {problem}", pool.name)?;
        }
        if let Some(Unenforced { reason, remedy }) = &pool.unenforced {
            writeln!(
                out,
                "pool {}: sizes are not enforced: {reason}; {remedy}",
                pool.name
            )?;
        }
        for quarantined in &pool.quarantined {
            print_quarantined(out, pool, quarantined)?;
        }
    }
    Ok(())
}

fn row(pool: &Inspection) -> Vec<String> {
    let state = match (&pool.problem, pool.quarantined.len()) {
        (Some(Unavailable::Silent { .. }), _) => "not answering".to_owned(),
        (Some(_), _) => "unavailable".to_owned(),
        (None, 0) => "ok".to_owned(),
        (None, quarantined) => format!("{quarantined} quarantined"),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        pool.name.to_string(),
        state,
        pool.volumes.to_string(),
        pool.snapshots.to_string(),
        pool.reserved.rounded(),
        or_dash(Some(pool.filesystem.clone()).filter(|text| !text.is_empty())),
        or_dash(pool.enforcement.map(|by| by.as_str().to_owned())),
        or_dash(pool.node.as_ref().map(ToString::to_string)),
        or_dash(pool.id.map(|id| id.to_string())),
        pool.path.display().to_string(),
    ]
}

#[cfg(test)]
mod tests;
