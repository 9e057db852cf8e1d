//! The objects of a comparison, as the API server has them now.

use crate::api::{Server, Unconfirmed};
use crate::compare::Objects;
use crate::step::Outcome;
use crate::wire::Kind;

/// Lists them now.
pub(crate) async fn objects(server: &Server) -> Result<Objects, Unconfirmed> {
    let driver = &server.driver;
    let mut objects = Objects::default();
    let volumes = |found| {
        objects.add_volume(found, driver);
        false
    };
    server.search(Kind::VOLUME, "", volumes).await?;
    let contents = |found| {
        objects.add_content(found, driver);
        false
    };
    match server.search(Kind::CONTENT, "", contents).await {
        Ok(_) => drop(objects.named_snapshots.get_or_insert_default()),
        // The cluster lacks the kind, which says nothing about the snapshots.
        Err(Unconfirmed::Ended(Outcome::Changed)) => objects.named_snapshots = None,
        Err(unanswered) => return Err(unanswered),
    }
    Ok(objects)
}
