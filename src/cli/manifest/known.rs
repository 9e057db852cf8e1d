//! The claims that exist, as `kubectl get pvc -A -o json` prints them.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use linux::fault::PathFault;
use serde::Deserialize;

use crate::error::{Error, Result};

/// The claims by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<(String, String), KnownClaim>);

#[derive(Debug)]
pub(super) struct KnownClaim {
    uid: String,
    /// The volume that it is bound to, or that it asks for.
    volume: Option<String>,
    is_terminating: bool,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    name: String,
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    volume_name: Option<String>,
}

impl Known {
    /// Reads a file, or stdin if its name is `-`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut text = Vec::new();
        let read = if path == Path::new("-") {
            std::io::stdin().lock().read_to_end(&mut text)
        } else {
            std::fs::read(path).map(|bytes| {
                text = bytes;
                text.len()
            })
        };
        read.map_err(PathFault::at("read", path))?;
        Self::parse(&text).map_err(|problem| Error::invalid("--known", problem))
    }

    /// Reads the output of kubectl. Claims of one namespace look the same as those of all, so the error
    /// of a person who forgot `-A` cannot be found here.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let list: List = serde_json::from_slice(text)
            .map_err(|error| format!("not the output of kubectl get pvc -A -o json: {error}"))?;
        let claims = list.items.into_iter();
        let claims = claims.filter(|item| item.kind == "PersistentVolumeClaim");
        Ok(Self(
            claims
                .map(|Item { metadata, spec, .. }| {
                    let claim = KnownClaim {
                        uid: metadata.uid,
                        volume: spec.volume_name.filter(|name| !name.is_empty()),
                        is_terminating: metadata.deletion_timestamp.is_some(),
                    };
                    ((metadata.namespace, metadata.name), claim)
                })
                .collect(),
        ))
    }

    pub(super) fn claim(&self, namespace: &str, name: &str) -> Option<&KnownClaim> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }
}

impl KnownClaim {
    /// The uid of the claim, for a volume with this name.
    pub(super) fn uid_for(&self, volume: &str) -> Result<String, String> {
        if self.is_terminating {
            return Err("its claim is being deleted; wait for the end".to_owned());
        }
        match &self.volume {
            Some(other) if other != volume => Err(format!("its claim has the volume {other}")),
            _ => Ok(self.uid.clone()),
        }
    }
}
