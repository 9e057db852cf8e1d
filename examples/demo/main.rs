//! `make demo`: the real server in a temporary directory, and this process as provisioner and
//! kubelet. All its mounts are in a mount namespace of its own, which ends with it.

mod client;
mod place;
mod report;
mod server;
mod story;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use rootcellar::error::{Error, Result};
use tokio::signal::unix::{SignalKind, signal};

use client::Clients;
use place::{Place, failed};
use report::{Failure, Report};
use server::Server;

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;

/// The resources of every step of the story.
struct Demo {
    binary: PathBuf,
    place: Place,
    server: Server,
    clients: Clients,
    report: Report<io::Stdout>,
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(binary), None) = (args.next(), args.next()) else {
        eprintln!("usage: demo BINARY, the rootcellar to start");
        return ExitCode::from(USAGE);
    };
    run(binary.into()).unwrap_or_else(|error| {
        eprintln!("demo: {error}");
        ExitCode::FAILURE
    })
}

/// Plays the story; a step with another result than the expected one is a failure.
fn run(binary: PathBuf) -> Result<ExitCode> {
    // Before anything starts a thread, because only the calling thread enters a namespace.
    let namespace = place::enter_namespace()?;
    let place = Place::make(&std::env::temp_dir())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Internal(format!("cannot start the runtime: {error}")))?;
    let mut report = Report::new(io::stdout());
    report.opening(&place, namespace).map_err(cannot_print)?;
    runtime.block_on(play(binary, place, report))
}

async fn play(binary: PathBuf, place: Place, report: Report<io::Stdout>) -> Result<ExitCode> {
    let server = Server::start(&binary, &place)?;
    let clients = Clients::new(&place.socket())?;
    let mut demo = Demo {
        binary,
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
            // Read before the server's stop, which it logs as well.
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

/// Returns the error of a report that cannot be printed.
fn cannot_print(source: io::Error) -> Error {
    failed("write to", "/dev/stdout", source)
}

/// Returns at SIGINT or SIGTERM, or never if they cannot be awaited.
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
