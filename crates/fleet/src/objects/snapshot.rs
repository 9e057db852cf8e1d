//! Snapshots and their contents.

use k8s_openapi::jiff::Timestamp;
use objects::{DriverArgs, ObjectId, SnapshotId, VolumeId};
use serde::Deserialize;

use super::{Identity, Kept, Owner};
use crate::wire::{Object, named};

/// The node whose csi-snapshotter handles a snapshot content.
pub(crate) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
/// The finalizer that the csi-snapshotter of the content's node removes after it has deleted the snapshot.
pub(crate) const BOUND: &str =
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Annotations of the snapshot-controller and of csi-snapshotter. Without the first, or with the second, a content that
/// is being deleted still has its snapshot taken.
const UNWANTED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
const BEING_TAKEN: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) uid: String,
    pub(crate) deleting: bool,
    pub(crate) ready: bool,
    /// The bound content.
    pub(crate) content: String,
}

impl Kept for Snapshot {}

impl Snapshot {
    pub(crate) fn read(snapshot: Object) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            bound_volume_snapshot_content_name: String,
            #[serde(default)]
            ready_to_use: bool,
        }
        let (uid, deleting) = (snapshot.meta.uid.clone()?, snapshot.deleting);
        let Fields { status } = snapshot.fields()?;
        Some(Self {
            uid,
            deleting,
            ready: status.ready_to_use,
            content: named(status.bound_volume_snapshot_content_name)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handles {
    volume_handle: Option<String>,
    snapshot_handle: Option<String>,
}

/// The data of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A volume, of which no snapshot has been taken yet.
    Volume(VolumeId),
    /// The handle is none of the driver's.
    Malformed,
}

/// A `VolumeSnapshotContent` of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotContent {
    pub(crate) identity: Identity,
    pub(crate) deleting: bool,
    pub(crate) finalizers: Vec<String>,
    pub(crate) created: Option<Timestamp>,
    pub(crate) snapshot: Owner,
    /// Whether the snapshot is not wanted any more, so that csi-snapshotter deletes it and never takes it.
    pub(crate) unwanted: bool,
    pub(crate) data: Data,
    pub(crate) ready: bool,
    /// The label [`MANAGED_BY`].
    pub(crate) label: Option<String>,
}

impl Kept for SnapshotContent {
    fn identity(&mut self) -> Option<&mut Identity> {
        Some(&mut self.identity)
    }
}

impl SnapshotContent {
    /// The id in the handle of a content of any driver and any form. An object that cannot be used still names its data.
    pub(crate) fn handles(content: &Object) -> impl Iterator<Item = SnapshotId> {
        let paths = [
            ["status", "snapshotHandle"].as_slice(),
            &["spec", "source", "snapshotHandle"],
        ];
        let handles = paths.map(|path| SnapshotId::parse(content.text(path)?));
        handles.into_iter().flatten()
    }

    pub(crate) fn read(mut content: Object, driver: &DriverArgs) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
            #[serde(default)]
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            driver: String,
            source: Handles,
            volume_snapshot_ref: Owner,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            snapshot_handle: Option<String>,
            ready_to_use: bool,
        }
        let (identity, deleting) = (Identity::of(&content), content.deleting);
        let finalizers = std::mem::take(&mut content.finalizers);
        let created = content.created.parse().ok();
        let has = |key| {
            content
                .meta
                .annotations
                .as_ref()
                .is_some_and(|all| all.contains_key(key))
        };
        let unwanted = deleting && has(UNWANTED) && !has(BEING_TAKEN);
        let label = content
            .meta
            .labels
            .as_mut()
            .and_then(|all| all.remove(MANAGED_BY));
        let Fields { spec, status } = content.fields()?;
        if spec.driver != driver.driver_name {
            return None;
        }
        let status = status.unwrap_or_default();
        let handle = status.snapshot_handle.or(spec.source.snapshot_handle);
        let data = match (&handle, &spec.source.volume_handle) {
            (Some(snapshot), _) => SnapshotId::parse(snapshot).map(Data::Snapshot),
            (None, Some(volume)) => VolumeId::parse(volume).map(Data::Volume),
            (None, None) => None,
        };
        Some(Self {
            identity,
            deleting,
            finalizers,
            created,
            snapshot: spec.volume_snapshot_ref,
            unwanted,
            data: data.unwrap_or(Data::Malformed),
            ready: status.ready_to_use,
            label,
        })
    }
}
