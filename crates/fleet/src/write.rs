//! The writes: one annotation, one label, and events. A write names the uid and the version of the object that was
//! read, so the API server refuses it if anything about the object changed since.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use objects::NodeName;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::objects::{Identity, MANAGED_BY, SELECTED_NODE};
use crate::report::Report;
use crate::round::{About, Change, Ended, Live, Outcome, Step};
use crate::wire::{Kind, Object};

/// The time for one request. The API server itself ends a request after a minute.
const PATIENCE: Duration = Duration::from_secs(15);
/// The name of the controller in its events.
const CONTROLLER: &str = "rootcellar-fleet";

#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    /// The name of the pod.
    instance: String,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(client: Client) -> Self {
        let host = std::env::var("HOSTNAME")
            .ok()
            .filter(|name| !name.is_empty());
        let instance = host.unwrap_or_else(|| CONTROLLER.to_owned());
        Self { client, instance }
    }

    pub(crate) async fn act(&self, step: Step) -> Ended {
        Ended {
            uid: step.about.object.uid.clone(),
            report: step.change.is_none(),
            outcome: self.outcome(step).await,
        }
    }

    async fn outcome(&self, step: Step) -> Outcome {
        for fact in &step.confirm {
            let outcome = self.confirm(fact).await;
            if outcome != Outcome::Done {
                return outcome;
            }
        }
        if let Some(change) = &step.change {
            let outcome = self.change(&step.about, change).await;
            if outcome != Outcome::Done {
                return outcome;
            }
        }
        let Some(report) = step.report else {
            return Outcome::Done;
        };
        let outcome = self.report(&step.about, &report).await;
        // A change is not made again because its event failed.
        if step.change.is_some() {
            Outcome::Done
        } else {
            outcome
        }
    }

    async fn confirm(&self, fact: &Live) -> Outcome {
        match fact {
            Live::NoNode(name) => self.absence(name).await,
        }
    }

    /// Makes the change, and logs that in one line.
    async fn change(&self, about: &About, change: &Change) -> Outcome {
        let Identity {
            namespace,
            name,
            uid,
            version,
        } = &about.object;
        let api = self.api(about.kind, namespace);
        let mut metadata = change.metadata();
        metadata["uid"] = uid.clone().into();
        metadata["resourceVersion"] = version.clone().into();
        let patch: Patch<Value> = Patch::Merge(json!({ "metadata": metadata }));
        let parameters = PatchParams::default();
        let (outcome, error) = finish(api.patch(name, &parameters, &patch)).await;
        let kind = about.kind.plural;
        if outcome == Outcome::Done {
            tracing::info!(kind, namespace, name, uid, version, %change, "wrote");
        } else {
            tracing::warn!(kind, namespace, name, uid, version, %change, error, "did not write");
        }
        outcome
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<Object> {
        let (client, resource) = (self.client.clone(), kind.resource());
        if namespace.is_empty() {
            Api::all_with(client, &resource)
        } else {
            Api::namespaced_with(client, namespace, &resource)
        }
    }

    /// `Done` if the API server says that no node has this name. A name that no node can have is not asked for, because
    /// it would change the path of the request.
    async fn absence(&self, node: &str) -> Outcome {
        if node.parse::<NodeName>().is_err() {
            return Outcome::Done;
        }
        let api = self.api(Kind::NODE, "");
        match timeout(PATIENCE, api.get_opt(node)).await {
            Ok(Ok(None)) => Outcome::Done,
            Ok(Ok(Some(_))) => Outcome::Changed,
            Ok(Err(_)) | Err(_) => Outcome::Unanswered,
        }
    }

    async fn report(&self, about: &About, report: &Report) -> Outcome {
        let About { kind, object, .. } = about;
        let Identity {
            namespace, name, ..
        } = object;
        let event = self.event(*kind, object, report);
        let home = event.metadata.namespace.clone().unwrap_or_default();
        let kind = kind.plural;
        tracing::info!(kind, namespace, name, reason = report.reason(), note = %report, "reports");
        let api = Api::<Event>::namespaced(self.client.clone(), &home);
        let parameters = PostParams::default();
        let (outcome, error) = finish(api.create(&parameters, &event)).await;
        if outcome != Outcome::Done {
            tracing::warn!(kind, namespace, name, error, "did not write the event");
        }
        outcome
    }

    fn event(&self, kind: Kind, object: &Identity, report: &Report) -> Event {
        let resource = kind.resource();
        let namespace = Some(object.namespace.clone()).filter(|namespace| !namespace.is_empty());
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{CONTROLLER}-")),
                // The events of objects without a namespace are there.
                namespace: namespace.clone().or_else(|| Some("default".to_owned())),
                ..ObjectMeta::default()
            },
            action: Some("PlaceOnNode".to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            note: Some(report.to_string()),
            reason: Some(report.reason().to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(resource.api_version),
                kind: Some(resource.kind),
                namespace,
                name: Some(object.name.clone()),
                uid: Some(object.uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(
                if report.is_done() {
                    "Normal"
                } else {
                    "Warning"
                }
                .to_owned(),
            ),
            ..Event::default()
        }
    }
}

impl Change {
    /// The fields of the object's metadata that a merge patch changes.
    fn metadata(&self) -> Value {
        match self {
            Self::Select { node, .. } => json!({"annotations": {SELECTED_NODE: node}}),
            Self::Label(node) => json!({"labels": {MANAGED_BY: node}}),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Select { node, instead_of } => {
                let from = instead_of.as_ref().map_or("", NodeName::as_str);
                write!(f, "{SELECTED_NODE}={node} instead of {from:?}")
            }
            Self::Label(node) => write!(f, "{MANAGED_BY}={node}"),
        }
    }
}

/// Waits for a write; without success, also returns the reason.
async fn finish<T>(write: impl Future<Output = kube::Result<T>>) -> (Outcome, String) {
    match timeout(PATIENCE, write).await {
        Ok(Ok(_)) => (Outcome::Done, String::new()),
        Ok(Err(error)) => {
            let outcome = match &error {
                Error::Api(status) if matches!(status.code, 404 | 409) => Outcome::Changed,
                Error::Api(status) if status.code < 500 && status.code != 429 => Outcome::Refused,
                _ => Outcome::Unanswered,
            };
            (outcome, error.to_string())
        }
        Err(_) => (Outcome::Unanswered, "no answer in time".to_owned()),
    }
}
