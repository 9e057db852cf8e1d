//! The flags of the server and of the commands, and the checks that concern more than one flag.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use linux::fault::PathFault;
use linux::io::CgroupPlace;
use linux::mount::MountTable;
use linux::os::Os;
use objects::{DriverArgs, Invalid, NodeName, PoolName};

use crate::error::{Error, Result};
use pool::{KnownPools, PartMount, PoolOptions, PoolSet};

/// The longest path of a Unix socket: `sun_path` without its final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The environment variable of `--pool`.
const POOLS_ENV: &str = "ROOTCELLAR_POOLS";

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The environment variable of `--pool-set`.
const SETS_ENV: &str = "ROOTCELLAR_POOL_SETS";

/// The pools of one flag or of the environment variable.
type PoolList = Vec<PoolOptions>;

/// The pool sets of one flag or of the environment variable.
type SetList = Vec<PoolSet>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Configured {
    pub pools: Vec<PoolOptions>,
    pub sets: Vec<PoolSet>,
}

/// The flags for pools.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub struct PoolArgs {
    /// Use the pool at this path; repeat for more
    ///
    /// The form is NAME=PATH[,init][,require-mount][,overcommit=R][,reserve=BYTES|N%][,keep=TIME].
    /// With init, the server makes an empty directory a pool. With require-mount, the path must be a
    /// mount point. overcommit multiplies the space that volumes may reserve (default 1). reserve is the
    /// space that stays free (default 0, or 15% where the pool shares the root disk). keep is the
    /// grace period, such as 24h, in which deleted volumes and snapshots can come back while the disk has
    /// space (default: none). A ';' separates pools.
    #[arg(long = "pool", env = POOLS_ENV, value_name = "NAME=PATH[,OPTION...]",
          value_parser = parse_pools)]
    pools: Vec<PoolList>,

    /// Use every mount directly below this directory as a pool; repeat for more
    ///
    /// The form is NAME=DIR[,match=GLOB][,init][,overcommit=R][,reserve=BYTES|N%][,keep=TIME]. The
    /// members are named NAME/DIRECTORY, and a class says pool: NAME. A volume goes to the member with
    /// the most free space. With match, only directories whose names match count. A directory without a
    /// mount is never a member. The other options are those of --pool. A ';' separates sets.
    #[arg(long = "pool-set", env = SETS_ENV, value_name = "NAME=DIR[,OPTION...]",
          value_parser = parse_sets)]
    sets: Vec<SetList>,
}

/// The flag for the state directory.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct StateArgs {
    /// Use this directory, in which the server records the pool of each path
    #[arg(long, value_name = "DIR", default_value = "/var/lib/rootcellar/state",
          value_parser = PoolOptions::absolute_path)]
    pub state_dir: PathBuf,
}

impl StateArgs {
    /// The pools that a server knows. A directory made here would be unknown to the server, so a missing one is
    /// an error.
    pub fn server_memory(&self) -> Result<KnownPools> {
        if !self.state_dir.is_dir() {
            let shown = self.state_dir.display();
            let problem = format!("{shown} does not exist; give the directory of the server");
            return Err(Error::invalid("--state-dir", problem));
        }
        Ok(KnownPools::open(Os::default(), &self.state_dir)?)
    }
}

/// The flags for the limits of I/O.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct CgroupArgs {
    /// Find the cgroup of pods in the first two levels of this mount of cgroup v2
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup",
          value_parser = PoolOptions::absolute_path)]
    pub cgroups: PathBuf,

    /// Limit the I/O of the pods in this cgroup, instead of finding theirs
    #[arg(long, value_name = "DIR", value_parser = PoolOptions::absolute_path)]
    pub pods_cgroup: Option<PathBuf>,
}

impl CgroupArgs {
    /// Where to find the cgroup of pods.
    pub fn place(self) -> CgroupPlace {
        match self.pods_cgroup {
            Some(cgroup) => CgroupPlace::Pods(cgroup),
            None => CgroupPlace::Tree(self.cgroups),
        }
    }
}

