//! Questions to the API server before a write that cannot be undone. The caches may be late, so each fact is asked for
//! anew. The answer that refuses also says why.

use objects::NodeName;
use serde::Deserialize;

use crate::api::{Server, Unconfirmed};
use crate::objects::{Identity, Node, Policy, Volume, key};
use crate::report::Report;
use crate::step::{Live, Outcome};
use crate::wire::{Kind, Object};

type Confirmed = Result<(), Unconfirmed>;

impl Server {
    pub(crate) async fn confirm(&self, fact: &Live) -> Confirmed {
        match fact {
            Live::NoNode(name) => self.no_node(name).await,
            Live::NoPlace(place) => self.no_place(place).await,
            Live::Retained(volume) => self.retained(volume).await,
            Live::MadeAnew(claim) => self.made_anew(claim).await,
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

    /// That a `StatefulSet` makes the claim anew: one of its pods, which is not scheduled, waits for it. No scheduled pod
    /// names the claim.
    async fn made_anew(&self, claim: &Identity) -> Confirmed {
        let mut waiting = Vec::new();
        let mut scheduled = None;
        let look = |pod| match User::read(pod, &claim.name) {
            Some(user) if !user.node.is_empty() => {
                scheduled = Some((user.name, user.node));
                true
            }
            user => {
                waiting.extend(user);
                false
            }
        };
        self.search(Kind::POD, &claim.namespace, look).await?;
        if let Some((name, node)) = scheduled {
            return waits(format!(
                "pod {name} on node {node} names it; cordon the node and delete the pod"
            ));
        }
        for pod in waiting {
            if self.set_makes(&pod, claim).await? {
                return Ok(());
            }
        }
        waits("no waiting pod of a StatefulSet would make the claim anew".to_owned())
    }

    /// Whether the `StatefulSet` of a pod has a template for the claim.
    async fn set_makes(&self, pod: &User, claim: &Identity) -> Result<bool, Unconfirmed> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default)]
            volume_claim_templates: Vec<Template>,
        }
        #[derive(Deserialize)]
        struct Template {
            metadata: Named,
        }
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let Some((name, uid)) = &pod.set else {
            return Ok(false);
        };
        let set = self.get(Kind::STATEFUL_SET, &claim.namespace, name).await?;
        let set = set.filter(|set| set.meta.uid.as_ref() == Some(uid) && !set.deleting);
        let Some(Fields { spec }) = set.and_then(Object::fields) else {
            return Ok(false);
        };
        let mut templates = spec.volume_claim_templates.iter();
        Ok(templates.any(|one| format!("{}-{}", one.metadata.name, pod.name) == claim.name))
    }
}

fn waits(why: String) -> Confirmed {
    Err(Unconfirmed::Waits(Report::ReleaseWaits { why }))
}

/// A pod that names a claim.
struct User {
    name: String,
    /// Empty before it is scheduled.
    node: String,
    /// The name and the uid of its `StatefulSet`, while the pod is to stay.
    set: Option<(String, String)>,
}

impl User {
    fn read(pod: Object, claim: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            node_name: Option<String>,
            #[serde(default)]
            volumes: Vec<PodVolume>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PodVolume {
            name: String,
            persistent_volume_claim: Option<Named>,
            ephemeral: Option<serde::de::IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Named {
            claim_name: String,
        }
        let (_, name) = key(&pod);
        let set = pod.controller().cloned().filter(|_| !pod.deleting);
        let set = set.filter(|owner| owner.kind == "StatefulSet");
        let Fields { spec } = pod.fields()?;
        let names = |volume: &PodVolume| match &volume.persistent_volume_claim {
            Some(named) => named.claim_name == claim,
            None => volume.ephemeral.is_some() && format!("{name}-{}", volume.name) == claim,
        };
        spec.volumes.iter().any(names).then(|| Self {
            node: spec.node_name.unwrap_or_default(),
            set: set.map(|owner| (owner.name, owner.uid)),
            name,
        })
    }
}
