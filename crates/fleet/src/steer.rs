//! Which node a claim needs. A restore or a clone is possible on the node of its source alone, and neither the scheduler
//! nor a csi-provisioner knows that node.

use objects::{Bytes, NodeName};

use crate::objects::{Claim, Data, Source};
use crate::place::{Place, Places};
use crate::report::Report;
use crate::view::View;

/// The decision about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing is to do: the source is not usable yet, or the claim names its node.
    Rest,
    /// The claim should name this node.
    Select(String),
    /// No node can be named, for this reason.
    Refuse(Report),
}

/// Whether the claim is one that the controller may write: unbound, of a class of the driver, and with a source.
pub(crate) fn is_ours(claim: &Claim, view: &View) -> bool {
    claim.source.is_some()
        && claim.volume.is_none()
        && !claim.bound
        && !claim.selector
        && !claim.deleting
        && view.classes.contains_key(&claim.class)
}

/// Decides about a claim that [`is_ours`].
pub(crate) fn decide(claim: &Claim, view: &View, places: &Places<'_>) -> Decision {
    let name = match place_of_source(claim, view, places) {
        None => return Decision::Rest,
        Some(Err(report)) => return Decision::Refuse(report),
        Some(Ok(name)) => name,
    };
    if claim.selected.as_ref().map(NodeName::as_str) == Some(&*name) {
        return Decision::Rest;
    }
    let (Some(class), Some(node)) = (view.classes.get(&claim.class), view.nodes.get(&name)) else {
        return Decision::Rest;
    };
    let class_name = || claim.class.clone();
    if !class.allows(node) {
        return Decision::Refuse(Report::ClassExcludesNode {
            class: class_name(),
            node: name,
        });
    }
    match (claim.size, places.free(&claim.class, &node.place)) {
        (Some(size), Some(free)) if free < size => Decision::Refuse(Report::NodeFull {
            class: class_name(),
            node: name,
            size: Bytes(size),
            free: Bytes(free),
        }),
        _ => Decision::Select(name),
    }
}

/// The place of the claim's source; `None` if the source is not usable yet, is of another driver, or does not belong to
/// the object that the claim names.
fn place_of_source(claim: &Claim, view: &View, places: &Places<'_>) -> Option<Place> {
    let key = |name: &String| (claim.identity.namespace.clone(), name.clone());
    match claim.source.as_ref()? {
        Source::Claim(name) => {
            let source = view.claims.get(&key(name))?;
            let volume = view.volumes.get(source.volume.as_ref()?)?;
            let usable = source.bound
                && !source.deleting
                && volume.claim.as_ref()?.is(&key(name), &source.identity.uid);
            usable.then(|| places.of_volume(volume))
        }
        Source::Snapshot(name) => {
            let snapshot = view.snapshots.get(&key(name))?;
            let content = view.contents.get(&snapshot.content)?;
            let usable = snapshot.ready
                && content.ready
                && matches!(content.data, Data::Snapshot(_) | Data::Malformed)
                && !snapshot.deleting
                && !content.deleting
                && content.snapshot.is(&key(name), &snapshot.uid);
            usable.then(|| places.of_content(content))
        }
    }
}
