//! The driver's own service, for the command line.

use std::sync::Arc;

use crate::admin;
use crate::admin::admin_server::Admin;
use crate::admin::enforce_volume_response::Outcome;
use crate::error::{Operation, Result};
use crate::pool::Enforced;

use super::{Answer, Edge, Rpc, request, service};

service! {
    /// Changes volumes in ways that CSI has no call for.
    AdminService: admin::Admin {
        enforce_volume(EnforceVolumeRequest: volume_id) -> EnforceVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let outcome = match edge.volumes.enforce(&request.volume_id)? {
                    Enforced::Now => Outcome::Now,
                    Enforced::Before => Outcome::Before,
                    Enforced::Declined => Outcome::Declined,
                };
                Ok(admin::EnforceVolumeResponse { outcome: outcome.into() })
            };
    }
}
