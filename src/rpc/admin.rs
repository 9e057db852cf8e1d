//! The driver's own service, for the command line.

use std::sync::Arc;

use tonic::Request;

use crate::admin::admin_server::Admin;
use crate::admin::enforce_volume_response::Outcome;
use crate::admin::{EnforceVolumeRequest, EnforceVolumeResponse};
use crate::error::Operation;
use crate::pool::Enforced;

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
        let id = request.into_inner().volume_id;
        let subject = id.clone();
        let work = move |edge: &Edge| {
            let outcome = match edge.volumes.enforce(&request::volume_id(id)?)? {
                Enforced::Now => Outcome::Now,
                Enforced::Before => Outcome::Before,
                Enforced::Declined => Outcome::Declined,
            };
            Ok(EnforceVolumeResponse {
                outcome: outcome.into(),
            })
        };
        self.0.run(ENFORCE, subject, work).await
    }
}
