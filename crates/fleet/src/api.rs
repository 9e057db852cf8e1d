//! Questions to the API server.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::api::Api;
use kube::{Client, Error};
use objects::DriverArgs;
use tokio::time::timeout;

use crate::pager::{Page, Pager};
use crate::reader::Reader;
use crate::report::Report;
use crate::step::Outcome;
use crate::wire::{Kind, Object};

/// The time for one request. The API server itself ends a request after a minute.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

/// Why a fact was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unconfirmed {
    /// The API server did not answer, or the cluster is not as the caches say.
    Ended(Outcome),
    /// The step has to wait for somebody.
    Waits(Report),
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) driver: DriverArgs,
    /// Reads the pages of the drivers, with the key.
    pub(crate) reader: Option<Reader>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn api(&self, kind: Kind, namespace: &str) -> Api<Object> {
        let (client, resource) = (self.client.clone(), kind.resource());
        if namespace.is_empty() {
            Api::all_with(client, &resource)
        } else {
            Api::namespaced_with(client, namespace, &resource)
        }
    }

    /// Lists the objects of a kind page by page, until one is the object that is sought. A kind that the cluster lacks is
    /// [`Outcome::Changed`]. An object that cannot be read may be the one that is sought, so the question has no answer.
    pub(crate) async fn search(
        &self,
        kind: Kind,
        namespace: &str,
        mut is_found: impl FnMut(Object) -> bool,
    ) -> Result<bool, Unconfirmed> {
        let mut pager = Pager::new(self.api(kind, namespace));
        while pager.end().is_none() {
            match answer(pager.next()).await? {
                Page::Halved => {}
                Page::Objects(objects) => {
                    if objects.into_iter().any(&mut is_found) {
                        return Ok(true);
                    }
                }
                Page::Unread(name) => {
                    let kind = kind.plural;
                    tracing::warn!(kind, namespace, name, "an object cannot be read");
                    return Err(Unconfirmed::Ended(Outcome::Unanswered));
                }
            }
        }
        Ok(false)
    }

    pub(crate) async fn get(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, Unconfirmed> {
        answer(self.api(kind, namespace).get_opt(name)).await
    }
}

pub(crate) async fn answer<T>(
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Unconfirmed> {
    match timeout(TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::Api(status))) if status.code == 404 => {
            Err(Unconfirmed::Ended(Outcome::Changed))
        }
        Ok(Err(_)) | Err(_) => Err(Unconfirmed::Ended(Outcome::Unanswered)),
    }
}
