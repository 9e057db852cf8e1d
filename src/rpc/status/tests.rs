use std::io;
use std::path::PathBuf;

use super::*;
use crate::error::Code::{
    Aborted as Abort, AlreadyExists as Exists, FailedPrecondition as Precon, Internal as Intern,
    InvalidArgument as Invalid, NotFound as Absent, Ok as Fine, OutOfRange as Range,
    ResourceExhausted as Exhaust, Unavailable as Unavail,
};
use crate::fault::Fault;
use crate::pool::Sickness;
use crate::types::{Bytes, PoolId, PoolName};

const OPERATIONS: [Operation; 6] = [
    Operation::CreateVolume,
    Operation::CreateSnapshot,
    Operation::Delete,
    Operation::Expand,
    Operation::Volume,
    Operation::Query,
];

/// Makes of the table the samples, and a `row` whose match is exhaustive: a variant of [`Error`]
/// without a line does not compile.
macro_rules! table {
    ($($pattern:ident $fields:tt, $sample:expr => [$($code:expr),*];)*) => {
        fn row(error: &Error) -> (&'static str, [Code; 6]) {
            match error {
                $(table!(@pattern $pattern $fields) => (stringify!($pattern), [$($code),*]),)*
            }
        }

        fn samples() -> Vec<(&'static str, Error)> {
            vec![$((stringify!($pattern), $sample)),*]
        }
    };
    (@pattern $name:ident {}) => { Error::$name { .. } };
}

#[rustfmt::skip]
table! {
    // Variant, sample                                          CreateVolume CreateSnapshot Delete Expand Volume Query
    Invalid {}, Error::invalid("parameter \"x\"", "unknown") => [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid];
    OutOfRange {}, Error::OutOfRange(text())                 => [Range,   Range,   Range,   Range,   Range,   Range];
    Incompatible {}, incompatible()                          => [Exists,  Exists,  Exists,  Exists,  Exists,  Exists];
    NotFound {}, Error::NotFound { what: "volume", id: text() } => [Absent,  Absent,  Fine,    Absent,  Absent,  Absent];
    NotPublishedThere {}, not_published()                    => [Absent,  Absent,  Absent,  Absent,  Absent,  Absent];
    PoolNotHere {}, Error::PoolNotHere { pool: id() }        => [Absent,  Absent,  Precon,  Absent,  Absent,  Absent];
    SourceElsewhere {}, Error::SourceElsewhere { id: text(), pool: id() }
                                                             => [Exhaust, Precon,  Precon,  Absent,  Absent,  Absent];
    CannotCopy {}, Error::CannotCopy(text())                 => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    NotEnforceable {}, Error::NotEnforceable(text())         => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    HalfEnforced {}, Error::HalfEnforced { id: text() }      => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Stopped {}, Error::Stopped(text())                       => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    TopologyExcludesNode {}, excluded()                      => [Exhaust, Precon,  Unavail, Unavail, Unavail, Unavail];
    PoolAbsent {}, Error::PoolAbsent(text())                 => [Exhaust, Unavail, Unavail, Unavail, Unavail, Unavail];
    PoolUnread {}, Error::PoolUnread { pool: pool(), reason: Sickness::Opening }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    PoolSick {}, Error::PoolSick { pool: pool(), reason: Sickness::Absent }
                                                             => [Exhaust, Unavail, Unavail, Unavail, Unavail, Unavail];
    HomeSick {}, Error::HomeSick { pool: pool(), reason: Sickness::ReadOnly }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    PoolCrowded {}, Error::PoolCrowded { pool: pool(), calls: 128 }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    NoRoom {}, no_room()                                     => [Exhaust, Precon,  Exhaust, Range,   Exhaust, Exhaust];
    DiskFull {}, Error::DiskFull { pool: pool(), what: "write" }
                                                             => [Exhaust, Precon,  Exhaust, Range,   Exhaust, Exhaust];
    Failed {}, Error::Failed { pool: pool(), fault: Fault::new("chown", rustix::io::Errno::INVAL) }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    CannotEnforce {}, Error::CannotEnforce { pool: pool() }  => [Exhaust, Unavail, Unavail, Unavail, Unavail, Unavail];
    OtherFilesystem {}, other_filesystem()                   => [Exhaust, Unavail, Unavail, Unavail, Unavail, Unavail];
    Published {}, Error::Published { id: text(), target: path() }
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Busy {}, Error::Busy(text())                             => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    Unpublished {}, Error::Unpublished { target: path() }    => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    Quarantined {}, Error::Quarantined { path: path(), reason: text() }
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    BadToken {}, Error::BadToken(text())                     => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    Loading {}, Error::Loading                               => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    Target {}, Error::Target { what: "cannot unmount", path: path(), source: eio() }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    PoolRefused {}, Error::PoolRefused { path: path(), reason: Sickness::Locked }
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    NotAdopted {}, Error::NotAdopted { path: path(), reason: Sickness::Locked }
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    PoolHere {}, Error::PoolHere { pool: id(), path: path() }
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Io {}, Error::Io { what: "read", path: path(), source: eio() }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    AllLocked {}, Error::AllLocked                           => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Internal {}, Error::Internal(text())                     => [Intern,  Intern,  Intern,  Intern,  Intern,  Intern];
}

