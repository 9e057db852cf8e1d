//! The Node service.

use std::sync::Arc;

use objects::Bytes;

use crate::csi;
use crate::csi::node_server::Node;
use crate::csi::node_service_capability::rpc::Type as RpcType;
use crate::csi::node_service_capability::{Rpc as RpcMessage, Type};
use crate::csi::volume_usage::Unit;
use crate::error::{Operation, Result};
use crate::volume::Usage;

use super::{Answer, Call, Client, Edge, Rpc, health, request, service};

const DECLARED: [RpcType; 5] = [
    RpcType::GetVolumeStats,
    RpcType::ExpandVolume,
    RpcType::SingleNodeMultiWriter,
    RpcType::GetVolumeHealth,
    RpcType::GetStorageHealth,
];

service! {
    /// Publishes volumes to pods.
    NodeService: csi::Node {
        node_publish_volume(NodePublishVolumeRequest: volume_id) -> NodePublishVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                edge.volumes.publish(&request::publish(request)?)?;
                Ok(csi::NodePublishVolumeResponse {})
            };

        // It needs neither a record nor a healthy pool, so pods can end while the driver starts.
        node_unpublish_volume(NodeUnpublishVolumeRequest: volume_id) -> NodeUnpublishVolumeResponse,
            Rpc::write(Operation::Volume).while_loading(), |edge, request| {
                let target = request::path("target_path", request.target_path)?;
                edge.volumes.unpublish(&request.volume_id, &target)?;
                Ok(csi::NodeUnpublishVolumeResponse {})
            };

        node_get_volume_stats(NodeGetVolumeStatsRequest: volume_id) -> NodeGetVolumeStatsResponse,
            Rpc::read(Operation::Volume), |edge, request| {
                let path = request::path("volume_path", request.volume_path)?;
                let stats = edge.volumes.stats(&request.volume_id, &path)?;
                let inodes = stats.inodes.map(|inodes| usage(inodes, Unit::Inodes));
                let usage = [usage(stats.bytes, Unit::Bytes)].into_iter().chain(inodes);
                Ok(csi::NodeGetVolumeStatsResponse { usage: usage.collect() })
            };

        // From memory: kubelet asks for one volume of the node after the other, those of all drivers.
        node_get_volume_health(NodeGetVolumeHealthRequest: volume_id) -> NodeGetVolumeHealthResponse,
            Rpc::read(Operation::Volume), |edge, request| {
                request::optional_path("volume_publish_path", &request.volume_publish_path)?;
                request::optional_path("staging_target_path", &request.staging_target_path)?;
                let conditions = edge.volumes.health(&request.volume_id)?;
                let health_statuses = health::of_volume(conditions);
                let volume_id = request.volume_id;
                let volume_health = Some(csi::VolumeHealth { volume_id, health_statuses });
                Ok(csi::NodeGetVolumeHealthResponse { volume_health })
            };

        node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse,
            Rpc::read(Operation::Query), |edge, _| {
                let backend_health = health::of_storage(&edge.volumes.storage_health());
                Ok(csi::NodeGetStorageHealthResponse { backend_health })
            };

        node_expand_volume(NodeExpandVolumeRequest: volume_id) -> NodeExpandVolumeResponse,
            Rpc::write(Operation::Expand), |edge, request| {
                let size = edge.volumes.expand(&request::expand(request)?)?;
                Ok(csi::NodeExpandVolumeResponse { capacity_bytes: size.to_i64() })
            };

        node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse,
            Rpc::read(Operation::Query).while_loading(), |_, _| {
                let capabilities = DECLARED.map(|rpc| csi::NodeServiceCapability {
                    r#type: Some(Type::Rpc(RpcMessage { r#type: rpc.into() })),
                });
                Ok(csi::NodeGetCapabilitiesResponse { capabilities: capabilities.into() })
            };

        node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse,
            Rpc::read(Operation::Query).while_loading(), |edge, _| Ok(csi::NodeGetInfoResponse {
                node_id: edge.plugin.node.to_string(),
                max_volumes_per_node: 0,
                accessible_topology: Some(edge.plugin.topology.to_message()),
            });
    }
}

fn usage(usage: Usage, unit: Unit) -> csi::VolumeUsage {
    csi::VolumeUsage {
        available: Bytes(usage.available).to_i64(),
        total: Bytes(usage.total).to_i64(),
        used: Bytes(usage.used).to_i64(),
        unit: unit.into(),
    }
}
