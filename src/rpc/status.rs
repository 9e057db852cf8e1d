//! From the domain's errors to gRPC statuses.

use tonic::Status;

use crate::error::{Code, Error, Operation};

/// A status travels in a header, and an error may quote what a client sent; clients commonly
/// accept 16 KiB of headers, and percent-encoding may treble the length.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// The status of an error in an operation; nothing where the error is a success.
pub(super) fn status(error: &Error, operation: Operation) -> Result<(), Status> {
    match error.code(operation) {
        Code::Ok => Ok(()),
        code => Err(Status::new(grpc(code), message(error))),
    }
}

/// What there is to say of an error: in the status, and in the log.
pub(super) fn message(error: &Error) -> String {
    let mut text = error.chain();
    if text.len() > MAX_MESSAGE_BYTES {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
        text.push('…');
    }
    text
}

/// The name of a code as the specification writes it, for logs and metrics.
pub(super) fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::NotFound => "NOT_FOUND",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Unavailable => "UNAVAILABLE",
        Code::Aborted => "ABORTED",
        Code::Internal => "INTERNAL",
    }
}

fn grpc(code: Code) -> tonic::Code {
    match code {
        Code::Ok => tonic::Code::Ok,
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::OutOfRange => tonic::Code::OutOfRange,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::NotFound => tonic::Code::NotFound,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::Aborted => tonic::Code::Aborted,
        Code::Internal => tonic::Code::Internal,
    }
}

#[cfg(test)]
mod tests;
