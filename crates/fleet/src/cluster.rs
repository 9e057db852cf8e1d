//! The watches of the cluster. Each keeps one map of the view.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use kube::api::{Api, ApiResource};
use kube::core::{GroupVersionKind, Resource};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error};
use objects::DriverArgs;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::Functions;
use crate::objects::{Capacity, Claim, Class, Content, Key, Node, Snapshot, Volume, key};
use crate::view::View;

/// The view that the watches fill.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    view: Mutex<View>,
    /// The kinds whose first list has not come.
    missing: Mutex<Vec<&'static str>>,
    changed: Notify,
}

/// The objects of one kind in the view.
type Map<K, T> = fn(&mut View) -> &mut BTreeMap<K, T>;

pub(crate) fn snapshots() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        SNAPSHOT_GROUP,
        "v1",
        "VolumeSnapshot",
    ))
}

pub(crate) fn contents() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        SNAPSHOT_GROUP,
        "v1",
        "VolumeSnapshotContent",
    ))
}

const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

impl Cluster {
    /// Starts the watches that the functions need. They end with the runtime.
    pub(crate) fn start(
        client: &Client,
        functions: &Functions,
        driver: &DriverArgs,
        namespace: &str,
    ) -> Arc<Self> {
        let cluster = Arc::new(Self::default());
        let watches = Watches {
            cluster: &cluster,
            client,
            driver: &Arc::new(driver.clone()),
        };
        watches.of_data();
        if functions.steer {
            watches.of_claims(namespace);
        }
        cluster
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        lock(&self.view)
    }

    /// The kinds whose first list has not come. Without any, the view is complete.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        lock(&self.missing).clone()
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn listed(&self, kind: &str) {
        lock(&self.missing).retain(|missing| *missing != kind);
    }
}

/// Starts watches.
struct Watches<'a> {
    cluster: &'a Arc<Cluster>,
    client: &'a Client,
    driver: &'a Arc<DriverArgs>,
}

impl Watches<'_> {
    /// The objects that show where data is.
    fn of_data(&self) {
        let client = || self.client.clone();
        let nodes = Api::all(client());
        self.watch(
            "nodes",
            nodes,
            |view| &mut view.nodes,
            name,
            |node, _| Node::read(node),
        );
        let volumes = Api::all(client());
        self.watch(
            "persistentvolumes",
            volumes,
            |view| &mut view.volumes,
            name,
            Volume::read,
        );
        let api = Api::all_with(client(), &contents());
        let read = |content, driver: &_| Content::read(&content, driver);
        self.watch(
            "volumesnapshotcontents",
            api,
            |view| &mut view.contents,
            name,
            read,
        );
    }

    /// Claims, and the objects that decide about them.
    fn of_claims(&self, namespace: &str) {
        let client = || self.client.clone();
        let claims = Api::all(client());
        let read = |claim, _: &_| Claim::read(claim);
        self.watch(
            "persistentvolumeclaims",
            claims,
            |view| &mut view.claims,
            whole,
            read,
        );
        let classes = Api::all(client());
        self.watch(
            "storageclasses",
            classes,
            |view| &mut view.classes,
            name,
            Class::read,
        );
        let all = Api::namespaced(client(), namespace);
        self.watch(
            "csistoragecapacities",
            all,
            |view| &mut view.capacities,
            whole,
            Capacity::read,
        );
        let api = Api::all_with(client(), &snapshots());
        let read = |snapshot, _: &_| Snapshot::read(&snapshot);
        self.watch(
            "volumesnapshots",
            api,
            |view| &mut view.snapshots,
            whole,
            read,
        );
    }

    fn watch<W, K, T>(
        &self,
        kind: &'static str,
        api: Api<W>,
        map: Map<K, T>,
        key_of: fn(Key) -> K,
        read: fn(W, &DriverArgs) -> Option<T>,
    ) where
        W: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K: Ord + Send + 'static,
        T: Send + 'static,
    {
        lock(&self.cluster.missing).push(kind);
        let (cluster, driver) = (Arc::clone(self.cluster), Arc::clone(self.driver));
        tokio::spawn(async move {
            let mut listed = BTreeMap::new();
            let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
            let object = |object: W| (key_of(key(object.meta())), read(object, &driver));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => listed.clear(),
                    Ok(Event::InitApply(found)) => put(&mut listed, object(found)),
                    Ok(Event::InitDone) => {
                        *map(&mut cluster.view()) = std::mem::take(&mut listed);
                        cluster.listed(kind);
                    }
                    Ok(Event::Apply(found)) => put(map(&mut cluster.view()), object(found)),
                    Ok(Event::Delete(found)) => {
                        put(map(&mut cluster.view()), (object(found).0, None));
                    }
                    Err(error) if is_unknown_kind(&error) => {
                        tracing::debug!(kind, "the cluster does not have this kind");
                        map(&mut cluster.view()).clear();
                        cluster.listed(kind);
                    }
                    Err(error) => tracing::warn!(kind, %error, "the watch ended, and begins again"),
                }
                cluster.changed.notify_one();
            }
        });
    }
}

/// Keeps an object, or forgets it if it is none of the driver's.
fn put<K: Ord, T>(map: &mut BTreeMap<K, T>, (key, value): (K, Option<T>)) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

/// Whether the API server has no such kind, as before the CRDs of snapshots are installed. They may come at any time.
fn is_unknown_kind(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
            matches!(error, Error::Api(status) if status.code == 404)
        }
        _ => false,
    }
}

fn name((_, name): Key) -> String {
    name
}

fn whole(key: Key) -> Key {
    key
}

/// Locks a mutex whose data is valid between any two statements, so a panic elsewhere did no harm to it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
