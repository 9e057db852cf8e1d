//! Creation of volumes.
//!
//! A request is idempotent by its name. The name is locked and looked for in all pools, those that cannot be used
//! included, before a pool is chosen, whose id is a part of the volume's. Before the commit of the draft
//! another node could make the volume as well; after it only this one has it, which decides the code of an error.

use std::collections::BTreeSet;
use std::sync::Arc;

use linux::image::BLOCK;
use linux::mount::MountOptions;
use linux::quota::Enforcement;
use objects::{AccessMode, Bytes, ObjectId, VolumeId};

use crate::error::{Error, OutOfRange, Result};
use crate::volume::admit::{Arrival, Purpose};
use crate::volume::capability::asked_image;
use crate::volume::class::EnforcementPolicy;
use crate::volume::images;
use crate::volume::in_flight::KeyLock;
use crate::volume::pools::{OfClass, Unread, open_id};
use crate::volume::requests::{CreateRequest, SourceId, Volume};
use crate::volume::volumes::Volumes;
use pool::{
    self, Busy, Demand, Entry, Expected, Image, KubernetesFields, Origin, Pool, VolumeRecord, Work,
    format_of,
};

type OriginIn = (Arc<Pool>, Origin);

#[derive(Debug, Clone, Copy)]
struct Wanted {
    size: Bytes,
    image: Option<Image>,
    nodatacow: bool,
}

/// Locks that are released together, the last one first.
#[derive(Debug, Default)]
struct Locks<'a>(Vec<KeyLock<'a>>);

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// The creation of a volume, by its steps: lock the name, find it, choose the pools, create.
#[derive(Debug)]
struct Creation<'a> {
    volumes: &'a Volumes,
    request: &'a CreateRequest,
    locks: Locks<'a>,
    /// The members that were not read before the search. One that is opened after it may have the name.
    unread: Vec<Unread>,
}

/// A creation whose pools are known.
#[derive(Debug)]
struct Placed<'a> {
    creation: Creation<'a>,
    pools: OfClass,
    origin: Option<OriginIn>,
    purpose: Purpose,
    wanted: Wanted,
}

impl<'a> Creation<'a> {
    fn lock(volumes: &'a Volumes, request: &'a CreateRequest) -> Result<Self> {
        let name = volumes
            .in_flight
            .lock_name("volume", request.name.as_str())?;
        for capability in &request.capabilities {
            capability.check_sharing(request.class.parameters.sharing)?;
        }
        Ok(Self {
            volumes,
            request,
            locks: Locks(vec![name]),
            unread: volumes.unread(),
        })
    }

    /// The volume with the name, if it exists and matches.
    fn find(&mut self) -> Result<Option<Volume>> {
        let find = || self.volumes.served_name::<VolumeRecord>(&self.request.name);
        let Some((_, entry)) = find()? else {
            return Ok(None);
        };
        let id = entry.record.id.to_string();
        let lock = self.volumes.in_flight.lock_id(&id)?;
        // It may have been moved or deleted before it was locked.
        let found = find()?.filter(|(_, entry)| entry.record.id.to_string() == id);
        let (pool, entry) = found.ok_or(Error::Busy(Busy::Changed(format!("volume {id}"))))?;
        self.locks.0.push(lock);
        self.volumes.check_same(&pool, &entry, self.request)?;
        pool.check_present(&entry)?;
        Ok(Some(Volume::new(&pool, &entry)))
    }

    /// Locks the source, and chooses the pools and the size.
    fn place(mut self) -> Result<Placed<'a>> {
        let (volumes, request) = (self.volumes, self.request);
        if let Some(SourceId::Snapshot(id) | SourceId::Volume(id)) = &request.source {
            self.locks.0.push(volumes.in_flight.share_source(id)?);
        }
        let mut image = asked_image(&request.class, &request.capabilities)?;
        let (pools, origin) = volumes.pools_for(request)?;
        let purpose = match origin {
            None => Purpose::Create,
            Some(_) => Purpose::Copy,
        };
        volumes.admit_to_node(purpose, request.excludes_node)?;
        if let Some((_, origin)) = &origin {
            image = images::of_copy(image, origin)?;
        }
        let size = size_of(request, image, origin.as_ref().map(|(_, origin)| origin))?;
        let nodatacow = match &origin {
            Some((_, origin)) => origin.nodatacow(),
            None => request.class.nodatacow,
        };
        if request.class.exclusive && !pools.is_set {
            let problem = format!("true needs a pool set, and {} is a pool", pools.name);
            return Err(Error::invalid("parameter \"exclusive\"", problem));
        }
        Ok(Placed {
            creation: self,
            pools,
            origin,
            purpose,
            wanted: Wanted {
                size,
                image,
                nodatacow,
            },
        })
    }
}

