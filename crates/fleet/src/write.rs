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
use crate::round::{About, Ended, Outcome, Step};
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
        match step {
            Step::Select {
                claim,
                node,
                instead_of,
                missing,
            } => Ended {
                uid: claim.uid.clone(),
                report: false,
                outcome: self.select(claim, node, instead_of, missing).await,
            },
            Step::Label {
                content,
                namespace,
                node,
            } => Ended {
                uid: content.uid.clone(),
                report: false,
                outcome: self.label(content, namespace, node).await,
            },
            Step::Report { about, report } => {
                // The caches may lack a node that joined a moment ago.
                let mut outcome = match &report {
                    Report::NodeGone { node } => self.absence(node).await,
                    _ => Outcome::Done,
                };
                if outcome == Outcome::Done {
                    outcome = self.report(&about, &report).await;
                }
                let uid = about.object().uid.clone();
                Ended {
                    uid,
                    report: true,
                    outcome,
                }
            }
        }
    }

    async fn select(
        &self,
        claim: Identity,
        node: String,
        instead_of: Option<NodeName>,
        missing: bool,
    ) -> Outcome {
        let from = instead_of.as_ref().map_or("", NodeName::as_str);
        if missing {
            let absence = self.absence(from).await;
            if absence != Outcome::Done {
                return absence;
            }
        }
        let claims = Kind::CLAIM.resource();
        let api = Api::namespaced_with(self.client.clone(), &claim.namespace, &claims);
        let outcome = write(&api, &claim, "annotations", SELECTED_NODE, &node, from).await;
        if outcome == Outcome::Done {
            let report = Report::Steered { node, instead_of };
            self.report(&About::Claim(claim), &report).await;
        }
        outcome
    }

    async fn label(&self, content: Identity, namespace: String, node: String) -> Outcome {
        let api = Api::all_with(self.client.clone(), &Kind::CONTENT.resource());
        let outcome = write(&api, &content, "labels", MANAGED_BY, &node, "").await;
        if outcome == Outcome::Done {
            let about = About::Content { content, namespace };
            self.report(&about, &Report::Labelled { node }).await;
        }
        outcome
    }

    /// `Done` if the API server says that no node has this name. A name that no node can have is not asked for, because
    /// it would change the path of the request.
    async fn absence(&self, node: &str) -> Outcome {
        if node.parse::<NodeName>().is_err() {
            return Outcome::Done;
        }
        let api = Api::<Object>::all_with(self.client.clone(), &Kind::NODE.resource());
        match timeout(PATIENCE, api.get_opt(node)).await {
            Ok(Ok(None)) => Outcome::Done,
            Ok(Ok(Some(_))) => Outcome::Changed,
            Ok(Err(_)) | Err(_) => Outcome::Unanswered,
        }
    }

    async fn report(&self, about: &About, report: &Report) -> Outcome {
        let kind = match about {
            About::Claim(_) => Kind::CLAIM,
            About::Content { .. } => Kind::CONTENT,
        };
        let object = about.object();
        let Identity {
            namespace, name, ..
        } = object;
        let event = self.event(kind, object, report);
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

/// Sets one key of a map in the metadata, and logs that in one line.
async fn write(
    api: &Api<Object>,
    object: &Identity,
    map: &str,
    key: &str,
    node: &str,
    from: &str,
) -> Outcome {
    let Identity {
        namespace,
        name,
        uid,
        version,
    } = object;
    let mut metadata = json!({ "uid": uid, "resourceVersion": version });
    metadata[map] = json!({ key: node });
    let patch: Patch<Value> = Patch::Merge(json!({ "metadata": metadata }));
    let parameters = PatchParams::default();
    let write = api.patch(name, &parameters, &patch);
    let (outcome, error) = finish(write).await;
    if outcome == Outcome::Done {
        tracing::info!(namespace, name, uid, version, node, from, "wrote {key}");
    } else {
        tracing::warn!(
            namespace,
            name,
            uid,
            version,
            node,
            from,
            error,
            "did not write {key}"
        );
    }
    outcome
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
