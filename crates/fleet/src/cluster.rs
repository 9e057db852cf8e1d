//! The watches of the cluster. Each keeps one map of the view.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error};
use objects::DriverArgs;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::answer::Page;
use crate::objects::{
    Capacity, Claim, Class, Content, Key, Node, Pod, Registration, Snapshot, Volume, key,
};
use crate::settings::Functions;
use crate::view::View;
use crate::wire::{Kind, Object, PAGE, is_too_long};

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

type Heard = Result<Event<Object>, watcher::Error>;

/// The meaning of an event for the health of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// The map is complete.
    Complete,
    Alive,
    Failed,
    /// A list began or goes on, which may still fail.
    Nothing,
}

impl Sign {
    /// `absent`: whether the cluster does not have the kind.
    fn of(event: &Heard, absent: bool) -> Self {
        match event {
            Ok(Event::InitDone) => Self::Complete,
            Ok(Event::Apply(_) | Event::Delete(_)) => Self::Alive,
            Ok(Event::Init | Event::InitApply(_)) => Self::Nothing,
            Err(_) if absent => Self::Complete,
            Err(_) => Self::Failed,
        }
    }
}

/// The health of the map of a kind.
#[derive(Debug, Default)]
struct Health {
    /// Whether a complete list has come.
    listed: bool,
    /// The first error since the last good event, of this watch or of those before it.
    failing: Option<Instant>,
}

impl Health {
    fn heard(&mut self, sign: Sign, now: Instant) {
        match sign {
            Sign::Complete => {
                *self = Self {
                    listed: true,
                    failing: None,
                }
            }
            Sign::Alive => self.failing = None,
            Sign::Failed => self.failing = self.failing.or(Some(now)),
            Sign::Nothing => {}
        }
    }

    fn is_good(&self, now: Instant) -> bool {
        let stale = |since| now.saturating_duration_since(since) > STALE;
        self.listed && !self.failing.is_some_and(stale)
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
        let Functions {
            steer,
            compare,
            finish,
            release,
            untaint,
            ..
        } = *functions;
        watches.of_data();
        if functions.watch_claims() {
            watches.of_claims();
        }
        if steer || finish || release || untaint {
            watches.of_classes();
        }
        if steer {
            watches.of_snapshots();
        }
        if steer || untaint {
            watches.of_capacities(namespace);
        }
        if compare || release || untaint {
            watches.of_drivers(namespace);
        }
        if untaint {
            watches.of_registrations();
        }
        cluster
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        lock(&self.view)
    }

    /// The kinds of which the view is incomplete or too old.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let (health, now) = (lock(&self.health), Instant::now());
        let missing = health.iter().filter(|(_, health)| !health.is_good(now));
        missing.map(|(kind, _)| *kind).collect()
    }

    /// Takes the answers of the drivers' pages.
    pub(crate) fn take_pages(&self, pages: BTreeMap<String, Page>) {
        {
            let view = &mut *self.view();
            (view.pages, view.pages_read) = (pages, true);
        }
        self.changed.notify_one();
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn health(&self, kind: Kind, with: impl FnOnce(&mut Health)) {
        with(lock(&self.health).entry(kind.plural).or_default());
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
        self.watch(Kind::NODE, None, |view| &mut view.nodes, name, Node::read);
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

    fn of_claims(&self) {
        self.watch(
            Kind::CLAIM,
            None,
            |view| &mut view.claims,
            whole,
            |claim, _| Claim::read(claim),
        );
    }

    fn of_classes(&self) {
        self.watch(
            Kind::CLASS,
            None,
            |view| &mut view.classes,
            name,
            Class::read,
        );
    }

    /// The pods of the driver.
    fn of_drivers(&self, namespace: &str) {
        self.watch(
            Kind::POD,
            Some(namespace),
            |view| &mut view.pods,
            whole,
            |pod, _| Pod::read(pod),
        );
    }

    /// The drivers that the kubelets have registered.
    fn of_registrations(&self) {
        self.watch(
            Kind::CSI_NODE,
            None,
            |view| &mut view.registrations,
            name,
            Registration::read,
        );
    }

    fn of_capacities(&self, namespace: &str) {
        self.watch(
            Kind::CAPACITY,
            Some(namespace),
            |view| &mut view.capacities,
            whole,
            Capacity::read,
        );
    }

    /// The snapshots that claims name as their source.
    fn of_snapshots(&self) {
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

/// The events of a kind, whose list asks for this many objects at once.
fn events_of(api: &Api<Object>, page: u32) -> impl Stream<Item = Heard> + use<> {
    let config = watcher::Config::default().page_size(page);
    watcher(api.clone(), config).default_backoff()
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
    // The first error of this watch since its last good event.
    let mut failing: Option<Instant> = None;
    let mut page = PAGE;
    let mut events = pin!(events_of(api, page));
    loop {
        let next = events.next();
        let event = match failing {
            None => next.await,
            Some(since) => timeout_at((since + STALE).into(), next)
                .await
                .unwrap_or(None),
        };
        let Some(event) = event else {
            return;
        };
        let absent = matches!(&event, Err(error) if kind.is_optional() && is_not_found(error));
        let sign = Sign::of(&event, absent);
        match sign {
            Sign::Complete | Sign::Alive => failing = None,
            Sign::Failed => failing = failing.or_else(|| Some(Instant::now())),
            Sign::Nothing => {}
        }
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
            }
            Ok(Event::Apply(object)) => {
                put(map(&mut cluster.view()), key_of(key(&object)), read(object));
            }
            Ok(Event::Delete(object)) => put(map(&mut cluster.view()), key_of(key(&object)), None),
            Err(_) if absent => {
                tracing::debug!(kind = kind.plural, "the cluster does not have this kind");
                map(&mut cluster.view()).clear();
            }
            Err(InitialListFailed(error)) if page > 1 && is_too_long(&error) => {
                page /= 2;
                tracing::info!(kind = kind.plural, page, "a list was too long");
                events.set(events_of(api, page));
            }
            Err(error) => {
                tracing::warn!(kind = kind.plural, %error, "the watch ended, and begins again");
            }
        }
        cluster.health(kind, |health| health.heard(sign, Instant::now()));
        cluster.changed.notify_one();
        if absent {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_too_old_after_minutes_of_errors_until_something_comes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = Health::default();
        assert!(!health.is_good(start), "nothing was listed");
        for (second, sign, good) in [
            (0, Sign::Complete, true),
            (10, Sign::Failed, true),
            (200, Sign::Failed, true),
            (300, Sign::Nothing, true),
            (311, Sign::Failed, false),
            (320, Sign::Nothing, false),
            (330, Sign::Alive, true),
            (340, Sign::Failed, true),
            (641, Sign::Failed, false),
            (650, Sign::Complete, true),
        ] {
            health.heard(sign, at(second));
            assert_eq!(health.is_good(at(second)), good, "{second} s");
        }
    }
}
