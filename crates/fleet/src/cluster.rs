//! The watches of the cluster. Each keeps one map of the view.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error};
use objects::DriverArgs;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::Functions;
use crate::objects::{Capacity, Claim, Class, Content, Key, Node, Snapshot, Volume, key};
use crate::view::View;
use crate::wire::{Kind, Object};

/// After so much time without a good event since an error, a watch begins anew with a list, which proves that it is good.
const STALE: Duration = Duration::from_mins(5);
/// The time after which a kind is asked for again that the cluster did not have.
const ABSENT: Duration = Duration::from_secs(10);

/// The view that the watches fill.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    view: Mutex<View>,
    health: Mutex<BTreeMap<&'static str, Health>>,
    changed: Notify,
}

/// The health of a watch.
#[derive(Debug, Default)]
struct Health {
    /// Whether a complete list has come.
    listed: bool,
    /// The first error since the last good event.
    failing: Option<Instant>,
}

impl Health {
    /// A list, or an event of the watch, came.
    fn good(&mut self, listed: bool) {
        self.listed |= listed;
        self.failing = None;
    }

    /// When the watch is to begin anew.
    fn stale(&self) -> Option<Instant> {
        self.failing.map(|since| since + STALE)
    }
}

/// The objects of one kind in the view.
type Map<K, T> = fn(&mut View) -> &mut BTreeMap<K, T>;
/// Reads an object; `None` if it is none of the driver's.
type Read<T> = fn(Object, &DriverArgs) -> Option<T>;

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

    /// The kinds of which the view is incomplete or too old.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let (health, now) = (lock(&self.health), Instant::now());
        let is_bad = |health: &Health| !health.listed || health.stale().is_some_and(|at| at <= now);
        let missing = health.iter().filter(|(_, health)| is_bad(health));
        missing.map(|(kind, _)| *kind).collect()
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn health<T>(&self, kind: Kind, with: impl FnOnce(&mut Health) -> T) -> T {
        with(lock(&self.health).entry(kind.plural).or_default())
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
        self.watch(
            Kind::NODE,
            None,
            |view| &mut view.nodes,
            name,
            |node, _| Node::read(node),
        );
        self.watch(
            Kind::VOLUME,
            None,
            |view| &mut view.volumes,
            name,
            Volume::read,
        );
        self.watch(
            Kind::CONTENT,
            None,
            |view| &mut view.contents,
            name,
            Content::read,
        );
    }

    /// Claims, and the objects that decide about them.
    fn of_claims(&self, namespace: &str) {
        let here = Some(namespace);
        self.watch(
            Kind::CLAIM,
            None,
            |view| &mut view.claims,
            whole,
            |claim, _| Claim::read(claim),
        );
        self.watch(
            Kind::CLASS,
            None,
            |view| &mut view.classes,
            name,
            Class::read,
        );
        self.watch(
            Kind::CAPACITY,
            here,
            |view| &mut view.capacities,
            whole,
            Capacity::read,
        );
        let read: Read<_> = |snapshot, _| Snapshot::read(snapshot);
        self.watch(
            Kind::SNAPSHOT,
            None,
            |view| &mut view.snapshots,
            whole,
            read,
        );
    }

    fn watch<K, T>(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        map: Map<K, T>,
        key_of: fn(Key) -> K,
        read: Read<T>,
    ) where
        K: Ord + Clone + Send + 'static,
        T: Send + 'static,
    {
        let (client, resource) = (self.client.clone(), kind.resource());
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        self.cluster.health(kind, |_| {});
        let cluster = Arc::clone(self.cluster);
        let driver = Arc::clone(self.driver);
        tokio::spawn(async move {
            loop {
                follow(&api, kind, &cluster, map, key_of, |object| {
                    read(object, &driver)
                })
                .await;
                tokio::time::sleep(ABSENT).await;
            }
        });
    }
}

/// Follows a kind until the cluster does not have it, or the watch is stale.
async fn follow<K: Ord + Clone, T>(
    api: &Api<Object>,
    kind: Kind,
    cluster: &Cluster,
    map: Map<K, T>,
    key_of: fn(Key) -> K,
    read: impl Fn(Object) -> Option<T>,
) {
    let mut listed = BTreeSet::new();
    let config = watcher::Config::default().page_size(kind.page());
    let mut events = pin!(watcher(api.clone(), config).default_backoff());
    loop {
        let event = match cluster.health(kind, |health| health.stale()) {
            None => events.next().await,
            Some(at) => timeout_at(at.into(), events.next()).await.unwrap_or(None),
        };
        let Some(event) = event else {
            return;
        };
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                let key = key_of(key(&object));
                listed.insert(key.clone());
                put(map(&mut cluster.view()), key, read(object));
            }
            Ok(Event::InitDone) => {
                map(&mut cluster.view()).retain(|key, _| listed.contains(key));
                listed.clear();
                cluster.health(kind, |health| health.good(true));
            }
            Ok(Event::Apply(object)) => {
                put(map(&mut cluster.view()), key_of(key(&object)), read(object));
                cluster.health(kind, |health| health.good(false));
            }
            Ok(Event::Delete(object)) => {
                put(map(&mut cluster.view()), key_of(key(&object)), None);
                cluster.health(kind, |health| health.good(false));
            }
            Err(error) if kind.is_optional() && is_not_found(&error) => {
                tracing::debug!(kind = kind.plural, "the cluster does not have this kind");
                map(&mut cluster.view()).clear();
                cluster.health(kind, |health| health.good(true));
                cluster.changed.notify_one();
                return;
            }
            Err(error) => {
                tracing::warn!(kind = kind.plural, %error, "the watch ended, and begins again");
                cluster.health(kind, |health| {
                    health.failing.get_or_insert_with(Instant::now).to_owned()
                });
            }
        }
        cluster.changed.notify_one();
    }
}

/// Keeps an object, or forgets it if it is none of the driver's.
fn put<K: Ord, T>(map: &mut BTreeMap<K, T>, key: K, value: Option<T>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

/// Whether the API server has no such kind, as before the CRDs of snapshots are installed. They may come at any time.
fn is_not_found(error: &watcher::Error) -> bool {
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
