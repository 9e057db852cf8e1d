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

/// The most machines that are remembered of one place.
const MOST: usize = 8;

/// The machines of a place that names of nodes had, each in a line of its own, by the place.
type Remembered = BTreeMap<String, String>;

/// Lists the `DaemonSet`s of the driver, and brings the memory up to date. The view must be complete.
pub(crate) async fn observe(server: &Server, namespace: &str, cluster: &Cluster) {
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
            "the machines could not be read"
        );
    }
    let view = &mut *cluster.view();
    view.driver_sets = sets.ok();
    // Without an answer the last memory is as good: its nodes are lost, or still there.
    if let Ok(machines) = machines {
        let machines = machines.into_iter().map(|(place, text)| {
            let machines = text.lines().filter_map(Machine::parse).collect();
            (place, machines)
        });
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
        tracing::warn!(
            namespace,
            name = NAME,
            "there is no such ConfigMap; apply the chart again"
        );
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
    if let Err(error) = answer(api.patch(NAME, &PatchParams::default(), &patch)).await {
        tracing::warn!(
            namespace,
            name = NAME,
            ?error,
            "the machines could not be written"
        );
    }
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

/// The places with a new machine or, with `None`, those that no volume names any more. A machine that had the place before
/// stays, because it may still have disks and come back under another name.
pub(crate) fn changes(remembered: &Remembered, view: &View) -> BTreeMap<String, Option<String>> {
    let volumes = view.volumes.values();
    let places: BTreeSet<&str> = volumes.map(|volume| &*volume.place).collect();
    let mut changes = BTreeMap::new();
    for node in view.nodes.values() {
        let Some(machine) = &node.machine else {
            continue;
        };
        let ids = machine.to_string();
        let before = remembered.get(&node.place);
        let mut lines: Vec<&str> = before.map_or("", |text| text).lines().collect();
        if places.contains(&*node.place) && !lines.contains(&&*ids) {
            lines.push(&ids);
            let oldest = lines.len().saturating_sub(MOST);
            let lines = lines.split_off(oldest).join("\n");
            changes.insert(node.place.clone(), Some(lines));
        }
    }
    // A volume that cannot be read may name the place.
    let all_seen = view.shows_all_nodes();
    let unused = remembered.keys();
    let unused = unused.filter(|place| all_seen && !places.contains(&***place));
    changes.extend(unused.map(|place| (place.clone(), None)));
    changes
}