impl Placed<'_> {
    /// Makes the volume in the first of the pools that can have it. A pool that cannot has changed nothing.
    fn create(&self) -> Result<Volume> {
        let exclusive = self.creation.request.class.exclusive;
        let mut placement = self.pools.placement(self.wanted.size, exclusive);
        while let Some((pool, expected)) = placement.choose() {
            match self.create_in(&pool, expected.as_ref()) {
                Ok(volume) => return Ok(volume),
                Err(error) => placement.refused(pool, error)?,
            }
        }
        Err(placement.failed())
    }

    fn create_in(&self, pool: &Pool, expected: Option<&Expected>) -> Result<Volume> {
        let Creation {
            volumes, request, ..
        } = &self.creation;
        let Wanted { size, image, .. } = self.wanted;
        // No other node can copy a source on this node.
        let failed: fn(pool::Error) -> Error = match self.origin {
            Some(_) => Error::from,
            None => Error::of_new,
        };
        let id = pool.id().map(|pool| VolumeId::new(pool, &request.name));
        let lock = id.map(|id| volumes.in_flight.lock_id(&id.to_string()));
        let _id = lock.transpose()?;
        let enforcement = pool.enforcement();
        let arrival = Arrival::named(self.purpose, id, &request.name, &self.creation.unread);
        let arrival = arrival.fitting(&request.class, &request.capabilities, image);
        volumes.admit(pool, &arrival)?;
        let id = VolumeId::new(open_id(pool)?, &request.name);
        let work = pool.begin()?;
        if let Some(origin) = &self.origin {
            let entry = self.copy_in(pool, &work, expected, origin, (id, enforcement))?;
            return Ok(Volume::new(pool, &entry));
        }
        let demand = if request.class.exclusive {
            Demand::Disk {
                least: size.max(Bytes(1)),
                most: request.limit.unwrap_or(Bytes::MAX),
            }
        } else {
            Demand::Object(size)
        };
        let reservation = pool.reserve_new(&work, id, demand, expected);
        let reservation = reservation.map_err(failed)?;
        let wanted = Wanted {
            size: reservation.size(),
            ..self.wanted
        };
        let record = record(id, wanted, enforcement, request);
        let entry = pool.create(&reservation, enforcement, record);
        Ok(Volume::new(pool, &*entry.map_err(failed)?))
    }

    /// Makes a volume that is a copy. While its original must not be published, it is locked.
    fn copy_in(
        &self,
        pool: &Pool,
        work: &Work<'_>,
        expected: Option<&Expected>,
        (from, origin): &OriginIn,
        (id, enforcement): (VolumeId, Enforcement),
    ) -> Result<Arc<Entry>> {
        let Creation {
            volumes, request, ..
        } = &self.creation;
        let is_elsewhere = !std::ptr::eq(Arc::as_ptr(from), pool);
        let reading = is_elsewhere.then(|| from.begin()).transpose()?;
        let plan = pool.plan_copy(from, origin, reading.as_ref(), request.class.copies)?;
        let settle = || match origin {
            Origin::Volume(entry) => {
                let source = entry.record.id.to_string();
                volumes.flush_image(&plan, from, entry, Some(&source))
            }
            Origin::Snapshot(_) => Ok(None),
        };
        // An image that cannot be copied is refused before the copy waits, and a pod may write while it waits.
        settle()?;
        let demand = Demand::Object(self.wanted.size);
        if let Err(refusal) = plan.check_permitted() {
            // A full pool says so first, because another member may have the copy. No kept object ends for this one.
            pool.check_new(work, id, demand)?;
            return Err(refusal.into());
        }
        let reservation = pool.reserve_new(work, id, demand, expected)?;
        let _turn = plan.turn(&reservation, &request.caller)?;
        let _unpublished = settle()?;
        let record = record(id, self.wanted, enforcement, request);
        Ok(plan.create(&reservation, enforcement, record)?)
    }
}

impl Volumes {
    /// Creates a volume, or returns the existing one with that name if it matches.
    pub fn create(&self, request: &CreateRequest) -> Result<Volume> {
        let mut creation = Creation::lock(self, request)?;
        match creation.find()? {
            Some(existing) => Ok(existing),
            None => creation.place()?.create(),
        }
    }

