//! A round reads all objects and gives the steps that are due. The controller begins one whenever an object
//! changes. It remembers its waiting times and reports in memory alone: after a restart they begin again, which delays a
//! step and never hastens one.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use objects::NodeName;

use crate::Functions;
use crate::label;
use crate::objects::{Claim, Content, Identity};
use crate::place::Places;
use crate::report::Report;
use crate::steer;
use crate::view::View;

/// How long a claim keeps the name of another node of the cluster. The csi-provisioner there returns the claim meanwhile,
/// and from 6.4.0 it then removes any name that it finds.
const RETURN: Duration = Duration::from_secs(10);
/// The least and the longest time between two writes of one claim. A full node removes its name each time.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// The time until the next write of an object that changed, if its watch does not show the change sooner.
const AFTER_CHANGE: Duration = Duration::from_secs(1);
/// When a report that still holds is repeated. The API server keeps events for an hour.
const REPEAT: Duration = Duration::from_mins(30);
/// The least time between two different reports of one object.
const CALM: Duration = Duration::from_mins(1);
/// The most steps of a round for the objects of one namespace, so that nobody waits for the many claims of another.
const SHARE: usize = 16;
/// The pause until the steps that a round left out.
const NEXT_SHARE: Duration = Duration::from_millis(250);

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write the node on the claim, instead of the node that it names. If that one is `missing` from the caches, which
    /// may be late, the API server is asked first.
    Select {
        claim: Identity,
        node: String,
        instead_of: Option<NodeName>,
        missing: bool,
    },
    /// Label the content with the node. The namespace is that of its snapshot.
    Label {
        content: Identity,
        namespace: String,
        node: String,
    },
    /// Report to the claim or content.
    Report { about: About, report: Report },
}

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum About {
    Claim(Identity),
    /// A content, with the namespace of its snapshot.
    Content {
        content: Identity,
        namespace: String,
    },
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The uid of the object.
    pub(crate) uid: String,
    /// Whether it was a report alone.
    pub(crate) report: bool,
    pub(crate) outcome: Outcome,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The object changed since it was read.
    Changed,
    /// The API server did not answer, or could not.
    Unanswered,
    /// The API server refused it.
    Refused,
}

/// Everything that the controller remembers, by the uid of the object.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    claims: HashMap<String, Waiting>,
    contents: HashMap<String, Pace>,
}

/// An unbound claim.
#[derive(Debug, Default)]
struct Waiting {
    pace: Pace,
    /// Another node that the claim names, and since when.
    other: Option<(NodeName, Instant)>,
}

/// How often an object is written and reported.
#[derive(Debug, Default)]
struct Pace {
    writes: u32,
    /// When the next write is allowed.
    allowed: Option<Instant>,
    /// The reason and node of the last report, and when it was made.
    reported: Option<(Said, Instant)>,
    /// No report before this moment, after one that failed.
    silent: Option<Instant>,
}

/// The reason of a report, and the node that it is about.
type Said = (&'static str, Option<String>);

/// The steps of a round, and when the next one is due without a change.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) steps: Vec<Step>,
    pub(crate) next: Option<Instant>,
    shares: HashMap<String, usize>,
}

impl Due {
    /// Whether a namespace may have another step in this round, which then counts.
    fn has_share(&mut self, namespace: &str, now: Instant) -> bool {
        let share = self.shares.entry(namespace.to_owned()).or_default();
        *share += 1;
        let has = *share <= SHARE;
        if !has {
            self.has_come(now + NEXT_SHARE, now);
        }
        has
    }

    /// Whether the moment has come; if not, a round begins then.
    fn has_come(&mut self, moment: Instant, now: Instant) -> bool {
        if moment > now {
            self.next = Some(self.next.map_or(moment, |next| next.min(moment)));
        }
        moment <= now
    }
}

impl Memory {
    /// Reads all objects. A write that it returns counts as made, and [`Memory::ended`] corrects that.
    pub(crate) fn round(
        &mut self,
        view: &View,
        functions: &Functions,
        now: Instant,
        clock: Timestamp,
    ) -> Due {
        let mut due = Due::default();
        let claims = view.claims.values();
        let claims: Vec<&Claim> = claims
            .filter(|claim| functions.steer && steer::is_ours(claim, view))
            .collect();
        let contents = view.contents.values();
        let contents: Vec<&Content> = contents.filter(|_| functions.label).collect();
        forget(&mut self.claims, claims.iter().map(|claim| &claim.identity));
        forget(
            &mut self.contents,
            contents.iter().map(|content| &content.identity),
        );
        if claims.is_empty() && contents.is_empty() {
            return due;
        }
        let places = Places::new(view);
        for claim in claims {
            let waiting = self.claims.entry(claim.identity.uid.clone()).or_default();
            let decision = steer::decide(claim, view, &places);
            waiting.look(claim, decision, view, now, &mut due);
        }
        for content in contents {
            let pace = self
                .contents
                .entry(content.identity.uid.clone())
                .or_default();
            let too_late = !functions.label_old && label::is_old(content, clock);
            let decision = label::decide(content, too_late, &places);
            pace.content(content, decision, now, &mut due);
        }
        due
    }