fn text() -> String {
    "what it is about".into()
}

fn path() -> PathBuf {
    "/some/where".into()
}

fn id() -> PoolId {
    PoolId::random()
}

fn pool() -> PoolName {
    "fast".parse().unwrap()
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn incompatible() -> Error {
    Error::Incompatible {
        what: text(),
        difference: text(),
    }
}

fn not_published() -> Error {
    Error::NotPublishedThere {
        id: text(),
        path: path(),
    }
}

fn excluded() -> Error {
    Error::TopologyExcludesNode {
        here: "key=value".into(),
    }
}

fn no_room() -> Error {
    Error::NoRoom {
        pool: pool(),
        size: Bytes(2),
        available: Bytes(1),
    }
}

fn other_filesystem() -> Error {
    Error::OtherFilesystem {
        pool: pool(),
        has: crate::filesystem::Filesystem::Ext4,
        wants: "xfs".into(),
    }
}

#[test]
fn every_error_has_the_code_of_the_table_for_every_operation() {
    for (line, error) in samples() {
        let (variant, codes) = row(&error);
        assert_eq!(
            variant, line,
            "the sample of the line is of another variant"
        );
        for (operation, code) in OPERATIONS.into_iter().zip(codes) {
            let got = status(&error, operation).map_or_else(|s| s.code(), |()| tonic::Code::Ok);
            assert_eq!(error.code(operation), code, "{variant} in {operation:?}");
            assert_eq!(got, grpc(code), "{variant} in {operation:?}");
        }
    }
}

#[test]
fn a_status_has_a_message_and_no_details() {
    for (variant, error) in samples() {
        let Err(status) = status(&error, Operation::Volume) else {
            panic!("{variant} is no failure of a call about a volume")
        };
        assert_eq!(status.message(), error.chain(), "{variant}");
        assert!(!status.message().is_empty(), "{variant}");
        assert!(status.details().is_empty(), "{variant}");
    }
}

#[test]
fn a_message_holds_the_chain_of_sources() {
    let error = Error::Target {
        what: "cannot unmount",
        path: path(),
        source: eio(),
    };
    let message = status(&error, Operation::Volume)
        .unwrap_err()
        .message()
        .to_owned();
    assert_eq!(
        message,
        "cannot unmount \"/some/where\": Input/output error (os error 5)"
    );
}

#[test]
fn a_message_fits_into_a_header_whatever_the_client_sent() {
    for id in [
        "x".repeat(1 << 20),
        "🗄".repeat(1 << 20),
        "\0".repeat(1 << 20),
    ] {
        let error = Error::NotFound { what: "volume", id };
        let status = status(&error, Operation::Volume).unwrap_err();
        assert!(status.message().len() <= MAX_MESSAGE_BYTES + '…'.len_utf8());
        assert!(status.message().ends_with('…'));
    }
}

#[test]
fn the_names_of_the_codes_are_those_of_grpc() {
    let squashed = |name: &str| name.replace('_', "").to_lowercase();
    for code in [
        Fine, Invalid, Range, Exists, Absent, Exhaust, Precon, Unavail, Abort, Intern,
    ] {
        let expected = format!("{:?}", grpc(code));
        assert_eq!(squashed(name(code)), squashed(&expected));
    }
}
