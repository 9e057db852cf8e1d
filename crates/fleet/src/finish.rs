//! Deletions that nobody finishes, because their node is missing. The user asked for each of them, so nothing is
//! decided here but that the node will not do its part.

use crate::due::Due;
use crate::lost::{Elsewhere, Lost, Standing, place_of};
use crate::objects::{BOUND, Claim, Content, PROVISIONER, Phase, Policy, Volume};
use crate::report::Report;
use crate::step::{About, Change, Live, Step, Verdict};
use crate::view::View;

/// A volume whose claim is deleted and whose data nobody can delete.
pub(crate) fn volume(volume: &Volume, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    if volume.phase != Phase::Released {
        return Verdict::Rest;
    }
    let confirm = match volume.policy {
        Policy::Delete => match lost.place(&volume.place, due) {
            Standing::Lost(cause) => lost.confirm(cause, &volume.place),
            Standing::Here | Standing::Doubtful => return Verdict::Rest,
        },
        // Nobody wanted this data to be deleted, so it must not be elsewhere.
        Policy::Released => match lost.volume(volume, due) {
            Standing::Lost(cause) => match lost.elsewhere(volume, cause) {
                Elsewhere::No => lost.confirm_everywhere(cause, volume),
                Elsewhere::Unread => return Verdict::Rest,
                Elsewhere::Maybe(report) => Err(report),
            },
            Standing::Here | Standing::Doubtful => return Verdict::Rest,
        },
        Policy::Retain | Policy::ReleasedBefore | Policy::Other => return Verdict::Rest,
    };
    let node = volume.place.clone();
    if !volume.deleting {
        return end(About::volume(volume), confirm, (Change::Delete, None));
    }
    if !volume.is_held() {
        return Verdict::Rest;
    }
    let report = Report::FinishedDeletion { node: node.clone() };
    let change = Change::drop_finalizer(PROVISIONER, &volume.finalizers);
    end(About::volume(volume), confirm, (change, Some(report)))
}

/// A content in deletion whose snapshot nobody can delete.
pub(crate) fn content(content: &Content, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    let held = content.finalizers.iter().any(|found| found == BOUND);
    let Some(label) = content
        .label
        .as_deref()
        .filter(|_| content.deleting && held)
    else {
        return Verdict::Rest;
    };
    let Some(place) = place_of(label) else {
        return Verdict::Rest;
    };
    let Standing::Lost(cause) = lost.place(&place, due) else {
        return Verdict::Rest;
    };
    let report = Report::FinishedDeletion {
        node: label.to_owned(),
    };
    let change = Change::drop_finalizer(BOUND, &content.finalizers);
    let about = About::content(content);
    let confirm = lost.confirm(cause, &place);
    end(about, confirm, (change, Some(report)))
}

/// An unbound claim that a missing node shall provision. With a source, the claim is bound to that node's fate.
pub(crate) fn claim(claim: &Claim, view: &View, lost: &Lost<'_>, due: &mut Due) -> Verdict {
    let unbound = claim.volume.is_none() && !claim.bound && !claim.deleting && !claim.copies;
    let Some(node) = claim.selected.as_ref().filter(|_| unbound) else {
        return Verdict::Rest;
    };
    if !view.classes.contains_key(&claim.class) {
        return Verdict::Rest;
    }
    let place = node.topology_value();
    let Standing::Lost(cause) = lost.place(&place, due) else {
        return Verdict::Rest;
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