    /// Takes note how a step of the last round ended. Returns when another one is allowed, if that is sooner than after
    /// success.
    pub(crate) fn ended(&mut self, ended: &Ended, now: Instant) -> Option<Instant> {
        let claim = self
            .claims
            .get_mut(&ended.uid)
            .map(|waiting| &mut waiting.pace);
        let pace = claim.or_else(|| self.contents.get_mut(&ended.uid))?;
        let pause = match (ended.report, ended.outcome) {
            (_, Outcome::Done) | (false, Outcome::Refused) => return None,
            (true, _) => {
                pace.reported = None;
                pace.silent = Some(now + CALM);
                return pace.silent;
            }
            (false, Outcome::Changed) => AFTER_CHANGE,
            (false, Outcome::Unanswered) => BACKOFF.0,
        };
        pace.writes = pace.writes.saturating_sub(1);
        pace.allowed = Some(now + pause);
        pace.allowed
    }
}

fn forget<'a, T>(memory: &mut HashMap<String, T>, present: impl Iterator<Item = &'a Identity>) {
    let present: HashSet<&str> = present.map(|identity| &*identity.uid).collect();
    memory.retain(|uid, _| present.contains(&**uid));
}

impl Pace {
    /// Whether a write is allowed now, which then counts as made.
    fn writes(&mut self, namespace: &str, now: Instant, due: &mut Due) -> bool {
        if self
            .allowed
            .is_some_and(|allowed| !due.has_come(allowed, now))
            || !due.has_share(namespace, now)
        {
            return false;
        }
        let wait = BACKOFF
            .0
            .saturating_mul(1 << self.writes.min(16))
            .min(BACKOFF.1);
        self.writes += 1;
        let allowed = now + wait;
        self.allowed = Some(allowed);
        due.has_come(allowed, now);
        true
    }

    /// Reports something that lasts, unless it was reported of late.
    fn report(&mut self, about: About, report: Report, now: Instant, due: &mut Due) {
        let said = (report.reason(), report.node().map(str::to_owned));
        if let Some((last, at)) = &self.reported {
            let pause = if *last == said { REPEAT } else { CALM };
            if !due.has_come(*at + pause, now) {
                return;
            }
        }
        if self.silent.is_some_and(|until| !due.has_come(until, now)) {
            return;
        }
        if due.has_share(about.namespace(), now) {
            self.reported = Some((said, now));
            due.has_come(now + REPEAT, now);
            due.steps.push(Step::Report { about, report });
        }
    }
}

impl About {
    pub(crate) fn object(&self) -> &Identity {
        match self {
            Self::Claim(object) => object,
            Self::Content { content, .. } => content,
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Claim(claim) => &claim.namespace,
            Self::Content { namespace, .. } => namespace,
        }
    }
}

impl Waiting {
    fn look(
        &mut self,
        claim: &Claim,
        decision: steer::Decision,
        view: &View,
        now: Instant,
        due: &mut Due,
    ) {
        let selected = claim.selected.as_ref();
        if self.other.as_ref().map(|(name, _)| name) != selected {
            self.other = selected.map(|name| (name.clone(), now));
        }
        let identity = claim.identity.clone();
        let node = match decision {
            steer::Decision::Rest => return,
            steer::Decision::Refuse(report) => {
                return self.pace.report(About::Claim(identity), report, now, due);
            }
            steer::Decision::Select(node) => node,
        };
        let missing = selected.is_some_and(|name| !view.nodes.contains_key(name.as_str()));
        if let Some((_, since)) = &self.other
            && !missing
            && !due.has_come(*since + RETURN, now)
        {
            return;
        }
        if self.pace.writes(&identity.namespace, now, due) {
            due.steps.push(Step::Select {
                claim: identity,
                node,
                instead_of: selected.cloned(),
                missing,
            });
        }
    }
}

impl Pace {
    fn content(
        &mut self,
        content: &Content,
        decision: label::Decision,
        now: Instant,
        due: &mut Due,
    ) {
        let namespace = content.snapshot.namespace();
        let identity = content.identity.clone();
        match decision {
            label::Decision::Rest => {}
            label::Decision::Refuse(report) => {
                let about = About::Content {
                    content: identity,
                    namespace: namespace.to_owned(),
                };
                self.report(about, report, now, due);
            }
            label::Decision::Label(node) => {
                if self.writes(namespace, now, due) {
                    due.steps.push(Step::Label {
                        content: identity,
                        namespace: namespace.to_owned(),
                        node,
                    });
                }
            }
        }
    }
}
