//! Creation of volumes, and the capacity for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::{self, AccessMode, Entry, FORMAT, Origin, Pool, Source, VolumeRecord};
use crate::quota::Enforcement;
use crate::types::{Bytes, ObjectId, VolumeId};

use super::{
    Capability, Class, CreateRequest, EnforcementPolicy, SourceId, Volume, Volumes, differs,
};

impl Volumes {
    /// Creates a volume, or returns the existing one with that name if it matches.
    pub fn create(&self, request: &CreateRequest) -> Result<Volume> {
        let _name = self.in_flight.lock_name("volume", request.name.as_str())?;
        for capability in &request.capabilities {
            capability.check_sharing(request.class.parameters.sharing)?;
        }
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
        let (pool, origin) = self.place(request)?;
        self.check_topology(request.excludes_node)?;
        // No other node can copy a source on this node.
        let failed: fn(pool::Error) -> Error = match origin {
            Some(_) => Error::from,
            None => Error::of_new,
        };
        let size = size_of(request, origin.as_ref())?;
        let id = match (pool.id(), pool.why_unavailable()) {
            (_, Some(reason)) => return Err(failed(pool.unavailable(reason))),
            (Some(id), None) => VolumeId::new(id, &request.name),
            (None, None) => return Err(Error::Internal("an open pool has no id".into())),
        };
        let _id = self.in_flight.lock_id(&id.to_string())?;
        check_filesystem(&pool, &request.capabilities, Some(&request.class), failed)?;
        let enforcement = pool.enforcement();
        check_enforcement(&pool, enforcement, &request.class)?;
        let work = pool.begin()?;
        let reservation = pool
            .reserve::<VolumeRecord>(&work, id, None, size)
            .map_err(failed)?;
        let content = origin.as_ref().map(|origin| (origin, request.class.copies));
        let record = record(id, size, enforcement, request);
        let entry = pool
            .create(&reservation, enforcement, content, record)
            .map_err(failed)?;
        Ok(Volume::new(&pool, &entry))
    }

    /// The pool of a new volume, and its source. A copy is in the pool of its source, because blocks
    /// can be shared only there.
    fn place(&self, request: &CreateRequest) -> Result<(Arc<Pool>, Option<Origin>)> {
        let Some(source) = &request.source else {
            return Ok((Arc::clone(self.choose_pool(&request.class)?), None));
        };
        let (pool, origin) = self.origin(source)?;
        let named = request.class.pool.as_ref();
        if let Some(name) = named.filter(|name| *name != pool.name()) {
            let problem = format!(
                "{} is in pool {}, and the class says {name}; a copy is made in the pool of its \
                 source",
                origin.source(),
                pool.name()
            );
            return Err(Error::invalid("parameter \"pool\"", problem));
        }
        Ok((pool, Some(origin)))
    }

    /// The largest size that the next creation with this class and these capabilities would accept;
    /// zero if this node would refuse it. A request that every node would refuse does not count,
    /// because only `CreateVolume` can report that.
    pub fn capacity(&self, class: &Class, capabilities: &[Capability]) -> Result<Bytes> {
        let fits = |pool: &Pool| {
            check_filesystem(pool, capabilities, Some(class), Error::from).is_ok()
                && check_enforcement(pool, pool.enforcement(), class).is_ok()
        };
        match self.choose_pool(class) {
            Ok(pool) if fits(pool) => Ok(pool.available()?),
            // The class must name a pool. `CreateVolume` reports that.
            Err(Error::Invalid(_)) => {
                let mut pools = self.pools.iter().filter(|pool| fits(pool));
                pools.try_fold(Bytes::ZERO, |most, pool| Ok(most.max(pool.available()?)))
            }
            Ok(_) | Err(_) => Ok(Bytes::ZERO),
        }
    }

    /// The pool of a class: the named one, the only one, or the one with the name `default`.
    fn choose_pool(&self, class: &Class) -> Result<&Arc<Pool>> {
        let named = |name: &str| self.pools.iter().find(|pool| pool.name().as_str() == name);
        match (&class.pool, self.pools.as_slice()) {
            (_, []) => Err(Error::Unsuitable(
                "this node has no pool; give it one by --pool".into(),
            )),
            (Some(name), _) => named(name.as_str()).ok_or_else(|| {
                Error::Unsuitable(format!(
                    "this node has no pool {name}; it has {}",
                    self.names()
                ))
            }),
            (None, [only]) => Ok(only),
            (None, _) => named("default").ok_or_else(|| {
                let problem = format!(
                    "missing, and this node has several pools ({}), none of them called default",
                    self.names()
                );
                Error::invalid("parameter \"pool\"", problem)
            }),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.pools.iter().map(|pool| pool.name().as_str()).collect();
        names.join(", ")
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
    let has = entry.record.parameters;
    if let Some(class) = class {
        if let Some(name) = class.pool.as_ref().filter(|name| *name != pool.name()) {
            let problem = format!("the volume is in pool {}, not in {name}", pool.name());
            return Err(Error::invalid("parameter \"pool\"", problem));
        }
        check_enforced(entry.record.enforcement, class.enforcement)?;
        if class.parameters != has {
            let asked = class.parameters;
            let problem = format!("the volume was made with {has}, not with {asked}");
            return Err(Error::invalid("parameters", problem));
        }
    }
    for capability in capabilities {
        capability.check_sharing(has.sharing)?;
    }
    check_filesystem(pool, capabilities, class, Error::from)
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
fn size_of(request: &CreateRequest, origin: Option<&Origin>) -> Result<Bytes> {
    let asked = match (request.required, request.limit) {
        (Bytes::ZERO, limit) => limit.unwrap_or(Bytes::ZERO),
        (required, _) => required,
    };
    let size = match origin {
        Some(origin) if asked.is_zero() && !origin.size().is_zero() => origin.least_size(),
        _ => asked,
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
    size: Bytes,
    enforcement: Enforcement,
    request: &CreateRequest,
) -> VolumeRecord {
    let declined = request.class.enforcement == EnforcementPolicy::None;
    let modes = request.capabilities.iter().map(|asked| asked.access_mode);
    let modes: BTreeSet<AccessMode> = modes.collect();
    VolumeRecord {
        format: FORMAT,
        id,
        name: request.name.clone(),
        size_bytes: size,
        created_at: crate::pool::now(),
        claim: request.class.claim.clone(),
        parameters: request.class.parameters,
        access_modes: modes.into_iter().collect(),
        enforcement: match size {
            Bytes(1..) if !declined => enforcement,
            _ => Enforcement::None,
        },
        quota_id: None,
        enforcing: false,
        enforcement_declined: declined,
        source: None,
        inherited_bytes: Bytes::ZERO,
        retains: Vec::new(),
        unknown: crate::pool::Unknown::new(),
    }
}
