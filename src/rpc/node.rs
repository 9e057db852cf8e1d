//! The Node service.

use std::sync::Arc;

use tonic::Request;

use crate::csi;
use crate::csi::node_server::Node;
use crate::csi::node_service_capability::rpc::Type as RpcType;
use crate::csi::node_service_capability::{Rpc as RpcMessage, Type};
use crate::csi::volume_usage::Unit;
use crate::error::Operation;
use crate::types::Bytes;
use crate::volume::Usage;

use super::{Answer, Edge, Rpc, request};

const PUBLISH: Rpc = Rpc::write("NodePublishVolume", Operation::Volume);
/// Needs neither a record nor a healthy pool, so a pod may go while the driver starts.
const UNPUBLISH: Rpc = Rpc::write("NodeUnpublishVolume", Operation::Volume).while_loading();
const GET_STATS: Rpc = Rpc::read("NodeGetVolumeStats", Operation::Volume);
const EXPAND: Rpc = Rpc::write("NodeExpandVolume", Operation::Expand);
const GET_CAPABILITIES: Rpc = Rpc::read("NodeGetCapabilities", Operation::Query);
const GET_INFO: Rpc = Rpc::read("NodeGetInfo", Operation::Query);

const DECLARED: [RpcType; 3] = [
    RpcType::GetVolumeStats,
    RpcType::ExpandVolume,
    RpcType::SingleNodeMultiWriter,
];

/// Gives volumes to pods.
#[derive(Debug, Clone)]
pub(crate) struct NodeService(pub(crate) Arc<Edge>);

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let work = move |edge: &Edge| {
            edge.volumes.publish(&request::publish(request)?)?;
            Ok(csi::NodePublishVolumeResponse {})
        };
        self.0.run(PUBLISH, id, work).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let work = move |edge: &Edge| {
            let id = request::volume_id(request.volume_id)?;
            let target = request::path("target_path", request.target_path)?;
            edge.volumes.unpublish(&id, &target)?;
            Ok(csi::NodeUnpublishVolumeResponse {})
        };
        self.0.run(UNPUBLISH, id, work).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let work = move |edge: &Edge| {
            let id = request::volume_id(request.volume_id)?;
            let path = request::path("volume_path", request.volume_path)?;
            let stats = edge.volumes.stats(&id, &path)?;
            let usage = vec![
                usage(stats.bytes, Unit::Bytes),
                usage(stats.inodes, Unit::Inodes),
            ];
            Ok(csi::NodeGetVolumeStatsResponse { usage })
        };
        self.0.run(GET_STATS, id, work).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let work = move |edge: &Edge| {
            let size = edge.volumes.expand(&request::expand(request)?)?;
            Ok(csi::NodeExpandVolumeResponse {
                capacity_bytes: size.to_i64(),
            })
        };
        self.0.run(EXPAND, id, work).await
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        let capabilities = DECLARED.map(|rpc| csi::NodeServiceCapability {
            r#type: Some(Type::Rpc(RpcMessage { r#type: rpc.into() })),
        });
        self.0.answer(
            GET_CAPABILITIES,
            csi::NodeGetCapabilitiesResponse {
                capabilities: capabilities.into(),
            },
        )
    }

    async fn node_get_info(
        &self,
        _request: Request<csi::NodeGetInfoRequest>,
    ) -> Answer<csi::NodeGetInfoResponse> {
        self.0.answer(
            GET_INFO,
            csi::NodeGetInfoResponse {
                node_id: self.0.plugin.node.to_string(),
                max_volumes_per_node: 0,
                accessible_topology: Some(self.0.topology.to_message()),
            },
        )
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
