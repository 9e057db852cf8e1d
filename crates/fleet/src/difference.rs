//! Differences, as two comparisons show them.

use std::collections::BTreeMap;

use crate::report::Report;
use crate::step::About;

/// A difference, and the event that reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) about: About,
    pub(crate) node: String,
    /// The volume, snapshot or pool, without the id of its pool, which the open page must not show.
    pub(crate) object: String,
    pub(crate) report: Report,
}

/// The differences that a comparison shows, by the object and the node.
pub(crate) type Differences = BTreeMap<(&'static str, String, String), Difference>;

impl Difference {
    pub(crate) fn key(&self) -> (&'static str, String, String) {
        let reason = self.report.reason();
        (reason, self.node.clone(), self.object.clone())
    }
}

/// The differences that both comparisons show.
pub(crate) fn agreed(before: &Differences, now: Differences) -> Vec<Difference> {
    let both = now.into_iter().filter(|(key, _)| before.contains_key(key));
    both.map(|(_, difference)| difference).collect()
}
