//! The Controller service.

use std::sync::Arc;

use prost_types::Timestamp;

use crate::csi;
use crate::csi::controller_get_volume_response::VolumeStatus;
use crate::csi::controller_server::Controller;
use crate::csi::controller_service_capability::rpc::Type as RpcType;
use crate::csi::controller_service_capability::{Rpc as RpcMessage, Type};
use crate::csi::validate_volume_capabilities_response::Confirmed;
use crate::error::{Error, Operation, Result};
use crate::volume::{Capacity, Class, Snapshot, SnapshotFilter, Source, Volume};

use super::{Answer, Call, Client, Edge, Rpc, Topology, request, service};

const DECLARED: [RpcType; 9] = [
    RpcType::CreateDeleteVolume,
    RpcType::CreateDeleteSnapshot,
    RpcType::ListSnapshots,
    RpcType::GetSnapshot,
    RpcType::CloneVolume,
    RpcType::GetCapacity,
    RpcType::ListVolumes,
    RpcType::GetVolume,
    RpcType::SingleNodeMultiWriter,
];

service! {
    /// Creates, deletes and lists volumes and snapshots.
    ControllerService: csi::Controller {
        create_volume(CreateVolumeRequest: name) -> CreateVolumeResponse,
            Rpc::write(Operation::CreateVolume), |edge, request| {
                let volume = edge.volumes.create(&request::create(
                    request,
                    &edge.plugin.topology,
                    &edge.caller,
                )?)?;
                Ok(csi::CreateVolumeResponse { volume: Some(message(&volume, &edge.plugin.topology)) })
            };

        delete_volume(DeleteVolumeRequest: volume_id) -> DeleteVolumeResponse,
            Rpc::write(Operation::Delete), |edge, request| {
                edge.volumes.delete(&request.volume_id)?;
                Ok(csi::DeleteVolumeResponse {})
            };

        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest: volume_id)
            -> ValidateVolumeCapabilitiesResponse, Rpc::read(Operation::Volume), validate;

        list_volumes(ListVolumesRequest) -> ListVolumesResponse,
            Rpc::list(), |edge, request| {
                let max_entries = request::max_entries(request.max_entries)?;
                let page = edge.volumes.list(max_entries, &request.starting_token)?;
                let entry = |volume| csi::list_volumes_response::Entry {
                    volume: Some(message(volume, &edge.plugin.topology)),
                    status: None,
                };
                Ok(csi::ListVolumesResponse {
                    entries: page.objects.iter().map(entry).collect(),
                    next_token: page.next_token,
                })
            };

        controller_get_volume(ControllerGetVolumeRequest: volume_id) -> ControllerGetVolumeResponse,
            Rpc::read(Operation::Volume), |edge, request| {
                let volume = edge.volumes.get(&request.volume_id)?;
                Ok(csi::ControllerGetVolumeResponse {
                    volume: Some(message(&volume, &edge.plugin.topology)),
                    status: Some(VolumeStatus::default()),
                })
            };

        create_snapshot(CreateSnapshotRequest: name) -> CreateSnapshotResponse,
            Rpc::write(Operation::CreateSnapshot), |edge, request| {
                let request = request::snapshot(request, &edge.plugin.topology, &edge.caller)?;
                let snapshot = edge.volumes.create_snapshot(&request)?;
                let snapshot = Some(snapshot_message(&snapshot, &edge.plugin.topology));
                Ok(csi::CreateSnapshotResponse { snapshot })
            };

        delete_snapshot(DeleteSnapshotRequest: snapshot_id) -> DeleteSnapshotResponse,
            Rpc::write(Operation::Delete), |edge, request| {
                edge.volumes.delete_snapshot(&request.snapshot_id)?;
                Ok(csi::DeleteSnapshotResponse {})
            };

        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse,
            Rpc::list(), |edge, request| {
                let max_entries = request::max_entries(request.max_entries)?;
                let given = |id: String| Some(id).filter(|id| !id.is_empty());
                let filter = SnapshotFilter {
                    id: given(request.snapshot_id),
                    source: given(request.source_volume_id),
                };
                let token = &request.starting_token;
                let page = edge.volumes.list_snapshots(&filter, max_entries, token)?;
                let entry = |snapshot| csi::list_snapshots_response::Entry {
                    snapshot: Some(snapshot_message(snapshot, &edge.plugin.topology)),
                };
                Ok(csi::ListSnapshotsResponse {
                    entries: page.objects.iter().map(entry).collect(),
                    next_token: page.next_token,
                })
            };

        get_snapshot(GetSnapshotRequest: snapshot_id) -> GetSnapshotResponse,
            Rpc::read(Operation::Volume), |edge, request| {
                let snapshot = edge.volumes.get_snapshot(&request.snapshot_id)?;
                let snapshot = Some(snapshot_message(&snapshot, &edge.plugin.topology));
                Ok(csi::GetSnapshotResponse { snapshot })
            };

        get_capacity(GetCapacityRequest) -> GetCapacityResponse,
            Rpc::read(Operation::Query), |edge, request| {
                let capacity = capacity(edge, &request)?;
                Ok(csi::GetCapacityResponse {
                    available_capacity: capacity.available.to_i64(),
                    maximum_volume_size: Some(capacity.largest.to_i64()),
                    minimum_volume_size: None,
                })
            };

        controller_get_capabilities(ControllerGetCapabilitiesRequest)
            -> ControllerGetCapabilitiesResponse,
            Rpc::read(Operation::Query).while_loading(), |_, _| {
                let capabilities = DECLARED.map(|rpc| csi::ControllerServiceCapability {
                    r#type: Some(Type::Rpc(RpcMessage { r#type: rpc.into() })),
                });
                Ok(csi::ControllerGetCapabilitiesResponse { capabilities: capabilities.into() })
            };
    }
}

