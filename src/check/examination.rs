//! The check of one pool, to which each file of checks adds its findings.

use std::path::Path;

use objects::NodeName;

use pool::{KnownPools, PoolOptions};

use super::report::{About, Finding, Level, Report};
use super::sets::Traits;

/// The context of the pools.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "a closure has none")]
pub struct Surroundings<'a> {
    /// The name of this node, if known.
    pub node: Option<&'a NodeName>,
    /// The pool that each path held before, if known.
    pub known_pools: Option<&'a KnownPools>,
    /// Paths of which the node itself needs the free space.
    pub needed: &'a [&'a Path],
    /// Called before a volume or snapshot is measured, with the number done and the total.
    pub progress: &'a dyn Fn(&PoolOptions, usize, usize),
}

pub(super) struct Examination<'a> {
    pub(super) options: &'a PoolOptions,
    pub(super) surroundings: Surroundings<'a>,
    pub(super) report: Report,
    pub(super) traits: Traits,
}

impl Examination<'_> {
    pub(super) fn find(
        &mut self,
        level: Level,
        about: About,
        what: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) {
        self.report.findings.push(Finding {
            level,
            about,
            volume: None,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn find_of(
        &mut self,
        level: Level,
        about: About,
        volume: &Path,
        what: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) {
        self.find(level, about, what, remedy);
        if let Some(finding) = self.report.findings.last_mut() {
            finding.volume = Some(volume.to_owned());
        }
    }
}
