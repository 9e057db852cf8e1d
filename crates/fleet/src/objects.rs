//! The objects of the cluster as the controller needs them. Each is read once into one of these types, which are small
//! because the caches hold every volume of the cluster. An object of another driver, or a malformed one, becomes `None`
//! and is in no cache.

mod cache;
mod claim;
mod driver_set;
mod node;
mod snapshot;
mod volume;

use serde::Deserialize;

use crate::wire::Object;

pub(crate) use cache::{Cache, Kept};
pub(crate) use claim::{Claim, SELECTED_NODE, Source};
pub(crate) use driver_set::DriverSet;
pub(crate) use node::{Capacity, Class, Machine, Node, Pod, Registration, startup_taint};
pub(crate) use snapshot::{BOUND, Data, MANAGED_BY, Snapshot, SnapshotContent};
pub(crate) use volume::{
    DELETE, POLICY_BEFORE, PROVISIONER, Phase, Policy, RELEASED, RETAIN, Volume,
};

/// The namespace and the name of an object.
pub(crate) type Key = (String, String);

pub(crate) fn key(object: &Object) -> Key {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (text(&object.meta.namespace), text(&object.meta.name))
}

/// The object that a write is about. The API server refuses the write if uid or version changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
}

impl Identity {
    pub(crate) fn of(object: &Object) -> Self {
        let (namespace, name) = key(object);
        Self {
            namespace,
            name,
            uid: object.meta.uid.clone().unwrap_or_default(),
            version: object.meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// The claim or snapshot to which a volume or content says that it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Owner {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    uid: Option<String>,
}

impl Owner {
    pub(crate) fn is(&self, key: &Key, uid: &str) -> bool {
        (&self.namespace, &self.name) == (&key.0, &key.1) && self.uid.as_deref() == Some(uid)
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    /// Namespace and name, which are the key of the object in a map.
    pub(crate) fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}
