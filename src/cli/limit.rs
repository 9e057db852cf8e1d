//! `rootcellar volume limit`. The server does it, because only the server writes records and knows the devices.

use clap::Args;
use linux::io::IoLimits;
use objects::VolumeId;
use tonic::Status;

use super::client::{Server, ServerArgs, parse_id, print_refusal};
use super::output::print;
use crate::admin::{LiftLimitsRequest, LimitVolumeRequest, LimitVolumeResponse};
use crate::error::Result;
use crate::volume::{parse_bytes, parse_operations};

/// The value of a flag that removes a limit.
const NONE: &str = "none";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(super) struct LimitArgs {
    /// Limit the volume with this id, as printed by show
    #[arg(value_parser = parse_id::<VolumeId>, required_unless_present = "lift_all")]
    id: Option<VolumeId>,

    /// Let pods read this number of bytes per second, such as 50Mi, or none for no limit
    #[arg(long, value_name = "BYTES", value_parser = bytes, group = "change")]
    read_bytes: Option<u64>,

    /// Let pods write this number of bytes per second
    #[arg(long, value_name = "BYTES", value_parser = bytes, group = "change")]
    write_bytes: Option<u64>,

    /// Let pods read this number of times per second, such as 500
    #[arg(long, value_name = "NUMBER", value_parser = operations, group = "change")]
    reads: Option<u64>,

    /// Let pods write this number of times per second
    #[arg(long, value_name = "NUMBER", value_parser = operations, group = "change")]
    writes: Option<u64>,

    /// Remove the limits of all volumes of this node from the kernel until the next start of the server
    #[arg(long, group = "change", conflicts_with_all = ["id", "read_bytes", "write_bytes", "reads", "writes"])]
    lift_all: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// Zero is no limit.
fn bytes(text: &str) -> Result<u64, String> {
    if text == NONE {
        Ok(0)
    } else {
        parse_bytes(text)
    }
}

fn operations(text: &str) -> Result<u64, String> {
    if text == NONE {
        Ok(0)
    } else {
        parse_operations(text)
    }
}

pub(super) fn run(args: &LimitArgs) -> Result<bool> {
    let server = args.server.connect()?;
    let done = match args.id {
        Some(id) => limit(&server, id, args),
        None => lift_all(&server),
    };
    match done {
        Ok(said) => print(format_args!("{said}")).map(|()| true),
        Err(status) => {
            print_refusal(&status);
            Ok(false)
        }
    }
}

fn limit(server: &Server, id: VolumeId, args: &LimitArgs) -> Result<String, Status> {
    let request = LimitVolumeRequest {
        volume_id: id.to_string(),
        read_bytes: args.read_bytes,
        write_bytes: args.write_bytes,
        read_operations: args.reads,
        write_operations: args.writes,
    };
    let mut admin = server.admin.clone();
    let answer = server.runtime.block_on(admin.limit_volume(request))?;
    let LimitVolumeResponse {
        read_bytes,
        write_bytes,
        read_operations,
        write_operations,
        before,
        are_lifted,
    } = answer.into_inner();
    let limits = IoLimits {
        read_bytes,
        write_bytes,
        read_operations,
        write_operations,
    };
    let when = if before { "already" } else { "now" };
    let until = if are_lifted {
        "; the kernel gets them at the next start of the server, because `volume limit --lift-all` was run"
    } else {
        ""
    };
    Ok(format!(
        "the I/O limits of volume {id} are {when}: {limits}{until}"
    ))
}

fn lift_all(server: &Server) -> Result<String, Status> {
    let mut admin = server.admin.clone();
    let answer = server
        .runtime
        .block_on(admin.lift_limits(LiftLimitsRequest {}))?;
    let devices = answer.into_inner().devices;
    Ok(format!(
        "removed the limits of {devices} devices from the kernel; the records keep them, and the next start of the server \
         sets them again"
    ))
}
