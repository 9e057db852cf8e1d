//! `rootcellar demo`: the real server in a temporary directory, and this process as provisioner
//! and kubelet. Everything it mounts is in a mount namespace of its own, which ends with it.

mod client;
mod place;
mod report;
mod server;
mod story;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use place::Place;
use report::{Failure, Report};
use server::Server;

use super::client::Clients;
use super::{cannot_print, runtime};
use crate::error::Result;

/// What the demo takes.
#[derive(Debug, clap::Args)]
pub(super) struct DemoArgs {
    /// Make the temporary directory in this one [default: $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What every step of the story works with.
struct Demo {
    place: Place,
    server: Server,
    clients: Clients,
    report: Report<io::Stdout>,
}

/// Plays the story; a step that goes otherwise than it should is a failure.
pub(super) fn run(args: &DemoArgs) -> Result<ExitCode> {
    // Before anything starts a thread: a namespace is entered by the calling thread alone.
    let namespace = place::enter_namespace()?;
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let place = Place::make(&base)?;
    let runtime = runtime()?;
    let mut report = Report::new(io::stdout());
    report.opening(&place, namespace).map_err(cannot_print)?;
    runtime.block_on(play(place, report))
}

async fn play(place: Place, report: Report<io::Stdout>) -> Result<ExitCode> {
    let server = Server::start(&place)?;
    let clients = Clients::new(&place.socket())?;
    let mut demo = Demo {
        place,
        server,
        clients,
        report,
    };
    let ended = tokio::select! {
        ended = story::tell(&mut demo) => ended,
        () = told_to_stop() => Err(Failure::interrupted()),
    };
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            // Read before the server is told to stop, which it logs as well.
            let log = demo.place.log_tail();
            let stopped = demo.server.stop().await;
            demo.report
                .failure(&failure, &log, &demo.place)
                .map_err(cannot_print)?;
            stopped?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Ends at SIGINT or SIGTERM; where they cannot be waited for, never.
async fn told_to_stop() {
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        Ok(()) = tokio::signal::ctrl_c() => {}
        Some(()) = terminate => {}
        else => std::future::pending().await,
    }
}
