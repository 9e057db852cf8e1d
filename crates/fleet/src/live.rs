//! Questions to the API server before a write that cannot be undone. The caches may be late, so each fact is asked for
//! anew. The answer that refuses also says why.

use objects::NodeName;

use crate::api::{Server, Unconfirmed};
use crate::makers::{self, Need, Set, User};
use crate::objects::{Identity, Node, Policy, Volume};
use crate::report::Report;
use crate::step::{Live, Outcome};
use crate::wire::Kind;

type Confirmed = Result<(), Unconfirmed>;

impl Server {
    pub(crate) async fn confirm(&self, fact: &Live) -> Confirmed {
        match fact {
            Live::NoNode(name) => self.no_node(name).await,
            Live::NoPlace(place) => self.no_place(place).await,
            Live::Retained(volume) => self.retained(volume).await,
            Live::MadeAnew(claim) => self.made_again(claim).await,
        }
    }

    /// That no node has this name. A name that no node can have is not asked for, because it would change the path of the
    /// request.
    async fn no_node(&self, name: &str) -> Confirmed {
        if name.parse::<NodeName>().is_err() {
            return Ok(());
        }
        match self.get(Kind::NODE, "", name).await? {
            None => Ok(()),
            Some(_) => Err(Unconfirmed::Ended(Outcome::Changed)),
        }
    }

    /// That no node has this place, by its name or by its label.
    async fn no_place(&self, place: &str) -> Confirmed {
        self.no_node(place).await?;
        let has = |node: Node| node.place == place || node.label.as_deref() == Some(place);
        let has = |node| Node::read(node, &self.driver).is_some_and(has);
        if self.search(Kind::NODE, "", has).await? {
            return Err(Unconfirmed::Ended(Outcome::Changed));
        }
        Ok(())
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
            let user = User::read(pod, &claim.name);
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
            Need::Nobody => "no waiting pod of a StatefulSet would make the claim anew".to_owned(),
        };
        Err(Unconfirmed::Waits(Report::ReleaseWaits { why }))
    }
}
