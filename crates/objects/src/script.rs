//! The plans that programs print for a person: a shell script with a report, the facts about each object as variables, and
//! the steps, which are the same for all objects. Every text of the cluster is a quoted word, so that the shell runs none
//! of it.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde_json::Value;

/// A script for a person.
#[derive(Debug)]
pub struct Script<'a> {
    pub title: &'static str,
    /// The argument that names an object, for the comment.
    pub argument: &'static str,
    pub report: String,
    /// The variables of each object.
    pub facts: Vec<(&'a str, &'a [(&'static str, String)])>,
    /// The names of the objects are also in its variable `objects`.
    pub steps: &'static str,
}

impl Display for Script<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "#!/bin/sh\n# {}", self.title)?;
        writeln!(f, "report={}", quote(self.report.trim_end()))?;
        let objects: Vec<&str> = self.facts.iter().map(|(key, _)| *key).collect();
        writeln!(f, "objects={}", quote(&objects.join(" ")))?;
        writeln!(f, "\nfacts() {{ # {}\n    case $1 in", self.argument)?;
        for (key, variables) in &self.facts {
            writeln!(f, "    {})", quote(key))?;
            for (name, value) in *variables {
                writeln!(f, "{name}={}", quote(value))?;
            }
            f.write_str("        ;;\n")?;
        }
        write!(f, "    *) return 1 ;;\n    esac\n}}\n\n{}", self.steps)
    }
}

/// A word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A part of a report.
pub fn list(f: &mut Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "{title}:")?;
    let mut lines = lines.iter();
    lines.try_for_each(|line| writeln!(f, "- {}", printable(line)))
}

/// A text from the cluster in one line.
pub fn printable(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).collect()
}

impl Script<'_> {
    /// Writes the script to stdout or to a new file, because an existing one may be the only way back of a step.
    pub fn print(&self, to: Option<&Path>) -> Result<(), String> {
        let text = self.to_string();
        let (written, target) = match to {
            Some(path) => (make_file(path, &text), path.display().to_string()),
            None => (io::stdout().write_all(text.as_bytes()), "stdout".to_owned()),
        };
        written.map_err(|error| format!("write to {target}: {error}"))
    }
}

/// Makes a new file, or leaves none.
fn make_file(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        std::fs::remove_file(path)?;
    }
    written
}

/// Reads the objects for a plan from a file, or from stdin if that is `-`.
pub fn read<T>(path: &Path, parse: impl Fn(&[u8]) -> Result<T, String>) -> Result<T, String> {
    let mut text = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().read_to_end(&mut text).map(|_| ())
    } else {
        std::fs::read(path).map(|bytes| text = bytes)
    };
    let shown = path.display();
    read.map_err(|error| format!("read {shown}: {error}"))?;
    parse(&text).map_err(|problem| format!("{shown}: {problem}"))
}

/// Reads values that follow each other, each an object or a list of objects.
pub fn stream(text: &[u8]) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    for value in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
        match value.map_err(|error| format!("not JSON: {error}"))? {
            Value::Array(values) => all.extend(values),
            Value::Object(mut object) => match object.remove("items") {
                Some(Value::Array(items)) => all.extend(items),
                _ => all.push(Value::Object(object)),
            },
            other => return Err(format!("not an object: {other}")),
        }
    }
    Ok(all)
}
