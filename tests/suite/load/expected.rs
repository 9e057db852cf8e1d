//! The expected state of one volume: every state that its answers so far allow. An unanswered call
//! adds states, and an answer removes the states that it rules out. An answer that leaves no state
//! breaks a guarantee.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::path::PathBuf;

use rootcellar::csi;
use tonic::Code;

/// The number of targets of each volume.
pub const TARGETS: usize = 3;

/// The target that is always published read-only.
pub const READ_ONLY: usize = TARGETS - 1;

/// The number of events of a volume that a failure prints.
const REMEMBERED: usize = 60;

/// An existing volume: its size, and the content of its file. An empty content means that there is
/// no file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Made {
    pub size: i64,
    pub content: String,
}

/// A fact that may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maybe {
    pub yes: bool,
    pub no: bool,
}

impl Maybe {
    pub const YES: Self = Self {
        yes: true,
        no: false,
    };
    pub const NO: Self = Self {
        yes: false,
        no: true,
    };

    pub fn is_certain(self) -> bool {
        self.yes != self.no
    }
}

/// The end of a call.
pub enum Outcome<T> {
    Done(T),
    Refused(Code, String),
    /// The server was still loading, and nothing was started.
    NotNow,
    /// The connection to the server ended before an answer.
    Unanswered,
}

impl<T: fmt::Debug> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(done) => write!(f, "{done:?}"),
            Self::Refused(code, said) => write!(f, "{code:?}, {said:?}"),
            Self::NotNow => f.write_str("not now"),
            Self::Unanswered => f.write_str("unanswered"),
        }
    }
}

/// The contradiction in an answer, if any.
pub type Verdict = Result<(), String>;

/// One volume as its caller knows it. No other caller uses it.
#[derive(Debug)]
pub struct Volume {
    pub name: String,
    pub id: String,
    pub pool: &'static str,
    pub targets: [PathBuf; TARGETS],
    /// The possible states. `None` means that the volume does not exist.
    pub possible: BTreeSet<Option<Made>>,
    pub published: [Maybe; TARGETS],
    history: VecDeque<String>,
}

impl Volume {
    pub fn new(name: String, id: String, pool: &'static str, targets: [PathBuf; TARGETS]) -> Self {
        Self {
            name,
            id,
            pool,
            targets,
            possible: BTreeSet::from([None]),
            published: [Maybe::NO; TARGETS],
            history: VecDeque::new(),
        }
    }

    pub fn note(&mut self, event: String) {
        if self.history.len() == REMEMBERED {
            self.history.pop_front();
        }
        self.history.push_back(event);
    }

    /// Ends the test with the complete history of the volume if a verdict is bad.
    #[track_caller]
    pub fn assert_verdict(&self, verdict: Verdict) {
        if let Err(problem) = verdict {
            panic!("{problem}\n{}", self.description());
        }
    }

    fn description(&self) -> String {
        let events: Vec<&str> = self.history.iter().map(String::as_str).collect();
        format!(
            "volume {} ({}) in pool {}: may be {:?}, published {:?}, after\n  {}",
            self.name,
            self.id,
            self.pool,
            self.possible,
            self.published,
            events.join("\n  ")
        )
    }

    pub fn may_exist(&self) -> bool {
        self.possible.iter().any(Option::is_some)
    }

    pub fn may_be_absent(&self) -> bool {
        self.possible.contains(&None)
    }

    pub fn may_be_empty(&self) -> bool {
        let mut there = self.possible.iter().flatten();
        there.any(|made| made.content.is_empty())
    }

    fn may_be_published(&self) -> bool {
        self.published.iter().any(|target| target.yes)
    }

    fn is_surely_published(&self) -> bool {
        self.published.contains(&Maybe::YES)
    }

    /// Draws conclusions: a published volume exists, and a deleted volume is not published.
    fn conclude(&mut self, from: &str) -> Verdict {
        if self.is_surely_published() {
            self.possible.remove(&None);
        }
        if !self.may_exist() {
            for target in &mut self.published {
                target.yes = false;
            }
        }
        let impossible = self.published.iter().any(|t| !t.yes && !t.no);
        if self.possible.is_empty() || impossible {
            return Err(format!("impossible: {from}"));
        }
        Ok(())
    }

    fn is_absent(&mut self, from: &str) -> Verdict {
        self.possible.retain(Option::is_none);
        self.conclude(from)
    }

    fn is_there(&mut self, from: &str) -> Verdict {
        self.possible.retain(Option::is_some);
        self.conclude(from)
    }

    fn has_size(&mut self, size: i64, from: &str) -> Verdict {
        self.possible
            .retain(|state| state.as_ref().is_some_and(|made| made.size == size));
        self.conclude(from)
    }