/// An unsupported capability is an answer of this call, not an error.
fn validate(
    edge: &Call<'_>,
    request: csi::ValidateVolumeCapabilitiesRequest,
) -> Result<csi::ValidateVolumeCapabilitiesResponse> {
    for capability in request::required("volume_capabilities", &*request.volume_capabilities)? {
        request::complete(capability)?;
    }
    edge.volumes.get(&request.volume_id)?;
    let (confirmed, message) = match supports(edge, &request) {
        Ok(()) => {
            let confirmed = Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            };
            (Some(confirmed), String::new())
        }
        Err(error) if is_unsupported(&error) => (None, error.to_string()),
        Err(error) => return Err(error),
    };
    Ok(csi::ValidateVolumeCapabilitiesResponse { confirmed, message })
}

fn supports(edge: &Edge, request: &csi::ValidateVolumeCapabilitiesRequest) -> Result<()> {
    let capabilities = request::capabilities(&request.volume_capabilities)?;
    let class = request::class(&request.parameters, &request.mutable_parameters)?;
    let class = (!request.parameters.is_empty()).then_some(&class);
    edge.volumes
        .validate(&request.volume_id, &capabilities, class)
}

fn is_unsupported(error: &Error) -> bool {
    matches!(
        error,
        Error::Invalid(_) | Error::Incompatible { .. } | Error::Unsuitable(_)
    )
}

/// The capacity for a `CreateVolume` with the same parameters.
fn capacity(edge: &Edge, request: &csi::GetCapacityRequest) -> Result<Capacity> {
    let topology = request.accessible_topology.as_ref();
    if topology.is_some_and(|place| !edge.plugin.topology.is_in(place)) {
        return Ok(Capacity::default());
    }
    // Mistakes that every node refuses do not count here, so that CreateVolume can report them.
    let class = Class::parse_leniently(&request.parameters);
    let capabilities = request::capabilities(&request.volume_capabilities).unwrap_or_default();
    edge.volumes.capacity(&class, &capabilities)
}

fn message(volume: &Volume, topology: &Topology) -> csi::Volume {
    let enforcement = match volume.image {
        Some(_) => "image",
        None => volume.enforcement.as_str(),
    };
    // Kubernetes keeps those of the creation, so a moved volume has another member.
    let attributes = [("enforcement", enforcement)]
        .into_iter()
        .chain(volume.pool.labels());
    csi::Volume {
        capacity_bytes: volume.size.to_i64(),
        volume_id: volume.id.to_string(),
        volume_context: attributes
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        content_source: volume.source.map(source_message),
        // Without it every node's provisioner would delete the volume's object.
        accessible_topology: vec![topology.to_message()],
    }
}

fn source_message(source: Source) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let content = match source {
        Source::Snapshot(id) => Type::Snapshot(SnapshotSource {
            snapshot_id: id.to_string(),
        }),
        Source::Volume(id) => Type::Volume(VolumeSource {
            volume_id: id.to_string(),
        }),
    };
    csi::VolumeContentSource {
        r#type: Some(content),
    }
}

/// Every snapshot is ready, because one under construction is never visible.
fn snapshot_message(snapshot: &Snapshot, topology: &Topology) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: snapshot.size.to_i64(),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source.to_string(),
        creation_time: Some(Timestamp {
            seconds: i64::try_from(snapshot.created_at).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
        accessible_topology: vec![topology.to_message()],
    }
}
