//! The Identity service.

use std::sync::Arc;

use tonic::Request;

use crate::csi;
use crate::csi::identity_server::Identity;
use crate::csi::plugin_capability::service::Type as Service;
use crate::csi::plugin_capability::volume_expansion::Type as Expansion;
use crate::csi::plugin_capability::{Service as ServiceMessage, Type, VolumeExpansion};
use crate::error::Operation;

use super::{Answer, Edge, Rpc};

const GET_PLUGIN_INFO: Rpc = Rpc::read("GetPluginInfo", Operation::Query);
const GET_PLUGIN_CAPABILITIES: Rpc = Rpc::read("GetPluginCapabilities", Operation::Query);
const PROBE: Rpc = Rpc::read("Probe", Operation::Query);

/// The same on every node, whatever its filesystems can do: the specification asks for it.
const DECLARED: [Service; 3] = [
    Service::ControllerService,
    Service::VolumeAccessibilityConstraints,
    Service::SnapshotAccessibilityConstraints,
];

/// Who the driver is, and whether it is ready.
#[derive(Debug, Clone)]
pub(crate) struct IdentityService(pub(crate) Arc<Edge>);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _request: Request<csi::GetPluginInfoRequest>,
    ) -> Answer<csi::GetPluginInfoResponse> {
        self.0.answer(
            GET_PLUGIN_INFO,
            csi::GetPluginInfoResponse {
                name: self.0.plugin.driver_name.clone(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Default::default()
            },
        )
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answer<csi::GetPluginCapabilitiesResponse> {
        let services = DECLARED.map(|service| {
            Type::Service(ServiceMessage {
                r#type: service.into(),
            })
        });
        // By the node alone, so that one resizer serves every node.
        let expansion = Type::VolumeExpansion(VolumeExpansion {
            r#type: Expansion::Online.into(),
        });
        let capabilities = services.into_iter().chain([expansion]);
        let capabilities = capabilities.map(|capability| csi::PluginCapability {
            r#type: Some(capability),
        });
        self.0.answer(
            GET_PLUGIN_CAPABILITIES,
            csi::GetPluginCapabilitiesResponse {
                capabilities: capabilities.collect(),
            },
        )
    }

    async fn probe(&self, _request: Request<csi::ProbeRequest>) -> Answer<csi::ProbeResponse> {
        // Unavailable pools do not count: a failing Probe makes the provisioner exit, and with it
        // freezes the capacity it published.
        let ready = Some(self.0.volumes.is_loaded());
        self.0.answer(PROBE, csi::ProbeResponse { ready })
    }
}
