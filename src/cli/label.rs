//! `rootcellar volume label`. The server does it, because only the server writes records.

use clap::Args;
use objects::{ClaimLabel, VolumeId};

use super::client::{ServerArgs, parse_id, print_refusal};
use super::manifest::parse_claim;
use super::output::print;
use crate::admin::{LabelVolumeRequest, LabelVolumeResponse};
use crate::error::Result;

#[derive(Debug, Args)]
pub(super) struct LabelArgs {
    /// Change the record of the volume with this id, as printed by show
    #[arg(value_parser = parse_id::<VolumeId>)]
    id: VolumeId,

    /// Name this claim
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = parse_claim)]
    claim: ClaimLabel,

    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &LabelArgs) -> Result<bool> {
    let server = args.server.connect()?;
    let id = args.id;
    let request = LabelVolumeRequest {
        volume_id: id.to_string(),
        namespace: args.claim.namespace.clone().unwrap_or_default(),
        claim: args.claim.claim.clone().unwrap_or_default(),
    };
    let mut admin = server.admin.clone();
    match server.runtime.block_on(admin.label_volume(request)) {
        Ok(answer) => {
            let LabelVolumeResponse {
                namespace,
                claim,
                before,
                ..
            } = answer.into_inner();
            let when = if before { "already" } else { "now" };
            print(format_args!(
                "the record of volume {id} names the claim {namespace}/{claim} {when}"
            ))?;
            Ok(true)
        }
        Err(status) => {
            print_refusal(&status);
            Ok(false)
        }
    }
}
