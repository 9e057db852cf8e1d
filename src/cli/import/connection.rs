//! The calls of imports and exports, by the socket of a server.

use std::path::Path;
use std::sync::Mutex;
use std::thread;

use linux::sync::lock;
use objects::{PoolId, VolumeId, VolumeName};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::admin::{
    CheckImportRequest, CopyVolumeRequest, CopyVolumeResponse, DropExportRequest,
    ExportVolumeRequest, ImportVolumeRequest,
};
use crate::cli::client::{Server, parse_id};
use crate::error::{Error, Refusal, Result, Unfinished};
use crate::host::ImportServer;
use crate::pool::ImportMethod;
use crate::volume::{Export, Fill, ImportPlace, ImportRequest, ImportState};

/// The server at its socket, and the volume of the last answer.
pub(super) struct Connection {
    server: Server,
    id: String,
}

impl Connection {
    pub(super) fn new(server: Server) -> Self {
        let id = String::new();
        Self { server, id }
    }

    fn id(text: &str) -> Result<VolumeId> {
        parse_id(text).map_err(|problem| Error::Internal(format!("{text:?}: {problem}")))
    }
}

/// The answer of the server, or the loss of the connection to it.
fn refused(status: &Status) -> Error {
    let message = status.message().to_owned();
    match (std::error::Error::source(status), status.code()) {
        (Some(error), _) => lost(&error.to_string()),
        (None, Code::Aborted) => Error::from(Refusal::Server(message)).unfinished(),
        (None, _) => Refusal::Server(message).into(),
    }
}

fn lost(why: &str) -> Error {
    let why = why.to_owned();
    Unfinished::Lost { why }.into()
}

async fn next(responses: &mut Streaming<CopyVolumeResponse>) -> Result<CopyVolumeResponse> {
    let response = responses.message().await;
    let response = response.map_err(|status| refused(&status))?;
    response.ok_or_else(|| lost("it closed"))
}

fn pool_id(text: &str) -> Result<PoolId> {
    let id = PoolId::parse(text);
    id.ok_or_else(|| Error::Internal(format!("{text:?} is no id of a pool")))
}

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl ImportServer for Connection {
    fn check_import(&mut self, request: &ImportRequest) -> Result<ImportPlace> {
        let asked = CheckImportRequest {
            name: request.name.to_string(),
            pool: request.pool.clone(),
            ..Default::default()
        };
        let call = self.server.admin.check_import(match &request.new {
            None => asked,
            Some(new) => CheckImportRequest {
                size_bytes: new.size.0,
                used_bytes: new.used.0,
                used_inodes: new.inodes,
                copy: new.by == ImportMethod::Copy,
                ..asked
            },
        });
        let place = self.server.runtime.block_on(call);
        let place = place.map_err(|status| refused(&status))?.into_inner();
        let waiting = given(place.waiting).map(ImportState::Waiting);
        let imported = given(place.imported_from).map(ImportState::Imported);
        self.id.clone_from(&place.volume_id);
        Ok(ImportPlace {
            id: Self::id(&place.volume_id)?,
            pool: place.pool_path.into(),
            pool_id: pool_id(&place.pool_id)?,
            state: imported.or(waiting).unwrap_or(ImportState::New),
            renames: place.renames,
            taken: place.taken_paths.into_iter().map(Into::into).collect(),
        })
    }

    fn import(&mut self, pool: &str, name: &VolumeName) -> Result<VolumeId> {
        let mut admin = self.server.admin.clone();
        let call = admin.import_volume(ImportVolumeRequest {
            name: name.to_string(),
            pool: pool.to_owned(),
        });
        let made = self.server.wait("", &self.id, call);
        let made = made.map_err(|status| refused(&status))?.into_inner();
        Self::id(&made.volume_id)
    }

    fn import_copy(&mut self, pool: &str, name: &VolumeName, fill: Fill<'_>) -> Result<VolumeId> {
        let (requests, receiver) = mpsc::channel(2);
        let first = CopyVolumeRequest {
            name: name.to_string(),
            pool: pool.to_owned(),
            copied: false,
        };
        // There is space for both requests.
        let send = |request| requests.try_send(request).map_err(|_| lost("it stopped"));
        send(first)?;
        let call = self.server.admin.copy_volume(ReceiverStream::new(receiver));
        let responses = self.server.runtime.block_on(call);
        let mut responses = responses.map_err(|status| refused(&status))?.into_inner();
        let place = self.server.runtime.block_on(next(&mut responses))?;
        if !place.volume_id.is_empty() {
            // Another command has made it.
            return Self::id(&place.volume_id);
        }
        let ended = Mutex::new(None);
        let goes_on = || match &*lock(&ended) {
            None => Ok(()),
            Some(_) => Err(lost("it stopped")),
        };
        let stop = Notify::new();
        // The connection is watched while the tree is copied.
        let watched = thread::scope(|scope| {
            let (runtime, stop) = (&self.server.runtime, &stop);
            let (ended, responses) = (&ended, &mut responses);
            let watch = scope.spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = stop.notified() => {}
                        response = next(responses) => *lock(ended) = Some(response),
                    }
                });
            });
            let filled = fill(Path::new(&place.path), &goes_on);
            stop.notify_one();
            let watched = watch.join();
            watched.map_err(|_| Error::Internal("the watch of the connection panicked".into()))?;
            filled
        });
        // The server's own reason is better than that the copy was stopped.
        if let Some(Err(error)) = lock(&ended).take() {
            return Err(error);
        }
        if let Err(error) = watched {
            // The server discards the copy when the requests end, and answers then.
            drop(requests);
            let _ = self.server.runtime.block_on(next(&mut responses));
            return Err(error);
        }
        send(CopyVolumeRequest {
            copied: true,
            ..Default::default()
        })?;
        let made = self.server.wait("", &self.id, next(&mut responses))?;
        Self::id(&made.volume_id)
    }

    fn export(&mut self, id: &str, dry_run: bool) -> Result<Export> {
        let mut admin = self.server.admin.clone();
        let call = admin.export_volume(ExportVolumeRequest {
            volume_id: id.to_owned(),
            dry_run,
        });
        let exported = self.server.wait("", id, call);
        let exported = exported.map_err(|status| refused(&status))?.into_inner();
        Ok(Export {
            pool: exported.pool_path.into(),
            pool_id: pool_id(&exported.pool_id)?,
            name: given(exported.name),
            origin: given(exported.origin),
            renames: exported.renames,
            exported_to: given(exported.exported_to).map(Into::into),
            taken: exported.taken_paths.into_iter().map(Into::into).collect(),
        })
    }

    fn drop_export(&mut self, id: &str) -> Result<()> {
        let call = self.server.admin.drop_export(DropExportRequest {
            volume_id: id.to_owned(),
        });
        let dropped = self.server.runtime.block_on(call);
        dropped.map_err(|status| refused(&status)).map(drop)
    }
}
