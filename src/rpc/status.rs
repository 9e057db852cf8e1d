//! The gRPC status of each error.

use objects::NodeName;
use tonic::Status;

use crate::error::{Code, Error, Operation};

/// A status travels in a header, and an error may quote the request. Clients commonly accept 16 KiB
/// of headers, and percent-encoding may treble the length.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// The status of an error in an operation; `Ok` where the operation treats the error as a success. Those of the controller
/// service name the node, because the sidecars report them on objects that no node has yet.
pub(super) fn status(error: &Error, operation: Operation, node: &NodeName) -> Result<(), Status> {
    use Operation::{CreateSnapshot, CreateVolume, Delete};
    let (code, _) = grpc(error.code(operation));
    if code == tonic::Code::Ok {
        return Ok(());
    }
    let message = message(error);
    Err(match operation {
        CreateVolume | CreateSnapshot | Delete => {
            Status::new(code, format!("node {node}: {message}"))
        }
        _ => Status::new(code, message),
    })
}

/// The message of an error, for the status and the log.
pub(super) fn message(error: &Error) -> String {
    let mut text = error.to_string();
    if text.len() > MAX_MESSAGE_BYTES {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
        text.push('…');
    }
    text
}

/// The gRPC code, and its name in the specification, for logs and metrics.
pub(super) fn grpc(code: Code) -> (tonic::Code, &'static str) {
    match code {
        Code::Ok => (tonic::Code::Ok, "OK"),
        Code::InvalidArgument => (tonic::Code::InvalidArgument, "INVALID_ARGUMENT"),
        Code::OutOfRange => (tonic::Code::OutOfRange, "OUT_OF_RANGE"),
        Code::AlreadyExists => (tonic::Code::AlreadyExists, "ALREADY_EXISTS"),
        Code::NotFound => (tonic::Code::NotFound, "NOT_FOUND"),
        Code::ResourceExhausted => (tonic::Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
        Code::FailedPrecondition => (tonic::Code::FailedPrecondition, "FAILED_PRECONDITION"),
        Code::Unavailable => (tonic::Code::Unavailable, "UNAVAILABLE"),
        Code::Aborted => (tonic::Code::Aborted, "ABORTED"),
        Code::Internal => (tonic::Code::Internal, "INTERNAL"),
    }
}

#[cfg(test)]
mod tests;
