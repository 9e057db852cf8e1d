//! Deletion of retained volumes and snapshots. The server does it, because only the server knows the
//! published volumes.

use clap::Args;
use objects::{ObjectId, SnapshotId, VolumeId};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::client::{Named, Server, ServerArgs, parse_named, print_refusal};
use super::output::print;
use crate::admin::DeleteNowRequest;
use crate::admin::admin_client::AdminClient;
use crate::csi;
use crate::error::Result;

/// How many ids are asked for at once: fewer bytes than a message of gRPC may have.
const PAGE: i32 = 1000;

#[derive(Debug, Args)]
pub(super) struct DeleteArgs<I: Listed> {
    /// Delete the one with this id, as printed by show, or with the hash at the end of the id
    #[arg(value_parser = parse_named::<I>)]
    id: Named<I>,

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

/// The ids of a kind, as the server lists them.
pub(super) trait Listed: ObjectId + Send + Sync + 'static {
    /// The ids of a page, and the token of the next one.
    fn page(server: &mut Server, token: String) -> Result<(Vec<Self>, String), Status>;

    fn all(server: &mut Server) -> Result<Vec<Self>, Status> {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let (ids, next) = Self::page(server, token)?;
            all.extend(ids);
            if next.is_empty() {
                return Ok(all);
            }
            token = next;
        }
    }
}

impl Listed for VolumeId {
    fn page(server: &mut Server, token: String) -> Result<(Vec<Self>, String), Status> {
        let request = csi::ListVolumesRequest {
            max_entries: PAGE,
            starting_token: token,
        };
        let page = server.controller.list_volumes(request);
        let page = server.runtime.block_on(page)?.into_inner();
        let ids = page.entries.into_iter().filter_map(|entry| entry.volume);
        let ids = ids.filter_map(|volume| Self::parse(&volume.volume_id));
        Ok((ids.collect(), page.next_token))
    }
}

impl Listed for SnapshotId {
    fn page(server: &mut Server, token: String) -> Result<(Vec<Self>, String), Status> {
        let request = csi::ListSnapshotsRequest {
            max_entries: PAGE,
            starting_token: token,
            ..Default::default()
        };
        let page = server.controller.list_snapshots(request);
        let page = server.runtime.block_on(page)?.into_inner();
        let ids = page.entries.into_iter().filter_map(|entry| entry.snapshot);
        let ids = ids.filter_map(|snapshot| Self::parse(&snapshot.snapshot_id));
        Ok((ids.collect(), page.next_token))
    }
}

impl<I: Listed> DeleteArgs<I> {
    /// Runs `delete`, which gets the object first: to the server, the deletion of an absent object is
    /// a success, but to a person it is a mistake.
    fn run(
        &self,
        delete: impl Fn(&mut Server, String, bool) -> Result<(), Status>,
    ) -> Result<bool> {
        let object = I::OBJECT;
        let mut server = self.server.connect()?;
        let id = match self.id.id(|| I::all(&mut server)) {
            Ok(Some(id)) => id,
            Ok(None) => {
                eprintln!("rootcellar: no {object} or several have this hash; give the id");
                return Ok(false);
            }
            Err(status) => {
                print_refusal(&status);
                return Ok(false);
            }
        };
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
