//! `CopyVolume`: the import of a directory that the command line copies.

use std::sync::Arc;
use std::time::Duration;

use objects::VolumeName;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::admin::{CopyVolumeRequest, CopyVolumeResponse};
use crate::error::{Error, Operation, Refusal, Result};
use crate::rpc::{Answer, Edge, Rpc, request};
use crate::volume::GoesOn;

use super::paths::text;

/// How often a call that waits for the copy asks whether it goes on.
const ASK_EVERY: Duration = Duration::from_millis(500);

pub(super) type Responses = tonic::codegen::BoxStream<CopyVolumeResponse>;

/// Begins the call. It ends without a volume when the client hangs up before the copy is complete.
pub(super) async fn copy_volume(
    edge: &Arc<Edge>,
    mut requests: Streaming<CopyVolumeRequest>,
) -> Answer<Responses> {
    let none = || Status::invalid_argument("the first request is missing");
    let first = requests.message().await?.ok_or_else(none)?;
    let (responses, receiver) = mpsc::channel(2);
    let edge = Arc::clone(edge);
    tokio::spawn(async move {
        let rpc = Rpc {
            name: "CopyVolume",
            ..Rpc::write(Operation::Volume)
        };
        let (object, paths) = (first.name.clone(), responses.clone());
        let work = move |edge: &Edge| {
            let name = VolumeName::try_from(first.name)?;
            let pool = request::required("pool", &*first.pool)?;
            let id = edge
                .volumes
                .import_copy(pool, &name, &mut |path, goes_on| {
                    let path = text(path)?;
                    let response = CopyVolumeResponse {
                        path,
                        ..Default::default()
                    };
                    let sent = paths.blocking_send(Ok(response));
                    sent.map_err(|_| hung_up())?;
                    wait(&mut requests, goes_on)
                })?;
            Ok(CopyVolumeResponse {
                volume_id: id.to_string(),
                ..Default::default()
            })
        };
        let done = edge.run(rpc, object, work).await;
        // Nobody waits for the answer after a hang-up.
        let _ = responses.send(done.map(Response::into_inner)).await;
    });
    Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
}

/// Waits until the client has copied, as long as that goes on.
fn wait(requests: &mut Streaming<CopyVolumeRequest>, goes_on: GoesOn<'_>) -> Result<()> {
    loop {
        goes_on()?;
        let next = Handle::current().block_on(timeout(ASK_EVERY, requests.message()));
        match next {
            Err(_) => {}
            Ok(Ok(Some(request))) if request.copied => return Ok(()),
            Ok(_) => return Err(hung_up()),
        }
    }
}

fn hung_up() -> Error {
    Refusal::HungUp.into()
}
