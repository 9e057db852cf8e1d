//! What was kept is deleted: by the server, which alone knows what is published.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use tonic::Status;

use super::client::{Clients, ServerArgs, no_id, refused};
use super::{cannot_print, runtime};
use crate::csi;
use crate::error::Result;
use crate::types::{ObjectId, SnapshotId, VolumeId};

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    /// Delete the one with this id, as show tells it
    id: String,

    #[command(flatten)]
    server: ServerArgs,
}

/// Deletes a volume.
pub(super) fn volume(args: &DeleteArgs) -> Result<ExitCode> {
    let is_id = VolumeId::parse(&args.id).is_some();
    args.run("volume", is_id, async |Clients { controller, .. }, id| {
        let volume_id = id.clone();
        let request = csi::ControllerGetVolumeRequest { volume_id };
        controller.controller_get_volume(request).await?;
        let request = csi::DeleteVolumeRequest {
            volume_id: id,
            ..Default::default()
        };
        controller.delete_volume(request).await.map(drop)
    })
}

/// Deletes a snapshot.
pub(super) fn snapshot(args: &DeleteArgs) -> Result<ExitCode> {
    let is_id = SnapshotId::parse(&args.id).is_some();
    args.run("snapshot", is_id, async |Clients { controller, .. }, id| {
        let snapshot_id = id.clone();
        let request = csi::GetSnapshotRequest {
            snapshot_id,
            ..Default::default()
        };
        controller.get_snapshot(request).await?;
        let request = csi::DeleteSnapshotRequest {
            snapshot_id: id,
            ..Default::default()
        };
        controller.delete_snapshot(request).await.map(drop)
    })
}

impl DeleteArgs {
    /// Has `delete` look first: to delete what is not there is no mistake to a server, and is one
    /// to whoever types an id.
    fn run(
        &self,
        what: &str,
        is_id: bool,
        delete: impl AsyncFnOnce(&mut Clients, String) -> std::result::Result<(), Status>,
    ) -> Result<ExitCode> {
        let (id, socket) = (&self.id, self.server.socket()?);
        if !is_id {
            return Err(no_id(what, id));
        }
        let deleted = runtime()?.block_on(async {
            let mut clients = Clients::of_server(&socket)?;
            Result::<_>::Ok(delete(&mut clients, id.clone()).await)
        })?;
        match deleted {
            Ok(()) => {
                let mut out = io::stdout().lock();
                writeln!(
                    out,
                    "{what} {id} is deleted; its space comes back in the background"
                )
                .map_err(cannot_print)?;
                Ok(ExitCode::SUCCESS)
            }
            Err(status) => Ok(refused(&status)),
        }
    }
}
