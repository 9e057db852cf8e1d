//! Writes the man pages and the shell completions of `rootcellar` and `rootcellar-migrate`. A release has them next to
//! the programs, so that no image has the code that makes them.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

/// The shells that a release has completions for.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        return Err("usage: manual DIRECTORY".into());
    };
    Ok(write(&PathBuf::from(directory))?)
}

/// Writes the pages to `man/man1` and the completions to `completions`, below a directory.
fn write(directory: &Path) -> std::io::Result<()> {
    let (pages, completions) = (directory.join("man/man1"), directory.join("completions"));
    for made in [&pages, &completions] {
        fs::create_dir_all(made)?;
    }
    for command in [rootcellar::cli::command(), migrate::command()] {
        let name = command.get_name().to_owned();
        for shell in SHELLS {
            clap_complete::generate_to(shell, &mut command.clone(), &name, &completions)?;
        }
        clap_mangen::generate_to(command, &pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_example_and_is_completed() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let read = |path: &str| fs::read_to_string(directory.path().join(path)).unwrap();
        for root in [rootcellar::cli::command(), migrate::command()] {
            let script = read(&format!("completions/{}.bash", root.get_name()));
            let mut commands = vec![(root.get_name().to_owned(), root)];
            while let Some((words, command)) = commands.pop() {
                let page = read(&format!("man/man1/{}.1", words.replace(' ', "-")));
                let example = format!("Example:\n  {} ", words.replace('-', "\\-"));
                let is_leaf = !command.has_subcommands();
                assert_eq!(page.contains(&example), is_leaf, "{words}: {page}");
                for below in command.get_subcommands() {
                    assert!(script.contains(below.get_name()), "{below}");
                    commands.push((format!("{words} {}", below.get_name()), below.clone()));
                }
            }
        }
    }

    #[test]
    fn bash_completes_the_programs() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        for program in ["rootcellar", "rootcellar-migrate"] {
            let source = format!("source completions/{program}.bash && complete -p {program}");
            let bash = Command::new("bash")
                .args(["-c", &source])
                .current_dir(&directory)
                .output();
            let output = bash.unwrap();
            let complete = String::from_utf8_lossy(&output.stdout);
            assert!(complete.contains(&format!(" {program}\n")), "{output:?}");
        }
    }
}
