//! Deleted volumes and snapshots that pools keep: `undelete` and `purge`.

use clap::Args;
use objects::{DriverArgs, ObjectId, SnapshotId, VolumeId, VolumeName};
use uuid::Uuid;

use super::client::{Named, ServerArgs, parse_id, parse_named, print_refusal};
use super::inspect::InspectArgs;
use super::manifest;
use super::output::print;
use crate::admin::{PurgeRequest, UndeleteRequest, UndeleteResponse};
use crate::error::{Error, Result};

#[derive(Debug, Args)]
pub(super) struct UndeleteArgs {
    /// Bring back those with these ids, as printed by list --deleted, or with the hashes at the ends of the ids
    #[arg(value_parser = parse_named::<VolumeId>, required = true)]
    ids: Vec<Named<VolumeId>>,

    /// Give the volume this name, and with it another id, because its own is taken
    #[arg(long = "as", value_name = "NAME")]
    name: Option<VolumeName>,

    /// Bring back this entry, and not the newest, if several deleted ones have the id
    #[arg(long, value_name = "ENTRY")]
    entry: Option<Uuid>,

    /// Print this class where the record has none
    #[arg(long, value_name = "NAME")]
    class: Option<String>,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    driver: DriverArgs,

    #[command(flatten)]
    inspect: InspectArgs,
}

#[derive(Debug, Args)]
pub(super) struct UndeleteSnapshotArgs {
    /// Bring back those with these ids, as printed by list --deleted
    #[arg(value_parser = parse_id::<SnapshotId>, required = true)]
    ids: Vec<SnapshotId>,

    /// Bring back this entry, and not the newest, if several deleted ones have the id
    #[arg(long, value_name = "ENTRY")]
    entry: Option<Uuid>,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(super) struct PurgeArgs<I: ObjectId + Send + Sync + 'static> {
    /// Delete for good those with this id, as printed by list --deleted
    #[arg(value_parser = parse_id::<I>, required_unless_present = "all", conflicts_with = "all")]
    id: Option<I>,

    /// Delete for good all deleted volumes and snapshots
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// Brings back objects, and runs `came_back` with the answer about each that exists now, which returns whether all is
/// well.
fn undelete<I: ObjectId>(
    server: &ServerArgs,
    ids: &[I],
    entry: Option<Uuid>,
    name: Option<&VolumeName>,
    came_back: impl Fn(&UndeleteResponse) -> Result<bool>,
) -> Result<bool> {
    let mut server = server.connect()?;
    let mut is_fine = true;
    for id in ids {
        let request = UndeleteRequest {
            id: id.to_string(),
            entry: entry.map(|entry| entry.to_string()).unwrap_or_default(),
            name: name.map(ToString::to_string).unwrap_or_default(),
        };
        is_fine &= match server.runtime.block_on(server.admin.undelete(request)) {
            Ok(response) => came_back(&response.into_inner())?,
            Err(status) => {
                print_refusal(&status);
                false
            }
        };
    }
    Ok(is_fine)
}

fn outcome(undeleted: &UndeleteResponse) -> String {
    let id = &undeleted.id;
    if undeleted.existed && !undeleted.ended.is_empty() {
        let ended = &undeleted.ended;
        return format!("{id} exists, and no deleted one has this id; an older one was {ended}");
    }
    if undeleted.existed {
        format!(
            "{id} exists, and no deleted one has this id: it came back before, or was never deleted"
        )
    } else {
        format!("{id} is back")
    }
}

/// The id of a volume, which a repeated command finds among the others.
fn volume(named: Named<VolumeId>, inspect: &InspectArgs) -> Result<VolumeId> {
    let all = || -> Result<Vec<VolumeId>> {
        let pools = inspect.contents()?;
        let kept = pools.iter().flat_map(|contents| &contents.kept_volumes);
        let volumes = pools.iter().flat_map(|contents| &contents.volumes);
        let ids = kept.map(|deleted| deleted.record.id);
        Ok(ids
            .chain(volumes.map(|held| held.entry.record.id))
            .collect())
    };
    let found = named.id(all)?;
    found.ok_or_else(|| Error::invalid("ID", "no volume or several have this hash; give the id"))
}

/// Brings back volumes, and prints the objects of those that came back.
pub(super) fn undelete_volumes(args: &UndeleteArgs) -> Result<bool> {
    let name = args.name.as_ref();
    let ids = args.ids.iter().map(|named| volume(*named, &args.inspect));
    let ids = ids.collect::<Result<Vec<_>>>()?;
    undelete(&args.server, &ids, args.entry, name, |undeleted| {
        eprintln!("rootcellar: volume {}", outcome(undeleted));
        manifest::print_of(
            &undeleted.id,
            args.class.as_ref(),
            &args.driver,
            &args.inspect,
        )
    })
}

pub(super) fn undelete_snapshots(args: &UndeleteSnapshotArgs) -> Result<bool> {
    undelete(&args.server, &args.ids, args.entry, None, |undeleted| {
        print(format_args!("snapshot {}", outcome(undeleted)))?;
        Ok(true)
    })
}

pub(super) fn purge<I: ObjectId + Send + Sync + 'static>(args: &PurgeArgs<I>) -> Result<bool> {
    let id = args.id.map(|id| id.to_string()).unwrap_or_default();
    let mut server = args.server.connect()?;
    let purged = server.admin.purge(PurgeRequest { id, all: args.all });
    match server.runtime.block_on(purged) {
        Ok(response) => {
            let purged = response.into_inner().purged;
            print(format_args!(
                "{purged} deleted for good; the space comes back in the background"
            ))?;
            Ok(true)
        }
        Err(status) => {
            print_refusal(&status);
            Ok(false)
        }
    }
}
