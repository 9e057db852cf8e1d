//! The flags of the server and of the commands, and the checks that concern more than one flag.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::pool::PoolOptions;
use crate::types::{Invalid, NodeName};

/// The longest path of a Unix socket: `sun_path` without its final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The longest driver name, topology prefix and topology name that CSI allows.
const MAX_NAME: usize = 63;

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

/// The pools of one flag or of the environment variable.
type PoolList = Vec<PoolOptions>;

/// The flag for pools.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub struct PoolArgs {
    /// Use the pool at this path; repeat for more
    ///
    /// The form is NAME=PATH[,init][,require-mount][,overcommit=R][,reserve=BYTES|N%]. With init, the
    /// server makes an empty directory a pool. With require-mount, the path must be a mount point.
    /// overcommit multiplies the space that volumes may reserve (default 1). reserve is the space that
    /// stays free (default 0, or 15% where the pool shares the root disk). A ';' separates pools.
    #[arg(long = "pool", env = POOLS_ENV, value_name = "NAME=PATH[,OPTION...]",
          value_parser = parse_pools)]
    pools: Vec<PoolList>,
}

/// The flag for the state directory.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct StateArgs {
    /// Use this directory, in which the server records the pool of each path
    #[arg(long, value_name = "DIR", default_value = "/var/lib/rootcellar/state",
          value_parser = PoolOptions::absolute_path)]
    pub state_dir: PathBuf,
}

/// The configuration of the server.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub struct Config {
    /// Listen on this Unix socket, as unix:///csi/csi.sock
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

    /// Use this CSI driver name
    #[arg(long, value_name = "NAME", default_value = "csi.rootcellar.dev",
          value_parser = parse_driver_name)]
    pub driver_name: String,

    /// Report the node of a volume to Kubernetes by this topology key
    #[arg(long, value_name = "PREFIX/NAME", default_value = "topology.rootcellar.dev/node",
          value_parser = parse_topology_key)]
    pub topology_key: String,

    /// Serve /healthz, /readyz and /metrics on this address, as 127.0.0.1:9808 [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,

    /// Write the log in this form to stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Wait at most this number of seconds for the lock of a pool
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(..=3600))]
    pub lock_wait: u64,
}

impl Config {
    /// The pools. Fails if a file of the server or of the kubelet is in a pool or beside the socket,
    /// or if the kubelet's directory does not exist.
    pub fn pools(&self) -> Result<Vec<PoolOptions>> {
        let pools = self.pools.all()?;
        let state_dir = self.state.state_dir.as_path();
        let own = state_dir.display();
        // A socket in the root directory has every other directory beside it.
        let is_beside = |dir: &Path| dir.parent().is_some() && state_dir.starts_with(dir);
        if self.endpoint.parent().is_some_and(is_beside) {
            let problem = format!("{own} is in the directory of the socket; put it elsewhere");
            return Err(Error::invalid("--state-dir", problem));
        }
        for pool in &pools {
            let shown = show(pool);
            for (flag, path) in [
                ("--endpoint", self.endpoint.as_path()),
                ("--state-dir", state_dir),
                ("--kubelet-dir", &self.kubelet_dir),
            ] {
                if path.starts_with(&pool.path) {
                    let problem = format!("{} is inside {shown}; move one of them", path.display());
                    return Err(Error::invalid(flag, problem));
                }
            }
            if pool.path.starts_with(state_dir) {
                let problem = format!("{shown} is inside {own}; move one of them");
                return Err(Error::invalid("--state-dir", problem));
            }
        }
        let kubelet = self.kubelet_dir.display();
        let problem = match std::fs::metadata(&self.kubelet_dir) {
            Ok(metadata) if metadata.is_dir() => return Ok(pools),
            Ok(_) => format!("{kubelet} is not a directory"),
            Err(error) => format!("{kubelet} must be a directory, and cannot be examined: {error}"),
        };
        Err(Error::invalid("--kubelet-dir", problem))
    }
}

impl PoolArgs {
    /// The pools. Fails if two have the same name or path, or if one is inside another.
    pub fn all(&self) -> Result<Vec<PoolOptions>> {
        let pools = self.pools.concat();
        for (at, pool) in pools.iter().enumerate() {
            let conflict = pools[..at].iter().find_map(|other| conflict(pool, other));
            if let Some(problem) = conflict {
                return Err(Error::invalid("--pool (or ROOTCELLAR_POOLS)", problem));
            }
        }
        Ok(pools)
    }
}

/// Parses pools that are separated by ';'. Only the environment variable may be empty.
fn parse_pools(text: &str) -> Result<PoolList, String> {
    let entries = text.split(';').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    let parse = |entry: &str| entry.parse().map_err(|error: Invalid| error.problem);
    let pools: PoolList = entries.map(parse).collect::<Result<_, _>>()?;
    if pools.is_empty() && std::env::var_os(POOLS_ENV).is_none_or(|value| value != text) {
        return Err("it names no pool; write NAME=PATH[,OPTION...]".to_owned());
    }
    Ok(pools)
}

fn show(pool: &PoolOptions) -> String {
    format!("pool {} at {}", pool.name, pool.path.display())
}

fn conflict(pool: &PoolOptions, other: &PoolOptions) -> Option<String> {
    let (shown, other_shown) = (show(pool), show(other));
    if pool.name == other.name {
        let name = &pool.name;
        Some(format!(
            "two pools have the name {name}; give each a name of its own"
        ))
    } else if pool.path == other.path {
        Some(format!("{shown} has the path of pool {}", other.name))
    } else if pool.path.starts_with(&other.path) {
        Some(format!("{shown} is inside {other_shown}"))
    } else if other.path.starts_with(&pool.path) {
        Some(format!("{other_shown} is inside {shown}"))
    } else {
        None
    }
}

/// Parses the name of a node.
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

fn parse_driver_name(text: &str) -> Result<String, String> {
    let is_letter = |c: char| c.is_ascii_lowercase();
    if !is_dns_subdomain(text) || !text.starts_with(is_letter) || !text.ends_with(is_letter) {
        return Err(format!(
            "not a driver name: at most {MAX_NAME} characters of a-z, 0-9, '-' and '.' in the form \
             of a domain name that begins and ends with a letter"
        ));
    }
    Ok(text.to_owned())
}

fn parse_topology_key(text: &str) -> Result<String, String> {
    let is_key = |(prefix, name): (&str, &str)| is_dns_subdomain(prefix) && is_label_name(name);
    if !text.split_once('/').is_some_and(is_key) {
        return Err(format!(
            "not a topology key: a lower-case domain name, '/', and a name of letters, digits, '-', \
             '_' and '.', each at most {MAX_NAME} characters"
        ));
    }
    Ok(text.to_owned())
}

fn is_dns_subdomain(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.chars().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_NAME && text.split('.').all(is_label)
}

fn is_label_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= MAX_NAME
        && text.chars().all(allowed)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
