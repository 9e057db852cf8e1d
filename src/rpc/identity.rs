//! The Identity service.

use std::sync::Arc;
use std::time::Instant;

use tonic::Request;

use crate::csi;
use crate::csi::identity_server::Identity;
use crate::csi::plugin_capability::service::Type as Service;
use crate::csi::plugin_capability::volume_expansion::Type as Expansion;
use crate::csi::plugin_capability::{Service as ServiceMessage, Type, VolumeExpansion};
use crate::error::Operation;

use super::{Answer, Edge, Rpc};

/// The same on every node, because the specification demands it.
const DECLARED: [Service; 3] = [
    Service::ControllerService,
    Service::VolumeAccessibilityConstraints,
    Service::SnapshotAccessibilityConstraints,
];

/// Names the driver and reports whether it is ready. It takes no thread, so that it answers even if
/// all of them wait for disks.
#[derive(Debug, Clone)]
pub(crate) struct IdentityService(pub(crate) Arc<Edge>);

impl IdentityService {
    fn answer<T: Default>(&self, name: &'static str, message: T) -> Answer<T> {
        let rpc = Rpc {
            name,
            ..Rpc::read(Operation::Query)
        };
        self.0.finish(rpc, "", Instant::now(), Ok(message))
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _request: Request<csi::GetPluginInfoRequest>,
    ) -> Answer<csi::GetPluginInfoResponse> {
        let info = csi::GetPluginInfoResponse {
            name: self.0.plugin.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        };
        self.answer("GetPluginInfo", info)
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
        // Only the node expands volumes, so that one resizer serves every node.
        let expansion = Type::VolumeExpansion(VolumeExpansion {
            r#type: Expansion::Online.into(),
        });
        let capabilities = services.into_iter().chain([expansion]);
        let capabilities = capabilities.map(|capability| csi::PluginCapability {
            r#type: Some(capability),
        });
        let capabilities = capabilities.collect();
        self.answer(
            "GetPluginCapabilities",
            csi::GetPluginCapabilitiesResponse { capabilities },
        )
    }

    async fn probe(&self, _request: Request<csi::ProbeRequest>) -> Answer<csi::ProbeResponse> {
        // Unavailable pools do not count: a failing Probe makes the provisioner exit, and with it
        // freezes the capacity it published.
        let ready = Some(self.0.volumes.is_loaded());
        self.answer("Probe", csi::ProbeResponse { ready })
    }
}
