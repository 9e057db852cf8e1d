//! Converts the messages of the specification to the checked types of the domain. Nothing here reads
//! a record, so a malformed request is refused even if its volume does not exist.

mod capability;
mod limits;

pub(super) use capability::{capabilities, complete};

use std::collections::HashMap;
use std::path::PathBuf;

use objects::Bytes;
use uuid::Uuid;

use crate::csi;
use crate::error::{Error, OutOfRange, Result};
use crate::volume::{
    Caller, Class, CreateRequest, ExpandRequest, Parametrized, PublishRequest, SnapshotClass,
    SnapshotRequest, SourceId,
};
use limits::{MAX_MAP_BYTES, within_limit};

use super::lists::PAGE;
use super::topology::Topology;

pub(super) fn create(
    request: csi::CreateVolumeRequest,
    here: &Topology,
    caller: &Caller,
) -> Result<CreateRequest> {
    let name = request.name.parse()?;
    let messages = required("volume_capabilities", request.volume_capabilities)?;
    let capabilities = capabilities(&messages)?;
    let (required, limit) = capacity_range(request.capacity_range)?;
    Ok(CreateRequest {
        name,
        required,
        limit,
        capabilities,
        source: request.volume_content_source.map(source).transpose()?,
        class: class(&request.parameters, &request.mutable_parameters)?,
        excludes_node: here.is_excluded_by(request.accessibility_requirements.as_ref()),
        caller: caller.clone(),
    })
}

fn source(content: csi::VolumeContentSource) -> Result<SourceId> {
    use csi::volume_content_source::Type::{Snapshot, Volume};
    match content.r#type {
        Some(Snapshot(snapshot)) => {
            let id = required("volume_content_source.snapshot_id", snapshot.snapshot_id)?;
            Ok(SourceId::Snapshot(id))
        }
        Some(Volume(volume)) => {
            let id = required("volume_content_source.volume_id", volume.volume_id)?;
            Ok(SourceId::Volume(id))
        }
        None => Err(Error::invalid(
            "volume_content_source",
            "names neither a snapshot nor a volume",
        )),
    }
}

pub(super) fn snapshot(
    request: csi::CreateSnapshotRequest,
    here: &Topology,
    caller: &Caller,
) -> Result<SnapshotRequest> {
    let source = required("source_volume_id", request.source_volume_id)?;
    let name = request.name.parse()?;
    within_map_limit("parameters", &request.parameters)?;
    Ok(SnapshotRequest {
        name,
        source,
        class: SnapshotClass::parse(&request.parameters)?,
        excludes_node: here.is_excluded_by(request.accessibility_requirements.as_ref()),
        caller: caller.clone(),
    })
}

pub(super) fn publish(request: csi::NodePublishVolumeRequest) -> Result<PublishRequest> {
    let target = path("target_path", request.target_path)?;
    let capability = request
        .volume_capability
        .ok_or_else(|| Error::invalid("volume_capability", "missing"))?;
    let capability = capability::capability(&capability)?;
    within_map_limit("volume_context", &request.volume_context)?;
    let read_only = request.readonly || capability.access_mode.is_read_only();
    Ok(PublishRequest {
        id: request.volume_id,
        target,
        capability,
        read_only,
    })
}

pub(super) fn expand(request: csi::NodeExpandVolumeRequest) -> Result<ExpandRequest> {
    let path = path("volume_path", request.volume_path)?;
    if let Some(capability) = &request.volume_capability {
        capability::capability(capability)?;
    }
    let (required, limit) = capacity_range(request.capacity_range)?;
    Ok(ExpandRequest {
        id: request.volume_id,
        path,
        required,
        limit,
    })
}

/// The entry of a deleted object, as `list --deleted` shows it.
pub(super) fn entry(text: &str) -> Result<Uuid> {
    let problem = |_| {
        Error::invalid(
            "entry",
            format!("{text:?} is not an entry that list --deleted prints"),
        )
    };
    Uuid::try_parse(text).map_err(problem)
}

/// The entries of a page. The specification lets a plugin return fewer than the CO asks for.
pub(super) fn max_entries(max_entries: i32) -> Result<usize> {
    match usize::try_from(max_entries) {
        Ok(0) => Ok(PAGE),
        Ok(wanted) => Ok(wanted.min(PAGE)),
        Err(_) => {
            let problem = format!("{max_entries} is negative");
            Err(Error::invalid("max_entries", problem))
        }
    }
}

pub(super) fn class(
    parameters: &HashMap<String, String>,
    mutable_parameters: &HashMap<String, String>,
) -> Result<Class> {
    if !mutable_parameters.is_empty() {
        return Err(Error::invalid(
            "mutable_parameters",
            "volumes cannot be modified; put the keys into the parameters of the class",
        ));
    }
    within_map_limit("parameters", parameters)?;
    Class::parse(parameters)
}

/// Checks that a path is present; the domain checks the rest.
pub(super) fn path(field: &str, path: String) -> Result<PathBuf> {
    required(field, path).map(PathBuf::from)
}

/// Refuses a path that is given and not absolute.
pub(super) fn optional_path(field: &str, path: &str) -> Result<()> {
    if path.is_empty() || path.starts_with('/') {
        return Ok(());
    }
    Err(Error::invalid(field, "is not absolute"))
}

/// Refuses a required field that is empty.
pub(super) fn required<T: Default + PartialEq>(field: &str, value: T) -> Result<T> {
    if value == T::default() {
        return Err(Error::invalid(field, "missing"));
    }
    Ok(value)
}

fn capacity_range(range: Option<csi::CapacityRange>) -> Result<(Bytes, Option<Bytes>)> {
    let range = range.unwrap_or_default();
    let bytes = |field, value: i64| match u64::try_from(value) {
        Ok(value) => Ok(Bytes(value)),
        Err(_) => Err(Error::invalid(
            format!("capacity_range.{field}"),
            format!("{value} is negative"),
        )),
    };
    let required = bytes("required_bytes", range.required_bytes)?;
    let limit = Some(bytes("limit_bytes", range.limit_bytes)?).filter(|limit| *limit > Bytes::ZERO);
    match limit {
        Some(limit) if limit < required => Err(OutOfRange::Range { required, limit }.into()),
        _ => Ok((required, limit)),
    }
}

fn within_map_limit(field: &str, map: &HashMap<String, String>) -> Result<()> {
    let bytes = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    within_limit(field, bytes, MAX_MAP_BYTES)
}

#[cfg(test)]
mod tests;
