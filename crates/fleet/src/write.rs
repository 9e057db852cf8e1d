//! The writes: one annotation, one label, and events. A write names the uid and the version of the object that was
//! read, so the API server refuses it if anything about the object changed since.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::contents;
use crate::objects::{Identity, MANAGED_BY, SELECTED_NODE};
use crate::report::Report;
use crate::round::{About, Outcome, Step};

/// The time for one request. The API server itself ends a request after a minute.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    recorder: Recorder,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(client: Client) -> Self {
        let recorder = Recorder::new(client.clone(), "rootcellar-fleet".into());
        Self { client, recorder }
    }

    /// Does a step, and returns how its write ended, with the uid of the object.
    pub(crate) async fn act(&self, step: Step) -> Option<(String, Outcome)> {
        match step {
            Step::Select {
                claim,
                node,
                instead_of,
                missing,
            } => {
                let from = instead_of.as_deref().unwrap_or_default();
                let mut outcome = Outcome::Done;
                if missing {
                    outcome = self.absence(from).await;
                }
                if outcome == Outcome::Done {
                    let change = json!({"annotations": {SELECTED_NODE: node}});
                    let api = Api::<PersistentVolumeClaim>::namespaced(
                        self.client.clone(),
                        &claim.namespace,
                    );
                    let patch = merge(&claim, change);
                    let write = api.patch(&claim.name, &FOR_ONE_FIELD, &patch);
                    outcome = finish(write, SELECTED_NODE, &claim, &node, from).await;
                }
                let uid = claim.uid.clone();
                if outcome == Outcome::Done {
                    let about = About::Claim(claim);
                    self.report(&about, &Report::Steered { node, instead_of })
                        .await;
                }
                Some((uid, outcome))
            }
            Step::Label { content, node } => {
                let patch = merge(&content, json!({"labels": {MANAGED_BY: node}}));
                let api = Api::<DynamicObject>::all_with(self.client.clone(), &contents());
                let write = api.patch(&content.name, &FOR_ONE_FIELD, &patch);
                let outcome = finish(write, MANAGED_BY, &content, &node, "").await;
                let uid = content.uid.clone();
                if outcome == Outcome::Done {
                    self.report(&About::Content(content), &Report::Labelled { node })
                        .await;
                }
                Some((uid, outcome))
            }
            Step::Report { about, report } => {
                // The caches may lack a node that joined a moment ago.
                let stands = match &report {
                    Report::NodeGone { node } => self.absence(node).await == Outcome::Done,
                    _ => true,
                };
                if stands {
                    self.report(&about, &report).await;
                }
                None
            }
        }
    }

    /// `Done` if the API server says that no node has this name.
    async fn absence(&self, node: &str) -> Outcome {
        let api = Api::<Node>::all(self.client.clone());
        match timeout(PATIENCE, api.get_metadata_opt(node)).await {
            Ok(Ok(None)) => Outcome::Done,
            Ok(Ok(Some(_))) => Outcome::Changed,
            Ok(Err(_)) | Err(_) => Outcome::Unanswered,
        }
    }

    async fn report(&self, about: &About, report: &Report) {
        let (api_version, kind, identity) = match about {
            About::Claim(claim) => ("v1".to_owned(), "PersistentVolumeClaim", claim),
            About::Content(content) => (contents().api_version, "VolumeSnapshotContent", content),
        };
        let namespace = &identity.namespace;
        let reference = ObjectReference {
            api_version: Some(api_version),
            kind: Some(kind.to_owned()),
            namespace: (!namespace.is_empty()).then(|| namespace.clone()),
            name: Some(identity.name.clone()),
            uid: Some(identity.uid.clone()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if report.is_done() {
                EventType::Normal
            } else {
                EventType::Warning
            },
            reason: report.reason().to_owned(),
            note: Some(report.to_string()),
            action: "PlaceOnNode".to_owned(),
            secondary: None,
        };
        tracing::info!(
            kind,
            namespace,
            name = identity.name,
            reason = report.reason(),
            "{report}"
        );
        match timeout(PATIENCE, self.recorder.publish(&event, &reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(name = identity.name, %error, "cannot write an event"),
            Err(_) => tracing::warn!(name = identity.name, "no answer to an event"),
        }
    }
}

const FOR_ONE_FIELD: PatchParams = PatchParams {
    dry_run: false,
    force: false,
    field_manager: None,
    field_validation: None,
};

fn merge(object: &Identity, mut metadata: Value) -> Patch<Value> {
    metadata["uid"] = object.uid.as_str().into();
    metadata["resourceVersion"] = object.version.as_str().into();
    Patch::Merge(json!({ "metadata": metadata }))
}

/// Waits for a write, and logs it in one line.
async fn finish<T>(
    write: impl Future<Output = kube::Result<T>>,
    field: &str,
    object: &Identity,
    node: &str,
    from: &str,
) -> Outcome {
    let (outcome, error) = match timeout(PATIENCE, write).await {
        Ok(Ok(_)) => (Outcome::Done, String::new()),
        Ok(Err(error)) => (outcome_of(&error), error.to_string()),
        Err(_) => (Outcome::Unanswered, "no answer in time".to_owned()),
    };
    let Identity {
        namespace,
        name,
        uid,
        version,
    } = object;
    if outcome == Outcome::Done {
        tracing::info!(namespace, name, uid, version, node, from, "wrote {field}");
    } else {
        tracing::warn!(
            namespace,
            name,
            uid,
            version,
            node,
            from,
            error,
            "did not write {field}"
        );
    }
    outcome
}

fn outcome_of(error: &Error) -> Outcome {
    match error {
        Error::Api(status) if matches!(status.code, 404 | 409) => Outcome::Changed,
        Error::Api(status) if status.code < 500 && status.code != 429 => Outcome::Refused,
        _ => Outcome::Unanswered,
    }
}
