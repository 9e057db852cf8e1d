//! The command line: one module per command, and the exit code.
//!
//! 0: success; 64: a mistake in the flags or the environment; 75: another server has the lock of the
//! pools; 1: any other failure, and wrong findings. A failure is one sentence on stderr.

mod check;
mod client;
mod cordon;
mod delete;
mod enforce;
mod import;
mod inspect;
mod kept;
mod label;
mod limit;
mod manifest;
mod moving;
mod output;
mod pool;
mod progress;
mod serve;
mod snapshot;
mod volume;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::config::Config;
use crate::error::Error;
use ::pool::{Error as PoolError, Unavailable};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;
/// `EX_TEMPFAIL` of sysexits.h: the same command succeeds after the other server has stopped.
const TRY_AGAIN: u8 = 75;

/// Serve Kubernetes volumes on this node's own disks: directories, or images with a filesystem of their own
#[derive(Debug, Parser)]
#[command(name = "rootcellar", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve CSI on a Unix socket
    #[command(
        after_help = "Example:\n  rootcellar serve --endpoint unix:///csi/csi.sock --node node1 --pool fast=/var/lib/rootcellar/pools/fast"
    )]
    Serve(Config),
    /// Init, list, cordon, uncordon, adopt and retire pools, and enable their quota
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// List, show, move, label, limit, import, export, delete, undelete and purge volumes, enforce their sizes, and print their manifest
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// List, show, delete, undelete and purge snapshots
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Report the faults of pools, and the remedies; changes nothing
    #[command(
        after_help = "Example:\n  rootcellar check --pool fast=/var/lib/rootcellar/pools/fast"
    )]
    Check(check::CheckArgs),
}

/// The commands, for the manual.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that `args` name, the first being the program's own name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &args),
    };
    // A command without an error returns false if its findings are bad.
    let done = match cli.command {
        Command::Serve(config) => serve::run(config),
        Command::Pool(command) => pool::run(&command),
        Command::Volume(command) => volume::run(&command),
        Command::Snapshot(command) => snapshot::run(&command),
        Command::Check(args) => check::run(&args),
    };
    progress::clear();
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rootcellar: {error}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn usage(error: &clap::Error, args: &[OsString]) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => eprintln!("{error}"),
        _ => eprintln!(
            "rootcellar: {}; see {} --help",
            sentence(error),
            named(args)
        ),
    }
    ExitCode::from(USAGE)
}

/// The command and subcommands that these arguments name, for the reference to its help.
fn named(args: &[OsString]) -> String {
    let mut command = &Cli::command();
    let mut name = command.get_name().to_owned();
    for argument in args.iter().skip(1).filter_map(|argument| argument.to_str()) {
        let Some(found) = command.find_subcommand(argument) else {
            break;
        };
        command = found;
        name = format!("{name} {argument}");
    }
    name
}

/// The first paragraph of the parser's message in one line, with the environment variable of the flag.
fn sentence(error: &clap::Error) -> String {
    let message = error.to_string();
    let first = message.split("\n\n").next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let text = first.split_whitespace().collect::<Vec<_>>().join(" ");
    // It has the form "--flag <VALUE>". The parser names no flag for bytes that are not UTF-8.
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let flag = flag.as_deref().and_then(|flag| flag.strip_prefix("--"));
    let flag = flag.and_then(|flag| flag.split(' ').next());
    let is_meant = |argument: &clap::Arg| match error.kind() {
        ErrorKind::InvalidValue
        | ErrorKind::ValueValidation
        | ErrorKind::MissingRequiredArgument => flag.is_some() && argument.get_long() == flag,
        ErrorKind::InvalidUtf8 => argument.get_env().is_some_and(is_not_utf8),
        _ => false,
    };
    match variable(&Cli::command(), &is_meant) {
        Some(variable) => format!("{text} (the value may come from {variable})"),
        None => text,
    }
}

fn is_not_utf8(variable: &OsStr) -> bool {
    std::env::var_os(variable).is_some_and(|value| value.to_str().is_none())
}

/// The environment variable of the first argument for which `is_meant` holds, of a command or its
/// subcommands.
fn variable(command: &clap::Command, is_meant: &dyn Fn(&clap::Arg) -> bool) -> Option<String> {
    let mut arguments = command.get_arguments();
    let argument = arguments.find(|argument| is_meant(argument));
    if let Some(variable) = argument.and_then(clap::Arg::get_env) {
        return Some(variable.to_string_lossy().into_owned());
    }
    let mut commands = command.get_subcommands();
    commands.find_map(|command| variable(command, is_meant))
}

fn exit_code(error: &Error) -> u8 {
    use PoolError::{NotAdopted, Refused};
    match error {
        Error::Invalid(_) => USAGE,
        Error::AllLocked => TRY_AGAIN,
        Error::Pool {
            error: Refused { reason, .. } | NotAdopted { reason, .. },
            ..
        } if *reason == Unavailable::Locked => TRY_AGAIN,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_command_has_an_example_that_parses() {
        support::help::check_examples::<Cli>();
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
    fn a_mistake_in_the_flags_is_one_line() {
        let cases = [
            (
                &["rootcellar", "serve", "--frob"][..],
                "unexpected argument '--frob' found",
            ),
            (&["rootcellar", "frob"], "unrecognized subcommand 'frob'"),
            (&["rootcellar", "pool", "init"], "<PATH>"),
            (
                &["rootcellar", "pool", "init", "/a", "--node=/"],
                "may come from NODE_NAME",
            ),
            (
                &[
                    "rootcellar",
                    "serve",
                    "--endpoint=unix:///x.sock",
                    "--node=n",
                    "--log-format=xml",
                ],
                "'--log-format <FORMAT>' [possible values: text, json]",
            ),
        ];
        for (line, fragment) in cases {
            let message = sentence(&Cli::try_parse_from(line).unwrap_err());
            assert!(message.contains(fragment), "{message}");
            assert!(
                !message.contains('\n') && !message.starts_with("error"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_mistake_refers_to_the_help_of_its_command() {
        for (line, command) in [
            ("rootcellar", "rootcellar"),
            ("rootcellar frob", "rootcellar"),
            ("rootcellar serve --frob", "rootcellar serve"),
            ("rootcellar pool init", "rootcellar pool init"),
            ("rootcellar volume delete pool", "rootcellar volume delete"),
        ] {
            let line: Vec<_> = line.split(' ').map(OsString::from).collect();
            assert_eq!(named(&line), command, "{line:?}");
        }
    }

    #[test]
    fn mistakes_locks_and_failures_have_exit_codes_of_their_own() {
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
