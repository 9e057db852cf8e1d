//! A round reads all objects and gives the steps that are due. The controller begins one whenever an object
//! changes. It remembers its waiting times and reports in memory alone: after a restart they begin again, which delays a
//! step and never hastens one.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use objects::NodeName;

use crate::due::Due;
use crate::finish;
use crate::label;
use crate::lost::Watched;
use crate::objects::{Claim, Identity, Policy, SnapshotContent, startup_taint};
use crate::place::Places;
use crate::release::{self, Releases};
use crate::report::Report;
use crate::settings::{Functions, Settings};
use crate::status::NAMED;
use crate::steer;
use crate::step::{About, Change, Ended, Live, Outcome, Step, Verdict};
use crate::untaint;
use crate::view::View;
use crate::wire::Kind;

/// How long a claim keeps the name of another node of the cluster. The csi-provisioner there returns the claim meanwhile,
/// and from 6.4.0 it then removes any name that it finds.
const RETURN: Duration = Duration::from_secs(10);
/// The least and the longest time between two writes of one claim. A full node removes its name each time.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// The time until the next write of an object that changed, if its watch does not show the change sooner.
const AFTER_CHANGE: Duration = Duration::from_secs(1);
/// The time until a change that has to wait for somebody is tried again.
const WAIT: Duration = Duration::from_secs(30);
/// When a report that still holds is repeated. The API server keeps events for an hour.
const REPEAT: Duration = Duration::from_mins(30);
/// After so long without a round, the process did not run: one begins each minute.
const STOOD: Duration = Duration::from_mins(5);
/// The least time between two different reports of one object.
const CALM: Duration = Duration::from_mins(1);

/// Everything that the controller remembers, by the uid of the object.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    claims: HashMap<String, Waiting>,
    contents: HashMap<String, Pace>,
    /// The volumes that deserve a write or a report, and the claims that are released.
    lost: HashMap<String, Pace>,
    differences: HashMap<(&'static str, String, String), Pace>,
    /// When the last round began.
    last: Option<Instant>,
    watched: Watched,
    releases: Releases,
    /// The nodes that had the startup taint.
    tainted: HashMap<String, Tainted>,
}

/// A node that has the startup taint, or had it.
#[derive(Debug, Default)]
struct Tainted {
    pace: Pace,
    /// Since when this process has seen it.
    since: Option<Instant>,
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
    /// The reason why the last write had to wait.
    waits: Option<Report>,
}

