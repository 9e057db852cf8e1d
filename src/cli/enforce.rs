//! `rootcellar volume enforce`: by the server, which alone knows which volumes are published.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use tonic::Status;

use super::client::Clients;
use super::{cannot_print, runtime};
use crate::admin::EnforceVolumeRequest;
use crate::config::parse_endpoint;
use crate::csi;
use crate::error::{Error, Result};
use crate::types::VolumeId;

#[derive(Debug, Args)]
pub(super) struct EnforceArgs {
    /// Enforce the size of the volume with this id, as show tells it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,

    /// Enforce the sizes of all volumes that have a size and are not enforced
    #[arg(long)]
    all: bool,

    /// Ask the server at this Unix socket
    #[arg(
        long,
        env = "CSI_ENDPOINT",
        value_name = "URL",
        default_value = "unix:///csi/csi.sock"
    )]
    endpoint: String,
}

/// Enforces the size of one volume, or of all.
pub(super) fn run(args: &EnforceArgs) -> Result<ExitCode> {
    let socket = parse_endpoint(&args.endpoint)?;
    if let Some(id) = args.id.as_ref().filter(|id| VolumeId::parse(id).is_none()) {
        let problem = format!("{id:?} is not the id of a volume; rootcellar volume show tells it");
        return Err(Error::invalid("ID", problem));
    }
    runtime()?.block_on(async {
        let mut clients = Clients::of_server(&socket)?;
        let ids = match &args.id {
            Some(id) => vec![id.clone()],
            None => match unenforced(&mut clients).await {
                Ok(ids) => ids,
                Err(status) => return Ok(failed(&status)),
            },
        };
        if ids.is_empty() {
            say("every volume with a size is enforced")?;
        }
        let mut refused = 0;
        for id in &ids {
            match enforce(&mut clients, id, args.all).await {
                Ok(true) => say(&format!("the size of volume {id} is enforced now"))?,
                Ok(false) if args.all => say(&format!(
                    "the class of volume {id} asked for no enforcement; name the volume to enforce its size"
                ))?,
                Ok(false) => say(&format!("the size of volume {id} was enforced already"))?,
                Err(status) => {
                    failed(&status);
                    refused += 1;
                }
            }
        }
        if args.all && refused > 0 {
            eprintln!(
                "rootcellar: {refused} of {} volumes are not enforced",
                ids.len()
            );
        }
        Ok(if refused == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    })
}

async fn enforce(
    clients: &mut Clients,
    id: &str,
    keep_class: bool,
) -> std::result::Result<bool, Status> {
    let request = EnforceVolumeRequest {
        volume_id: id.to_owned(),
        keep_class,
    };
    let answer = clients.admin.enforce_volume(request).await?;
    Ok(answer.into_inner().changed)
}

/// The ids of the volumes that have a size and are not enforced.
async fn unenforced(clients: &mut Clients) -> std::result::Result<Vec<String>, Status> {
    let mut ids = Vec::new();
    let mut starting_token = String::new();
    loop {
        let request = csi::ListVolumesRequest {
            starting_token,
            ..Default::default()
        };
        let page = clients.controller.list_volumes(request).await?.into_inner();
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        let unenforced = volumes.filter(|volume| {
            let enforcement = volume.volume_context.get("enforcement");
            volume.capacity_bytes > 0 && enforcement.is_some_and(|word| word == "none")
        });
        ids.extend(unenforced.map(|volume| volume.volume_id));
        if page.next_token.is_empty() {
            return Ok(ids);
        }
        starting_token = page.next_token;
    }
}

fn say(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").map_err(cannot_print)
}

fn failed(status: &Status) -> ExitCode {
    eprintln!("rootcellar: {}", status.message());
    ExitCode::FAILURE
}
