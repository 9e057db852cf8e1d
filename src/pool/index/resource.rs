//! The kinds of records that an index has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::pool::record::{Record, SnapshotRecord, VolumeRecord};
use crate::types::{ObjectId, SnapshotId, VolumeId};

use super::{Entry, Index, SnapshotEntry};

type ByName<R> = HashMap<<<R as Record>::Id as ObjectId>::Name, Arc<Entry<R>>>;

/// A kind of record with its place in the index.
pub(crate) trait Resource: Record + Sized {
    fn entries(index: &Index) -> &BTreeMap<Self::Id, Arc<Entry<Self>>>;
    fn entries_mut(index: &mut Index) -> &mut BTreeMap<Self::Id, Arc<Entry<Self>>>;
    fn by_name(index: &Index) -> &ByName<Self>;
    fn by_name_mut(index: &mut Index) -> &mut ByName<Self>;
    /// The volume that an id names, if it names one.
    fn volume(id: Self::Id) -> Option<VolumeId>;
}

impl Resource for VolumeRecord {
    fn entries(index: &Index) -> &BTreeMap<VolumeId, Arc<Entry>> {
        &index.volumes
    }

    fn entries_mut(index: &mut Index) -> &mut BTreeMap<VolumeId, Arc<Entry>> {
        &mut index.volumes
    }

    fn by_name(index: &Index) -> &ByName<Self> {
        &index.volumes_by_name
    }

    fn by_name_mut(index: &mut Index) -> &mut ByName<Self> {
        &mut index.volumes_by_name
    }

    fn volume(id: VolumeId) -> Option<VolumeId> {
        Some(id)
    }
}

impl Resource for SnapshotRecord {
    fn entries(index: &Index) -> &BTreeMap<SnapshotId, Arc<SnapshotEntry>> {
        &index.snapshots
    }

    fn entries_mut(index: &mut Index) -> &mut BTreeMap<SnapshotId, Arc<SnapshotEntry>> {
        &mut index.snapshots
    }

    fn by_name(index: &Index) -> &ByName<Self> {
        &index.snapshots_by_name
    }

    fn by_name_mut(index: &mut Index) -> &mut ByName<Self> {
        &mut index.snapshots_by_name
    }

    fn volume(_id: SnapshotId) -> Option<VolumeId> {
        None
    }
}
