//! The release of claims whose volume is lost, so that a `StatefulSet` makes them anew elsewhere.
//!
//! The order is Retain, then the claim, then the volume. With Retain nobody deletes data, so a node that comes back at any
//! moment finds nothing to erase. Until the claim is deleted the release can be undone, and what was begun stands in the
//! objects alone, so a controller that starts anew goes on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::due::Due;
use crate::lost::{Elsewhere, Loss, Lost, Standing};
use crate::objects::{Claim, Phase, Policy, Volume};
use crate::report::Report;
use crate::step::{About, Change, Live, Step, Verdict};
use crate::view::View;

/// The least time between the beginnings of two releases: the csi-provisioner of every node answers each with a write.
const PAUSE: Duration = Duration::from_secs(5);
/// The time between two attempts. One that has to wait for somebody delays no other for longer.
const ATTEMPT: Duration = Duration::from_millis(250);

/// The memory of releases.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// Since when a begun release, by the uid of its volume, has a reason to be undone.
    undo: HashMap<String, Instant>,
    /// When the next one may begin.
    next: Option<Instant>,
}

/// The releases of one round: those of one place alone.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    releases: &'a mut Releases,
    view: &'a View,
    lost: &'a Lost<'a>,
    place: Option<&'a str>,
    now: Instant,
}

impl Releases {
    /// Whether another release may begin.
    pub(crate) fn may_begin(&self, now: Instant, due: &mut Due) -> bool {
        self.next.is_none_or(|next| due.has_come(next, now))
    }

    /// Takes note of an attempt to begin one, which may have to wait, or of its success.
    pub(crate) fn begins(&mut self, done: bool, now: Instant) {
        self.next = Some(now + if done { PAUSE } else { ATTEMPT });
    }

    /// Begins a round. A release that was begun goes on before another place has its turn.
    pub(crate) fn round<'a>(
        &'a mut self,
        view: &'a View,
        lost: &'a Lost<'a>,
        now: Instant,
        due: &mut Due,
    ) -> Round<'a> {
        let begun = view.volumes.values().filter(|volume| is_begun(volume));
        let uids: Vec<&str> = begun.clone().map(|volume| &*volume.identity.uid).collect();
        self.undo.retain(|uid, _| uids.contains(&&**uid));
        let mut lost_ones =
            begun.filter(|volume| matches!(lost.volume(volume, due), Standing::Lost(_)));
        let place = lost_ones.next().map(|volume| &*volume.place);
        Round {
            releases: self,
            view,
            lost,
            place,
            now,
        }
    }
}

fn is_begun(volume: &Volume) -> bool {
    volume.policy == Policy::Released && volume.phase == Phase::Bound
}

impl<'a> Round<'a> {
    pub(crate) fn decide(&mut self, volume: &'a Volume, due: &mut Due) -> Verdict {
        let begun = is_begun(volume);
        let Some(claim) = self.claim(volume) else {
            return Verdict::Rest;
        };
        let class = self.view.classes.get(&volume.class);
        let opted = class.is_some_and(|class| class.releases);
        // A node that does not answer may be about to call the pool retired.
        let is_back = || self.lost.answers(volume);
        if begun && (!opted || self.lost.volume(volume, due) == Standing::Here && is_back()) {
            return self.undo(volume, claim, due);
        }
        self.releases.undo.remove(&volume.identity.uid);
        let of_policy = matches!(volume.policy, Policy::Delete | Policy::Retain);
        if volume.deleting || claim.deleting || claim.held || !opted || !(begun || of_policy) {
            return Verdict::Rest;
        }
        match self.lost.volume(volume, due) {
            Standing::Here => Verdict::Rest,
            Standing::Doubtful => self.announce(volume, claim),
            Standing::Lost(loss) => self.go_on(volume, claim, loss),
        }
    }

    /// The claim of a bound volume, if each names the other.
    fn claim(&self, volume: &Volume) -> Option<&'a Claim> {
        let owner = volume.claim.as_ref()?;
        let claim = self.view.claims.get(&owner.key())?;
        let mutual = owner.is(&owner.key(), &claim.identity.uid)
            && claim.volume.as_deref() == Some(&*volume.identity.name);
        (mutual && claim.bound && volume.phase == Phase::Bound).then_some(claim)
    }

    /// An early word about a pool that was retired, because `pool adopt` still takes it back.
    fn announce(&self, volume: &Volume, claim: &Claim) -> Verdict {
        match self.lost.retired_on(volume) {
            Some(node) => {
                let node = node.to_owned();
                Verdict::Refuse(of(claim), Report::ReleaseSoon { node })
            }
            None => Verdict::Rest,
        }
    }

    fn go_on(&self, volume: &Volume, claim: &Claim, loss: Loss) -> Verdict {
        let absence = match self.lost.confirm(loss, &volume.place) {
            Ok(absence) => absence,
            Err(report) => return Verdict::Refuse(of(claim), report),
        };
        match self.lost.elsewhere(volume, loss) {
            Elsewhere::No => {}
            Elsewhere::Unread => return Verdict::Rest,
            Elsewhere::Maybe(report) => return Verdict::Refuse(of(claim), report),
        }
        if self.place.is_some_and(|place| place != volume.place) {
            return Verdict::Rest;
        }
        let mut confirm = vec![Live::MadeAnew(claim.identity.clone())];
        let node = volume.place.clone();
        if volume.policy != Policy::Delete {
            confirm.push(Live::Retained(volume.identity.clone()));
            // The absence is asked for last, right before the write.
            confirm.extend(absence);
            let volume = volume.identity.name.clone();
            return Verdict::Write(Step {
                about: of(claim),
                confirm,
                change: Some(Change::Delete),
                report: Some(Report::ReleasedClaim { volume, node }),
                event_on: None,
            });
        }
        confirm.extend(absence);
        Verdict::Write(Step {
            about: About::volume(volume),
            confirm,
            change: Some(Change::Retain),
            report: Some(Report::ReleaseBegun { node }),
            event_on: Some(of(claim)),
        })
    }

    /// Puts the policy back, unless the claim is about to go: its data would be deleted with it. The API server may still
    /// have a deletion in hand, even of an earlier process, so this waits.
    fn undo(&mut self, volume: &Volume, claim: &Claim, due: &mut Due) -> Verdict {
        if claim.deleting || volume.deleting {
            self.releases.undo.remove(&volume.identity.uid);
            return Verdict::Rest;
        }
        let uid = volume.identity.uid.clone();
        let since = *self.releases.undo.entry(uid).or_insert(self.now);
        if !due.has_come(since + self.lost.delays.undo_after, self.now) {
            return Verdict::Rest;
        }
        let node = volume.place.clone();
        Verdict::Write(Step {
            about: About::volume(volume),
            confirm: Vec::new(),
            change: Some(Change::PutBack),
            report: Some(Report::ReleaseUndone { node }),
            event_on: Some(of(claim)),
        })
    }
}

fn of(claim: &Claim) -> About {
    About::claim(claim.identity.clone())
}
