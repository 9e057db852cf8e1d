//! The release of claims whose volume is lost, so that a `StatefulSet` makes them again elsewhere.
//!
//! The order is Retain, then the claim, then the volume. With Retain nobody deletes data, so a node that comes back at any
//! moment finds all of it. The controller never takes Retain back: whether the data is still wanted, only a person knows.
//! The objects alone say what was begun, so a controller that starts again goes on.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::command::{Command, Operation, Target};
use crate::due::Due;
use crate::lost::{Elsewhere, Loss, Lost, Presence};
use crate::objects::{Claim, DELETE, POLICY_BEFORE, Phase, Policy, RELEASED, Volume};
use crate::report::Report;
use crate::step::{About, Change, Live, Step, Verdict};
use crate::view::View;
use crate::wire::Kind;

/// The least time between the beginnings of two releases: the csi-provisioner of every node answers each with a write.
const PAUSE: Duration = Duration::from_secs(5);
/// The time between two attempts.
const ATTEMPT: Duration = Duration::from_millis(250);
/// The most attempts at once, because each may list all pods of a namespace.
const AT_ONCE: usize = 2;

/// The memory of releases.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// When the next attempt may be made.
    next: Option<Instant>,
    /// The namespaces of those under way.
    under_way: BTreeSet<String>,
    /// The last attempt for each namespace, so that a namespace whose attempts all fail does not delay the others.
    tried: HashMap<String, Instant>,
}

impl Releases {
    /// Whether another attempt may be made for a namespace.
    pub(crate) fn may_try(&self, namespace: &str, now: Instant, due: &mut Due) -> bool {
        // The end of an attempt begins the next round.
        self.under_way.len() < AT_ONCE
            && !self.under_way.contains(namespace)
            && self.next.is_none_or(|next| due.has_come(next, now))
    }

    pub(crate) fn last(&self, namespace: &str) -> Option<Instant> {
        self.tried.get(namespace).copied()
    }

    pub(crate) fn tries(&mut self, namespace: &str, now: Instant) {
        self.tried
            .retain(|_, at| now.duration_since(*at) < PAUSE * 720);
        self.tried.insert(namespace.to_owned(), now);
        self.under_way.insert(namespace.to_owned());
        self.next = Some(now + ATTEMPT);
    }

    /// Takes note that the attempts broke off.
    pub(crate) fn broke_off(&mut self) {
        self.under_way.clear();
    }

    /// Takes note of the end of an attempt for a namespace. `began`: it has written Retain.
    pub(crate) fn tried(&mut self, namespace: &str, began: bool, now: Instant) {
        self.under_way.remove(namespace);
        if began {
            self.next = Some(now + PAUSE);
        }
    }
}

/// Decides about a volume, whose claim may be released.
pub(crate) fn decide(volume: &Volume, view: &View, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    let class = view.classes.get(&volume.class);
    let opted = class.is_some_and(|class| class.releases);
    let standing = lost.volume(volume, due);
    if let Some(report) = kept(volume, opted, standing, lost) {
        return Verdict::Refuse(About::volume(volume), report);
    }
    let Some(claim) = claim(volume, view) else {
        return Verdict::Nothing;
    };
    if !opted {
        return Verdict::Nothing;
    }
    match unfit(volume, claim) {
        None => {}
        Some(why @ (Unfit::ClaimInDeletion | Unfit::Held)) if volume.policy == Policy::Released => {
            let why = why.to_string();
            return Verdict::Refuse(of(claim), Report::ReleaseWaits { why });
        }
        Some(_) => return Verdict::Nothing,
    }
    match standing {
        Presence::Here => Verdict::Nothing,
        Presence::Doubtful => announce(volume, claim, lost),
        Presence::Lost(cause) => go_on(volume, claim, cause, lost),
    }
}

/// The report about a volume that the controller set to Retain, and whose release does not go on. Either its data is there,
/// or its class does not ask for the release any more, or an earlier version began it and did not note for which claim.
fn kept(volume: &Volume, opted: bool, standing: Presence, lost: &Lost<'_>) -> Option<Report> {
    let is_bound = match (volume.policy, volume.phase) {
        (Policy::Released | Policy::ReleasedBefore, Phase::Bound) => true,
        (Policy::Released | Policy::ReleasedBefore, Phase::Released) => false,
        _ => return None,
    };
    let is_back = standing == Presence::Here && lost.is_back(volume);
    let is_before = volume.policy == Policy::ReleasedBefore;
    let stops = is_back || is_before || (is_bound && !opted);
    (stops && !volume.deleting).then(|| Report::ReleaseKept {
        node: volume.place.clone(),
        is_bound,
        ways: ways(volume).map(Box::new),
    })
}

