//! Flags and environment, wholly checked before anything is opened or bound.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::pool::PoolOptions;
use crate::types::{Invalid, NodeName};

/// The environment variable that holds the pools when no `--pool` is given.
pub const POOLS_ENV: &str = "ROOTCELLAR_POOLS";

/// The longest path a Unix socket can have: `sun_path` less its final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The longest driver name, topology prefix and topology name the CSI specification allows.
const MAX_NAME: usize = 63;

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The flags of `rootcellar serve` as they were given, unchecked.
#[derive(Debug, Clone, clap::Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub struct ServeArgs {
    /// Listen on this Unix socket, as unix:///csi/csi.sock
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL")]
    pub endpoint: String,

    /// Serve as this Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node: String,

    /// Serve the pool at this path; repeat for more
    ///
    /// The form is NAME=PATH[,init][,require-mount][,overcommit=R][,reserve=BYTES|N%]. With init,
    /// an empty directory is made a pool. With require-mount, the path must be a mount point. R
    /// says how many times over the room may be promised (default 1), reserve what is kept free
    /// (default 0, or 15% where the pool shares the root disk).
    ///
    /// Without any --pool, the pools are taken from the environment variable ROOTCELLAR_POOLS,
    /// separated by ';'. Without any pool, every create is refused.
    #[arg(long = "pool", value_name = "NAME=PATH[,OPTION...]")]
    pub pools: Vec<String>,

    /// Remember in this directory which pool each path held
    #[arg(long, value_name = "DIR", default_value = "/var/lib/rootcellar/state")]
    pub state_dir: String,

    /// Publish volumes only below this directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: String,

    /// Answer to this CSI driver name
    #[arg(long, value_name = "NAME", default_value = "csi.rootcellar.dev")]
    pub driver_name: String,

    /// Tell Kubernetes the node of a volume by this topology key
    #[arg(
        long,
        value_name = "PREFIX/NAME",
        default_value = "topology.rootcellar.dev/node"
    )]
    pub topology_key: String,

    /// Serve /healthz, /readyz and /metrics on this address, as 127.0.0.1:9808 [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<String>,

    /// Write the log in this form to stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Wait so many seconds for a pool's lock
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(..=3600))]
    pub lock_wait: u64,
}

/// The checked configuration of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The path of the CSI socket.
    pub endpoint: PathBuf,
    /// The node served.
    pub node: NodeName,
    /// The CSI driver name.
    pub driver_name: String,
    /// The topology key, `prefix/name`.
    pub topology_key: String,
    /// The directory every publish target lies below; without trailing slash, links not resolved.
    pub kubelet_dir: PathBuf,
    /// The server's own directory.
    pub state_dir: PathBuf,
    /// The pools; names and paths are unique, and none is inside another.
    pub pools: Vec<PoolOptions>,
    /// Where the health and metrics page is served, if anywhere.
    pub http: Option<SocketAddr>,
    /// How the log is written.
    pub log_format: LogFormat,
    /// How long to wait for a pool's lock.
    pub lock_wait: Duration,
}

impl Config {
    /// Checks the flags, and `pools_env` as the value of `ROOTCELLAR_POOLS`. The only look at the
    /// system is the last check, that the kubelet's directory exists.
    pub fn from_args(args: ServeArgs, pools_env: Option<&str>) -> Result<Self> {
        let config = Self {
            endpoint: parse_endpoint(&args.endpoint)?,
            node: parse_node("--node (or NODE_NAME)", &args.node)?,
            driver_name: checked("--driver-name", parse_driver_name(args.driver_name))?,
            topology_key: checked("--topology-key", parse_topology_key(args.topology_key))?,
            kubelet_dir: parse_dir("--kubelet-dir", &args.kubelet_dir)?,
            state_dir: parse_dir("--state-dir", &args.state_dir)?,
            pools: parse_pools(&args.pools, pools_env)?,
            http: args.http.as_deref().map(parse_http).transpose()?,
            log_format: args.log_format,
            lock_wait: Duration::from_secs(args.lock_wait),
        };
        config.check_places()?;
        check_directory("--kubelet-dir", &config.kubelet_dir)?;
        Ok(config)
    }

    /// Keeps the server's own files, the kubelet's and the pools' apart.
    fn check_places(&self) -> Result<()> {
        let own = self.state_dir.display();
        // A socket in the root directory has everything beside it.
        let beside_socket = |dir: &Path| dir.parent().is_some() && self.state_dir.starts_with(dir);
        if self.endpoint.parent().is_some_and(beside_socket) {
            let problem = format!("{own} is in the directory of the socket; put it elsewhere");
            return Err(Error::invalid("--state-dir", problem));
        }
        for pool in &self.pools {
            let shown = format!("pool {} at {}", pool.name, pool.path.display());
            for (flag, place) in [
                ("--endpoint", &self.endpoint),
                ("--state-dir", &self.state_dir),
                ("--kubelet-dir", &self.kubelet_dir),
            ] {
                if place.starts_with(&pool.path) {
                    let problem =
                        format!("{} is inside {shown}; move one of them", place.display());
                    return Err(Error::invalid(flag, problem));
                }
            }
            if pool.path.starts_with(&self.state_dir) {
                let problem = format!("{shown} is inside {own}; move one of them");
                return Err(Error::invalid("--state-dir", problem));
            }
        }
        Ok(())
    }
}

