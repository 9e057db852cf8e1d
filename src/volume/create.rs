//! Creation of volumes, and the capacity for them.
//!
//! A request is idempotent by its name. The name is locked and looked for in all pools, those that cannot be used
//! included, before a pool is chosen, whose id is a part of the volume's. Before the commit of the draft
//! another node could make the volume as well; after it only this one has it, which decides the code of an error.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::image::BLOCK;
use crate::mount::MountOptions;
use crate::pool::{
    self, AccessMode, Content, Entry, Expected, Image, KubernetesFields, Origin, Pool, Source,
    VolumeRecord, format_of,
};
use crate::quota::Enforcement;
use crate::types::{Bytes, ObjectId, VolumeId};
use crate::volume::capability::Capability;
use crate::volume::class::{Class, EnforcementPolicy};
use crate::volume::ids::parse_id;
use crate::volume::images;
use crate::volume::pools::{OfClass, Unread, open_id};
use crate::volume::requests::{Capacity, CreateRequest, SourceId, Volume};
use crate::volume::volumes::Volumes;

/// A source, and its pool.
type OriginIn = (Arc<Pool>, Origin);

impl Volumes {
    /// Checks that the volume supports the capabilities and was created with the class.
    pub fn validate(
        &self,
        id: &str,
        capabilities: &[Capability],
        class: Option<&Class>,
    ) -> Result<()> {
        let (pool, entry) = self.entry::<VolumeRecord>(parse_id(id)?)?;
        check_fits(&pool, &entry, capabilities, class)
    }

    /// Creates a volume, or returns the existing one with that name if it matches.
    pub fn create(&self, request: &CreateRequest) -> Result<Volume> {
        let _name = self.in_flight.lock_name("volume", request.name.as_str())?;
        for capability in &request.capabilities {
            capability.check_sharing(request.class.parameters.sharing)?;
        }
        // Before the search, because a member that is opened after it may have the name.
        let unread = self.unread();
        if let Some((pool, entry)) = self.find_by_name::<VolumeRecord>(&request.name)? {
            let _id = self.in_flight.lock_id(&entry.record.id.to_string())?;
            self.check_same(&pool, &entry, request)?;
            return Ok(Volume::new(&pool, &entry));
        }
        let _source = match &request.source {
            Some(SourceId::Snapshot(id) | SourceId::Volume(id)) => {
                Some(self.in_flight.share_source(id)?)
            }
            None => None,
        };
        let mut image = images::asked(&request.class, &request.capabilities)?;
        let (of_class, origin) = self.place(request)?;
        self.check_topology(request.excludes_node)?;
        if let Some((_, origin)) = &origin {
            image = images::of_copy(image, origin)?;
        }
        let _unpublished = match (&origin, &request.source) {
            (Some((pool, Origin::Volume(entry))), Some(SourceId::Volume(id))) => {
                let _work = pool.begin()?;
                self.settle_image(pool, entry, Some(id))?
            }
            _ => None,
        };
        let size = size_of(request, image, origin.as_ref().map(|(_, origin)| origin))?;
        of_class.check_read(&unread)?;
        if request.class.exclusive && !of_class.is_set {
            let problem = format!("true needs a pool set, and {} is a pool", of_class.name);
            return Err(Error::invalid("parameter \"exclusive\"", problem));
        }
        of_class.place((size, request.class.exclusive), |pool, expected| {
            self.create_in(
                pool,
                expected.as_ref(),
                origin.as_ref(),
                (size, image),
                request,
            )
        })
    }

    fn create_in(
        &self,
        pool: &Pool,
        expected: Option<&Expected>,
        origin: Option<&OriginIn>,
        (size, image): (Bytes, Option<Image>),
        request: &CreateRequest,
    ) -> Result<Volume> {
        // No other node can copy a source on this node.
        let failed: fn(pool::Error) -> Error = match origin {
            Some(_) => Error::from,
            None => Error::of_new,
        };
        if let Some(reason) = pool.why_unavailable() {
            return Err(failed(pool.unavailable(reason)));
        }
        let id = VolumeId::new(open_id(pool)?, &request.name);
        let _id = self.in_flight.lock_id(&id.to_string())?;
        let enforcement = pool.enforcement();
        match image {
            None => {
                check_filesystem(pool, &request.capabilities, Some(&request.class), failed)?;
                check_enforcement(pool, enforcement, &request.class)?;
            }
            Some(image) if origin.is_none() => images::check_program(pool, image)?,
            Some(_) => {}
        }
        check_cordon(pool)?;
        self.check_destinations(pool)?;
        self.check_not_moved_before(&request.name)?;
        pool.check_no_import(id).map_err(failed)?;
        let work = pool.begin()?;
        let reservation = if request.class.exclusive {
            let most = request.limit.unwrap_or(Bytes::MAX);
            pool.reserve_disk(&work, id, size.max(Bytes(1)), most, expected)
        } else {
            pool.reserve_expected(&work, id, size, expected)
        };
        let reservation = reservation.map_err(failed)?;
        let other = origin.filter(|(from, _)| !std::ptr::eq(Arc::as_ptr(from), pool));
        let reading = other.map(|(from, _)| from.begin()).transpose()?;
        let content = origin.map(|(from, origin)| Content {
            origin,
            from,
            reading: reading.as_ref(),
            policy: request.class.copies,
        });
        let record = record(id, (reservation.size(), image), enforcement, request);
        let entry = pool
            .create(&reservation, enforcement, content, record)
            .map_err(failed)?;
        Ok(Volume::new(pool, &entry))
    }

