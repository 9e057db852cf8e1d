//! The driver's own service, for the command line.

use std::sync::Arc;

use tonic::Request;

use crate::admin::admin_server::Admin;
use crate::admin::{EnforceVolumeRequest, EnforceVolumeResponse};
use crate::error::Operation;

use super::{Answer, Edge, Rpc, request};

const ENFORCE: Rpc = Rpc::write("EnforceVolume", Operation::Volume);

/// Changes volumes in ways that CSI has no call for.
#[derive(Debug, Clone)]
pub(crate) struct AdminService(pub(crate) Arc<Edge>);

#[tonic::async_trait]
impl Admin for AdminService {
    async fn enforce_volume(
        &self,
        request: Request<EnforceVolumeRequest>,
    ) -> Answer<EnforceVolumeResponse> {
        let EnforceVolumeRequest {
            volume_id: id,
            keep_class,
        } = request.into_inner();
        let subject = id.clone();
        let work = move |edge: &Edge| {
            let changed = edge.volumes.enforce(&request::volume_id(id)?, keep_class)?;
            Ok(EnforceVolumeResponse { changed })
        };
        self.0.run(ENFORCE, subject, work).await
    }
}