/// The configuration of the server.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub struct Config {
    /// Listen on this Unix socket, such as unix:///csi/csi.sock
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL", value_parser = parse_endpoint)]
    pub endpoint: PathBuf,

    /// Serve as this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = parse_node)]
    pub node: NodeName,

    #[command(flatten)]
    pools: PoolArgs,

    /// The server's own directory.
    #[command(flatten)]
    pub state: StateArgs,

    /// Publish volumes only below this directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet",
          value_parser = PoolOptions::absolute_path)]
    pub kubelet_dir: PathBuf,

    /// Find the processes of the host in this mount of proc(5), before a volume is moved
    #[arg(long = "proc", value_name = "DIR", default_value = "/proc",
          value_parser = PoolOptions::absolute_path)]
    pub processes: PathBuf,

    #[command(flatten)]
    pub cgroup: CgroupArgs,

    #[command(flatten)]
    pub driver: DriverArgs,

    /// Serve /healthz, /readyz and /metrics on this address, such as 127.0.0.1:9808 [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,

    /// Serve /inventory, the ids of all volumes for rootcellar-fleet, to clients that sign with the key in this file
    /// [default: off]
    #[arg(long, value_name = "FILE", requires = "http", value_parser = PoolOptions::absolute_path)]
    pub inventory_key: Option<PathBuf>,

    /// Write the log in this form to stderr
    ///
    /// The environment variable RUST_LOG sets its level: error, warn, info, debug or trace. By default it is info.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Wait at most this number of seconds for the lock of a pool
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(..=3600))]
    pub lock_wait: u64,
}

impl Config {
    /// The pools and sets. Fails if a file of the server or of the kubelet is in a pool or next to the
    /// socket, or if the kubelet's directory does not exist.
    pub fn pools(&self) -> Result<Configured> {
        let configured = self.pools.all()?;
        let state_dir = self.state.state_dir.as_path();
        let own = state_dir.display();
        // A socket in the root directory has every other directory next to it.
        let is_beside = |dir: &Path| dir.parent().is_some() && state_dir.starts_with(dir);
        if self.endpoint.parent().is_some_and(is_beside) {
            let problem = format!("{own} is in the directory of the socket; put it elsewhere");
            return Err(Error::invalid("--state-dir", problem));
        }
        for place in configured.places() {
            for (flag, path) in [
                ("--endpoint", self.endpoint.as_path()),
                ("--state-dir", state_dir),
                ("--kubelet-dir", &self.kubelet_dir),
            ] {
                if path.starts_with(place.path) {
                    let problem = format!("{} is inside {place}; move one of them", path.display());
                    return Err(Error::invalid(flag, problem));
                }
            }
            if place.path.starts_with(state_dir) {
                let problem = format!("{place} is inside {own}; move one of them");
                return Err(Error::invalid("--state-dir", problem));
            }
        }
        let kubelet = self.kubelet_dir.display();
        let problem = match std::fs::metadata(&self.kubelet_dir) {
            Ok(metadata) if metadata.is_dir() => return Ok(configured),
            Ok(_) => format!("{kubelet} is not a directory"),
            Err(error) => format!("{kubelet} must be a directory, and cannot be examined: {error}"),
        };
        Err(Error::invalid("--kubelet-dir", problem))
    }
}

impl PoolArgs {
    /// The pools and sets. Fails if two have the same name or path, or if one is inside another.
    pub fn all(&self) -> Result<Configured> {
        let configured = Configured {
            pools: self.pools.concat(),
            sets: self.sets.concat(),
        };
        let places: Vec<ConfiguredPath<'_>> = configured.places().collect();
        for (at, place) in places.iter().enumerate() {
            let conflict = places[..at].iter().find_map(|other| place.conflict(other));
            if let Some(problem) = conflict {
                return Err(Error::invalid(place.flag(), problem));
            }
        }
        Ok(configured)
    }
}

impl Configured {
    /// The pools, and the members of the sets: their mounts, and the known pools.
    pub fn expand(self, known_pools: Option<&KnownPools>) -> Result<Vec<PoolOptions>> {
        let mut pools = self.pools;
        if !self.sets.is_empty() {
            let members = pool::members(&self.sets, &mount_table()?, known_pools)?;
            pools.extend(members.into_iter().map(|member| member.options));
        }
        Ok(pools)
    }

    /// The mounts below the directories of sets that are not members, because they show a part of a disk.
    pub fn part_mounts(&self) -> Result<Vec<PartMount>> {
        if self.sets.is_empty() {
            return Ok(Vec::new());
        }
        Ok(pool::part_mounts(&self.sets, &mount_table()?))
    }

