//! `rootcellar pool cordon` and `pool uncordon`, without a server.

use clap::Args;
use objects::{PoolId, PoolName};

use super::output::print;
use crate::config::{PoolArgs, StateArgs};
use crate::error::{Error, Result};
use pool::{KnownPools, PoolOptions};

/// A configured pool or set.
#[derive(Debug, Args)]
pub(super) struct CordonArgs {
    /// Name a pool, a member of a set, or a set for all its members that are mounted or were served before
    #[arg(value_name = "NAME[/MEMBER]")]
    name: String,

    #[command(flatten)]
    pools: PoolArgs,

    #[command(flatten)]
    state: StateArgs,
}

impl CordonArgs {
    fn named(&self, known_pools: &KnownPools) -> Result<Vec<PoolOptions>> {
        let mut pools = self.pools.all()?.expand(Some(known_pools))?;
        pools.retain(|pool| [pool.name.as_str(), pool.name.in_classes()].contains(&&*self.name));
        if pools.is_empty() {
            let problem = format!(
                "no pool has the name {:?}, and no member of a set; see rootcellar pool list",
                self.name
            );
            return Err(Error::invalid("NAME", problem));
        }
        Ok(pools)
    }
}

/// Cordons the pools with a name, or ends that. False if one of them was never opened, which does not
/// stop the others.
pub(super) fn run(args: &CordonArgs, cordoned: bool) -> Result<bool> {
    let known_pools = args.state.server_memory()?;
    let pools = args.named(&known_pools)?;
    let mut found = Vec::new();
    for pool in &pools {
        let name = &pool.name;
        match pool::find_id(&known_pools, pool) {
            Ok(id) => found.push((name, id)),
            Err(reason) => eprintln!(
                "rootcellar: pool {name} was never opened and cannot be cordoned: {reason}"
            ),
        }
    }
    let ids: Vec<PoolId> = found.iter().map(|(_, id)| *id).collect();
    let changed = known_pools.set_cordoned(&ids, cordoned)?;
    for (name, id) in &found {
        print(line(name, cordoned, changed.contains(id)))?;
    }
    Ok(found.len() == pools.len())
}

fn line(name: &PoolName, cordoned: bool, is_new: bool) -> String {
    let said = match (cordoned, is_new) {
        (true, true) => "is cordoned now: it gets no new volumes, snapshots or copies",
        (true, false) => "was cordoned already",
        (false, true) => "is not cordoned any more",
        (false, false) => "was not cordoned",
    };
    format!("pool {name} {said}")
}
