//! The objects of the API, read without trust. Their authors decide about some fields of the metadata, and a list or a
//! watch ends at the first object that cannot be read. So an object keeps only what the controller needs, its times are
//! texts, and it may have any other content. serde skips `managedFields` without recursion.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::Bytes;
use axum::http::{Request, Response};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::client::{Body, ClientBuilder, DynBody};
use kube::core::{DynamicResourceScope, GroupVersionKind, Resource};
use kube::{Client, Config, Error};
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::{Map, Value};
use tower::Service;

/// The longest answer, and the longest line of a watch, in bytes. The client holds it twice. A tenant can have the API
/// server send 8 MB for one object, so a list of a fixed number of objects could fill the memory.
pub(crate) const LONGEST: usize = 16 << 20;

/// An answer, or a line of a watch, is longer than [`LONGEST`].
#[derive(Debug, thiserror::Error)]
#[error("longer than {} MiB", LONGEST >> 20)]
struct TooLong;

/// A client for objects of others.
pub(crate) fn client(config: Config) -> kube::Result<Client> {
    let layer = tower::layer::layer_fn(Careful);
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// Reads other bytes than ASCII as question marks, and fails in an answer that is longer than [`LONGEST`].
///
/// Nothing that the controller needs has other bytes. In `managedFields` the API server stores and sends bytes that are
/// no UTF-8, and the client would end at each of them.
#[derive(Debug, Clone)]
pub(crate) struct Careful<S>(pub(crate) S);

impl<S> Service<Request<Body>> for Careful<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|part| part == "watch=true");
        let answer = self.0.call(request);
        Box::pin(async move {
            Ok(answer.await?.map(|body| {
                let mut length = 0;
                let data = body.into_data_stream().map(move |data| {
                    let data = data?;
                    // Of a watch, only the part after the last end of a line goes on.
                    let end = if is_watch {
                        data.iter().rposition(|byte| *byte == b'\n')
                    } else {
                        None
                    };
                    length = end.map_or(length + data.len(), |end| data.len() - end - 1);
                    if length > LONGEST {
                        return Err(TooLong.into());
                    }
                    Ok::<_, BoxError>(to_ascii(data))
                });
                let body = axum::body::Body::from_stream(data);
                Box::new(body.map_err(Into::into)) as Box<DynBody>
            }))
        })
    }
}

/// Whether an answer, or a line of a watch, came but cannot be read: it is too long, or is none of the API.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = match error {
        Error::SerdeError(_) => return true,
        // An error of the standard library hides the error that it wraps from its sources.
        Error::ReadEvents(error) => match error.get_ref() {
            Some(error) => error,
            None => return false,
        },
        error => error,
    };
    let mut sources = std::iter::successors(Some(first), |error| error.source());
    sources.any(<dyn std::error::Error>::is::<TooLong>)
}

pub(crate) fn to_ascii(data: Bytes) -> Bytes {
    if data.is_ascii() {
        return data;
    }
    let ascii = data
        .iter()
        .map(|byte| if byte.is_ascii() { *byte } else { b'?' });
    ascii.collect()
}

/// The longest name of an object, in bytes.
const MAX_NAME: usize = 253;

#[derive(Debug, Clone, Default)]
pub(crate) struct Object {
    /// Names, uid, version, labels and annotations alone.
    pub(crate) meta: ObjectMeta,
    /// `metadata.creationTimestamp`; empty if there is none.
    pub(crate) created: String,
    pub(crate) deleting: bool,
    pub(crate) finalizers: Vec<String>,
    pub(crate) owners: Vec<Reference>,
    /// The other fields, such as `spec`.
    fields: Map<String, Value>,
}

impl Object {
    /// The fields in another form; `None` if they do not have it.
    pub(crate) fn fields<T: DeserializeOwned>(self) -> Option<T> {
        serde_json::from_value(Value::Object(self.fields)).ok()
    }

