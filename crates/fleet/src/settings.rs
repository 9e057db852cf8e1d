//! The choices of the command line.

use std::time::Duration;

use clap::Args;
use objects::DriverArgs;

/// The functions, each with its own switch.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Clone, Default, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Functions {
    /// Write the node of the source on unbound claims that restore a snapshot or clone a claim
    #[arg(long)]
    pub(crate) steer: bool,

    /// Label snapshot contents that name no node with the node of their pool
    #[arg(long)]
    pub(crate) label: bool,

    /// Label also contents whose snapshot was asked for more than an hour ago; it will have the data of today
    #[arg(long, requires = "label")]
    pub(crate) label_old: bool,

    /// Compare the volumes on the nodes with the objects of the cluster, and report differences
    #[arg(long, requires = "key")]
    pub(crate) compare: bool,

    /// Finish deletions that wait for a node that is missing
    #[arg(long)]
    pub(crate) finish: bool,

    /// Release the claims of lost nodes, if their class has the annotation rootcellar.dev/release-claims: "true"
    #[arg(long, requires = "key")]
    pub(crate) release: bool,

    /// Remove the startup taint from nodes whose driver is ready
    #[arg(long)]
    pub(crate) untaint: bool,
}

impl Functions {
    /// Whether they need the claims.
    pub(crate) fn watch_claims(&self) -> bool {
        self.steer || self.finish || self.release
    }
}

/// How long the controller watches before it believes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Delays {
    /// Count a node as lost when it has been absent for this long, in seconds, minutes or hours
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = parse_time)]
    pub(crate) absent_for: Duration,

    /// Count a pool as lost when it has been retired for this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    pub(crate) retired_for: Duration,

    /// Report a difference if two comparisons with this much time between them show it
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    pub(crate) compare_every: Duration,

    /// Report a node that has had the startup taint for this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time, hide = true)]
    pub(crate) tainted_for: Duration,
}

impl Delays {
    /// The time between two readings of all pages.
    pub(crate) fn between_pages(&self) -> Duration {
        (self.compare_every / 10).clamp(Duration::from_secs(1), Duration::from_mins(1))
    }
}

pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    const MAX: Duration = Duration::from_hours(7 * 24);
    match objects::parse_time(text, &["s", "m", "h"]) {
        None => Err("not a time: a number, and s, m or h, as in 30m".to_owned()),
        Some(time) if (Duration::from_secs(1)..=MAX).contains(&time) => Ok(time),
        Some(_) => Err("between 1s and 168h".to_owned()),
    }
}

/// The choices of the command line that a round needs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) functions: Functions,
    pub(crate) delays: Delays,
    pub(crate) driver: DriverArgs,
    /// The namespace of the driver.
    pub(crate) namespace: String,
}
