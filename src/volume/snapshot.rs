//! Snapshots of volumes, and the sources of copies.

use std::os::fd::AsFd;
use std::sync::Arc;

use linux::fault::PathFault;
use linux::mount::{Shown, Target};
use linux::os;
use objects::{Bytes, ObjectId, SnapshotId, SnapshotName, VolumeId};

use crate::error::{Difference, Error, Existing, Refusal, Result};
use crate::volume::admit::{Arrival, Purpose};
use crate::volume::class::{InUse, SnapshotClass};
use crate::volume::ids::parse_id;
use crate::volume::in_flight::KeyLock;
use crate::volume::locate::{Located, Location};
use crate::volume::pools::open_id;
use crate::volume::requests::{Page, SourceId};
use crate::volume::volumes::Volumes;
use pool::{
    Caller, CopyPlan, Entry, Method, Origin, Pool, Resource, SnapshotEntry, SnapshotRecord,
    VolumeRecord, format_of,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub id: SnapshotId,
    /// The name from the CO.
    pub name: SnapshotName,
    /// Its volume, which may be deleted.
    pub source: VolumeId,
    /// The least size of a volume that is restored from it; zero: any.
    pub size: Bytes,
    pub reserved: Bytes,
    /// The time of its creation, in seconds since the Unix epoch.
    pub created_at: u64,
    /// Whether the volume was in use during the copy.
    pub in_use: bool,
}

impl Snapshot {
    fn new(record: &SnapshotRecord) -> Self {
        Self {
            id: record.id,
            name: record.name.clone(),
            source: record.source_volume_id,
            size: record.least_size(),
            reserved: record.held_bytes,
            created_at: record.created_at,
            in_use: record.in_use,
        }
    }
}

/// A checked `CreateSnapshotRequest`.
#[derive(Debug, Clone)]
pub struct SnapshotRequest {
    pub name: SnapshotName,
    /// The id of the volume, as received.
    pub source: String,
    pub class: SnapshotClass,
    pub excludes_node: bool,
    pub caller: Caller,
}

/// A filter of snapshots. Both conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// The snapshot's id, as received.
    pub id: Option<String>,
    /// The id of its volume, as received.
    pub source: Option<String>,
}

impl Volumes {
    /// Creates a snapshot of a volume, or returns the existing one with that name if it matches.
    pub fn create_snapshot(&self, request: &SnapshotRequest) -> Result<Snapshot> {
        let _name = self
            .in_flight
            .lock_name("snapshot", request.name.as_str())?;
        if let Some((_, entry)) = self.served_name::<SnapshotRecord>(&request.name)? {
            self.check_same_snapshot(&entry, request)?;
            return Ok(Snapshot::new(&entry.record));
        }
        let source: VolumeId = parse_id(&request.source)?;
        let _source = self.in_flight.share_source(&request.source)?;
        let (pool, volume) = self.source::<VolumeRecord>(source)?;
        if volume.record.exclusive {
            return Err(Refusal::SnapshotOfDisk { id: source }.into());
        }
        self.admit_to_node(Purpose::Snapshot, request.excludes_node)?;
        self.admit(&pool, &Arrival::new(Purpose::Snapshot))?;
        // A moved volume is not in the pool that its id names.
        let id = SnapshotId::new(open_id(&pool)?, &request.name);
        let _id = self.in_flight.lock_id(&id.to_string())?;
        let refuses = request.class.in_use == InUse::Refuse;
        if refuses {
            self.check_unpublished(&pool, &volume)?;
        }
        let work = pool.begin()?;
        let origin = Origin::Volume(Arc::clone(&volume));
        let plan = pool.plan_copy(&pool, &origin, None, request.class.copies)?;
        plan.check_permitted()?;
        // An image that cannot be copied is refused before the copy waits, and a pod may write while it waits.
        self.flush_image(&plan, &pool, &volume, Some(&request.source))?;
        let needs = plan.snapshot_needs()?;
        let reservation = pool.reserve::<SnapshotRecord>(&work, id, None, needs)?;
        let _turn = plan.turn(&reservation, &request.caller)?;
        // A publish must not begin now.
        let _unused = refuses
            .then(|| self.in_flight.lock_id(&request.source))
            .transpose()?;
        if refuses {
            self.check_unpublished(&pool, &volume)?;
        }
        let unlocked = Some(&*request.source).filter(|_| !refuses);
        let _unpublished = self.flush_image(&plan, &pool, &volume, unlocked)?;
        let in_use = || Ok::<_, Error>(!self.published(&volume)?.is_empty());
        let is_before = in_use()?;
        let copied = plan.copy_for(&reservation, id)?;
        let record = record(id, &volume, request, is_before || in_use()?);
        let entry = copied.into_snapshot(record)?;
        Ok(Snapshot::new(&entry.record))
    }