    /// A text below the fields, at this path.
    pub(crate) fn text(&self, path: &[&str]) -> Option<&str> {
        let (first, rest) = path.split_first()?;
        let value = self.fields.get(*first)?;
        let value = rest.iter().try_fold(value, |value, key| value.get(key))?;
        value.as_str()
    }

    /// The owner that makes and deletes it.
    pub(crate) fn controller(&self) -> Option<&Reference> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// The value of an annotation; `None` if it is longer than a name.
    pub(crate) fn annotation(&self, key: &str) -> Option<String> {
        named(self.meta.annotations.as_ref()?.get(key)?.clone())
    }
}

/// A reference to an owner of the object.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Reference {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Whether it makes and deletes the object.
    #[serde(default)]
    controller: bool,
}

/// A text that may be the name of an object. Longer ones would fill the memory.
pub(crate) fn named(text: String) -> Option<String> {
    (1..=MAX_NAME).contains(&text.len()).then_some(text)
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Metadata {
            namespace: Option<String>,
            name: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            creation_timestamp: Option<String>,
            deletion_timestamp: Option<String>,
            finalizers: Option<Vec<String>>,
            owner_references: Option<Vec<Reference>>,
            labels: Option<BTreeMap<String, String>>,
            annotations: Option<BTreeMap<String, String>>,
        }
        #[derive(serde::Deserialize)]
        struct Wire {
            #[serde(default)]
            metadata: Metadata,
            #[serde(flatten)]
            fields: Map<String, Value>,
        }
        let Wire { metadata, fields } = Wire::deserialize(deserializer)?;
        Ok(Self {
            meta: ObjectMeta {
                namespace: metadata.namespace,
                name: metadata.name,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                labels: metadata.labels,
                annotations: metadata.annotations,
                ..ObjectMeta::default()
            },
            created: metadata.creation_timestamp.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            owners: metadata.owner_references.unwrap_or_default(),
            fields,
        })
    }
}

impl Resource for Object {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        (&*of.kind).into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        (&*of.group).into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        (&*of.version).into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        (&*of.plural).into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// A kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    group: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) plural: &'static str,
}

impl Kind {
    pub(crate) const NODE: Self = Self::new("", "Node", "nodes");
    pub(crate) const CSI_NODE: Self = Self::new(STORAGE, "CSINode", "csinodes");
    pub(crate) const VOLUME: Self = Self::new("", "PersistentVolume", "persistentvolumes");
    pub(crate) const POD: Self = Self::new("", "Pod", "pods");
    pub(crate) const DAEMON_SET: Self = Self::new("apps", "DaemonSet", "daemonsets");
    pub(crate) const CONFIG_MAP: Self = Self::new("", "ConfigMap", "configmaps");
    pub(crate) const STATEFUL_SET: Self = Self::new("apps", "StatefulSet", "statefulsets");
    pub(crate) const CLAIM: Self = Self::new("", "PersistentVolumeClaim", "persistentvolumeclaims");
    pub(crate) const CLASS: Self = Self::new(STORAGE, "StorageClass", "storageclasses");
    pub(crate) const CAPACITY: Self =
        Self::new(STORAGE, "CSIStorageCapacity", "csistoragecapacities");
    pub(crate) const SNAPSHOT: Self = Self::new(SNAPSHOTS, "VolumeSnapshot", "volumesnapshots");
    pub(crate) const CONTENT: Self =
        Self::new(SNAPSHOTS, "VolumeSnapshotContent", "volumesnapshotcontents");

    const fn new(group: &'static str, singular: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            singular,
            plural,
        }
    }

    pub(crate) fn resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, "v1", self.singular);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }

    /// Whether the cluster may lack the kind, because it is defined by a CRD.
    pub(crate) fn is_optional(self) -> bool {
        self.group == SNAPSHOTS
    }
}

const STORAGE: &str = "storage.k8s.io";
pub(crate) const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
