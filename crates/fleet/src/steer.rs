//! Which node a claim needs. A restore or a clone is possible on the node of its source alone, and neither the scheduler
//! nor a csi-provisioner knows that node.

use objects::Bytes;

use crate::objects::{Claim, Class, Source};
use crate::place::{Place, Places};
use crate::report::Report;
use crate::view::View;

/// The decision about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing is to do: the source is not usable yet, or the claim names its node.
    Rest,
    /// The claim shall name this node.
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
    let Some(place) = place_of_source(claim, view, places) else {
        return Decision::Rest;
    };
    let name = match place {
        Place::On(name) => name,
        Place::Gone(name) => return Decision::Refuse(Report::NodeGone { node: name }),
        Place::Several(pool, nodes) => {
            return Decision::Refuse(Report::PoolOnTwoNodes { pool, nodes });
        }
        Place::Unknown => return Decision::Refuse(Report::SourceUnknown),
        Place::Malformed => return Decision::Refuse(Report::MalformedHandle),
    };
    if claim.selected.as_ref() == Some(&name) {
        return Decision::Rest;
    }
    let (Some(class), Some(node)) = (view.classes.get(&claim.class), view.nodes.get(&name)) else {
        return Decision::Rest;
    };
    if !allows(class, &node.labels) {
        return Decision::Refuse(Report::ClassExcludesNode {
            class: claim.class.clone(),
            node: name,
        });
    }
    match (claim.size, view.free(&claim.class, &node.place)) {
        (Some(size), Some(free)) if free < size => Decision::Refuse(Report::NoRoom {
            class: claim.class.clone(),
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
            let owner = volume.claim.as_ref()?;
            let usable = source.bound
                && !source.deleting
                && owner.key == key(name)
                && owner.uid.as_ref() == Some(&source.identity.uid);
            usable.then(|| places.of_volume(volume))
        }
        Source::Snapshot(name) => {
            let snapshot = view.snapshots.get(&key(name))?;
            let content = view.contents.get(&snapshot.content)?;
            let usable = snapshot.ready
                && content.ready
                && content.taken
                && !snapshot.deleting
                && !content.deleting
                && content.snapshot.key == key(name)
                && content.snapshot.uid.as_ref() == Some(&snapshot.uid);
            usable.then(|| places.of_content(content))
        }
    }
}

/// Whether the `allowedTopologies` of a class have a term that the labels of the node fulfil.
fn allows(class: &Class, labels: &std::collections::BTreeMap<String, String>) -> bool {
    let fulfils = |(key, values): &(String, Vec<String>)| {
        labels.get(key).is_some_and(|value| values.contains(value))
    };
    class.allowed.is_empty() || class.allowed.iter().any(|term| term.iter().all(fulfils))
}
