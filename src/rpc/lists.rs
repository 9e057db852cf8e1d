//! The lists at work. A page is much larger than other responses, so a list counts until its response
//! is sent, which a client that does not read delays.
//!
//! A body ends as soon as its last bytes wait to be sent, so these bytes hold the turn of the list.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};

/// The most lists at once.
const LISTS: usize = 32;

/// The most entries of a page.
pub(super) const PAGE: usize = 256;

#[derive(Debug)]
pub(super) struct Lists(Arc<Semaphore>);

/// The turn of one list, in the extensions of its response.
#[derive(Debug, Clone)]
pub(super) struct ListPermit {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Default for Lists {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LISTS)))
    }
}

impl Lists {
    /// Begins a list, or refuses it: a client that waits costs memory too.
    pub(super) fn begin(&self) -> Result<ListPermit> {
        let permit = Arc::clone(&self.0).try_acquire_owned();
        let permit = permit.map_err(|_| Error::Lists(LISTS))?;
        Ok(ListPermit {
            _permit: Arc::new(permit),
        })
    }
}

/// Bytes of a response that wait to be sent.
struct Unsent {
    bytes: Bytes,
    _permit: ListPermit,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Lets the turn of a list end when the last byte of its response is sent.
pub(crate) async fn until_sent(mut response: Response) -> Response {
    match response.extensions_mut().remove::<ListPermit>() {
        None => response,
        Some(permit) => response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                frame.map_data(|bytes| {
                    Bytes::from_owner(Unsent {
                        bytes,
                        _permit: permit.clone(),
                    })
                })
            }))
        }),
    }
}
