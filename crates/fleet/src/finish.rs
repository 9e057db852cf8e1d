//! Deletions that nobody finishes, because their node is missing. The user asked for each of them, so nothing is
//! decided here but that the node will not do its part. The exception is a volume whose claim the controller has released:
//! its object is deleted if no other node may have its data.

use crate::due::Due;
use crate::lost::{Elsewhere, Lost, Presence, place_of};
use crate::objects::{BOUND, Claim, PROVISIONER, Phase, Policy, SnapshotContent, Volume};
use crate::report::Report;
use crate::step::{About, Change, Live, Step, Verdict};
use crate::view::View;

/// A volume whose claim is deleted and whose data nobody can delete.
pub(crate) fn volume(volume: &Volume, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    let Some(change) = end_of(volume) else {
        return Verdict::Nothing;
    };
    let standing = match volume.policy {
        Policy::Delete => lost.place(&volume.place, due),
        _ => lost.volume(volume, due),
    };
    let Presence::Lost(cause) = standing else {
        return Verdict::Nothing;
    };
    let confirm = match volume.policy {
        Policy::Delete => lost.confirm(cause, &volume.place),
        // Nobody asked for the deletion of this data, so it must not be elsewhere.
        _ => match lost.elsewhere(volume, cause) {
            Elsewhere::No => lost.confirm_everywhere(cause, volume),
            Elsewhere::Unread => return Verdict::Nothing,
            Elsewhere::Maybe(report) => Err(report),
        },
    };
    end(About::volume(volume), confirm, change)
}

/// The next step that ends a volume, if its claim is deleted and its policy lets it go, with its event.
pub(crate) fn end_of(volume: &Volume) -> Option<(Change, Option<Report>)> {
    let goes = matches!(volume.policy, Policy::Delete | Policy::Released);
    if volume.phase != Phase::Released || !goes {
        return None;
    }
    if !volume.deleting {
        return Some((Change::Delete, None));
    }
    let node = volume.place.clone();
    volume.is_held().then(|| {
        let change = Change::drop_finalizer(PROVISIONER, &volume.finalizers);
        (change, Some(Report::FinishedDeletion { node }))
    })
}

/// A content in deletion whose snapshot nobody can delete.
pub(crate) fn content(content: &SnapshotContent, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    let held = content.finalizers.iter().any(|found| found == BOUND);
    let Some(label) = content
        .label
        .as_deref()
        .filter(|_| content.deleting && held)
    else {
        return Verdict::Nothing;
    };
    let Some(place) = place_of(label) else {
        return Verdict::Nothing;
    };
    let Presence::Lost(cause) = lost.place(&place, due) else {
        return Verdict::Nothing;
    };
    let report = Report::FinishedDeletion {
        node: label.to_owned(),
    };
    let change = Change::drop_finalizer(BOUND, &content.finalizers);
    let about = About::content(content);
    let confirm = lost.confirm(cause, &place);
    end(about, confirm, (change, Some(report)))
}

/// An unbound claim that a missing node was to provision. With a source, the claim is bound to that node's fate.
pub(crate) fn claim(claim: &Claim, view: &View, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    let unbound = claim.volume.is_none() && !claim.bound && !claim.deleting && !claim.copies;
    let Some(node) = claim.selected.as_ref().filter(|_| unbound) else {
        return Verdict::Nothing;
    };
    if !view.classes.contains_key(&claim.class) {
        return Verdict::Nothing;
    }
    let place = node.topology_value();
    let Presence::Lost(cause) = lost.place(&place, due) else {
        return Verdict::Nothing;
    };
    let report = Report::ForgotNode { node: node.clone() };
    let change = Change::ForgetNode(node.clone());
    let about = About::claim(claim.identity.clone());
    let confirm = lost.confirm(cause, &place);
    end(about, confirm, (change, Some(report)))
}

fn end(
    about: About,
    confirm: Result<Vec<Live>, Report>,
    (change, report): (Change, Option<Report>),
) -> Verdict {
    match confirm {
        Err(report) => Verdict::Refuse(about, report),
        Ok(confirm) => Verdict::Write(Step {
            about,
            confirm,
            change: Some(change),
            report,
            event_on: None,
        }),
    }
}
