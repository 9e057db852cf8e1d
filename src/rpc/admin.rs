//! The driver's own service, for the command line.

mod paths;

use std::sync::Arc;

use linux::mount::Users;
use objects::{Bytes, VolumeName};

use crate::admin;
use crate::admin::admin_server::Admin;
use crate::admin::enforce_volume_response::Outcome;
use crate::admin::move_volume_response::Outcome as MoveOutcome;
use crate::error::{Operation, Refusal, Result};
use crate::volume::{
    ImportRequest, ImportState, LimitChanges, Moved, NewImport, UndeleteRequest, Undeleted,
};
use paths::{text, texts};
use pool::{Enforced, Unit};

use super::{Answer, Call, Client, Edge, Rpc, request, service};

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
                let users = if request.force { Users::Ignore } else { Users::Check };
                let moved = edge.volumes.move_to(&request.volume_id, to, users, &edge.caller);
                let (pool, moved) = moved?;
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

        label_volume(LabelVolumeRequest: volume_id) -> LabelVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let namespace = request::required("namespace", &*request.namespace)?;
                let claim = request::required("claim", &*request.claim)?;
                let labelled = edge.volumes.label(&request.volume_id, namespace, claim)?;
                Ok(admin::LabelVolumeResponse {
                    namespace: labelled.label.namespace.unwrap_or_default(),
                    claim: labelled.label.claim.unwrap_or_default(),
                    persistent_volume: labelled.label.volume.unwrap_or_default(),
                    before: labelled.before,
                })
            };

        limit_volume(LimitVolumeRequest: volume_id) -> LimitVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let limited = edge.volumes.limit(&request.volume_id, LimitChanges {
                    read_bytes: request.read_bytes,
                    write_bytes: request.write_bytes,
                    read_operations: request.read_operations,
                    write_operations: request.write_operations,
                })?;
                Ok(admin::LimitVolumeResponse {
                    read_bytes: limited.limits.read_bytes,
                    write_bytes: limited.limits.write_bytes,
                    read_operations: limited.limits.read_operations,
                    write_operations: limited.limits.write_operations,
                    before: limited.before,
                    are_lifted: limited.are_lifted,
                })
            };

        lift_limits(LiftLimitsRequest) -> LiftLimitsResponse,
            Rpc::write(Operation::Volume), |edge, _request| {
                let devices = edge.volumes.lift_all_limits()?;
                Ok(admin::LiftLimitsResponse { devices })
            };

        get_advance(GetAdvanceRequest: id) -> GetAdvanceResponse,
            Rpc::read(Operation::Volume), |edge, request| {
                let advance = edge.volumes.advance(&request.id)?;
                Ok(advance.map_or_else(Default::default, |advance| admin::GetAdvanceResponse {
                    done: advance.done,
                    total: advance.total,
                    bytes: advance.unit == Unit::Bytes,
                }))
            };

        check_import(CheckImportRequest: name) -> CheckImportResponse,
            Rpc::read(Operation::Volume), |edge, request| {
                if request.copy {
                    return Err(Refusal::CopyByCommand.into());
                }
                let new = NewImport {
                    size: Bytes(request.size_bytes),
                    used: Bytes(request.used_bytes),
                    inodes: request.used_inodes,
                };
                let place = edge.volumes.check_import(&ImportRequest {
                    pool: request.pool,
                    name: VolumeName::try_from(request.name)?,
                    new: Some(new).filter(|new| new.size > Bytes::ZERO),
                })?;
                let mut response = admin::CheckImportResponse {
                    volume_id: place.id.to_string(),
                    pool_path: text(&place.pool)?,
                    pool_id: place.pool_id.to_string(),
                    renames: true,
                    taken_paths: texts(&place.taken)?,
                    ..Default::default()
                };
                match place.state {
                    ImportState::New => {}
                    ImportState::Waiting(name) => response.waiting = name,
                    ImportState::Imported(from) => response.imported_from = from,
                }
                Ok(response)
            };

        import_volume(ImportVolumeRequest: name) -> ImportVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let id = edge.volumes.import(&request.pool, &VolumeName::try_from(request.name)?)?;
                Ok(admin::ImportVolumeResponse { volume_id: id.to_string() })
            };

        export_volume(ExportVolumeRequest: volume_id) -> ExportVolumeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let exported = edge.volumes.export(&request.volume_id, request.dry_run)?;
                Ok(admin::ExportVolumeResponse {
                    pool_path: text(&exported.pool)?,
                    pool_id: exported.pool_id.to_string(),
                    name: exported.name.unwrap_or_default(),
                    origin: exported.origin.unwrap_or_default(),
                    renames: true,
                    exported_to: exported.exported_to.as_deref().map_or(Ok(String::new()), text)?,
                    taken_paths: texts(&exported.taken)?,
                })
            };

        undelete(UndeleteRequest: id) -> UndeleteResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let given = |text: String| Some(text).filter(|text| !text.is_empty());
                let entry = given(request.entry).map(|entry| request::entry(&entry)).transpose()?;
                let undeleted = edge.volumes.undelete(&UndeleteRequest {
                    id: request.id,
                    entry,
                    name: given(request.name).map(VolumeName::try_from).transpose()?,
                })?;
                let Undeleted { id, existed, ended } = undeleted;
                let ended = ended.unwrap_or_default();
                Ok(admin::UndeleteResponse { id, existed, ended })
            };

        delete_now(DeleteNowRequest: id) -> DeleteNowResponse,
            Rpc::write(Operation::Delete), |edge, request| {
                edge.volumes.delete_now(&request.id)?;
                Ok(admin::DeleteNowResponse {})
            };

        purge(PurgeRequest) -> PurgeResponse,
            Rpc::write(Operation::Volume), |edge, request| {
                let id = Some(&*request.id).filter(|_| !request.all);
                let purged = edge.volumes.purge(id)? as u64;
                Ok(admin::PurgeResponse { purged })
            };
    }
}
