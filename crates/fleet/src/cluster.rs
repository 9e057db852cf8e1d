//! The watches of the cluster. Each keeps one map of the view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::Api;
use objects::DriverArgs;
use tokio::sync::Notify;

use crate::answer::Page;
use crate::feed::{Event, Feed, STALE, Trouble};
use crate::objects::{
    Cache, Capacity, Claim, Class, Kept, Key, Node, Pod, Registration, Snapshot, SnapshotContent,
    Volume, key,
};
use crate::settings::Functions;
use crate::view::View;
use crate::wire::{Kind, Object};

/// The time after which a kind is asked for again that the cluster did not have.
const ABSENT: Duration = Duration::from_secs(10);

/// The view that the watches fill.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    view: Mutex<View>,
    health: Mutex<BTreeMap<&'static str, Health>>,
    changed: Notify,
}

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
    /// `completed`: whether a complete list has come. `absent`: whether the cluster does not have the kind.
    fn of(event: &Result<Event, Trouble>, completed: bool, absent: bool) -> Self {
        match event {
            Ok(Event::Complete) => Self::Complete,
            Ok(Event::Put(_) | Event::Removed(_) | Event::Alive) if completed => Self::Alive,
            Ok(_) => Self::Nothing,
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
    /// The last good event. The server sends a bookmark each minute.
    alive: Option<Instant>,
}

impl Health {
    /// Takes note of an event. Returns whether it may make the map good or bad.
    fn heard(&mut self, sign: Sign, now: Instant) -> bool {
        let was_bad = self.failing.is_some() || !self.is_good(now);
        if matches!(sign, Sign::Complete | Sign::Alive) {
            self.alive = Some(now);
        }
        match sign {
            Sign::Complete => {
                self.listed = true;
                self.failing = None;
            }
            Sign::Alive => self.failing = None,
            Sign::Failed => self.failing = self.failing.or(Some(now)),
            Sign::Nothing => {}
        }
        match sign {
            Sign::Complete | Sign::Failed => true,
            Sign::Alive => was_bad,
            Sign::Nothing => false,
        }
    }

    fn is_good(&self, now: Instant) -> bool {
        let stale = |since| now.saturating_duration_since(since) > STALE;
        // A process that stood still, or whose watch died, has heard nothing.
        let silent = |since| now.saturating_duration_since(since) > 2 * STALE;
        self.listed && !self.failing.is_some_and(stale) && !self.alive.is_none_or(silent)
    }
}

/// The objects of one kind in the view.
type Map<K, T> = fn(&mut View) -> &mut Cache<K, T>;
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

    fn health<R>(&self, kind: Kind, with: impl FnOnce(&mut Health) -> R) -> R {
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
            SnapshotContent::read,
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
        K: Ord + Send + 'static,
        T: Kept + Send + 'static,
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
                let kept = Followed {
                    kind,
                    cluster: &cluster,
                    map,
                    key_of,
                };
                kept.follow(Feed::new(api.clone()), |object| read(object, &driver))
                    .await;
                tokio::time::sleep(ABSENT).await;
            }
        });
    }
}

/// A kind whose events are taken into the view.
struct Followed<'a, K, T> {
    kind: Kind,
    cluster: &'a Cluster,
    map: Map<K, T>,
    key_of: fn(Key) -> K,
}

impl<K: Ord, T: Kept> Followed<'_, K, T> {
    /// Follows the kind until the cluster does not have it.
    async fn follow(&self, mut feed: Feed, read: impl Fn(Object) -> Option<T>) {
        let mut completed = false;
        // The objects that this list could not read.
        let mut unread = BTreeSet::new();
        loop {
            let event = feed.next().await;
            let absent =
                self.kind.is_optional() && matches!(&event, Err(trouble) if trouble.is_not_found());
            match &event {
                Ok(Event::Begin) => (completed, unread) = (false, BTreeSet::new()),
                Ok(Event::Complete) => completed = true,
                _ => {}
            }
            let sign = Sign::of(&event, completed, absent);
            let changed = match event {
                Err(trouble) if !absent => {
                    let kind = self.kind.plural;
                    tracing::warn!(kind, %trouble, "the watch ended; the controller resumes it or begins it again");
                    false
                }
                Err(_) => self.forget(),
                Ok(event) => self.take(event, &mut unread, &read),
            };
            let heard = |health: &mut Health| health.heard(sign, Instant::now());
            if self.cluster.health(self.kind, heard) || changed {
                self.cluster.changed.notify_one();
            }
            if absent {
                return;
            }
        }
    }

    /// The cluster does not have the kind.
    fn forget(&self) -> bool {
        let kind = self.kind.plural;
        tracing::debug!(kind, "the cluster does not have this kind");
        let view = &mut *self.cluster.view();
        (self.map)(view).clear();
        view.unread.remove(kind);
        true
    }

    /// Takes an event into the view. Returns whether a decision may depend on the change.
    fn take(
        &self,
        event: Event,
        unread: &mut BTreeSet<String>,
        read: impl Fn(Object) -> Option<T>,
    ) -> bool {
        let kind = self.kind.plural;
        // An object is read before the view is locked.
        let (key, object) = match event {
            Event::Alive => return false,
            Event::Begin => {
                (self.map)(&mut self.cluster.view()).begin();
                return false;
            }
            Event::Complete => {
                let view = &mut *self.cluster.view();
                (self.map)(view).end();
                view.unread.insert(kind, std::mem::take(unread));
                return true;
            }
            Event::Unread(name) => {
                tracing::warn!(
                    kind,
                    name,
                    "an object is too long to be read, and is left out"
                );
                let view = &mut *self.cluster.view();
                view.unread.entry(kind).or_default().insert(name.clone());
                return unread.insert(name);
            }
            Event::Put(object) => (key(&object), read(object)),
            Event::Removed(object) => (key(&object), None),
        };
        let view = &mut *self.cluster.view();
        let readable = view
            .unread
            .get_mut(kind)
            .is_some_and(|names| names.remove(&key.1));
        unread.remove(&key.1);
        (self.map)(view).put((self.key_of)(key), object) || readable
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
            (1250, Sign::Nothing, true),
            (1251, Sign::Nothing, false),
            (1252, Sign::Alive, true),
        ] {
            let heard = health.heard(sign, at(second));
            assert!(heard || matches!(sign, Sign::Nothing | Sign::Alive));
            assert_eq!(health.is_good(at(second)), good, "{second} s");
        }
    }
}
