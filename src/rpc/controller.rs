//! The Controller service.

use std::sync::Arc;

use prost_types::Timestamp;
use tonic::Request;

use crate::csi;
use crate::csi::controller_server::Controller;
use crate::csi::controller_service_capability::rpc::Type as RpcType;
use crate::csi::controller_service_capability::{Rpc as RpcMessage, Type};
use crate::csi::validate_volume_capabilities_response::Confirmed;
use crate::error::{Error, Operation, Result};
use crate::types::Bytes;
use crate::volume::{Class, Snapshot, SnapshotFilter, Source, Volume};

use super::{Answer, Edge, Rpc, Topology, request};

const CREATE: Rpc = Rpc::write("CreateVolume", Operation::CreateVolume);
const DELETE: Rpc = Rpc::write("DeleteVolume", Operation::Delete);
const VALIDATE: Rpc = Rpc::read("ValidateVolumeCapabilities", Operation::Volume);
const LIST: Rpc = Rpc::read("ListVolumes", Operation::Query);
const GET: Rpc = Rpc::read("ControllerGetVolume", Operation::Volume);
const CREATE_SNAPSHOT: Rpc = Rpc::write("CreateSnapshot", Operation::CreateSnapshot);
const DELETE_SNAPSHOT: Rpc = Rpc::write("DeleteSnapshot", Operation::Delete);
const LIST_SNAPSHOTS: Rpc = Rpc::read("ListSnapshots", Operation::Query);
const GET_SNAPSHOT: Rpc = Rpc::read("GetSnapshot", Operation::Volume);
const GET_CAPACITY: Rpc = Rpc::read("GetCapacity", Operation::Query);
const GET_CAPABILITIES: Rpc = Rpc::read("ControllerGetCapabilities", Operation::Query);

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