/// The reason of a report, and the node that it is about.
type Said = (&'static str, Option<String>);

impl Memory {
    /// Reads all objects. A write that it returns counts as made, and [`Memory::ended`] corrects that.
    pub(crate) fn round(
        &mut self,
        view: &View,
        settings: &Settings,
        now: Instant,
        clock: Timestamp,
    ) -> Due {
        let mut due = Due::default();
        // The process or the machine stood still, and so the watches may be behind.
        let stood = |last: Instant| now.saturating_duration_since(last) > STOOD;
        if self.last.replace(now).is_some_and(stood) {
            self.was_blind();
        }
        self.place(view, &settings.functions, now, clock, &mut due);
        if settings.functions.finish || settings.functions.release {
            if view.shows_all_nodes() {
                self.lose(view, settings, now, &mut due);
            } else {
                self.was_blind();
            }
        }
        if settings.functions.untaint {
            self.untaint(view, settings, now, &mut due);
        }
        self.differ(view, now, &mut due);
        due
    }

    /// Reports the first differences.
    fn differ(&mut self, view: &View, now: Instant, due: &mut Due) {
        let mut before = std::mem::take(&mut self.differences);
        for difference in view.current_differences().take(NAMED) {
            let key = difference.key();
            let mut pace = before.remove(&key).unwrap_or_default();
            let (about, report) = (difference.about.clone(), difference.report.clone());
            pace.report(about, report, now, due);
            self.differences.insert(key, pace);
        }
    }

    /// Nodes whose driver is ready lose the startup taint.
    fn untaint(&mut self, view: &View, settings: &Settings, now: Instant, due: &mut Due) {
        if !self.tainted.is_empty() {
            let nodes = view.nodes.values();
            forget(&mut self.tainted, nodes.map(|node| &node.identity));
        }
        for (name, node) in &view.nodes {
            let uid = &node.identity.uid;
            let Some(rest) = &node.startup else {
                // The pace stays, for somebody who taints it again and again.
                if let Some(tainted) = self.tainted.get_mut(uid) {
                    tainted.since = None;
                }
                continue;
            };
            let tainted = self.tainted.entry(uid.clone()).or_default();
            let since = *tainted.since.get_or_insert(now);
            let about = About::of(Kind::NODE, node.identity.clone(), "");
            let key = startup_taint(&settings.driver);
            match untaint::lacks(name, node, view, &settings.namespace) {
                None => {
                    let step = Step {
                        about,
                        confirm: Vec::new(),
                        change: Some(Change::RemoveTaint {
                            key: key.clone(),
                            rest: rest.clone(),
                        }),
                        report: Some(Report::TaintRemoved { key }),
                        event_on: None,
                    };
                    tainted.pace.write(step, now, due);
                }
                Some(why) if due.has_come(since + settings.delays.tainted_for, now) => {
                    let report = Report::TaintStays { key, why };
                    tainted.pace.report(about, report, now, due);
                }
                Some(_) => {}
            }
        }
    }

    /// The process could not watch the cluster.
    pub(crate) fn was_blind(&mut self) {
        self.watched.forget();
    }

    /// Copies and snapshots find their node.
    fn place(
        &mut self,
        view: &View,
        functions: &Functions,
        now: Instant,
        clock: Timestamp,
        due: &mut Due,
    ) {
        let claims = view.claims.values();
        let claims: Vec<&Claim> = claims
            .filter(|claim| functions.steer && steer::is_ours(claim, view))
            .collect();
        let contents = view.contents.values();
        let contents: Vec<&SnapshotContent> = contents.filter(|_| functions.label).collect();
        forget(&mut self.claims, claims.iter().map(|claim| &claim.identity));
        forget(
            &mut self.contents,
            contents.iter().map(|content| &content.identity),
        );
        if claims.is_empty() && contents.is_empty() {
            return;
        }
        let places = Places::new(view);
        for claim in claims {
            let waiting = self.claims.entry(claim.identity.uid.clone()).or_default();
            let decision = steer::decide(claim, view, &places);
            waiting.observe(claim, decision, view, now, due);
        }
        for content in contents {
            let pace = self
                .contents
                .entry(content.identity.uid.clone())
                .or_default();
            let too_late = !functions.label_old && label::is_old(content, clock);
            let decision = label::decide(content, too_late, &places);
            pace.content(content, decision, now, due);
        }
    }

    /// Lost nodes leave nothing behind.
    fn lose(&mut self, view: &View, settings: &Settings, now: Instant, due: &mut Due) {
        let Settings {
            functions, delays, ..
        } = settings;
        let lost = self.watched.observe(view, functions, delays, now);
        let mut verdicts = Vec::new();
        let mut add = |verdict| {
            if !matches!(verdict, Verdict::Nothing) {
                verdicts.push(verdict);
            }
        };
        for volume in view.volumes.values() {
            let may = match volume.policy {
                Policy::Delete => functions.finish,
                Policy::Released => functions.release,
                Policy::Retain | Policy::ReleasedBefore | Policy::Other => false,
            };
            if may {
                add(finish::volume(volume, &lost, due));
            }
            if functions.release {
                add(release::decide(volume, view, &lost, due));
            }
        }
        if functions.finish {
            for content in view.contents.values() {
                add(finish::content(content, &lost, due));
            }
            for claim in view.claims.values() {
                add(finish::claim(claim, view, &lost, due));
            }
        }
        if !self.lost.is_empty() {
            let volumes = view.volumes.values().map(|volume| &volume.identity);
            let claims = view.claims.values().map(|claim| &claim.identity);
            let contents = view.contents.values().map(|content| &content.identity);
            forget(&mut self.lost, volumes.chain(claims).chain(contents));
        }
        self.take(verdicts, now, due);
    }

    /// Does the due part of the decisions about lost places.
    fn take(&mut self, mut verdicts: Vec<Verdict>, now: Instant, due: &mut Due) {
        // Those that were tried the longest time ago are the first, because few are tried at a time: of the namespaces, and
        // in each of its claims.
        verdicts.sort_by_cached_key(|verdict| {
            let about = verdict.about();
            let pace = about.and_then(|about| self.lost.get(&about.object.uid));
            let namespace = about.and_then(|about| self.releases.last(&about.namespace));
            (namespace, pace.and_then(|pace| pace.allowed))
        });
        for verdict in verdicts {
            let Some(about) = verdict.about() else {
                continue;
            };
            let pace = self.lost.entry(about.object.uid.clone()).or_default();
            match verdict {
                Verdict::Nothing => {}
                Verdict::Refuse(about, report) => pace.report(about, report, now, due),
                Verdict::Write(step) => {
                    if let Some(why) = pace.waits.clone() {
                        let about = step.event_on.as_ref().unwrap_or(&step.about);
                        pace.report(about.clone(), why, now, due);
                    }
                    let releases = step.releases().map(str::to_owned);
                    if let Some(namespace) = &releases
                        && !self.releases.may_try(namespace, now, due)
                    {
                        continue;
                    }
                    let before = due.steps.len();
                    pace.write(step, now, due);
                    if let Some(namespace) = releases
                        && due.steps.len() > before
                    {
                        self.releases.tries(&namespace, now);
                    }
                }
            }
        }
    }

    /// Takes note how an attempt to release a claim ended; `None` if it broke off.
    pub(crate) fn released(&mut self, ended: Option<Ended>, now: Instant) {
        match ended {
            Some(ended) => {
                self.ended(&ended, now);
            }
            None => self.releases.broke_off(),
        }
    }

    /// Takes note how a step of the last round ended. Returns when another one is allowed, if that is sooner than after
    /// success.
    pub(crate) fn ended(&mut self, ended: &Ended, now: Instant) -> Option<Instant> {
        if let Some(namespace) = &ended.releases {
            let began = ended.begins && ended.outcome == Outcome::Done;
            self.releases.tried(namespace, began, now);
        }
        let claim = self
            .claims
            .get_mut(&ended.uid)
            .map(|waiting| &mut waiting.pace);
        let other = self.contents.get_mut(&ended.uid);
        let lost = self.lost.get_mut(&ended.uid);
        let tainted = self.tainted.get_mut(&ended.uid);
        let tainted = tainted.map(|tainted| &mut tainted.pace);
        // At most one of them made the step; the waits of the others are as good.
        let Some(pace) = lost.or(claim).or(other).or(tainted) else {
            if ended.report && ended.outcome != Outcome::Done {
                // The event of a difference. All are made again, because nobody knows which one failed.
                for pace in self.differences.values_mut() {
                    pace.reported = None;
                    pace.silent = Some(now + CALM);
                }
            }
            return None;
        };
        pace.waits.clone_from(&ended.waits);
        let pause = match (ended.report, ended.outcome) {
            (_, Outcome::Done) | (false, Outcome::Refused) => return None,
            (true, _) => {
                pace.reported = None;
                pace.silent = Some(now + CALM);
                return pace.silent;
            }
            (false, Outcome::Changed) => AFTER_CHANGE,
            (false, Outcome::Unanswered) => BACKOFF.0,
            (false, Outcome::Waits) => WAIT,
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
    /// Makes a write if one is allowed now.
    fn write(&mut self, step: Step, now: Instant, due: &mut Due) {
        let allowed = self.allowed;
        if allowed.is_some_and(|allowed| !due.has_come(allowed, now))
            || !due.has_share(&step.about.namespace, now)
        {
            return;
        }
        let wait = BACKOFF
            .0
            .saturating_mul(1 << self.writes.min(16))
            .min(BACKOFF.1);
        self.writes += 1;
        let allowed = now + wait;
        self.allowed = Some(allowed);
        due.has_come(allowed, now);
        due.steps.push(step);
    }

    /// Reports something that lasts, unless it was reported of late.
    fn report(&mut self, about: About, report: Report, now: Instant, due: &mut Due) {
        let said = (report.reason(), report.subject().map(str::to_owned));
        if let Some((last, at)) = &self.reported {
            let pause = if *last == said { REPEAT } else { CALM };
            if !due.has_come(*at + pause, now) {
                return;
            }
        }
        if self.silent.is_some_and(|until| !due.has_come(until, now)) {
            return;
        }
        if due.has_share(&about.namespace, now) {
            self.reported = Some((said, now));
            due.has_come(now + REPEAT, now);
            // The caches may lack a node that joined a moment ago.
            let confirm = match &report {
                Report::NodeGone { node } => vec![Live::NoNode(node.clone())],
                _ => Vec::new(),
            };
            due.steps.push(Step {
                about,
                confirm,
                change: None,
                report: Some(report),
                event_on: None,
            });
        }
    }
}

impl Waiting {
    fn observe(
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
                return self.pace.report(About::claim(identity), report, now, due);
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
        let confirm = selected.filter(|_| missing);
        let step = Step {
            about: About::claim(identity),
            confirm: confirm
                .map(|name| Live::NoNode(name.to_string()))
                .into_iter()
                .collect(),
            change: Some(Change::Select {
                node: node.clone(),
                instead_of: selected.cloned(),
            }),
            report: Some(Report::Steered {
                node,
                instead_of: selected.cloned(),
            }),
            event_on: None,
        };
        self.pace.write(step, now, due);
    }
}

impl Pace {
    fn content(
        &mut self,
        content: &SnapshotContent,
        decision: label::Decision,
        now: Instant,
        due: &mut Due,
    ) {
        let about = About::content(content);
        match decision {
            label::Decision::Rest => {}
            label::Decision::Refuse(report) => self.report(about, report, now, due),
            label::Decision::Label(node) => {
                let step = Step {
                    about,
                    confirm: Vec::new(),
                    change: Some(Change::Label(node.clone())),
                    report: Some(Report::Labelled { node }),
                    event_on: None,
                };
                self.write(step, now, due);
            }
        }
    }
}
