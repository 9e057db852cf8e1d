//! The driver's own service, for the command line.

use std::sync::Arc;

use crate::admin;
use crate::admin::admin_server::Admin;
use crate::admin::enforce_volume_response::Outcome;
use crate::admin::move_volume_response::Outcome as MoveOutcome;
use crate::error::{Operation, Result};
use crate::pool::Enforced;
use crate::volume::Moved;

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

        move_volume(MoveVolumeRequest: volume_id) -> MoveVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let to = request::required("to", &*request.to)?;
                let (pool, moved) = edge.volumes.move_to(&request.volume_id, to)?;
                let (outcome, from) = match moved {
                    Moved::From(from) => (MoveOutcome::Moved, from.to_string()),
                    Moved::Before => (MoveOutcome::Before, String::new()),
                    Moved::Recovered => (MoveOutcome::Recovered, String::new()),
                };
                Ok(admin::MoveVolumeResponse {
                    outcome: outcome.into(),
                    pool: pool.to_string(),
                    from,
                })
            };
    }
}
