//! `rootcellar volume move`. The server does it, because only the server knows the published volumes.

use std::time::Duration;

use clap::Args;
use objects::VolumeId;
use tonic::{Code, Status};

use super::client::{Server, ServerArgs, parse_id, print_refusal};
use super::output::print;
use crate::admin::move_volume_response::Outcome;
use crate::admin::{MoveVolumeRequest, MoveVolumeResponse};
use crate::error::Result;

/// How often the command asks again while another call works on the volume.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct MoveArgs {
    /// Move the volume with this id, as printed by show
    #[arg(value_parser = parse_id::<VolumeId>)]
    id: VolumeId,

    /// Move it to this member of its pool set
    #[arg(long, value_name = "[SET/]MEMBER")]
    to: String,

    /// Do not examine which processes use the volume
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &MoveArgs) -> Result<bool> {
    let server = args.server.connect()?;
    let id = args.id;
    match ask(&server, args) {
        Ok(MoveVolumeResponse {
            outcome,
            pool,
            from,
        }) => {
            let said = match Outcome::try_from(outcome) {
                Ok(Outcome::Before) => format!("is in {pool} already"),
                Ok(Outcome::Recovered) => format!(
                    "is in {pool} now, as the copy that an interrupted move made; check its data"
                ),
                Ok(Outcome::Moved | Outcome::Unknown) | Err(_) => {
                    format!("was moved from {from} to {pool}")
                }
            };
            print(format_args!("volume {id} {said}"))?;
            Ok(true)
        }
        Err(status) => {
            print_refusal(&status);
            Ok(false)
        }
    }
}

/// Asks the server, and waits while another call, such as an earlier move, works on the volume.
fn ask(server: &Server, args: &MoveArgs) -> Result<MoveVolumeResponse, Status> {
    let mut waits = false;
    loop {
        let request = MoveVolumeRequest {
            volume_id: args.id.to_string(),
            to: args.to.clone(),
            force: args.force,
        };
        let mut admin = server.admin.clone();
        let call = admin.move_volume(request);
        match server.wait("", &args.id.to_string(), call) {
            Err(status) if status.code() == Code::Aborted => {
                if !waits {
                    print_refusal(&status);
                    eprintln!("rootcellar: waiting for it to end");
                }
                waits = true;
                // A timer needs the runtime from its beginning.
                let pause = async { tokio::time::sleep(ASK_AGAIN).await };
                server.wait("", &args.id.to_string(), pause);
            }
            answer => return Ok(answer?.into_inner()),
        }
    }
}