    /// The pools that a new volume may be in, and its source with its pool. A copy is in the pool of its
    /// source, because blocks can be shared only there; if it may be made byte by byte, another member
    /// of the same set is the second choice.
    fn pools_for(&self, request: &CreateRequest) -> Result<(OfClass, Option<OriginIn>)> {
        let Some(source) = &request.source else {
            let named = request.class.pool.as_ref();
            return Ok((self.pools.of_class(named)?, None));
        };
        let (pool, origin) = self.origin(source)?;
        if request.class.exclusive || origin.is_exclusive() {
            let problem =
                "a volume with exclusive: true has a whole disk, and is neither a copy nor copied";
            return Err(Error::invalid("volume_content_source", problem));
        }
        let named = request.class.pool.as_ref();
        if let Some(name) = named.filter(|name| name.as_str() != pool.name().in_classes()) {
            let problem = format!(
                "{} is in pool {}, and the class says {name}; a copy is made in the pool of its \
                 source",
                origin.source(),
                pool.name()
            );
            return Err(Error::invalid("parameter \"pool\"", problem));
        }
        // While an image is copied byte by byte it must not be mounted, so that is no second choice.
        let is_image = matches!(&origin, Origin::Volume(entry) if entry.record.image.is_some());
        let of_class = if request.class.copies.copy && !is_image {
            self.pools.beside(&pool)?
        } else {
            OfClass::only(Arc::clone(&pool))
        };
        Ok((of_class, Some((pool, origin))))
    }

    /// The members of sets that were not read yet, for some time after the start: a volume whose creation
    /// was not answered may be there.
    pub(super) fn unread(&self) -> Vec<Unread> {
        let loaded = self.loaded.get();
        if loaded.is_some_and(|loaded| loaded.elapsed() >= self.settings.member_wait) {
            return Vec::new();
        }
        self.unread_members()
    }
}

/// The size of a new volume: the required size, else the limit. A copy without either is as large as
/// its source, and no copy is smaller.
fn size_of(
    request: &CreateRequest,
    image: Option<Image>,
    origin: Option<&Origin>,
) -> Result<Bytes> {
    let asked = match (request.required, request.limit) {
        (Bytes::ZERO, limit) => limit.unwrap_or(Bytes::ZERO),
        (required, _) => required,
    };
    let size = match origin {
        Some(origin) if asked.is_zero() && !origin.size().is_zero() => origin.least_size(),
        _ => asked,
    };
    let size = match image {
        Some(image) => {
            let size = match (request.required, request.limit) {
                (Bytes::ZERO, Some(limit)) if size == limit => Bytes(size.0 / BLOCK * BLOCK),
                (_, limit) => images::size(size, limit)?,
            };
            images::check_size(image, size)?;
            size
        }
        None => size,
    };
    if request.class.enforcement == EnforcementPolicy::Required && size == Bytes::ZERO {
        return Err(Error::invalid(
            "capacity_range",
            "missing, and the class has enforcement=required; ask for a size",
        ));
    }
    match origin {
        Some(origin) if size > Bytes::ZERO && size < origin.least_size() => {
            let (of, least) = (origin.source(), origin.least_size());
            Err(OutOfRange::BelowSource { of, least, size }.into())
        }
        _ => Ok(size),
    }
}

fn record(
    id: VolumeId,
    wanted: Wanted,
    enforcement: Enforcement,
    request: &CreateRequest,
) -> VolumeRecord {
    let Wanted {
        size,
        image,
        nodatacow,
    } = wanted;
    let declined = request.class.enforcement == EnforcementPolicy::None;
    let modes = request.capabilities.iter().map(|asked| asked.access_mode);
    let modes: BTreeSet<AccessMode> = modes.collect();
    VolumeRecord {
        format: format_of(image, None),
        size_bytes: size,
        claim: request.class.claim.clone(),
        kubernetes: kubernetes(request),
        parameters: request.class.parameters,
        access_modes: modes.into_iter().collect(),
        enforcement: match size {
            Bytes(1..) if !declined => enforcement,
            _ => Enforcement::None,
        },
        enforcement_declined: declined,
        exclusive: request.class.exclusive,
        nodatacow,
        image,
        io_limits: request.class.io_limits,
        ..VolumeRecord::new(id, request.name.clone())
    }
}

/// The fields of the `PersistentVolume` that the provisioner makes of the answer. It sends the mount
/// options of the class with every capability.
fn kubernetes(request: &CreateRequest) -> KubernetesFields {
    let options = request.capabilities.first().map(|asked| asked.options);
    let names = options.map(MountOptions::names).unwrap_or_default();
    KubernetesFields {
        mount_options: names.into_iter().map(str::to_owned).collect(),
        ..request.class.kubernetes.clone()
    }
}