/// Makes, deletes and tells of volumes.
#[derive(Debug, Clone)]
pub(crate) struct ControllerService(pub(crate) Arc<Edge>);

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Answer<csi::CreateVolumeResponse> {
        let request = request.into_inner();
        let name = request.name.clone();
        let work = move |edge: &Edge| {
            let volume = edge
                .volumes
                .create(&request::create(request, &edge.topology)?)?;
            Ok(csi::CreateVolumeResponse {
                volume: Some(message(&volume, &edge.topology)),
            })
        };
        self.0.run(CREATE, name, work).await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Answer<csi::DeleteVolumeResponse> {
        let id = request.into_inner().volume_id;
        let subject = id.clone();
        let work = move |edge: &Edge| {
            edge.volumes.delete(&request::volume_id(id)?)?;
            Ok(csi::DeleteVolumeResponse {})
        };
        self.0.run(DELETE, subject, work).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<csi::ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .run(VALIDATE, id, move |edge| validate(edge, request))
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Answer<csi::ListVolumesResponse> {
        let request = request.into_inner();
        let work = move |edge: &Edge| {
            let max_entries = request::max_entries(request.max_entries)?;
            let page = edge.volumes.list(max_entries, &request.starting_token)?;
            let entry = |volume| csi::list_volumes_response::Entry {
                volume: Some(message(volume, &edge.topology)),
                status: None,
            };
            let entries = page.objects.iter().map(entry).collect();
            Ok(csi::ListVolumesResponse {
                entries,
                next_token: page.next_token,
            })
        };
        self.0.run(LIST, String::new(), work).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        let id = request.into_inner().volume_id;
        let subject = id.clone();
        let work = move |edge: &Edge| {
            let volume = edge.volumes.get(&request::volume_id(id)?)?;
            Ok(csi::ControllerGetVolumeResponse {
                volume: Some(message(&volume, &edge.topology)),
                status: Some(csi::controller_get_volume_response::VolumeStatus::default()),
            })
        };
        self.0.run(GET, subject, work).await
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Answer<csi::CreateSnapshotResponse> {
        let request = request.into_inner();
        let name = request.name.clone();
        let work = move |edge: &Edge| {
            let request = request::snapshot(request, &edge.topology)?;
            let snapshot = edge.volumes.create_snapshot(&request)?;
            let snapshot = Some(snapshot_message(&snapshot, &edge.topology));
            Ok(csi::CreateSnapshotResponse { snapshot })
        };
        self.0.run(CREATE_SNAPSHOT, name, work).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Answer<csi::DeleteSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        let subject = id.clone();
        let work = move |edge: &Edge| {
            edge.volumes.delete_snapshot(&request::snapshot_id(id)?)?;
            Ok(csi::DeleteSnapshotResponse {})
        };
        self.0.run(DELETE_SNAPSHOT, subject, work).await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Answer<csi::ListSnapshotsResponse> {
        let request = request.into_inner();
        let work = move |edge: &Edge| {
            let max_entries = request::max_entries(request.max_entries)?;
            let given = |id: String| Some(id).filter(|id| !id.is_empty());
            let filter = SnapshotFilter {
                id: given(request.snapshot_id),
                source: given(request.source_volume_id),
            };
            let page =
                edge.volumes
                    .list_snapshots(&filter, max_entries, &request.starting_token)?;
            let entry = |snapshot| csi::list_snapshots_response::Entry {
                snapshot: Some(snapshot_message(snapshot, &edge.topology)),
            };
            Ok(csi::ListSnapshotsResponse {
                entries: page.objects.iter().map(entry).collect(),
                next_token: page.next_token,
            })
        };
        self.0.run(LIST_SNAPSHOTS, String::new(), work).await
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Answer<csi::GetSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        let subject = id.clone();
        let work = move |edge: &Edge| {
            let snapshot = edge.volumes.get_snapshot(&request::snapshot_id(id)?)?;
            let snapshot = Some(snapshot_message(&snapshot, &edge.topology));
            Ok(csi::GetSnapshotResponse { snapshot })
        };
        self.0.run(GET_SNAPSHOT, subject, work).await
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Answer<csi::GetCapacityResponse> {
        let request = request.into_inner();
        let work = move |edge: &Edge| {
            let bytes = capacity(edge, &request)?.to_i64();
            Ok(csi::GetCapacityResponse {
                available_capacity: bytes,
                maximum_volume_size: Some(bytes),
                minimum_volume_size: None,
            })
        };
        self.0.run(GET_CAPACITY, String::new(), work).await
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        let capabilities = DECLARED.map(|rpc| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(RpcMessage { r#type: rpc.into() })),
        });
        self.0.answer(
            GET_CAPABILITIES,
            csi::ControllerGetCapabilitiesResponse {
                capabilities: capabilities.into(),
            },
        )
    }
}

/// What is not supported is an answer here, not an error.
fn validate(
    edge: &Edge,
    request: csi::ValidateVolumeCapabilitiesRequest,
) -> Result<csi::ValidateVolumeCapabilitiesResponse> {
    request::required("volume_id", &*request.volume_id)?;
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
        Err(error) if is_unsupported(&error) => (None, error.chain()),
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
        .map(|_| ())
}

fn is_unsupported(error: &Error) -> bool {
    matches!(
        error,
        Error::Invalid { .. }
            | Error::Incompatible { .. }
            | Error::PoolAbsent(_)
            | Error::CannotEnforce { .. }
            | Error::OtherFilesystem { .. }
    )
}

/// What the next `CreateVolume` with the same words would accept.
fn capacity(edge: &Edge, request: &csi::GetCapacityRequest) -> Result<Bytes> {
    let elsewhere = request
        .accessible_topology
        .as_ref()
        .is_some_and(|place| !edge.topology.is_in(place));
    let class = Class::parse_leniently(&request.parameters);
    if elsewhere {
        return Ok(Bytes::ZERO);
    }
    // As with the class: what no node accepts must reach CreateVolume to be told.
    let capabilities = request::capabilities(&request.volume_capabilities).unwrap_or_default();
    edge.volumes.capacity(&class, &capabilities)
}

fn message(volume: &Volume, topology: &Topology) -> csi::Volume {
    let enforcement = volume.enforcement.as_str();
    csi::Volume {
        capacity_bytes: volume.size.to_i64(),
        volume_id: volume.id.to_string(),
        volume_context: [("enforcement".to_owned(), enforcement.to_owned())].into(),
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

/// What there is of a snapshot is ready: nobody sees one that is not.
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
