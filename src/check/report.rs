//! The results of the checks.

use std::path::PathBuf;

use linux::quota::Enforcement;
use serde::Serialize;

use super::inspect::Inspection;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Worth knowing, but no fault.
    Note,
    /// Not as guaranteed or recorded.
    Wrong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum About {
    /// Whether the pool exists and could be served.
    Pool,
    Mount,
    Enforcement,
    /// The cost of snapshots.
    Snapshots,
    /// Reserved and free space.
    Space,
    /// The records of volumes and snapshots.
    Records,
    /// The limits in the kernel.
    Limits,
    /// Volumes whose sizes are not enforced.
    Sizes,
    /// Charged and occupied space.
    Usage,
    /// The files of image volumes, and their loop devices.
    Images,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    pub about: About,
    /// The directory of the volume or snapshot, below the pool's path; `None` for the pool.
    pub volume: Option<PathBuf>,
    /// The finding, in one line.
    pub what: String,
    /// The way out, in one line, if there is one.
    pub remedy: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Report {
    pub pool: Inspection,
    pub enforcement: Enforcement,
    /// Whether a snapshot would share the blocks of its volume, if that is known.
    pub shares_blocks: Option<bool>,
    /// The findings, those of the pool first.
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn is_wrong(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.level == Level::Wrong)
    }
}
