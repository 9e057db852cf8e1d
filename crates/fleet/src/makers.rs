//! Who needs a claim whose volume is lost: the pods that name it, and the `StatefulSet` that makes it again. The objects
//! come from the API server or from a file.

use std::collections::BTreeSet;

use objects::manifest::is_name;
use serde::Deserialize;

use crate::objects::{Identity, key};
use crate::wire::Object;

/// The answer about one claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Need<'a> {
    /// A scheduled pod names the claim, so its data may be in use.
    Used { pod: &'a str, node: &'a str },
    /// A pod of this `StatefulSet`, which is not scheduled, waits for the claim.
    Made { set: &'a str },
    /// Nobody would make the claim again.
    Nobody,
}

/// A pod that names claims.
#[derive(Debug)]
pub(crate) struct User {
    name: String,
    /// The claims, which are in its namespace.
    claims: Vec<String>,
    /// Empty before it is scheduled.
    node: String,
    /// The name and the uid of its `StatefulSet`, while the pod is to stay.
    set: Option<(String, String)>,
}

/// A `StatefulSet`.
#[derive(Debug)]
pub(crate) struct Set {
    uid: String,
    /// The names of its templates for claims.
    templates: Vec<String>,
}

/// Answers from the pods of the claim's namespace, and from [their sets](sets).
pub(crate) fn need<'a>(users: &'a [User], sets: &[Set], claim: &Identity) -> Need<'a> {
    let mut users = users.iter().filter(|user| user.names(claim));
    if let Some(user) = users.clone().find(|user| user.is_scheduled()) {
        return Need::Used {
            pod: &user.name,
            node: &user.node,
        };
    }
    let maker = users.find_map(|user| {
        let (name, uid) = user.set.as_ref()?;
        let mut sets = sets.iter().filter(|set| set.uid == *uid);
        sets.any(|set| set.makes(&user.name, &claim.name))
            .then_some(&**name)
    });
    maker.map_or(Need::Nobody, |set| Need::Made { set })
}

/// The names of the `StatefulSets` that have the pods. A name that no object can have would change the path of a request.
pub(crate) fn sets(users: &[User]) -> BTreeSet<&str> {
    let sets = users.iter().filter_map(|user| user.set.as_ref());
    let names = sets.map(|(name, _)| &**name);
    names.filter(|name| is_name(name)).collect()
}

impl User {
    /// `None` for a pod without claims.
    pub(crate) fn read(pod: Object) -> Option<Self> {
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
        let claims = spec.volumes.into_iter().filter_map(|volume| {
            let claim = volume.persistent_volume_claim.map(|named| named.claim_name);
            claim.or_else(|| {
                Some(format!(
                    "{name}-{}",
                    volume.ephemeral.and(Some(volume.name))?
                ))
            })
        });
        let claims: Vec<String> = claims.collect();
        (!claims.is_empty()).then(|| Self {
            node: spec.node_name.unwrap_or_default(),
            set: set.map(|owner| (owner.name, owner.uid)),
            claims,
            name,
        })
    }

    pub(crate) fn names(&self, claim: &Identity) -> bool {
        self.claims.contains(&claim.name)
    }

    pub(crate) fn is_scheduled(&self) -> bool {
        !self.node.is_empty()
    }
}

impl Set {
    /// `None` for a set in deletion, which makes nothing.
    pub(crate) fn read(set: Object) -> Option<Self> {
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
        if set.deleting {
            return None;
        }
        let uid = set.meta.uid.clone()?;
        let Fields { spec } = set.fields()?;
        let templates = spec.volume_claim_templates.into_iter();
        Some(Self {
            uid,
            templates: templates.map(|one| one.metadata.name).collect(),
        })
    }

    /// Whether the set makes this claim for its pod.
    fn makes(&self, pod: &str, claim: &str) -> bool {
        let mut templates = self.templates.iter();
        templates.any(|template| format!("{template}-{pod}") == claim)
    }
}
