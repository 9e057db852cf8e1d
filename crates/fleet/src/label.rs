//! Which node handles a snapshot content. The stock snapshot-controller writes it into a label, but only with a flag that
//! most platforms do not set, and never for a content that somebody wrote by hand.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::objects::{Data, SnapshotContent};
use crate::place::Places;
use crate::report::Report;

/// The age from which a content whose snapshot was never taken is left alone.
const OLD: SignedDuration = SignedDuration::from_hours(1);
/// The difference that two clocks may have.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// The longest value of a label.
const MAX_LABEL: usize = 63;

/// The decision about a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Rest,
    Label(String),
    Refuse(Report),
}

/// Decides about a content. `too_late` says that its snapshot would be taken too late, if it is still to be taken.
pub(crate) fn decide(content: &SnapshotContent, too_late: bool, places: &Places<'_>) -> Decision {
    if let Some(label) = &content.label {
        return match places.without_label(content) {
            Ok(node) if node != *label => Decision::Refuse(Report::OtherNode {
                label: label.clone(),
                node,
            }),
            _ => Decision::Rest,
        };
    }
    let waits = matches!(content.data, Data::Volume(_)) && !content.unwanted;
    if waits && too_late {
        return Decision::Refuse(Report::TooOld);
    }
    match places.of_content(content) {
        Ok(node) if node.len() > MAX_LABEL => Decision::Refuse(Report::NodeNameTooLong { node }),
        Ok(node) => Decision::Label(node),
        Err(report) => Decision::Refuse(report),
    }
}

/// Whether the snapshot was asked for long ago. A schedule that failed for months left many contents. With a label their
/// snapshots would all be taken now, of the data of today. A content from the future shows that a clock is wrong, so
/// nobody knows its age.
pub(crate) fn is_old(content: &SnapshotContent, now: Timestamp) -> bool {
    let age = content.created.map(|created| now.duration_since(created));
    age.is_none_or(|age| age > OLD || age < -SKEW)
}
