//! The machines of the nodes with volumes, and the `DaemonSet`s of the driver. Both say whether a node without a driver may
//! have the disks of a lost one.
//!
//! A machine that registers under another name may lose the labels for which the driver runs there. Its kubelet still names
//! the same ids. The Node of the lost name does not exist by then, so the controller remembers its ids in a `ConfigMap`, which the
//! chart makes and which outlives a restart.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Server, Unconfirmed, answer};
use crate::cluster::Cluster;
use crate::objects::{DriverSet, Machine};
use crate::view::View;
use crate::wire::{Kind, Object};

/// The `ConfigMap` in the namespace of the controller.
const NAME: &str = "rootcellar-fleet-machines";

/// The ids by the place of their node.
type Remembered = BTreeMap<String, String>;

/// Lists the `DaemonSet`s of the driver, and brings the memory up to date. The view must be complete.
pub(crate) async fn look(server: &Server, namespace: &str, cluster: &Cluster) {
    let sets = driver_sets(server, namespace).await;
    if let Err(error) = &sets {
        tracing::warn!(namespace, ?error, "the DaemonSets could not be listed");
    }
    let machines = remember(server, namespace, cluster).await;
    if let Err(error) = &machines {
        tracing::warn!(
            namespace,
            name = NAME,
            ?error,
            "the machines could not be read or written"
        );
    }
    let view = &mut *cluster.view();
    view.driver_sets = sets.ok();
    // Without an answer the last memory is as good: its nodes are lost, or still there.
    if let Ok(machines) = machines {
        let machines = machines.into_iter();
        let machines = machines.filter_map(|(place, ids)| Some((place, Machine::parse(&ids)?)));
        view.machines = machines.collect();
    }
}

async fn driver_sets(server: &Server, namespace: &str) -> Result<Vec<DriverSet>, Unconfirmed> {
    let mut sets = Vec::new();
    let read = |set| {
        sets.extend(DriverSet::read(set));
        false
    };
    server.search(Kind::DAEMON_SET, namespace, read).await?;
    Ok(sets)
}

async fn remember(
    server: &Server,
    namespace: &str,
    cluster: &Cluster,
) -> Result<Remembered, Unconfirmed> {
    let Some(found) = server.get(Kind::CONFIG_MAP, namespace, NAME).await? else {
        return Ok(Remembered::new());
    };
    let version = found.meta.resource_version.clone();
    let mut remembered = read(found);
    let changes = changes(&remembered, &cluster.view());
    if changes.is_empty() {
        return Ok(remembered);
    }
    let patch: Patch<Value> =
        Patch::Merge(json!({"metadata": {"resourceVersion": version}, "data": changes}));
    let api = server.api(Kind::CONFIG_MAP, namespace);
    answer(api.patch(NAME, &PatchParams::default(), &patch)).await?;
    for (place, ids) in changes {
        match ids {
            Some(ids) => remembered.insert(place, ids),
            None => remembered.remove(&place),
        };
    }
    Ok(remembered)
}

fn read(found: Object) -> Remembered {
    #[derive(Deserialize)]
    struct Fields {
        #[serde(default)]
        data: Remembered,
    }
    let fields: Option<Fields> = found.fields();
    fields.map(|fields| fields.data).unwrap_or_default()
}

/// The places whose ids are new or, with `None`, not needed any more, because no volume names the place.
pub(crate) fn changes(remembered: &Remembered, view: &View) -> BTreeMap<String, Option<String>> {
    let volumes = view.volumes.values();
    let places: BTreeSet<&str> = volumes.map(|volume| &*volume.place).collect();
    let mut changes = BTreeMap::new();
    for node in view.nodes.values() {
        let Some(machine) = &node.machine else {
            continue;
        };
        let ids = machine.to_string();
        if places.contains(&*node.place) && remembered.get(&node.place) != Some(&ids) {
            changes.insert(node.place.clone(), Some(ids));
        }
    }
    let unused = remembered
        .keys()
        .filter(|place| !places.contains(&***place));
    changes.extend(unused.map(|place| (place.clone(), None)));
    changes
}
