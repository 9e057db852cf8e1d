//! `rootcellar pool`: creates, lists, cordons, adopts and retires pools, without a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use linux::fault::PathFault;
use linux::os::Os;
use linux::quota::{AtInit, Enforcement};
use objects::{NodeName, ObjectId, PoolId, VolumeId, table};
use serde_json::{Value, json};

use super::cordon;
use super::cordon::CordonArgs;
use super::inspect::{InspectArgs, NO_POOL, or_dash, quarantined_line};
use super::output::print;
use crate::check::{self, Inspection};
use crate::config::{PoolArgs, StateArgs, parse_node};
use crate::error::Result;
use pool::{self, Adopted, Cause, Claims, KnownPools, PoolOptions, Unavailable, Wanted, path};

/// The time that the disks of pools have to answer for a list.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The help of `--pool` where another argument is the path, and only require-mount is read.
const PLACE_POOLS_HELP: &str =
    "Read from these pools whether the path must be a mount point; this flag makes and adopts none";

/// The help of the path of a pool that exists.
const ADOPTED_PATH_HELP: &str = "Adopt the pool in this directory; it must be a mount point if a configured pool with require-mount has \
     this path";

/// The commands for pools.
#[derive(Debug, Subcommand)]
pub(super) enum PoolCommand {
    /// Make an empty directory a pool
    #[command(
        after_help = "Example:\n  rootcellar pool init /var/lib/rootcellar/pools/fast --node node1"
    )]
    Init(PlaceArgs),
    /// Switch on simple quota on the btrfs of a pool, so that the sizes of later volumes are enforced
    ///
    /// Volumes whose sizes were enforced before quota was off, or before their files were copied to this btrfs, need
    /// the commands that `rootcellar check` prints for each. Until then they cannot be published, so delete their pods
    /// first.
    #[command(
        after_help = "Example:\n  rootcellar pool enable-quota /var/lib/rootcellar/pools/fast"
    )]
    EnableQuota {
        /// Switch it on for the btrfs of this directory
        #[arg(value_parser = PoolOptions::absolute_path)]
        path: PathBuf,
    },
    /// List the configured pools, without disturbing a server
    #[command(after_help = "Example:\n  rootcellar pool list --json")]
    List(ListArgs),
    /// Cordon a pool: give it no new volumes, snapshots and copies, until it is uncordoned
    #[command(after_help = "Example:\n  rootcellar pool cordon disks/disk1")]
    Cordon(CordonArgs),
    /// Uncordon a pool: give it new volumes, snapshots and copies again
    #[command(after_help = "Example:\n  rootcellar pool uncordon disks/disk1")]
    Uncordon(CordonArgs),
    /// Adopt the pool at a path: another node's, another one than the path had, or a retired one
    ///
    /// Use it when a disk comes from another node, when this node has a new name, when another disk with a
    /// pool replaces the former one, or when a retired pool returns. It accepts a pool of any node and path that
    /// no server serves. The volumes and snapshots keep their ids and data. It refuses a directory without a
    /// pool, because `pool init` makes new ones, and a filesystem that cannot have pools. Never adopt the copy of a disk whose original is
    /// served, because both have the same ids. It may be repeated.
    #[command(after_help = "Example:\n  rootcellar pool adopt /var/lib/rootcellar/pools/fast --node node2",
              mut_arg("path", |path| path.help(ADOPTED_PATH_HELP)),
              mut_arg("node", |node| node.help("Make it a pool of this Kubernetes node, and no longer of its former one")))]
    Adopt {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Retire a pool that is lost for good, so that its volumes can be deleted and its path reused
    #[command(after_help = "Example:\n  rootcellar pool retire ID")]
    Retire {
        /// Retire the pool with this id, or the pool of the volume with this id
        #[arg(value_parser = parse_pool_id)]
        id: PoolId,
        #[command(flatten)]
        state: StateArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    inspect: InspectArgs,

    /// Expect the pools to be of this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = parse_node)]
    node: Option<NodeName>,
}

/// A directory and the node of its pool.
#[derive(Debug, Args)]
#[command(mut_arg("pools", |pools| pools.help(PLACE_POOLS_HELP).long_help(None::<&str>)))]
pub(super) struct PlaceArgs {
    /// Use this directory; it must be empty, except for lost+found, and a mount point if a configured pool
    /// with require-mount has this path
    #[arg(value_parser = PoolOptions::absolute_path)]
    path: PathBuf,

    /// Make it a pool of this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = parse_node)]
    node: NodeName,

    #[command(flatten)]
    pools: PoolArgs,

    /// Allow any filesystem
    #[arg(long, hide = true)]
    any_filesystem: bool,
}

pub(super) fn run(command: &PoolCommand) -> Result<bool> {
    match command {
        PoolCommand::Init(place) => init(place),
        PoolCommand::EnableQuota { path } => enable_quota(path),
        PoolCommand::List(args) => list(args),
        PoolCommand::Cordon(args) => cordon::run(args, true),
        PoolCommand::Uncordon(args) => cordon::run(args, false),
        PoolCommand::Adopt { place, state } => adopt(place, &state.state_dir),
        PoolCommand::Retire { id, state } => retire(*id, state),
    }
}

impl PlaceArgs {
    fn wanted(&self) -> Result<Wanted> {
        Ok(Wanted {
            require_mount: self.pools.all()?.requires_mount(&self.path),
            any_filesystem: self.any_filesystem,
        })
    }
}

fn init(place: &PlaceArgs) -> Result<bool> {
    let PlaceArgs { path, node, .. } = place;
    let pool = pool::init(&Os::default(), path, node, place.wanted()?)?;
    let enforcement = enforcement_lines(pool.quota, check::why_unenforced(path));
    print(made(path, node, pool.id) + &enforcement)?;
    Ok(true)
}

fn made(path: &Path, node: &NodeName, id: PoolId) -> String {
    let path = path.display();
    format!(
        "{id}\n{path} is now this pool of node {node}\n\
         serve it under a name of your choice: --pool NAME={path}"
    )
}

/// Whether sizes will be enforced, which is best known before any data is written. Each line begins
/// with a newline.
fn enforcement_lines(quota: AtInit, unenforced: Result<Option<Cause>, Unavailable>) -> String {
    let quota = pool::said_at_init(quota);
    let quota = quota.map_or(String::new(), |said| format!("\n{said}"));
    let enforced = match unenforced {
        Ok(Some(cause)) => format!("sizes are NOT enforced: {cause}"),
        Ok(None) => "sizes are enforced".to_owned(),
        Err(unavailable) => format!("it is unknown whether sizes are enforced: {unavailable}"),
    };
    format!("{quota}\n{enforced}")
}

fn enable_quota(path: &Path) -> Result<bool> {
    let shown = path.display();
    let limited = pool::count_limited(path)?;
    print(if pool::enable_quota(path)? {
        let enabled = format!(
            "simple quota is on for the btrfs of {shown}; a running server uses it within seconds"
        );
        match limited {
            0 => enabled,
            limited => format!(
                "{enabled}\n{limited} volumes and snapshots had limits before, which the btrfs has forgotten. Delete the \
                 pods that use them. They cannot be published, copied or deleted until you have run the commands \
                 that rootcellar check prints for each"
            ),
        }
    } else {
        format!("simple quota was on already for the btrfs of {shown}")
    })?;
    Ok(true)
}

fn adopt(place: &PlaceArgs, state_dir: &Path) -> Result<bool> {
    let PlaceArgs { path, node, .. } = place;
    let wanted = place.wanted()?;
    let known_pools = KnownPools::open(Os::default(), state_dir)?;
    let adopted = pool::adopt(&known_pools, path, node, wanted)?;
    print(adopted_lines(path, node, &adopted))?;
    Ok(true)
}

fn adopted_lines(path: &Path, node: &NodeName, adopted: &Adopted) -> String {
    let Adopted { id, from, volumes } = adopted;
    let path = path.display();
    let done = format!("{id}\n{path} is now this pool of node {node}, with {volumes} volumes");
    if from == node {
        return done;
    }
    format!(
        "{done}\nit was of node {from}: recreate its PersistentVolumes for this node before that \
         node retires the pool"
    )
}

fn retire(id: PoolId, state: &StateArgs) -> Result<bool> {
    let paths = pool::retire(&state.server_memory()?, id)?;
    print(retired_lines(id, &paths).join("\n"))?;
    Ok(true)
}

fn parse_pool_id(text: &str) -> Result<PoolId, String> {
    let of_volume = || VolumeId::parse(text).map(|volume| volume.pool());
    let id = PoolId::parse(text).or_else(of_volume);
    id.ok_or_else(|| "it is the id of neither a pool nor a volume".to_owned())
}

fn retired_lines(id: PoolId, paths: &[PathBuf]) -> Vec<String> {
    let mut lines = vec![format!("{id} is retired: its volumes can be deleted")];
    let reusable = |path: &PathBuf| format!("{} may hold another pool now", path.display());
    lines.extend(paths.iter().map(reusable));
    if paths.is_empty() {
        let hint = "if you did not expect that, check the id and the node";
        lines.push(format!("no path of this node had it; {hint}"));
    }
    lines
}

fn list(args: &ListArgs) -> Result<bool> {
    let ListArgs { inspect, node } = args;
    let known_pools = inspect.known_pools()?;
    let options = inspect.pools(known_pools.as_ref())?;
    let pools = check::inspect_all(&options, TIMEOUT);
    let list = Path::new("pool list");
    let mut pools = pools.map_err(PathFault::at("start a thread for", list))?;
    let claims = Claims::default();
    for (pool, options) in pools.iter_mut().zip(&options) {
        let problem = pool.problem.take();
        pool.problem =
            problem.map(|reason| check::remembering(reason, known_pools.as_ref(), options));
        let (None, Some(id), Some(owner)) = (&pool.problem, pool.id, &pool.node) else {
            continue;
        };
        let known = path::identify(
            id,
            owner,
            options,
            known_pools.as_ref(),
            node.as_ref(),
            &claims,
        );
        pool.problem = known.err();
    }
    if let Some(known_pools) = known_pools {
        let cordoned = known_pools.cordoned()?;
        for pool in &mut pools {
            let remembered = known_pools.recall(&pool.path)?;
            let meant = remembered.or(pool.id);
            pool.cordoned = meant.is_some_and(|id| cordoned.contains(&id));
            // The id of an unavailable pool is known.
            pool.id = pool.id.or(remembered);
        }
    }
    if inspect.json {
        let pools: Vec<Value> = pools.iter().map(to_json).collect();
        print(format_args!("{:#}", Value::from(pools)))?;
    } else {
        print(lines(&pools).join("\n"))?;
    }
    let is_healthy = |pool: &Inspection| pool.problem.is_none() && pool.quarantined.is_empty();
    Ok(pools.iter().all(is_healthy))
}

/// The keys that a list and a check have in common.
pub(super) fn pool_json(pool: &Inspection) -> Value {
    json!({
        "name": pool.name,
        "path": pool.path.to_string_lossy(),
        "id": pool.id,
        "node": pool.node,
        "filesystem": pool.filesystem,
        "enforcement": pool.enforcement,
        "cordoned": pool.cordoned,
        "volumes": pool.recorded.map(|recorded| recorded.volumes),
        "snapshots": pool.recorded.map(|recorded| recorded.snapshots),
    })
}

fn to_json(pool: &Inspection) -> Value {
    let quarantined = pool.quarantined.iter();
    let quarantined: Vec<Value> = quarantined
        .map(|entry| json!({ "path": entry.path.to_string_lossy(), "reason": entry.reason }))
        .collect();
    let mut json = pool_json(pool);
    json["reserved_bytes"] = json!(pool.recorded.map(|recorded| recorded.reserved));
    json["quarantined"] = Value::from(quarantined);
    json["problem"] = json!(pool.problem.as_ref().map(ToString::to_string));
    json
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

fn lines(pools: &[Inspection]) -> Vec<String> {
    if pools.is_empty() {
        return vec![NO_POOL.to_owned()];
    }
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    rows.extend(pools.iter().map(row));
    let mut lines = table::lines(&rows);
    for pool in pools {
        let name = &pool.name;
        let problem = pool.problem.as_ref();
        lines.extend(problem.map(|problem| format!("pool {name}: {problem}")));
        let unenforced = pool.unenforced.as_ref();
        lines.extend(
            unenforced.map(|cause| format!("pool {name}: sizes are not enforced: {cause}")),
        );
        let quarantined = pool.quarantined.iter();
        lines.extend(quarantined.map(|quarantined| quarantined_line(pool, quarantined)));
    }
    lines
}

fn row(pool: &Inspection) -> Vec<String> {
    vec![
        pool.name.to_string(),
        state(pool),
        or_dash(pool.recorded.map(|recorded| recorded.volumes)),
        or_dash(pool.recorded.map(|recorded| recorded.snapshots)),
        or_dash(pool.recorded.map(|recorded| recorded.reserved.rounded())),
        or_dash(Some(&pool.filesystem).filter(|text| !text.is_empty())),
        or_dash(pool.enforcement.map(Enforcement::as_str)),
        or_dash(pool.node.as_ref()),
        or_dash(pool.id),
        pool.path.display().to_string(),
    ]
}

fn state(pool: &Inspection) -> String {
    let quarantined = pool.quarantined.len();
    let fault = match &pool.problem {
        Some(problem) => Some(problem.state().to_owned()),
        None => (quarantined > 0).then(|| format!("{quarantined} quarantined")),
    };
    let cordoned = pool.cordoned.then(|| "cordoned".to_owned());
    let words: Vec<String> = fault.into_iter().chain(cordoned).collect();
    if words.is_empty() {
        return "healthy".to_owned();
    }
    words.join(", ")
}

#[cfg(test)]
mod tests;