    /// The pools that a new volume may be in, and its source with its pool. A copy is in the pool of its
    /// source, because blocks can be shared only there; if it may be made byte by byte, another member
    /// of the same set is the second choice.
    fn place(&self, request: &CreateRequest) -> Result<(OfClass, Option<OriginIn>)> {
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
    fn unread(&self) -> Vec<Unread> {
        let loaded = self.loaded.get();
        if loaded.is_some_and(|loaded| loaded.elapsed() >= self.settings.member_wait) {
            return Vec::new();
        }
        self.unread_members()
    }

    /// The members of sets that were not read since the start.
    pub(super) fn unread_members(&self) -> Vec<Unread> {
        let pools = self.pools();
        let members = pools.iter().filter(|pool| pool.name().member().is_some());
        let unread = members.filter_map(|pool| Some((pool.name().clone(), pool.why_unread()?)));
        unread.collect()
    }

    /// The capacity for volumes with this class and these capabilities; none if this node would refuse
    /// them. A request that every node would refuse does not count, because only `CreateVolume` can
    /// report that.
    pub fn capacity(&self, class: &Class, capabilities: &[Capability]) -> Result<Capacity> {
        let cordoned = self.memory.cordoned()?;
        let image = images::asked(class, capabilities);
        // Once, because the programs are those of the node and not of a pool.
        let is_made = match &image {
            Ok(Some(image)) => image
                .content
                .format()
                .is_none_or(|format| format.find_program().is_ok()),
            _ => true,
        };
        let fits = |pool: &&Arc<Pool>| {
            pool.id().is_none_or(|id| !cordoned.contains(&id))
                && self.check_destinations(pool).is_ok()
                && match image {
                    // Every node refuses it, and CreateVolume reports that.
                    Err(_) => true,
                    Ok(Some(_)) => is_made,
                    Ok(None) => {
                        check_filesystem(pool, capabilities, Some(class), Error::from).is_ok()
                            && check_enforcement(pool, pool.enforcement(), class).is_ok()
                    }
                }
        };
        let largest = |free: Bytes| match image {
            Ok(Some(image)) => images::largest(image, free),
            _ => free,
        };
        match self.pools.of_class(class.pool.as_ref()) {
            Ok(of_class) => of_class.capacity(class.exclusive, fits, largest),
            // The class must name a pool. `CreateVolume` reports that.
            Err(Error::Invalid(_)) => {
                let mut most = Bytes::ZERO;
                for pool in self.pools().iter().filter(fits) {
                    most = most.max(match pool.name().member() {
                        Some(_) => pool.inspected_space(false),
                        None => pool.available()?,
                    });
                }
                let largest = largest(most);
                Ok(Capacity {
                    available: largest,
                    largest,
                })
            }
            Err(_) => Ok(Capacity::default()),
        }
    }

    /// Checks that an existing volume matches the request.
    fn check_same(&self, pool: &Pool, entry: &Entry, request: &CreateRequest) -> Result<()> {
        let differs = differs("volume", request.name.as_str());
        let has = entry.record.source;
        if !is_of(has, request.source.as_ref()) {
            let has = has.map_or("of nothing".to_owned(), |source| source.to_string());
            return Err(differs(format!("it is a copy of {has}")));
        }
        let (size, required, limit) = (entry.record.size_bytes, request.required, request.limit);
        let above = limit.is_some_and(|limit| size > limit || size == Bytes::ZERO);
        if size < required || above {
            let limit = limit.map_or("no limit".to_owned(), |limit| limit.to_string());
            return Err(differs(format!(
                "it has {size}, asked for are {required} up to {limit}"
            )));
        }
        self.check_topology(request.excludes_node)
            .map_err(|excluded| differs(excluded.to_string()))?;
        check_fits(pool, entry, &request.capabilities, Some(&request.class)).map_err(|error| {
            match error {
                Error::Invalid(_) | Error::Unsuitable(_) => differs(error.to_string()),
                other => other,
            }
        })
    }
}

/// Checks that a volume was created with the class and supports the capabilities.
pub(super) fn check_fits(
    pool: &Pool,
    entry: &Entry,
    capabilities: &[Capability],
    class: Option<&Class>,
) -> Result<()> {
    if let Some(class) = class {
        let named = class.pool.as_ref();
        if let Some(name) = named.filter(|name| name.as_str() != pool.name().in_classes()) {
            let problem = format!("the volume is in pool {}, not in {name}", pool.name());
            return Err(Error::invalid("parameter \"pool\"", problem));
        }
        if class.exclusive != entry.record.exclusive {
            let problem = format!("the volume was made with {}", entry.record.exclusive);
            return Err(Error::invalid("parameter \"exclusive\"", problem));
        }
        let (has, asked) = (entry.record.image, images::asked(class, capabilities)?);
        if has.is_some() != asked.is_some() {
            let kind = has.map_or("kind: directory", |_| "kind: image");
            let problem = format!("the volume was made with {kind}");
            return Err(Error::invalid("parameter \"kind\"", problem));
        }
        match has.zip(asked) {
            Some((has, asked)) if !has.suits(asked) => {
                let problem = format!("the volume is an image ({has}), and asked for is {asked}");
                return Err(Error::invalid("volume_capabilities", problem));
            }
            Some(_) => {}
            None => check_enforced(entry.record.enforcement, class.enforcement)?,
        }
        let has = entry.record.parameters;
        if class.parameters != has {
            let asked = class.parameters;
            let problem = format!("the volume was made with {has}, not with {asked}");
            return Err(Error::invalid("parameters", problem));
        }
    }
    for capability in capabilities {
        capability.check_sharing(entry.record.parameters.sharing)?;
        images::check_access(entry.record.image, capability)?;
    }
    match entry.record.image {
        Some(image) => check_format(image, capabilities),
        None => check_filesystem(pool, capabilities, class, Error::from),
    }
}

/// Refuses a filesystem type that is not the image's.
fn check_format(image: Image, capabilities: &[Capability]) -> Result<()> {
    let has = image.content.as_str();
    let mut asked = capabilities
        .iter()
        .filter_map(|asked| asked.fs_type.as_ref());
    match asked.find(|wants| *wants != has) {
        Some(wants) => Err(Error::Unsuitable(format!(
            "the volume has {has}, and fs_type {wants:?} is asked for"
        ))),
        None => Ok(()),
    }
}

/// Whether a volume is a copy of the requested source.
fn is_of(has: Option<Source>, asked: Option<&SourceId>) -> bool {
    match (has, asked) {
        (None, None) => true,
        (Some(Source::Snapshot(has)), Some(SourceId::Snapshot(id))) => has.to_string() == *id,
        (Some(Source::Volume(has)), Some(SourceId::Volume(id))) => has.to_string() == *id,
        _ => false,
    }
}

/// Refuses a pool that cannot enforce sizes, if the class requires it.
fn check_enforcement(pool: &Pool, enforcement: Enforcement, class: &Class) -> Result<()> {
    let required = class.enforcement == EnforcementPolicy::Required;
    if required && enforcement == Enforcement::None {
        let pool = pool.name();
        return Err(Error::Unsuitable(format!(
            "pool {pool} cannot enforce sizes, and the class has enforcement=required"
        )));
    }
    Ok(())
}

/// Refuses a cordoned pool.
pub(super) fn check_cordon(pool: &Pool) -> Result<()> {
    if pool.is_cordoned()? {
        let pool = pool.name();
        return Err(Error::Unsuitable(format!(
            "pool {pool} is cordoned: it gets no new volumes, snapshots or copies; use another pool, \
             or `rootcellar pool uncordon {pool}`"
        )));
    }
    Ok(())
}

/// Checks that a volume's size is enforced as the class says.
fn check_enforced(has: Enforcement, wants: EnforcementPolicy) -> Result<()> {
    let problem = match (has != Enforcement::None, wants) {
        (false, EnforcementPolicy::Required) => "the volume's size is not enforced",
        (true, EnforcementPolicy::None) => "the volume's size is enforced",
        _ => return Ok(()),
    };
    Err(Error::invalid("parameter \"enforcement\"", problem))
}

/// Refuses a filesystem type that is not the pool's.
fn check_filesystem(
    pool: &Pool,
    capabilities: &[Capability],
    class: Option<&Class>,
    failed: fn(pool::Error) -> Error,
) -> Result<()> {
    let asked = capabilities.iter().map(|c| &c.fs_type);
    for wants in asked.chain(class.map(|class| &class.fs_type)).flatten() {
        let has = pool.filesystem().map_err(failed)?;
        if *wants != has.to_string() {
            let pool = pool.name();
            return Err(Error::Unsuitable(format!(
                "pool {pool} is on {has}, and the class asks for fs_type {wants:?}"
            )));
        }
    }
    Ok(())
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
            Err(Error::OutOfRange(format!(
                "{} needs a volume of {}, and the request is for {size}; request a larger size",
                origin.source(),
                origin.least_size()
            )))
        }
        _ => Ok(size),
    }
}

fn record(
    id: VolumeId,
    (size, image): (Bytes, Option<Image>),
    enforcement: Enforcement,
    request: &CreateRequest,
) -> VolumeRecord {
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
        image,
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

/// The error of an existing object that does not match a request.
pub(super) fn differs(kind: &str, name: &str) -> impl Fn(String) -> Error {
    let what = format!("a {kind} named {name:?}");
    move |difference| Error::Incompatible {
        what: what.clone(),
        difference,
    }
}