    /// Whether the pool at a path must be a mount point.
    pub fn requires_mount(&self, path: &Path) -> bool {
        let mut pools = self.pools.iter();
        let mut sets = self.sets.iter();
        pools.any(|pool| pool.path == path && pool.require_mount)
            || sets.any(|set| set.member_at(path).is_some())
    }

    fn places(&self) -> impl Iterator<Item = ConfiguredPath<'_>> {
        let pools = self.pools.iter().map(|pool| ConfiguredPath {
            name: &pool.name,
            path: &pool.path,
            set: None,
        });
        let sets = self.sets.iter().map(|set| ConfiguredPath {
            name: set.name(),
            path: set.dir(),
            set: Some(set),
        });
        pools.chain(sets)
    }
}

fn mount_table() -> Result<MountTable> {
    let table = Path::new("/proc/self/mountinfo");
    Ok(MountTable::read().map_err(PathFault::at("read", table))?)
}

/// The place of a pool or a set, for comparisons.
#[derive(Debug, Clone, Copy)]
struct ConfiguredPath<'a> {
    name: &'a PoolName,
    path: &'a Path,
    set: Option<&'a PoolSet>,
}

impl fmt::Display for ConfiguredPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.set.is_some() {
            "pool set"
        } else {
            "pool"
        };
        write!(f, "{kind} {} at {}", self.name, self.path.display())
    }
}

impl ConfiguredPath<'_> {
    fn flag(&self) -> &'static str {
        match self.set {
            Some(_) => "--pool-set (or ROOTCELLAR_POOL_SETS)",
            None => "--pool (or ROOTCELLAR_POOLS)",
        }
    }

    fn conflict(&self, other: &Self) -> Option<String> {
        let name = self.name;
        if name == other.name {
            return Some(format!(
                "two pools have the name {name}; give each pool and pool set a name of its own"
            ));
        }
        if self.path == other.path {
            let both_match = [self, other].map(|place| place.set?.matching.as_ref());
            return match (both_match, self.set, other.set) {
                ([Some(_), Some(_)], ..) => None,
                (_, Some(_), Some(_)) => Some(format!(
                    "{self} has the directory of {other}; give each a match of its own"
                )),
                _ => Some(format!("{self} has the path of {other}")),
            };
        }
        if self.path.starts_with(other.path) {
            return Some(format!("{self} is inside {other}"));
        }
        let is_above = other.path.starts_with(self.path);
        is_above.then(|| format!("{self} is above {other}"))
    }
}

/// Parses the entries of a flag or of its environment variable, which ';' separates. Only the variable
/// may be empty.
fn parse_list<T: FromStr<Err = Invalid>>(
    text: &str,
    env: &str,
    form: &str,
) -> Result<Vec<T>, String> {
    let entries = text.split(';').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    let parse = |entry: &str| entry.parse().map_err(|error: Invalid| error.problem);
    let list: Vec<T> = entries.map(parse).collect::<Result<_, _>>()?;
    if list.is_empty() && std::env::var_os(env).is_none_or(|value| value != text) {
        return Err(format!("it names no pool; write {form}[,OPTION...]"));
    }
    Ok(list)
}

fn parse_pools(text: &str) -> Result<PoolList, String> {
    parse_list(text, POOLS_ENV, "NAME=PATH")
}

fn parse_sets(text: &str) -> Result<SetList, String> {
    parse_list(text, SETS_ENV, "NAME=DIR")
}

pub fn parse_node(text: &str) -> Result<NodeName, String> {
    text.parse().map_err(|error: Invalid| error.problem)
}

/// Parses the URL of a Unix socket into its path.
pub fn parse_endpoint(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://");
    let path = path.ok_or("not a Unix socket; write unix:///path/csi.sock")?;
    let path = PoolOptions::absolute_path(path)?;
    // The specification demands the ending, and a bare "/.sock" has no name before it.
    if path.extension().is_none_or(|extension| extension != "sock") || text.ends_with('/') {
        return Err("it does not end in .sock; write unix:///path/csi.sock".to_owned());
    }
    match path.as_os_str().len() {
        ..=MAX_SOCKET_PATH => Ok(path),
        bytes => Err(format!(
            "the path has {bytes} bytes, and a socket allows {MAX_SOCKET_PATH}; use a shorter one"
        )),
    }
}

#[cfg(test)]
mod tests;