/// The commands that keep the data of a volume, and that let it go. Both end the controller's part.
fn ways(volume: &Volume) -> Option<[Command; 2]> {
    let key = match volume.policy {
        Policy::ReleasedBefore => POLICY_BEFORE,
        _ => RELEASED,
    };
    let target = Target::new(Kind::VOLUME, &volume.identity).ok()?;
    let annotation = ["metadata", "annotations", key];
    let forget = Operation::Remove(&annotation);
    let keep = target.patch(std::slice::from_ref(&forget));
    // The data goes with this claim alone, and only as the event says: with the claim, or at once.
    let uid = volume.claim.as_ref()?.uid();
    let phase = match volume.phase {
        Phase::Bound => "Bound",
        _ => "Released",
    };
    let let_go = target.patch(&[
        Operation::Test(&["spec", "claimRef", "uid"], uid.into()),
        Operation::Test(&["status", "phase"], phase.into()),
        forget,
        Operation::Replace(&["spec", "persistentVolumeReclaimPolicy"], DELETE.into()),
    ]);
    Some([keep, let_go])
}

/// The claim of a bound volume, if each names the other.
pub(crate) fn claim<'a>(volume: &Volume, view: &'a View) -> Option<&'a Claim> {
    let owner = volume.claim.as_ref()?;
    let claim = view.claims.get(&owner.key())?;
    let mutual = owner.is(&owner.key(), &claim.identity.uid)
        && claim.volume.as_deref() == Some(&*volume.identity.name);
    (mutual && claim.bound && volume.phase == Phase::Bound).then_some(claim)
}

/// An early word about a pool that was retired, because `pool adopt` still takes it back.
fn announce(volume: &Volume, claim: &Claim, lost: &Lost<'_>) -> Verdict {
    match lost.retired_on(volume) {
        Some(node) if volume.policy != Policy::Released => {
            let node = node.to_owned();
            Verdict::Refuse(of(claim), Report::ReleaseSoon { node })
        }
        _ => Verdict::Nothing,
    }
}

fn go_on(volume: &Volume, claim: &Claim, cause: Loss, lost: &Lost<'_>) -> Verdict {
    let absence = match lost.confirm_everywhere(cause, volume) {
        Ok(absence) => absence,
        Err(report) => return Verdict::Refuse(of(claim), report),
    };
    match lost.elsewhere(volume, cause) {
        Elsewhere::No => {}
        Elsewhere::Unread => return Verdict::Nothing,
        Elsewhere::Maybe(report) => return Verdict::Refuse(of(claim), report),
    }
    Verdict::Write(next(volume, claim, absence))
}

/// Why a lost volume and its claim, which name each other, are not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("the PersistentVolume is being deleted")]
    VolumeInDeletion,
    #[error("the claim is being deleted already, and a pod on a node may still name it")]
    ClaimInDeletion,
    #[error(
        "the claim has a finalizer other than kubernetes.io/pvc-protection, so somebody else needs the claim"
    )]
    Held,
    #[error(
        "an earlier version began the release, and noted no claim; remove the annotation {POLICY_BEFORE} first"
    )]
    BegunBefore,
    #[error("the policy of the PersistentVolume is neither Delete nor Retain")]
    OtherPolicy,
}

pub(crate) fn unfit(volume: &Volume, claim: &Claim) -> Option<Unfit> {
    let of_policy = match volume.policy {
        Policy::Delete | Policy::Retain | Policy::Released => None,
        Policy::ReleasedBefore => Some(Unfit::BegunBefore),
        Policy::Other => Some(Unfit::OtherPolicy),
    };
    if volume.deleting {
        Some(Unfit::VolumeInDeletion)
    } else if claim.deleting {
        Some(Unfit::ClaimInDeletion)
    } else if claim.held {
        Some(Unfit::Held)
    } else {
        of_policy
    }
}

/// The next step of a release: Retain first, and then the deletion of the claim.
pub(crate) fn next(volume: &Volume, claim: &Claim, absence: Vec<Live>) -> Step {
    let mut confirm = vec![Live::MadeAgain(claim.identity.clone())];
    let node = volume.place.clone();
    if volume.policy == Policy::Delete {
        confirm.extend(absence);
        return Step {
            about: About::volume(volume),
            confirm,
            change: Some(Change::Retain {
                claim: claim.identity.uid.clone(),
            }),
            report: Some(Report::ReleaseBegun { node }),
            event_on: Some(of(claim)),
        };
    }
    confirm.push(Live::Retained(volume.identity.clone()));
    // The absence is asked for last, right before the write.
    confirm.extend(absence);
    let volume = volume.identity.name.clone();
    Step {
        about: of(claim),
        confirm,
        change: Some(Change::Delete),
        report: Some(Report::ReleasedClaim { volume, node }),
        event_on: None,
    }
}

fn of(claim: &Claim) -> About {
    About::claim(claim.identity.clone())
}