    pub fn created(
        &mut self,
        range: csi::CapacityRange,
        outcome: &Outcome<csi::Volume>,
    ) -> Verdict {
        let from = format!("create {range:?}: {outcome:?}");
        let fits = |made: &Made| fits(range, made.size);
        let fresh = Made {
            size: range.required_bytes,
            content: String::new(),
        };
        let satisfiable = range.required_bytes < super::HUGE;
        match outcome {
            Outcome::NotNow => Ok(()),
            Outcome::Unanswered => {
                if self.may_be_absent() && satisfiable {
                    self.possible.insert(Some(fresh));
                }
                Ok(())
            }
            Outcome::Done(volume) if volume.volume_id == self.id => {
                if self.may_be_absent() && satisfiable {
                    self.possible.insert(Some(fresh));
                }
                self.possible
                    .retain(|state| state.as_ref().is_some_and(fits));
                self.has_size(volume.capacity_bytes, &from)
            }
            Outcome::Refused(Code::AlreadyExists, _) => {
                self.possible
                    .retain(|state| state.as_ref().is_some_and(|made| !fits(made)));
                self.conclude(&from)
            }
            Outcome::Refused(Code::ResourceExhausted, _) if !satisfiable => self.is_absent(&from),
            Outcome::Done(_) | Outcome::Refused(..) => Err(format!("not allowed: {from}")),
        }
    }

    pub fn deleted(&mut self, outcome: &Outcome<()>) -> Verdict {
        let from = format!("delete: {outcome:?}");
        match outcome {
            Outcome::NotNow => Ok(()),
            Outcome::Unanswered => {
                if !self.is_surely_published() {
                    self.possible.insert(None);
                }
                Ok(())
            }
            Outcome::Done(()) if !self.is_surely_published() => {
                self.possible = BTreeSet::from([None]);
                self.published = [Maybe::NO; TARGETS];
                Ok(())
            }
            Outcome::Refused(Code::FailedPrecondition, _) if self.may_be_published() => {
                let mut may_be = self.published.iter_mut().filter(|target| target.yes);
                if let (Some(only), None) = (may_be.next(), may_be.next()) {
                    *only = Maybe::YES;
                }
                self.is_there(&from)
            }
            Outcome::Done(()) | Outcome::Refused(..) => Err(format!("not allowed: {from}")),
        }
    }

    pub fn got(&mut self, outcome: &Outcome<csi::Volume>) -> Verdict {
        let from = format!("get: {outcome:?}");
        match outcome {
            Outcome::NotNow | Outcome::Unanswered => Ok(()),
            Outcome::Done(volume) if volume.volume_id == self.id => {
                self.has_size(volume.capacity_bytes, &from)
            }
            Outcome::Refused(Code::NotFound, _) => self.is_absent(&from),
            Outcome::Done(_) | Outcome::Refused(..) => Err(format!("not allowed: {from}")),
        }
    }

    pub fn listed(&mut self, is_listed: bool) -> Verdict {
        let from = format!("listed: {is_listed}");
        if is_listed {
            self.is_there(&from)
        } else {
            self.is_absent(&from)
        }
    }

    pub fn was_published(&mut self, target: usize, outcome: &Outcome<()>) -> Verdict {
        let from = format!("publish at {target}: {outcome:?}");
        match outcome {
            Outcome::NotNow => Ok(()),
            Outcome::Unanswered => {
                self.published[target].yes |= self.may_exist();
                Ok(())
            }
            Outcome::Done(()) => {
                self.is_there(&from)?;
                self.published[target] = Maybe::YES;
                Ok(())
            }
            Outcome::Refused(Code::NotFound, _) => self.is_absent(&from),
            Outcome::Refused(..) => Err(format!("not allowed: {from}")),
        }
    }

    pub fn was_unpublished(&mut self, target: usize, outcome: &Outcome<()>) -> Verdict {
        match outcome {
            Outcome::Done(()) => self.published[target] = Maybe::NO,
            // `NodeUnpublishVolume` works while the records are loaded, so it is never refused.
            Outcome::NotNow | Outcome::Refused(..) => {
                return Err(format!("not allowed: unpublish at {target}: {outcome:?}"));
            }
            Outcome::Unanswered => self.published[target].no = true,
        }
        Ok(())
    }

    /// The statistics at a target show whether the volume is published there.
    pub fn was_measured(&mut self, target: usize, outcome: &Outcome<()>) -> Verdict {
        let from = format!("stats at {target}: {outcome:?}");
        match outcome {
            Outcome::NotNow | Outcome::Unanswered => return Ok(()),
            Outcome::Done(()) => self.published[target].no = false,
            Outcome::Refused(Code::NotFound, _) => self.published[target].yes = false,
            Outcome::Refused(..) => return Err(format!("not allowed: {from}")),
        }
        self.conclude(&from)
    }

    /// The content of the volume's file was read.
    pub fn was_read(&mut self, content: &str) -> Verdict {
        self.possible
            .retain(|state| state.as_ref().is_some_and(|made| made.content == content));
        self.conclude(&format!("read {content:?}"))
    }

    /// The volume's file was written while the volume surely existed.
    pub fn was_written(&mut self, content: &str) {
        let written = |made: Made| Made {
            content: content.to_owned(),
            ..made
        };
        let states = std::mem::take(&mut self.possible);
        self.possible = states
            .into_iter()
            .flatten()
            .map(|m| Some(written(m)))
            .collect();
    }
}

fn fits(range: csi::CapacityRange, size: i64) -> bool {
    size >= range.required_bytes && (range.limit_bytes == 0 || size <= range.limit_bytes)
}
