//! `rootcellar volume enforce`: by the server, which alone knows which volumes are published.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use tonic::Status;

use super::client::{Clients, ServerArgs, no_id, refused};
use super::{cannot_print, runtime};
use crate::admin::EnforceVolumeRequest;
use crate::admin::enforce_volume_response::Outcome;
use crate::csi;
use crate::error::Result;
use crate::types::{ObjectId, VolumeId};

#[derive(Debug, Args)]
pub(super) struct EnforceArgs {
    /// Enforce the size of the volume with this id, as show tells it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,

    /// Enforce the sizes of all volumes that have a size and are not enforced
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// Enforces the size of one volume, or of all.
pub(super) fn run(args: &EnforceArgs) -> Result<ExitCode> {
    let socket = args.server.socket()?;
    if let Some(id) = args.id.as_ref().filter(|id| VolumeId::parse(id).is_none()) {
        return Err(no_id("volume", id));
    }
    runtime()?.block_on(async {
        let mut clients = Clients::of_server(&socket)?;
        match &args.id {
            Some(id) => one(&mut clients, id).await,
            None => all(&mut clients).await,
        }
    })
}

async fn one(clients: &mut Clients, id: &str) -> Result<ExitCode> {
    let (line, code) = match enforce(clients, id).await {
        Ok(Outcome::Now | Outcome::Unknown) => ("is enforced now", ExitCode::SUCCESS),
        Ok(Outcome::Before) => ("was enforced already", ExitCode::SUCCESS),
        Ok(Outcome::Declined) => (
            "is not enforced, because its class asked for that; copy the data to a claim of another \
             class",
            ExitCode::FAILURE,
        ),
        Err(status) => return Ok(refused(&status)),
    };
    say(&format!("the size of volume {id} {line}"))?;
    Ok(code)
}

async fn all(clients: &mut Clients) -> Result<ExitCode> {
    let ids = match with_sizes(clients).await {
        Ok(ids) => ids,
        Err(status) => return Ok(refused(&status)),
    };
    let (mut now, mut before, mut declined, mut left) = (0, 0, 0, 0);
    for id in &ids {
        match enforce(clients, id).await {
            Ok(Outcome::Now | Outcome::Unknown) => {
                say(&format!("the size of volume {id} is enforced now"))?;
                now += 1;
            }
            Ok(Outcome::Before) => before += 1,
            Ok(Outcome::Declined) => declined += 1,
            Err(status) => {
                refused(&status);
                left += 1;
            }
        }
    }
    say(&format!(
        "{now} enforced now, {before} enforced before, {declined} not enforced because their class \
         asked for that, {left} refused"
    ))?;
    Ok(if left == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn enforce(clients: &mut Clients, id: &str) -> std::result::Result<Outcome, Status> {
    let volume_id = id.to_owned();
    let request = EnforceVolumeRequest { volume_id };
    let answer = clients.admin.enforce_volume(request).await?;
    Ok(answer.into_inner().outcome())
}

/// The ids of the volumes that have a size.
async fn with_sizes(clients: &mut Clients) -> std::result::Result<Vec<String>, Status> {
    let mut ids = Vec::new();
    let mut starting_token = String::new();
    loop {
        let request = csi::ListVolumesRequest {
            starting_token,
            ..Default::default()
        };
        let page = clients.controller.list_volumes(request).await?.into_inner();
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        let sized = volumes.filter(|volume| volume.capacity_bytes > 0);
        ids.extend(sized.map(|volume| volume.volume_id));
        if page.next_token.is_empty() {
            return Ok(ids);
        }
        starting_token = page.next_token;
    }
}

fn say(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").map_err(cannot_print)
}
