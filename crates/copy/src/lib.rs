//! The command line `rootcellar-copy`. It copies the files of a volume into another one, in one pod or from pod to pod, and
//! goes on where it was interrupted.

#![forbid(unsafe_code)]

mod fault;
mod journal;
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
use std::thread;

use clap::{Parser, Subcommand};

use fault::{Doing, Error, Result};
use journal::Own;
use receive::{Pace, receive};
use record::{MAX_DATA, Position, State};
use send::{Need, send};
use volume::{clean, open, pipe, read_state, space};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;

/// Copy the files of a volume into an empty one, with all their attributes
#[derive(Debug, Parser)]
#[command(name = "rootcellar-copy", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the bytes and entries that a copy of this volume needs
    Need { source: PathBuf },
    /// Print the bytes and entries that are free in this volume; - if entries have no limit
    Space { target: PathBuf },
    /// Print a word that changes with every change of this volume
    Fingerprint { source: PathBuf },
    /// Copy a volume into another one of this pod, or go on with that; prints the fingerprint of the source
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
    /// Read from stdin what the target has, and write to stdout the rest of this volume
    Send { source: PathBuf },
    /// Read from stdin the rest of a volume, and compare the whole; prints the fingerprint of the source
    Receive {
        target: PathBuf,
        #[command(flatten)]
        id: Id,
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
    /// Of this copy: letters, digits and hyphens
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
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Need { source } => {
            let Need { bytes, entries, .. } = Need::of(&open(source)?)?;
            print(&format!("{bytes} {entries}"))
        }
        Command::Space { target } => {
            let (bytes, entries) = space(open(target)?)?;
            let entries = entries.map_or_else(|| "-".to_owned(), |entries| entries.to_string());
            print(&format!("{bytes} {entries}"))
        }
        Command::Fingerprint { source } => print(&word(Need::of(&open(source)?)?.fingerprint)),
        Command::Local { source, target, id } => {
            let fingerprint = local(source, target, &id.id, Pace::default())?;
            print(&format!("fingerprint {}", word(fingerprint)))
        }
        Command::Have { target, id } => {
            let state = state(target, &id.id)?;
            let mut out = io::stdout().lock();
            record::write(&mut out, &state)
                .and_then(|()| out.flush())
                .doing("write to stdout")
        }
        Command::Send { source } => {
            let state = read_state(&mut io::stdin().lock())?;
            let mut out = BufWriter::with_capacity(MAX_DATA, io::stdout().lock());
            send(&open(source)?, state, &mut out)
        }
        Command::Receive { target, id } => {
            let mut stream = BufReader::with_capacity(MAX_DATA, io::stdin().lock());
            let fingerprint = receive(&open(target)?, &id.id, Pace::default(), &mut stream)?;
            print(&format!("fingerprint {}", word(fingerprint)))
        }
        Command::Clean { target, id } => clean(&open(target)?, &id.id),
    }
}

fn word(fingerprint: u128) -> String {
    format!("{fingerprint:032x}")
}

fn print(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").doing("write to stdout")
}

fn state(target: &Path, id: &str) -> Result<State> {
    match Own::find(&open(target)?, id)? {
        Some(own) => own.state(),
        None => Ok(State::At(Position::default())),
    }
}

/// Copies through a pipe between two threads, as between two pods.
fn local(source: &Path, target: &Path, id: &str, pace: Pace) -> Result<u128> {
    let (source, target) = (open(source)?, open(target)?);
    let os = linux::os::Os::default();
    let lock = Own::open(&os, &target, id)?;
    lock.lock()?;
    let state = lock.state()?;
    // The receiver locks for itself.
    drop(lock);
    let (from, to) = pipe()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut to = BufWriter::with_capacity(MAX_DATA, to);
            send(&source, state, &mut to)
        });
        let received = receive(
            &target,
            id,
            pace,
            &mut BufReader::with_capacity(MAX_DATA, from),
        );
        let sent = sender.join().unwrap_or(Err(Error::EndedEarly));
        // If the sender fails, the receiver only knows that the stream ended.
        match (sent, received) {
            (Err(sent), Err(Error::EndedEarly)) => Err(sent),
            (_, received) => received,
        }
    })
}

#[cfg(test)]
mod tests;
