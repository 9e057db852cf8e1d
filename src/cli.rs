//! The command line: one file per command, and what the exit code says.
//!
//! 0: done; 64: a mistake in the flags or the environment; 75: another server holds the pools;
//! 1: anything else, and what `check` and the lists find wrong. A failure is one sentence on stderr.

mod check;
mod client;
mod delete;
mod enforce;
mod look;
mod pool;
mod serve;
mod snapshot;
mod table;
mod volume;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

use crate::config::ServeArgs;
use crate::error::{Error, Result};
use crate::pool::{Error as PoolError, Unavailable};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;
/// `EX_TEMPFAIL` of sysexits.h: the same command works once the other server has stopped.
const TRY_AGAIN: u8 = 75;

/// Serve Kubernetes volumes that are directories on this node's own disks
#[derive(Debug, Parser)]
#[command(name = "rootcellar", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve CSI on a Unix socket
    Serve(ServeArgs),
    /// Make, list, take over and retire pools
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// List, show, enforce and delete volumes
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// List, show and delete snapshots
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Tell whether pools are as they should be, and the way out of what is not; changes nothing
    Check(check::CheckArgs),
}

/// Runs the command that `args` name, the first being the program's own name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Pool(command) => pool::run(command),
        Command::Volume(command) => volume::run(&command),
        Command::Snapshot(command) => snapshot::run(&command),
        Command::Check(args) => check::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("rootcellar: {}", error.chain());
        ExitCode::from(exit_code(&error))
    })
}

fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = error.print();
            if printed.is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("{error}");
            ExitCode::from(USAGE)
        }
        _ => {
            eprintln!(
                "rootcellar: {}; see rootcellar --help",
                sentence(&error.to_string())
            );
            ExitCode::from(USAGE)
        }
    }
}

/// The first paragraph of the parser's message, in one line.
fn sentence(message: &str) -> String {
    let first = message.split("\n\n").next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Invalid(_) => USAGE,
        Error::AllLocked
        | Error::Pool {
            error:
                PoolError::Refused {
                    reason: Unavailable::Locked,
                    ..
                }
                | PoolError::NotAdopted {
                    reason: Unavailable::Locked,
                    ..
                },
            ..
        } => TRY_AGAIN,
        _ => 1,
    }
}

/// The value of an environment variable, if it is set; an error if it is not UTF-8.
fn environment(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => Err(Error::invalid(
            name,
            format!("{} is not UTF-8", value.display()),
        )),
    }
}

/// What runs the calls of a client.
fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Internal(format!("cannot start the runtime: {error}")))
}

/// The error of a command whose output nobody takes.
fn cannot_print(source: io::Error) -> Error {
    Error::Io {
        what: "write to",
        path: "/dev/stdout".into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_texts_are_imperative_phrases_without_a_final_period() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let about = command
                .get_about()
                .unwrap_or_else(|| panic!("{}", command.get_name()));
            assert!(!about.to_string().ends_with('.'), "{about}");
            for argument in command.get_arguments() {
                let help = argument.get_help().unwrap_or_else(|| panic!("{argument}"));
                assert!(!help.to_string().ends_with('.'), "{help}");
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn a_mistake_in_the_flags_is_told_in_one_line() {
        let cases = [
            (
                &["rootcellar", "serve", "--frob"][..],
                "unexpected argument '--frob' found",
            ),
            (&["rootcellar", "frob"], "unrecognized subcommand 'frob'"),
            (&["rootcellar", "pool", "init"], "<PATH>"),
            (
                &[
                    "rootcellar",
                    "serve",
                    "--endpoint=x",
                    "--node=n",
                    "--log-format=xml",
                ],
                "'--log-format <FORMAT>' [possible values: text, json]",
            ),
        ];
        for (line, fragment) in cases {
            let message = sentence(&Cli::try_parse_from(line).unwrap_err().to_string());
            assert!(message.contains(fragment), "{message}");
            assert!(
                !message.contains('\n') && !message.starts_with("error"),
                "{message}"
            );
        }
    }

    #[test]
    fn the_exit_code_tells_a_mistake_from_a_held_lock_from_a_failure() {
        let refused = |reason| {
            let path = "/a".into();
            Error::from(PoolError::Refused { path, reason })
        };
        let not_adopted = |reason| {
            let path = "/a".into();
            Error::from(PoolError::NotAdopted { path, reason })
        };
        let cases = [
            (Error::invalid("--pool", "bad"), 64),
            (Error::AllLocked, 75),
            (refused(Unavailable::Locked), 75),
            (refused(Unavailable::Absent), 1),
            (not_adopted(Unavailable::Locked), 75),
            (not_adopted(Unavailable::Unmarked), 1),
            (Error::Internal("x".into()), 1),
        ];
        for (error, code) in cases {
            assert_eq!(exit_code(&error), code, "{error}");
        }
    }
}
