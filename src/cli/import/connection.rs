//! The calls of imports and exports, by the socket of a server.

use objects::{PoolId, VolumeId, VolumeName};
use tonic::{Code, Status};

use crate::admin::{CheckImportRequest, ExportVolumeRequest, ImportVolumeRequest};
use crate::cli::client::{Server, parse_id};
use crate::error::{Error, Refusal, Result, Unfinished};
use crate::host::ImportServer;
use crate::volume::{Export, ImportPlace, ImportRequest, ImportState};

/// The server at its socket.
pub(super) struct Connection(pub(super) Server);

fn volume_id(text: &str) -> Result<VolumeId> {
    parse_id(text).map_err(|problem| Error::Internal(format!("{text:?}: {problem}")))
}

/// The answer of the server, or the loss of the connection to it.
fn refused(status: &Status) -> Error {
    let message = status.message().to_owned();
    match (std::error::Error::source(status), status.code()) {
        (Some(error), _) => {
            let why = error.to_string();
            Unfinished::Lost { why }.into()
        }
        (None, Code::Aborted) => Error::from(Refusal::Server(message)).unfinished(),
        (None, _) => Refusal::Server(message).into(),
    }
}

fn pool_id(text: &str) -> Result<PoolId> {
    let id = PoolId::parse(text);
    id.ok_or_else(|| Error::Internal(format!("{text:?} is no id of a pool")))
}

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl ImportServer for Connection {
    fn check_import(&self, request: &ImportRequest) -> Result<ImportPlace> {
        let asked = CheckImportRequest {
            name: request.name.to_string(),
            pool: request.pool.clone(),
            ..Default::default()
        };
        let mut admin = self.0.admin.clone();
        let call = admin.check_import(match &request.new {
            None => asked,
            Some(new) => CheckImportRequest {
                size_bytes: new.size.0,
                used_bytes: new.used.0,
                used_inodes: new.inodes,
                ..asked
            },
        });
        let place = self.0.runtime.block_on(call);
        let place = place.map_err(|status| refused(&status))?.into_inner();
        let waiting = given(place.waiting).map(ImportState::Waiting);
        let imported = given(place.imported_from).map(ImportState::Imported);
        Ok(ImportPlace {
            id: volume_id(&place.volume_id)?,
            pool: place.pool_path.into(),
            pool_id: pool_id(&place.pool_id)?,
            state: imported.or(waiting).unwrap_or(ImportState::New),
            taken: place.taken_paths.into_iter().map(Into::into).collect(),
        })
    }

    fn import(&self, pool: &str, name: &VolumeName, id: VolumeId) -> Result<VolumeId> {
        let mut admin = self.0.admin.clone();
        let call = admin.import_volume(ImportVolumeRequest {
            name: name.to_string(),
            pool: pool.to_owned(),
        });
        let made = self.0.wait("", &id.to_string(), call);
        let made = made.map_err(|status| refused(&status))?.into_inner();
        volume_id(&made.volume_id)
    }

    fn export(&self, id: VolumeId, dry_run: bool) -> Result<Export> {
        let mut admin = self.0.admin.clone();
        let call = admin.export_volume(ExportVolumeRequest {
            volume_id: id.to_string(),
            dry_run,
        });
        let exported = self.0.wait("", &id.to_string(), call);
        let exported = exported.map_err(|status| refused(&status))?.into_inner();
        Ok(Export {
            pool: exported.pool_path.into(),
            pool_id: pool_id(&exported.pool_id)?,
            name: given(exported.name),
            origin: given(exported.origin),
            exported_to: given(exported.exported_to).map(Into::into),
            taken: exported.taken_paths.into_iter().map(Into::into).collect(),
        })
    }
}
