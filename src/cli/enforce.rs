//! `rootcellar volume enforce`. The server does it, because only the server knows the published
//! volumes.

use clap::Args;
use objects::VolumeId;
use tonic::Status;

use super::client::{Server, ServerArgs, parse_id, print_refusal};
use super::output::print;
use crate::admin::EnforceVolumeRequest;
use crate::admin::enforce_volume_response::Outcome;
use crate::csi;
use crate::error::Result;

#[derive(Debug, Args)]
pub(super) struct EnforceArgs {
    /// Enforce the size of the volume with this id, as printed by show
    #[arg(required_unless_present = "all", conflicts_with = "all",
          value_parser = parse_id::<VolumeId>)]
    id: Option<VolumeId>,

    /// Enforce the sizes of all volumes that have a size and are not enforced
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &EnforceArgs) -> Result<bool> {
    let mut server = args.server.connect()?;
    let done = match args.id {
        Some(id) => enforce(&server, "", &id.to_string()).map(|outcome| one(id, outcome)),
        None => sized_volumes(&mut server).map(|ids| all(&server, ids)),
    };
    done.unwrap_or_else(|status| {
        print_refusal(&status);
        Ok(false)
    })
}

fn one(id: VolumeId, outcome: Outcome) -> Result<bool> {
    let said = match outcome {
        Outcome::Now | Outcome::Unknown => "is enforced now",
        Outcome::Before => "was enforced already",
        Outcome::Declined => {
            "is not enforced, because its class asked for that; copy the data to a claim of another \
             class"
        }
    };
    print(format_args!("the size of volume {id} {said}"))?;
    Ok(outcome != Outcome::Declined)
}

fn all(server: &Server, ids: Vec<String>) -> Result<bool> {
    let (mut now, mut before, mut declined, mut refused) = (0, 0, 0, 0);
    let of = ids.len();
    for (index, id) in ids.into_iter().enumerate() {
        let about = format!("volume {} of {of}, ", index + 1);
        match enforce(server, &about, &id) {
            Ok(Outcome::Now | Outcome::Unknown) => {
                print(format_args!("the size of volume {id} is enforced now"))?;
                now += 1;
            }
            Ok(Outcome::Before) => before += 1,
            Ok(Outcome::Declined) => declined += 1,
            Err(status) => {
                print_refusal(&status);
                refused += 1;
            }
        }
    }
    print(format_args!(
        "{now} enforced now, {before} enforced before, {declined} not enforced because their class \
         asked for that, {refused} refused"
    ))?;
    Ok(refused == 0)
}

fn enforce(server: &Server, about: &str, id: &str) -> Result<Outcome, Status> {
    let mut admin = server.admin.clone();
    let volume_id = id.to_owned();
    let call = admin.enforce_volume(EnforceVolumeRequest { volume_id });
    Ok(server.wait(about, id, call)?.into_inner().outcome())
}

fn sized_volumes(server: &mut Server) -> Result<Vec<String>, Status> {
    let mut ids = Vec::new();
    let mut request = csi::ListVolumesRequest::default();
    loop {
        let call = server.controller.list_volumes(request.clone());
        let page = server.runtime.block_on(call)?.into_inner();
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        let sized = volumes.filter(|volume| volume.capacity_bytes > 0);
        ids.extend(sized.map(|volume| volume.volume_id));
        if page.next_token.is_empty() {
            return Ok(ids);
        }
        request.starting_token = page.next_token;
    }
}
