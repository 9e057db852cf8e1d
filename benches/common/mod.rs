//! The statistics of both programs, in the same form.

pub(crate) mod targets;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

/// The amount of work of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Work {
    /// Create this number of volumes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) volumes: usize,

    /// Time this number of operations of each kind while the volumes exist
    #[arg(long, value_name = "M")]
    pub(crate) measure: Option<usize>,

    /// Publish this number of the volumes that are not timed, and unpublish them at the end
    #[arg(long, value_name = "P", default_value_t = 0, requires = "measure")]
    pub(crate) published: usize,

    /// Keep this number of operations in flight
    #[arg(long, value_name = "C", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) in_flight: u16,
}

/// The results of the operations of one phase.
#[derive(Debug, Default)]
pub(crate) struct Times {
    taken: Vec<Duration>,
    failed: BTreeMap<String, u64>,
}

impl Times {
    /// Counts one operation. A failed one is counted under its code, without its time.
    pub(crate) fn add(&mut self, took: Duration, code: Option<String>) {
        match code {
            None => self.taken.push(took),
            Some(code) => *self.failed.entry(code).or_default() += 1,
        }
    }

    /// Adds the counts of another worker.
    pub(crate) fn merge(&mut self, other: Self) {
        self.taken.extend(other.taken);
        for (code, count) in other.failed {
            *self.failed.entry(code).or_default() += count;
        }
    }

    /// Returns the statistics of a phase of this duration.
    pub(crate) fn phase(mut self, name: &str, lasted: Duration) -> Phase {
        self.taken.sort_unstable();
        Phase {
            name: name.to_owned(),
            count: self.taken.len(),
            p50_us: microseconds(percentile(&self.taken, 50)),
            p99_us: microseconds(percentile(&self.taken, 99)),
            max_us: microseconds(percentile(&self.taken, 100)),
            per_second: rate(self.taken.len(), lasted),
            errors: self.failed,
        }
    }
}

/// The statistics of one phase.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Phase {
    #[serde(rename = "phase")]
    name: String,
    count: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    per_second: f64,
    errors: BTreeMap<String, u64>,
}

impl Phase {
    /// Returns whether no operation failed.
    pub(crate) fn is_good(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Prints the phases of one run: a table for people, or one JSON object in one line. `facts` is
/// further information on the run.
pub(crate) fn print(json: bool, facts: &impl Serialize, phases: &[Phase]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let facts = serde_json::to_value(facts)?;
    if json {
        let line = serde_json::json!({ "facts": facts, "phases": phases });
        return writeln!(out, "{line}");
    }
    writeln!(out, "{}", heading())?;
    for phase in phases {
        writeln!(out, "{}", row(phase))?;
    }
    for (key, value) in facts.as_object().into_iter().flatten() {
        writeln!(out, "{key}: {value}")?;
    }
    Ok(())
}

/// Returns the headings of the columns that [`row`] fills.
pub(crate) fn heading() -> String {
    let [phase, count, p50, p99, max, rate] =
        ["phase", "count", "p50 us", "p99 us", "max us", "per s"];
    format!("{phase:<10}{count:>8}{p50:>11}{p99:>11}{max:>11}{rate:>11}  errors")
}

/// Returns one phase in columns.
pub(crate) fn row(phase: &Phase) -> String {
    let errors: Vec<String> = phase
        .errors
        .iter()
        .map(|(code, count)| format!("{code} x {count}"))
        .collect();
    format!(
        "{:<10}{:>8}{:>11.1}{:>11.1}{:>11.1}{:>11.1}  {}",
        phase.name,
        phase.count,
        phase.p50_us,
        phase.p99_us,
        phase.max_us,
        phase.per_second,
        if errors.is_empty() {
            "none".to_owned()
        } else {
            errors.join(", ")
        }
    )
}

/// Returns the nearest-rank percentile of sorted times, or zero without any.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Rounds to a tenth, which is finer than any clock here.
fn microseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e7).round() / 10.0
}

#[allow(clippy::cast_precision_loss, reason = "no run counts 2^52 operations")]
fn rate(count: usize, lasted: Duration) -> f64 {
    let seconds = lasted.as_secs_f64();
    if seconds > 0.0 {
        (count as f64 / seconds * 10.0).round() / 10.0
    } else {
        0.0
    }
}
