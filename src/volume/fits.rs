//! Whether a volume, a pool or this node suits a request, and the capacity for new volumes.
//!
//! A check with `Error::Unsuitable` says that another node may have what this one lacks; `Error::Invalid` says that
//! none has.

use std::sync::Arc;

use linux::quota::Enforcement;
use objects::Bytes;

use crate::error::{Difference, Error, Existing, Result, Unsuitable};
use crate::volume::admit::{Arrival, Purpose};
use crate::volume::capability::{Capability, asked_image, check_filesystem};
use crate::volume::class::{Class, EnforcementPolicy};
use crate::volume::ids::parse_id;
use crate::volume::images;
use crate::volume::parameter::Parametrized;
use crate::volume::requests::{Capacity, CreateRequest, SourceId};
use crate::volume::volumes::Volumes;
use pool::{Entry, Image, Pool, Source, VolumeRecord};

impl Volumes {
    /// Checks that the volume supports the capabilities and was created with the class.
    pub fn validate(
        &self,
        id: &str,
        capabilities: &[Capability],
        class: Option<&Class>,
    ) -> Result<()> {
        let (pool, entry) = self.served::<VolumeRecord>(parse_id(id)?)?;
        check_fits(&pool, &entry, capabilities, class)
    }

    /// The capacity for volumes with this class and these capabilities; none if this node would refuse
    /// them. A request that every node would refuse does not count, because only `CreateVolume` can
    /// report that.
    pub fn capacity(&self, class: &Class, capabilities: &[Capability]) -> Result<Capacity> {
        let image = asked_image(class, capabilities);
        let arrival = Arrival::new(Purpose::Report);
        let arrival = match &image {
            Ok(image) => arrival.fitting(class, capabilities, *image),
            // Every node refuses it, and CreateVolume reports that.
            Err(_) => arrival,
        };
        // If pools.json cannot be read, the call fails instead of reporting a capacity of 0.
        self.known_pools.cordoned()?;
        let fits = |pool: &&Arc<Pool>| self.admit(pool, &arrival).is_ok();
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
    pub(super) fn check_same(
        &self,
        pool: &Pool,
        entry: &Entry,
        request: &CreateRequest,
    ) -> Result<()> {
        let differs = |difference| Error::Incompatible {
            what: Existing::Volume(request.name.clone()),
            difference,
        };
        let of = entry.record.source;
        if !is_of(of, request.source.as_ref()) {
            return Err(differs(of.map_or(Difference::NoCopy, Difference::CopyOf)));
        }
        let (has, required, limit) = (entry.record.size_bytes, request.required, request.limit);
        let above = limit.is_some_and(|limit| has > limit || has == Bytes::ZERO);
        if has < required || above {
            let size = Difference::Size {
                has,
                required,
                limit,
            };
            return Err(differs(size));
        }
        let fits = self
            .admit_to_node(Purpose::Create, request.excludes_node)
            .and_then(|()| check_fits(pool, entry, &request.capabilities, Some(&request.class)));
        fits.map_err(|error| match error {
            Error::Invalid(invalid) => differs(Difference::Invalid(invalid)),
            Error::Unsuitable(reason) => differs(reason.into()),
            other => other,
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
        for parameter in Class::PARAMETERS {
            parameter.check_same(class, &entry.record)?;
        }
        let (has, asked) = (entry.record.image, asked_image(class, capabilities)?);
        if has.is_some() != asked.is_some() {
            let kind = has.map_or("kind: directory", |_| "kind: image");
            let problem = format!("the volume was made with {kind}");
            return Err(Error::invalid("parameter \"kind\"", problem));
        }
        match has.zip(asked) {
            Some((has, asked)) if !has.suits(asked) => {
                let problem =
                    format!("the volume is an image ({has}), and the request is for {asked}");
                return Err(Error::invalid("volume_capabilities", problem));
            }
            Some(_) => {}
            None => check_enforced(entry.record.enforcement, class.enforcement)?,
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
        Some(wants) => {
            let wants = wants.clone();
            Err(Unsuitable::Format { has, wants }.into())
        }
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

/// Checks that a volume's size is enforced as the class says.
fn check_enforced(has: Enforcement, wants: EnforcementPolicy) -> Result<()> {
    let problem = match (has != Enforcement::None, wants) {
        (false, EnforcementPolicy::Required) => "the volume's size is not enforced",
        (true, EnforcementPolicy::None) => "the volume's size is enforced",
        _ => return Ok(()),
    };
    Err(Error::invalid("parameter \"enforcement\"", problem))
}