    /// Prepares a copy of a volume if that is an image: its filesystem writes to the image all that pods
    /// have written. If the copy cannot be of one instant, the volume must not be published until the
    /// returned lock of `id` is dropped; `None`: it is locked already.
    pub(super) fn flush_image(
        &self,
        plan: &CopyPlan<'_>,
        pool: &Pool,
        volume: &Arc<Entry>,
        id: Option<&str>,
    ) -> Result<Option<KeyLock<'_>>> {
        if volume.record.image.is_none() {
            return Ok(None);
        }
        if !plan.shares_blocks() {
            let lock = id.map(|id| self.in_flight.lock_id(id)).transpose()?;
            self.check_unpublished(pool, volume)?;
            return Ok(lock);
        }
        let _lifted = self.image_devices.lift(volume.record.id.hash());
        if volume.record.is_device() {
            for device in self.mounter.loops_of(pool.open_place(volume)?.as_fd())? {
                let failed = PathFault::at("write the changes of pods in", &device.path);
                device.sync().map_err(failed)?;
            }
            return Ok(None);
        }
        let file = pool.open_place(volume)?;
        if self.mounter.loops_of(file.as_fd())?.is_empty() {
            return Ok(None);
        }
        let image = pool.data_id(volume)?;
        for (path, _) in self.published(volume)? {
            let Some(target) = Target::open_known(&path)? else {
                continue;
            };
            let failed = |errno| target.error("write the changes of pods at", errno);
            // Another mount may hide the volume's. All mounts of the volume have one filesystem.
            let Ok(root) = target.open_root() else {
                continue;
            };
            let status = os::status(&root).map_err(failed)?;
            if self.mounter.shows(status, image, Shown::Filesystem)? {
                rustix::fs::syncfs(root).map_err(failed)?;
                return Ok(None);
            }
        }
        let id = volume.record.id;
        Err(Refusal::UnknownMount { id }.into())
    }

    pub fn get_snapshot(&self, id: &str) -> Result<Snapshot> {
        let (_, entry) = self.served::<SnapshotRecord>(parse_id(id)?)?;
        Ok(Snapshot::new(&entry.record))
    }

    /// At most `max_entries` snapshots that match, after the one with the id `token` (empty: from the
    /// first).
    pub fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        max_entries: usize,
        token: &str,
    ) -> Result<Page<Snapshot>> {
        let id = filter.id.as_deref().map(SnapshotId::parse);
        let source = filter.source.as_deref().map(VolumeId::parse);
        // A text that is not an id of the driver matches nothing.
        let matches = |record: &SnapshotRecord| {
            id.is_none_or(|id| id == Some(record.id))
                && source.is_none_or(|source| source == Some(record.source_volume_id))
        };
        self.page(max_entries, token, matches, |_, entry| {
            Snapshot::new(&entry.record)
        })
    }

    pub(super) fn origin(&self, source: &SourceId) -> Result<(Arc<Pool>, Origin)> {
        match source {
            SourceId::Snapshot(id) => {
                let (pool, entry) = self.source(parse_id(id)?)?;
                Ok((pool, Origin::Snapshot(entry)))
            }
            SourceId::Volume(id) => {
                let (pool, entry) = self.source(parse_id(id)?)?;
                Ok((pool, Origin::Volume(entry)))
            }
        }
    }

    /// The pool and entry of a source. One in a pool that is not on this node is on another node,
    /// unless the pool was retired.
    fn source<R: Resource>(&self, id: R::Id) -> Result<Located<R>> {
        match self.locate(id)? {
            Location::Absent {
                is_pool_here: false,
            } => {
                let (what, pool, id) = ("source", id.pool(), id.to_string());
                if self.known_pools.is_retired(pool)? {
                    return Err(Error::NotFound { what, id });
                }
                Err(Error::SourceElsewhere { id, pool })
            }
            location => self.found(id, location),
        }
    }

    /// Checks that an existing snapshot matches the request.
    fn check_same_snapshot(&self, entry: &SnapshotEntry, request: &SnapshotRequest) -> Result<()> {
        let differs = |difference| Error::Incompatible {
            what: Existing::Snapshot(request.name.clone()),
            difference,
        };
        let of = entry.record.source_volume_id;
        if VolumeId::parse(&request.source) != Some(of) {
            return Err(differs(Difference::OfVolume(of)));
        }
        let fits = self.admit_to_node(Purpose::Snapshot, request.excludes_node);
        fits.map_err(|error| match error {
            Error::Unsuitable(reason) => differs(reason.into()),
            other => other,
        })
    }
}

/// The record of a new snapshot, as far as it is known before the copy.
fn record(
    id: SnapshotId,
    volume: &Entry<VolumeRecord>,
    request: &SnapshotRequest,
    in_use: bool,
) -> SnapshotRecord {
    SnapshotRecord {
        format: format_of(volume.record.image, None),
        id,
        name: request.name.clone(),
        source_volume_id: volume.record.id,
        source_claim: volume.record.claim.clone(),
        size_bytes: volume.record.size_bytes,
        held_bytes: Bytes::ZERO,
        created_at: linux::os::now(),
        label: request.class.label.clone(),
        method: Method::Copy,
        in_use,
        enforcement: volume.record.enforcement,
        nodatacow: volume.record.nodatacow,
        image: volume.record.image,
        quota_id: None,
        absent: None,
        retains: Vec::new(),
        unknown: pool::Unknown::new(),
    }
}
