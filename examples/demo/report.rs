//! The output of the demo.

use std::io::{self, Write};
use std::time::Duration;

use rootcellar::error::Error;

use super::place::{Namespace, Place};

/// A step with another result than the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The RPC or other action.
    pub(super) step: String,
    /// The expected result.
    pub(super) expected: String,
    /// The actual result.
    pub(super) got: String,
}

impl Failure {
    /// Creates a failure of `step`.
    pub(super) fn new(
        step: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self {
            step: step.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// Creates the failure of a demo that a user stopped.
    pub(super) fn interrupted() -> Self {
        Self::new("demo", "to be let to its end", "interrupted")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new("demo", "a system that lets it", error.to_string())
    }
}

/// Prints one line per step: the action, its result and its duration.
#[derive(Debug)]
pub(super) struct Report<W> {
    out: W,
}

/// The widths of the first two columns.
const STEP: usize = 24;
const OUTCOME: usize = 62;
/// The width of a note.
const NOTE: usize = 72;

impl<W: Write> Report<W> {
    /// Creates a report to `out`.
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }

    /// Prints the first lines: the paths and the isolation.
    pub(super) fn opening(&mut self, place: &Place, namespace: Namespace) -> io::Result<()> {
        let kind = place.filesystem();
        writeln!(self.out, "rootcellar {} demo", env!("CARGO_PKG_VERSION"))?;
        writeln!(self.out, "  directory  {}{kind}", place.root().display())?;
        writeln!(
            self.out,
            "  server     rootcellar serve, its log in server.log there"
        )?;
        writeln!(self.out, "  mounts     {namespace}; nobody else sees them")
    }

    /// Prints the title of a part of the story.
    pub(super) fn title(&mut self, title: &str) -> Result<(), Failure> {
        self.print(&format!("\n{title}"))
    }

    /// Prints one step.
    pub(super) fn step(
        &mut self,
        step: &str,
        outcome: &str,
        took: Duration,
    ) -> Result<(), Failure> {
        self.print(&format!(
            "  {step:STEP$}{outcome:OUTCOME$}{:>10}",
            time(took)
        ))
    }

    /// Prints the entries of a directory.
    pub(super) fn listing(&mut self, directory: &str, names: &[String]) -> Result<(), Failure> {
        let names = if names.is_empty() {
            "(empty)".to_owned()
        } else {
            names.join("  ")
        };
        self.print(&format!("  {directory:STEP$}{names}"))
    }

    /// Prints more about the step before, in lines of readable width.
    pub(super) fn note(&mut self, note: &str) -> Result<(), Failure> {
        let mut line = String::new();
        for word in note.split(' ') {
            if !line.is_empty() && line.chars().count() + word.chars().count() >= NOTE {
                self.print(&format!("  {:STEP$}{line}", ""))?;
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.print(&format!("  {:STEP$}{line}", ""))
    }

    /// Prints the last line.
    pub(super) fn closing(&mut self, took: Duration) -> Result<(), Failure> {
        self.print(&format!("\nall as expected, in {}", time(took)))
    }

    /// Prints a step that failed, with the end of the server's log.
    pub(super) fn failure(
        &mut self,
        failure: &Failure,
        log: &[String],
        place: &Place,
    ) -> io::Result<()> {
        writeln!(self.out, "\nFAILED     {}", failure.step)?;
        writeln!(self.out, "  expected {}", failure.expected)?;
        writeln!(self.out, "  got      {}", failure.got)?;
        writeln!(self.out, "\nthe end of {}:", place.log().display())?;
        for line in log {
            writeln!(self.out, "  {line}")?;
        }
        writeln!(
            self.out,
            "\nthe server is stopped; {} is left to look at",
            place.root().display()
        )
    }

    fn print(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.out, "{}", line.trim_end())
            .and_then(|()| self.out.flush())
            .map_err(|error| Failure::new("print", "somebody who reads", error.to_string()))
    }
}

/// Returns a duration with about three digits.
fn time(took: Duration) -> String {
    let micros = took.as_micros();
    match micros {
        0..1000 => format!("{micros} µs"),
        1000..10_000 => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
        10_000..1_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_keeps_two_or_three_digits() {
        let cases = [
            (0, "0 µs"),
            (999, "999 µs"),
            (1000, "1.0 ms"),
            (9_999, "9.9 ms"),
            (10_000, "10 ms"),
            (999_999, "999 ms"),
            (1_250_000, "1.2 s"),
        ];
        for (micros, text) in cases {
            assert_eq!(time(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn steps_are_aligned() {
        let mut report = Report::new(Vec::new());
        report
            .step("CreateVolume", "64 MiB", Duration::from_millis(2))
            .unwrap();
        report.note(&format!("on disk {}", "x".repeat(70))).unwrap();
        report.listing("pool/volumes", &[]).unwrap();
        let text = String::from_utf8(report.out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("64 MiB"), lines[1].find("on disk"));
        assert_eq!(
            lines[0].find("64 MiB"),
            lines[2].find("xxx"),
            "a long word gets its own line"
        );
        assert_eq!(lines[0].find("64 MiB"), lines[3].find("(empty)"));
        assert!(lines[0].ends_with("    2.0 ms"), "{text}");
    }
}
