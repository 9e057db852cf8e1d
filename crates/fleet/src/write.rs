//! The writes. Each names the uid and the version of the object that was read, so the API server refuses it if anything
//! about the object changed since.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error};
use objects::{DriverArgs, NodeName};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::{Server, TIMEOUT, Unconfirmed};
use crate::live::Shared;
use crate::objects::{DELETE, Identity, MANAGED_BY, RELEASED, RETAIN, SELECTED_NODE};
use crate::reader::Reader;
use crate::report::Report;
use crate::step::{About, Change, Ended, Live, Outcome, Step};
use crate::wire::Kind;

/// The time for all facts of a step. A namespace can have very many pods.
const CONFIRMATION: Duration = Duration::from_mins(1);
const UNANSWERED: Unconfirmed = Unconfirmed::Ended(Outcome::Unanswered);
/// The name of the controller in its events.
const CONTROLLER: &str = "rootcellar-fleet";

#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) server: Server,
    /// The name of the pod.
    instance: String,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(client: Client, driver: DriverArgs, reader: Option<Reader>) -> Self {
        let host = std::env::var("HOSTNAME")
            .ok()
            .filter(|name| !name.is_empty());
        let instance = host.unwrap_or_else(|| CONTROLLER.to_owned());
        let server = Server {
            client,
            driver,
            reader,
        };
        Self { server, instance }
    }

    /// Does a step. `shared` has the answers of its round.
    pub(crate) async fn act(&self, step: Step, shared: &Shared) -> Ended {
        let (uid, report) = (step.about.object.uid.clone(), step.change.is_none());
        let (releases, begins) = (step.releases().map(str::to_owned), step.begins());
        let about = step.about.clone();
        let confirmed = timeout(CONFIRMATION, self.confirm_all(&step.confirm, shared)).await;
        let (outcome, mut waits) = match confirmed.unwrap_or(Err(UNANSWERED)) {
            Ok(()) => (self.outcome(step).await, None),
            Err(Unconfirmed::Ended(outcome)) => {
                let Identity {
                    namespace, name, ..
                } = &about.object;
                let kind = about.kind.plural;
                tracing::info!(
                    kind,
                    namespace,
                    name,
                    ?outcome,
                    "a condition of the change was not confirmed, so nothing was written"
                );
                (outcome, None)
            }
            Err(Unconfirmed::Waits(why)) => (Outcome::Waits, Some(why)),
        };
        if releases.is_some() && matches!(outcome, Outcome::Refused | Outcome::Unanswered) {
            let why =
                "the API server refuses it or does not answer; the controller's log says more";
            let why = why.to_owned();
            waits = Some(Report::ReleaseWaits { why });
        }
        Ended {
            uid,
            report,
            releases,
            begins,
            outcome,
            waits,
        }
    }

    async fn confirm_all(&self, facts: &[Live], shared: &Shared) -> Result<(), Unconfirmed> {
        for fact in facts {
            self.server.confirm(fact, shared).await?;
        }
        Ok(())
    }

    async fn outcome(&self, step: Step) -> Outcome {
        if let Some(change) = &step.change {
            let outcome = self.change(&step.about, change).await;
            if outcome != Outcome::Done {
                return outcome;
            }
        }
        let Some(report) = step.report else {
            return Outcome::Done;
        };
        let about = step.event_on.as_ref().unwrap_or(&step.about);
        let outcome = self.report(about, &report).await;
        // A change is not made again because its event failed.
        if step.change.is_some() {
            Outcome::Done
        } else {
            outcome
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
        let api = self.server.api(about.kind, namespace);
        let (outcome, error) = if let Some(mut patch) = change.patch() {
            patch["metadata"]["uid"] = uid.clone().into();
            patch["metadata"]["resourceVersion"] = version.clone().into();
            let patch: Patch<Value> = Patch::Merge(patch);
            finish(api.patch(name, &PatchParams::default(), &patch)).await
        } else {
            let preconditions = Preconditions {
                uid: Some(uid.clone()),
                resource_version: Some(version.clone()),
            };
            let parameters = DeleteParams::default().preconditions(preconditions);
            finish(api.delete(name, &parameters)).await
        };
        let kind = about.kind.plural;
        if outcome == Outcome::Done {
            tracing::info!(kind, namespace, name, uid, version, %change, "wrote the change");
        } else {
            tracing::warn!(kind, namespace, name, uid, version, %change, error, "did not write the change");
        }
        outcome
    }

    async fn report(&self, about: &About, report: &Report) -> Outcome {
        let About { kind, object, .. } = about;
        let Identity {
            namespace, name, ..
        } = object;
        let event = self.event(*kind, object, report);
        let home = event.metadata.namespace.clone().unwrap_or_default();
        let kind = kind.plural;
        tracing::info!(kind, namespace, name, reason = report.reason(), note = %report, "writes an event");
        let api = Api::<Event>::namespaced(self.server.client.clone(), &home);
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
            action: Some(report.action().to_owned()),
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
    /// The merge patch; `None` for a deletion.
    fn patch(&self) -> Option<Value> {
        Some(match self {
            Self::Select { node, .. } => {
                json!({"metadata": {"annotations": {SELECTED_NODE: node}}})
            }
            Self::ForgetNode(_) => json!({"metadata": {"annotations": {SELECTED_NODE: null}}}),
            Self::Label(node) => json!({"metadata": {"labels": {MANAGED_BY: node}}}),
            Self::DropFinalizer { rest, .. } => json!({"metadata": {"finalizers": rest}}),
            Self::RemoveTaint { rest, .. } => json!({"spec": {"taints": rest}}),
            Self::Retain { claim } => json!({"metadata": {"annotations": {RELEASED: claim}},
                "spec": {"persistentVolumeReclaimPolicy": RETAIN}}),
            Self::Delete => return None,
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Select { node, instead_of } => {
                let from = instead_of.as_ref().map_or("", NodeName::as_str);
                write!(f, "{SELECTED_NODE}={node} instead of {from:?}")
            }
            Self::ForgetNode(node) => write!(f, "no {SELECTED_NODE} instead of {node:?}"),
            Self::Label(node) => write!(f, "{MANAGED_BY}={node}"),
            Self::DropFinalizer { name, .. } => write!(f, "finalizers without {name}"),
            Self::RemoveTaint { key, .. } => write!(f, "taints without {key}"),
            Self::Retain { claim } => {
                write!(f, "policy {RETAIN} instead of {DELETE}, {RELEASED}={claim}")
            }
            Self::Delete => f.write_str("the deletion"),
        }
    }
}

/// Waits for a write; without success, also returns the reason.
async fn finish<T>(write: impl Future<Output = kube::Result<T>>) -> (Outcome, String) {
    match timeout(TIMEOUT, write).await {
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