/// Parses the pools of `flags`, or, when there is none, those of `pools_env`, the value of
/// `ROOTCELLAR_POOLS`. Names and paths are unique, and no pool is inside another.
pub fn parse_pools(flags: &[String], pools_env: Option<&str>) -> Result<Vec<PoolOptions>> {
    if !flags.is_empty() {
        return collect_pools("--pool", flags.iter().map(String::as_str));
    }
    let entries = pools_env.unwrap_or_default().split(';').map(str::trim);
    let flag = format!("--pool (from {POOLS_ENV})");
    collect_pools(&flag, entries.filter(|entry| !entry.is_empty()))
}

/// Parses a node name, reported as `flag`.
pub fn parse_node(flag: &str, text: &str) -> Result<NodeName> {
    Ok(text.parse().map_err(|error: Invalid| error.named(flag))?)
}

/// Parses the path of a directory, reported as `flag`.
pub fn parse_dir(flag: &str, text: &str) -> Result<PathBuf> {
    checked(flag, PoolOptions::absolute_path(text))
}

/// Parses the URL of the server's socket into its path.
pub fn parse_endpoint(text: &str) -> Result<PathBuf> {
    checked("--endpoint (or CSI_ENDPOINT)", socket_path(text))
}

fn checked<T>(flag: &str, result: std::result::Result<T, String>) -> Result<T> {
    result.map_err(|problem| Error::invalid(flag, problem))
}

fn collect_pools<'a>(
    flag: &str,
    entries: impl Iterator<Item = &'a str>,
) -> Result<Vec<PoolOptions>> {
    let mut pools: Vec<PoolOptions> = Vec::new();
    for entry in entries {
        let pool: PoolOptions = entry.parse().map_err(|error: Invalid| error.named(flag))?;
        for other in &pools {
            if let Some(problem) = conflict(&pool, other) {
                return Err(Error::invalid(flag, problem));
            }
        }
        pools.push(pool);
    }
    Ok(pools)
}

fn conflict(pool: &PoolOptions, other: &PoolOptions) -> Option<String> {
    let shown = |pool: &PoolOptions| format!("pool {} at {}", pool.name, pool.path.display());
    let inside = |inner, outer| Some(format!("{} is inside {}", shown(inner), shown(outer)));
    if pool.name == other.name {
        let name = &pool.name;
        Some(format!(
            "two pools are called {name}; every pool needs a name of its own"
        ))
    } else if pool.path == other.path {
        Some(format!(
            "{} has the path of pool {}",
            shown(pool),
            other.name
        ))
    } else if pool.path.starts_with(&other.path) {
        inside(pool, other)
    } else if other.path.starts_with(&pool.path) {
        inside(other, pool)
    } else {
        None
    }
}

fn socket_path(text: &str) -> std::result::Result<PathBuf, String> {
    let path = text
        .strip_prefix("unix://")
        .ok_or_else(|| format!("{text:?} is not a Unix socket; write unix:///path/csi.sock"))?;
    let path = PoolOptions::absolute_path(path)?;
    let bytes = path.as_os_str().as_encoded_bytes();
    // The specification demands the ending; a bare "/.sock" has no name to end.
    if path.extension().is_none_or(|extension| extension != "sock") || text.ends_with('/') {
        return Err(format!(
            "{text:?} does not end in .sock; write unix:///path/csi.sock"
        ));
    }
    if bytes.len() > MAX_SOCKET_PATH {
        return Err(format!(
            "the socket's path has {} bytes, and at most {MAX_SOCKET_PATH} are possible; use a \
             shorter one than {}",
            bytes.len(),
            path.display()
        ));
    }
    Ok(path)
}

fn parse_driver_name(text: String) -> std::result::Result<String, String> {
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase());
    if !is_dns_subdomain(&text) || !letter(text.chars().next()) || !letter(text.chars().last()) {
        return Err(format!(
            "{text:?} is not a driver name: at most {MAX_NAME} characters of a-z, 0-9, '-' and '.' \
             in the form of a domain name that begins and ends with a letter"
        ));
    }
    Ok(text)
}

fn parse_topology_key(text: String) -> std::result::Result<String, String> {
    let good = |(prefix, name): (&str, &str)| is_dns_subdomain(prefix) && is_label_name(name);
    if !text.split_once('/').is_some_and(good) {
        return Err(format!(
            "{text:?} is not a topology key: a lower-case domain name, '/', and a name of letters, \
             digits, '-', '_' and '.', each at most {MAX_NAME} characters"
        ));
    }
    Ok(text)
}

fn is_dns_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.bytes().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_NAME && text.split('.').all(label)
}

fn is_label_name(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(inside)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn parse_http(text: &str) -> Result<SocketAddr> {
    text.parse().map_err(|_| {
        let problem = format!("{text:?} is not ADDR:PORT; write 127.0.0.1:9808 or [::]:9808");
        Error::invalid("--http", problem)
    })
}

fn check_directory(flag: &str, path: &Path) -> Result<()> {
    let shown = path.display();
    let problem = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => format!("{shown} is not a directory"),
        Err(error) => format!("{shown} must be a directory, and cannot be looked at: {error}"),
    };
    Err(Error::invalid(flag, problem))
}

#[cfg(test)]
mod tests;
