//! Deletion of retained volumes and snapshots. The server does it, because only the server knows the
//! published volumes.

use clap::Args;
use objects::{ObjectId, SnapshotId, VolumeId};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::client::{Server, ServerArgs, parse_id, print_refusal};
use super::output::print;
use crate::admin::DeleteNowRequest;
use crate::admin::admin_client::AdminClient;
use crate::csi;
use crate::error::Result;

#[derive(Debug, Args)]
pub(super) struct DeleteArgs<I: ObjectId + Send + Sync + 'static> {
    /// Delete the one with this id, as printed by show
    #[arg(value_parser = parse_id::<I>)]
    id: I,

    /// Delete it for good, even if its pool keeps deleted ones for a grace period
    #[arg(long)]
    now: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn volume(args: &DeleteArgs<VolumeId>) -> Result<bool> {
    args.run(|server, id, now| {
        let get = csi::ControllerGetVolumeRequest {
            volume_id: id.clone(),
        };
        server.runtime.block_on(async {
            let found = server.controller.controller_get_volume(get).await;
            // The copies of an unfinished move are no volume, and can be deleted.
            if let Err(absent) = found
                && absent.code() == Code::NotFound
            {
                return Err(absent);
            }
            if now {
                return delete_now(&mut server.admin, id).await;
            }
            let delete = csi::DeleteVolumeRequest {
                volume_id: id,
                ..Default::default()
            };
            server.controller.delete_volume(delete).await.map(drop)
        })
    })
}

pub(super) fn snapshot(args: &DeleteArgs<SnapshotId>) -> Result<bool> {
    args.run(|server, id, now| {
        let get = csi::GetSnapshotRequest {
            snapshot_id: id.clone(),
            ..Default::default()
        };
        server.runtime.block_on(async {
            server.controller.get_snapshot(get).await?;
            if now {
                return delete_now(&mut server.admin, id).await;
            }
            let delete = csi::DeleteSnapshotRequest {
                snapshot_id: id,
                ..Default::default()
            };
            server.controller.delete_snapshot(delete).await.map(drop)
        })
    })
}

async fn delete_now(admin: &mut AdminClient<Channel>, id: String) -> Result<(), Status> {
    admin.delete_now(DeleteNowRequest { id }).await.map(drop)
}

impl<I: ObjectId + Send + Sync + 'static> DeleteArgs<I> {
    /// Runs `delete`, which gets the object first: to the server, the deletion of an absent object is
    /// a success, but to a person it is a mistake.
    fn run(
        &self,
        delete: impl Fn(&mut Server, String, bool) -> Result<(), Status>,
    ) -> Result<bool> {
        let (object, id) = (I::OBJECT, self.id);
        let mut server = self.server.connect()?;
        if let Err(status) = delete(&mut server, id.to_string(), self.now) {
            print_refusal(&status);
            return Ok(false);
        }
        let later = if self.now {
            ""
        } else {
            ", later if its pool has keep="
        };
        print(format_args!(
            "{object} {id} is deleted; its space comes back in the background{later}"
        ))?;
        Ok(true)
    }
}
