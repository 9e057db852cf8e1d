//! Questions to the API server before a write that cannot be undone, because the caches may be late. The answer that refuses
//! also says why.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::ListParams;
use objects::{NodeName, VolumeId};
use tokio::sync::{Mutex, OnceCell};

use crate::answer::has_lost;
use crate::api::{Server, Unconfirmed, answer};
use crate::makers::{self, Need, Set, User};
use crate::objects::{Identity, Node, Policy, Volume};
use crate::report::Report;
use crate::step::{Live, Outcome};
use crate::wire::Kind;

/// The longest value of a label.
const MAX_LABEL: usize = 63;

type Confirmed = Result<(), Unconfirmed>;

/// An answer is shared for so long. A round can last for minutes.
const FRESH: Duration = Duration::from_secs(5);

/// The answers about nodes, which the steps of a round share: a claim can name any node, and each tenant can have many.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    places: Mutex<HashMap<String, Answer<()>>>,
    nodes: Mutex<Answer<Arc<Vec<Node>>>>,
}

/// An answer, and when it was asked for.
type Answer<T> = Arc<OnceCell<(Instant, Result<T, Unconfirmed>)>>;

/// The answer that is under way or fresh, or an empty one.
fn current<T>(answer: &mut Answer<T>) -> Answer<T> {
    if answer.get().is_some_and(|(at, _)| at.elapsed() > FRESH) {
        *answer = Answer::default();
    }
    Arc::clone(answer)
}

impl Server {
    pub(crate) async fn confirm(&self, fact: &Live, shared: &Shared) -> Confirmed {
        match fact {
            Live::NoNode(name) => self.no_node(name).await,
            Live::NoPlace(place) => {
                let answer = current(shared.places.lock().await.entry(place.clone()).or_default());
                let ask = async || (Instant::now(), self.no_place(place, shared).await);
                answer.get_or_init(ask).await.1.clone()
            }
            Live::NoOtherNode { place, known } => {
                let nodes = self.nodes(shared).await?;
                let unknown = |node: &Node| !known.contains(&node.identity.name);
                let has = |node: &Node| place.as_ref().is_some_and(|place| node.has_place(place));
                confirmed(!nodes.iter().any(|node| unknown(node) || has(node)))
            }
            Live::Retired {
                node,
                pages,
                volume,
            } => self.retired(node, pages, *volume).await,
            Live::Retained(volume) => self.retained(volume).await,
            Live::MadeAgain(claim) => self.made_again(claim).await,
        }
    }

    /// That no node has this name. A name that no node can have is not asked for, because it would change the path of the
    /// request.
    async fn no_node(&self, name: &str) -> Confirmed {
        if name.parse::<NodeName>().is_err() {
            return Ok(());
        }
        confirmed(self.get(Kind::NODE, "", name).await?.is_none())
    }

    /// That no node has this place, by its name or by its label.
    async fn no_place(&self, place: &str, shared: &Shared) -> Confirmed {
        self.no_node(place).await?;
        if place.len() == MAX_LABEL {
            // It may be the beginning of a longer name and a hash.
            let nodes = self.nodes(shared).await?;
            return confirmed(!nodes.iter().any(|node| node.has_place(place)));
        }
        let labelled = format!("{}={place}", self.driver.topology_key);
        let labelled = ListParams::default().labels(&labelled).limit(1);
        let labelled = answer(self.api(Kind::NODE, "").list(&labelled)).await?;
        confirmed(labelled.items.is_empty())
    }

    /// All nodes as the API server has them now.
    async fn nodes(&self, shared: &Shared) -> Result<Arc<Vec<Node>>, Unconfirmed> {
        let list = async {
            let mut nodes = Vec::new();
            let read = |node| {
                nodes.extend(Node::read(node, &self.driver));
                false
            };
            self.search(Kind::NODE, "", read).await?;
            Ok(Arc::new(nodes))
        };
        let answer = current(&mut *shared.nodes.lock().await);
        let list = Box::pin(list);
        let ask = async || (Instant::now(), list.await);
        answer.get_or_init(ask).await.1.clone()
    }

    /// That the pool is still retired. One pod of the driver must answer, and none may say otherwise.
    async fn retired(&self, node: &str, pages: &[SocketAddr], volume: VolumeId) -> Confirmed {
        let mut answers = Vec::new();
        if let Some(reader) = &self.reader {
            for page in pages {
                answers.extend(reader.page(node, *page).await.ok());
            }
        }
        let mut lost = answers.iter().map(|answer| has_lost(answer, volume));
        confirmed(!answers.is_empty() && lost.all(|lost| lost))
    }

    /// That the volume is as it was read, and keeps its data after its claim.
    async fn retained(&self, volume: &Identity) -> Confirmed {
        let found = self.get(Kind::VOLUME, "", &volume.name).await?;
        let found = found.and_then(|found| Volume::read(found, &self.driver));
        let keeps = |found: &Volume| matches!(found.policy, Policy::Released | Policy::Retain);
        match found {
            Some(found) if found.identity == *volume && keeps(&found) => Ok(()),
            _ => Err(Unconfirmed::Ended(Outcome::Changed)),
        }
    }

    /// That a `StatefulSet` makes the claim again, and that no scheduled pod names it.
    async fn made_again(&self, claim: &Identity) -> Confirmed {
        let mut users = Vec::new();
        let look = |pod| {
            let user = User::read(pod).filter(|user| user.names(claim));
            let is_scheduled = user.as_ref().is_some_and(User::is_scheduled);
            users.extend(user);
            is_scheduled
        };
        let is_used = self.search(Kind::POD, &claim.namespace, look).await?;
        let mut sets = Vec::new();
        if !is_used {
            for name in makers::sets(&users) {
                let set = self.get(Kind::STATEFUL_SET, &claim.namespace, name).await?;
                sets.extend(set.and_then(Set::read));
            }
        }
        let why = match makers::need(&users, &sets, claim) {
            Need::Made { .. } => return Ok(()),
            Need::Used { pod, node } => {
                format!("pod {pod} on node {node} names it; cordon the node and delete the pod")
            }
            Need::Nobody => "no waiting pod of a StatefulSet would make the claim again".to_owned(),
        };
        Err(Unconfirmed::Waits(Report::ReleaseWaits { why }))
    }
}

fn confirmed(is_so: bool) -> Confirmed {
    is_so
        .then_some(())
        .ok_or(Unconfirmed::Ended(Outcome::Changed))
}
