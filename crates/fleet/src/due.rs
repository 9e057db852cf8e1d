//! The steps that are due, each namespace with its share.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::step::Step;

/// The most steps of a round for the objects of one namespace, so that nobody waits for the many claims of another.
const SHARE: usize = 16;
/// The pause until the steps that a round left out.
const NEXT_SHARE: Duration = Duration::from_millis(250);

/// The steps of a round, and when the next one is due without a change.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) steps: Vec<Step>,
    pub(crate) next: Option<Instant>,
    shares: HashMap<String, usize>,
}

impl Due {
    /// Whether a namespace may have another step in this round, which then counts.
    pub(crate) fn has_share(&mut self, namespace: &str, now: Instant) -> bool {
        let share = self.shares.entry(namespace.to_owned()).or_default();
        *share += 1;
        let has = *share <= SHARE;
        if !has {
            self.has_come(now + NEXT_SHARE, now);
        }
        has
    }

    /// Whether the moment has come; if not, a round begins then.
    pub(crate) fn has_come(&mut self, moment: Instant, now: Instant) -> bool {
        if moment > now {
            self.next = Some(self.next.map_or(moment, |next| next.min(moment)));
        }
        moment <= now
    }
}
