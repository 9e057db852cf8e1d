//! The help of the programs' commands.

use clap::{Command, Parser};
use objects::{ObjectId, PoolId, SnapshotId, VolumeId};

/// Checks that each command that can be run has one example in its help, and that this parses. The word ID stands for the
/// id of a pool, a volume or a snapshot; a pipe ends the command.
pub fn check_examples<P: Parser>() {
    let mut commands = vec![(P::command(), String::new())];
    while let Some((command, parent)) = commands.pop() {
        let path = format!("{parent}{} ", command.get_name());
        let below = command.get_subcommands();
        commands.extend(below.map(|below| (below.clone(), path.clone())));
        if !command.is_subcommand_required_set() {
            check_example::<P>(&command, path.trim_end());
        }
    }
}

fn check_example<P: Parser>(command: &Command, path: &str) {
    let help = command.get_after_help().map(ToString::to_string);
    let example = help
        .as_deref()
        .and_then(|help| help.strip_prefix("Example:\n  "));
    let example = example.unwrap_or_else(|| panic!("{path} has no example"));
    assert!(
        !example.contains('\n'),
        "{path} has several examples: {example}"
    );
    assert!(
        format!("{example} ").starts_with(&format!("{path} ")),
        "{path}: {example}"
    );
    let words = example.split(' ').take_while(|word| *word != "|");
    let words: Vec<String> = words
        .map(|word| {
            if word == "ID" {
                id(path)
            } else {
                word.to_owned()
            }
        })
        .collect();
    if let Err(error) = P::try_parse_from(&words) {
        panic!("{example}: {error}");
    }
}

/// An id of the kind that a command names.
fn id(path: &str) -> String {
    const HASH: &str = "0123456789abcdef0123456789abcdef";
    let pool = PoolId::random();
    let start = pool.0.simple();
    match path.split(' ').nth(1) {
        Some("volume") => format!("{}{start}-{HASH}", VolumeId::PREFIX),
        Some("snapshot") => format!("{}{start}-{HASH}", SnapshotId::PREFIX),
        _ => pool.to_string(),
    }
}
