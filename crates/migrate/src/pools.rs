//! The pools of the nodes, as `rootcellar pool list --json` prints them.

use objects::PoolId;
use objects::script::stream;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Pools(Vec<Listed>);

#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    path: String,
    id: Option<PoolId>,
    node: Option<String>,
    problem: Option<String>,
    enforcement: Option<String>,
    #[serde(default)]
    cordoned: bool,
}

/// A pool that gets an imported volume.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) id: PoolId,
    /// Whether it is known to enforce no sizes.
    pub(crate) enforces_none: bool,
    /// Why it takes no directory.
    pub(crate) takes_none: Option<&'static str>,
}

impl Listed {
    fn takes_none(&self) -> Option<&'static str> {
        if self.name.contains('/') {
            return Some("is a member of a set, whose disk has no directory outside of the pool");
        }
        let counts_new_only = self.enforcement.as_deref() == Some("squota");
        counts_new_only.then_some("enforces sizes by the simple quota of btrfs")
    }
}

impl Pools {
    /// Reads the lists of several nodes, one after the other.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let listed = |json: Value| {
            Listed::deserialize(&json)
                .map_err(|error| format!("not the output of rootcellar pool list --json: {error}"))
        };
        Ok(Self(
            stream(text)?
                .into_iter()
                .map(listed)
                .collect::<Result<_, _>>()?,
        ))
    }

    fn of_node(&self, node: &str) -> impl Iterator<Item = &Listed> {
        let on = move |pool: &&Listed| pool.node.as_deref() == Some(node);
        self.0.iter().filter(on)
    }

    /// The pool of a node with this name, or the only member of the set.
    pub(crate) fn on(&self, node: &str, name: &str) -> Result<Pool, String> {
        let is_asked = |pool: &&Listed| {
            let member = pool.name.strip_prefix(name);
            member.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found: Vec<&Listed> = self.of_node(node).filter(is_asked).collect();
        match found[..] {
            [] => Err(format!("--pools has no pool {name} of node {node}")),
            [pool] => match (&pool.problem, pool.id) {
                (Some(problem), _) => Err(format!("pool {} of node {node}: {problem}", pool.name)),
                (None, None) => Err(format!("pool {} of node {node} has no id", pool.name)),
                (None, Some(_)) if pool.cordoned => {
                    Err(format!("pool {} of node {node} is cordoned", pool.name))
                }
                (None, Some(id)) => Ok(Pool {
                    name: pool.name.clone(),
                    id,
                    enforces_none: pool.enforcement.as_deref() == Some("none"),
                    takes_none: pool.takes_none(),
                }),
            },
            _ => {
                let names: Vec<&str> = found.iter().map(|pool| pool.name.as_str()).collect();
                let names = names.join(", ");
                Err(format!(
                    "node {node} has several, {names}: give one of them as --pool with --claim"
                ))
            }
        }
    }

    /// The reasons why a directory cannot be moved into a pool of its node.
    pub(crate) fn overlaps(&self, node: &str, directory: &str) -> Vec<String> {
        let overlaps = self
            .of_node(node)
            .filter(|pool| is_within(directory, &pool.path) || is_within(&pool.path, directory));
        overlaps
            .map(|pool| {
                let (name, path) = (&pool.name, &pool.path);
                format!("its directory {directory} and pool {name} at {path} are inside each other")
            })
            .collect()
    }
}

/// Whether a path is a directory or inside it.
pub(crate) fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
