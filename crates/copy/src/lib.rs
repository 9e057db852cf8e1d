//! The command line `rootcellar-copy`. It copies the files of a volume into another one, in one pod or from pod to pod, and
//! goes on where it was interrupted.

#![forbid(unsafe_code)]

mod attributes;
mod content;
mod direct;
mod fault;
mod open;
mod progress;
mod receive;
mod record;
mod send;
mod verify;
mod volume;
mod walk;

use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};

use direct::{ReceiveOptions, SendOptions};
use fault::{Doing, Error, Result};
use receive::receive;
use record::CHUNK_BYTES;
use send::{Need, fingerprint, have, send};
use volume::{Top, clean, pipe, space};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;
/// `EX_TEMPFAIL` of sysexits.h: no direct stream began, and the copy can take another way.
const NO_STREAM: u8 = 75;

/// Copy the files of a volume into an empty one, with all their attributes
#[derive(Debug, Parser)]
#[command(name = "rootcellar-copy", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Wait until the pod ends, so that commands can run in it
    Idle,
    /// Print the bytes and entries that a copy of this volume needs
    Need { source: PathBuf },
    /// Print the bytes and entries that are free in this volume; - stands for entries without a limit
    Space { target: PathBuf },
    /// Print a word that changes with every change of this volume
    Fingerprint { source: PathBuf },
    /// Copy a volume into another one of this pod, or continue an interrupted copy; prints the fingerprint of the source
    Local {
        source: PathBuf,
        target: PathBuf,
        #[command(flatten)]
        id: Id,
    },
    /// Write to stdout what the target has, for send
    Have {
        target: PathBuf,
        #[command(flatten)]
        id: Id,
    },
    /// Read from stdin the output of have, and write to stdout the rest of this volume; or both over the network
    Send {
        source: PathBuf,
        #[command(flatten)]
        to: SendOptions,
    },
    /// Read the rest of a volume, from stdin or over the network, and compare the whole; prints the fingerprint of the source
    Receive {
        target: PathBuf,
        #[command(flatten)]
        id: Id,
        #[command(flatten)]
        from: ReceiveOptions,
    },
    /// Remove from the target what a complete copy kept there for itself
    Clean {
        target: PathBuf,
        #[command(flatten)]
        id: Id,
    },
}

#[derive(Debug, clap::Args)]
struct Id {
    /// The id of this copy: 1 to 64 letters, digits and hyphens
    #[arg(long, value_parser = parse_id)]
    id: String,
}

fn parse_id(text: &str) -> std::result::Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("not 1 to 64 letters, digits and hyphens".to_owned())
    }
}

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    let Cli { command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let is_mistake = error.use_stderr();
            return match error.print() {
                Ok(()) if !is_mistake => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rootcellar-copy: {error}");
            if error.is_before_the_stream() {
                ExitCode::from(NO_STREAM)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Idle => idle(),
        Command::Need { source } => {
            let Need { bytes, entries, .. } = Need::of(&Top::open(source, false)?)?;
            print(&format!("{bytes} {entries}"))
        }
        Command::Space { target } => {
            let (bytes, entries) = space(&Top::open(target, true)?)?;
            let entries = entries.map_or_else(|| "-".to_owned(), |entries| entries.to_string());
            print(&format!("{bytes} {entries}"))
        }
        Command::Fingerprint { source } => print(&word(fingerprint(&Top::open(source, false)?)?)),
        Command::Local { source, target, id } => {
            let fingerprint = local(source, target, &id.id)?;
            print(&format!("fingerprint {}", word(fingerprint)))
        }
        Command::Have { target, id } => {
            let top = Top::open(target, true)?;
            // The receiver of an interrupted run may not have ended yet.
            top.lock()?;
            top.unlock()?;
            have(&top, &id.id, &mut BufWriter::new(io::stdout().lock()))
        }
        Command::Send { source, to } => {
            let source = Top::open(source, false)?;
            if let Some(caller) = to.caller()? {
                return caller.send(|had, to| send(&source, had, to));
            }
            let out = BufWriter::with_capacity(CHUNK_BYTES, io::stdout().lock());
            send(&source, BufReader::new(io::stdin().lock()), out)
        }
        Command::Receive { target, id, from } => {
            let fingerprint = received(Top::open(target, true)?, &id.id, from)?;
            print(&format!("fingerprint {}", word(fingerprint)))
        }
        Command::Clean { target, id } => clean(&Top::open(target, true)?, &id.id),
    }
}

/// Receives over the network, if the options say so, or from stdin.
fn received(top: Top, id: &str, from: &ReceiveOptions) -> Result<u128> {
    let Some(listener) = from.listener(id)? else {
        let mut stream = BufReader::with_capacity(CHUNK_BYTES, io::stdin().lock());
        return receive(&top, id, &mut stream);
    };
    // Both read the target, so the receiver of an interrupted run must have ended.
    top.lock()?;
    let (top, own_id) = (Arc::new(top), id.to_owned());
    let same = Arc::clone(&top);
    listener.receive(
        move |to| have(&same, &own_id, to),
        |from| receive(&top, id, from),
    )
}

/// Waits for the signal that ends the pod, which the kernel does not deliver by itself to the first process of a container.
fn idle() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    let waited = signals.thread_block().and_then(|()| signals.wait());
    waited
        .map(drop)
        .map_err(io::Error::from)
        .doing("wait for a signal")
}

fn word(fingerprint: u128) -> String {
    format!("{fingerprint:032x}")
}

fn print(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").doing("write to stdout")
}

/// Copies through pipes between threads, as between two pods.
fn local(source: &Path, target: &Path, id: &str) -> Result<u128> {
    let (source, target) = (Top::open(source, false)?, Top::open(target, true)?);
    source.is_not(&target)?;
    // Before it is read.
    target.lock()?;
    let (had_from, had_to) = pipe()?;
    let (from, to) = pipe()?;
    thread::scope(|scope| {
        let had = scope.spawn(|| have(&target, id, &mut BufWriter::new(had_to)));
        let sender = scope.spawn(|| {
            let to = BufWriter::with_capacity(CHUNK_BYTES, to);
            send(&source, BufReader::new(had_from), to)
        });
        let mut from = BufReader::with_capacity(CHUNK_BYTES, from);
        let received = receive(&target, id, &mut from);
        drop(from);
        let ended = || Err(Error::EndedEarly);
        let sent = sender.join().unwrap_or_else(|_| ended());
        let had = had.join().unwrap_or_else(|_| ended());
        // If one end fails, the next one only knows that its stream ended.
        match (had, sent, received) {
            (_, _, Ok(fingerprint)) => Ok(fingerprint),
            (Err(had), _, _) if !had.is_pipe() => Err(had),
            (_, Err(sent), Err(_)) if !sent.is_pipe() => Err(sent),
            (_, _, received) => received,
        }
    })
}

#[cfg(test)]
mod tests;
