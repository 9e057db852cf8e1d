//! Which node handles a snapshot content. The stock snapshot-controller writes it into a label, but only with a flag that
//! most platforms do not set, and never for a content that somebody wrote by hand.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::objects::Content;
use crate::place::{Place, Places};
use crate::report::Report;

/// The age from which a content whose snapshot was never taken is left alone.
pub(crate) const OLD: Duration = Duration::from_hours(1);
/// The longest value of a label.
const MAX_LABEL: usize = 63;

/// The decision about a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Rest,
    Label(String),
    Refuse(Report),
}

/// Decides about a content. `was_old` says whether it [`is_old`] when the controller first saw it.
pub(crate) fn decide(content: &Content, was_old: bool, places: &Places<'_>) -> Decision {
    if let Some(label) = &content.label {
        return match content.pool.map(|pool| places.of_pool(pool)) {
            Some(Place::On(node)) if node != *label => Decision::Refuse(Report::OtherNode {
                label: label.clone(),
                node,
            }),
            _ => Decision::Rest,
        };
    }
    if was_old {
        return Decision::Refuse(Report::TooOld);
    }
    match places.of_content(content) {
        Place::On(node) if node.len() > MAX_LABEL => {
            Decision::Refuse(Report::NodeNameTooLong { node })
        }
        Place::On(node) => Decision::Label(node),
        Place::Gone(node) => Decision::Refuse(Report::NodeGone { node }),
        Place::Several(pool, nodes) => Decision::Refuse(Report::PoolOnTwoNodes { pool, nodes }),
        Place::Unknown => Decision::Refuse(Report::SourceUnknown),
        Place::Malformed => Decision::Refuse(Report::MalformedHandle),
    }
}

/// Whether a snapshot that was asked for long ago has not been taken. A schedule that failed for months left many of
/// these. With a label they would all be taken now, of today's data.
pub(crate) fn is_old(content: &Content, now: Timestamp) -> bool {
    let age = content.created.map(|created| now.duration_since(created));
    let is_old = age.and_then(|age| Duration::try_from(age).ok()) > Some(OLD);
    is_old && !content.taken && !content.deleting
}
