mod troubleshooting;

use std::io;
use std::path::PathBuf;

use linux::fault::{Fault, PathFault};
use linux::image::FormatFault;
use linux::mount::Error as MountError;
use objects::{AccessMode, Bytes, ObjectId, PoolId, PoolName, VolumeId, VolumeName};

use super::*;
use crate::error::Code::{
    Aborted as Abort, AlreadyExists as Exists, FailedPrecondition as Precon, Internal as Intern,
    InvalidArgument as Invalid, NotFound as Absent, Ok as Fine, OutOfRange as Range,
    ResourceExhausted as Exhaust, Unavailable as Unavail,
};
use crate::error::{Difference, Existing, Object, OutOfRange, Refusal, Unfinished, Unsuitable};
use pool::{Busy, Error as PoolError, Source, Stopped, Unavailable};

const OPERATIONS: [Operation; 6] = [
    Operation::CreateVolume,
    Operation::CreateSnapshot,
    Operation::Delete,
    Operation::Expand,
    Operation::Volume,
    Operation::Query,
];

fn node() -> NodeName {
    "n1".parse().unwrap()
}

/// Turns the table into samples and a `row` whose match is exhaustive: a variant without a line
/// does not compile.
macro_rules! table {
    ($($pattern:pat, $sample:expr => [$($code:expr),*];)*) => {
        fn row(error: &Error) -> (&'static str, [Code; 6]) {
            match error {
                $($pattern => (stringify!($pattern), [$($code),*]),)*
            }
        }

        fn samples() -> Vec<(&'static str, Error)> {
            vec![$((stringify!($pattern), $sample)),*]
        }
    };
}

/// A failure of a pool, for an object that exists unless the pattern says that it is new.
macro_rules! pool_error {
    ($pattern:pat) => {
        Error::Pool {
            error: $pattern,
            ..
        }
    };
    (new $pattern:pat) => {
        Error::Pool {
            error: $pattern,
            object: Object::New,
        }
    };
}

#[rustfmt::skip]
table! {
    // Variant, sample                                          CreateVolume CreateSnapshot Delete Expand Volume Query
    Error::Invalid(_), Error::invalid("parameter \"x\"", "unknown")
                                                             => [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid];
    pool_error!(PoolError::Invalid(_)), existing(objects::Invalid::new("PATH", "bad").into())
                                                             => [Invalid, Invalid, Invalid, Invalid, Invalid, Invalid];
    Error::OutOfRange(_), Error::OutOfRange(out_of_range())         => [Range,   Range,   Range,   Range,   Range,   Range];
    pool_error!(PoolError::OutOfRange(_)), existing(too_small().into())
                                                             => [Range,   Range,   Range,   Range,   Range,   Range];
    Error::Incompatible { .. }, incompatible()               => [Exists,  Exists,  Exists,  Exists,  Exists,  Exists];
    Error::NotFound { .. }, Error::NotFound { what: "volume", id: text() }
                                                             => [Absent,  Absent,  Fine,    Absent,  Absent,  Absent];
    Error::EndedEarly { .. }, ended_early()                  => [Absent,  Absent,  Absent,  Absent,  Absent,  Absent];
    Error::NotPublishedThere { .. }, not_published()         => [Absent,  Absent,  Absent,  Absent,  Absent,  Absent];
    Error::PoolNotHere { .. }, Error::PoolNotHere { pool: id() }
                                                             => [Absent,  Absent,  Precon,  Absent,  Absent,  Absent];
    Error::SourceElsewhere { .. }, Error::SourceElsewhere { id: text(), pool: id() }
                                                             => [Exhaust, Precon,  Precon,  Absent,  Absent,  Absent];
    Error::MoveUnfinished { .. }, Error::MoveUnfinished { id: text(), pool: pool(), other: id() }
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    Error::Unfinished(_), Error::Unfinished(lost())  => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::Precondition(_)), existing(pool_refusal().into())
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    pool_error!(PoolError::Stopped(_)), existing(PoolError::Stopped(Stopped::Measuring))
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    Error::Unsuitable(_), Error::Unsuitable(unsuitable())         => [Exhaust, Precon,  Unavail, Unavail, Unavail, Unavail];
    pool_error!(new PoolError::Unavailable { reason: Unavailable::Opening | Unavailable::Locked, .. }),
    Error::of_new(unavailable(Unavailable::Opening))            => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(new PoolError::Unavailable { .. }), Error::of_new(unavailable(Unavailable::Absent))
                                                             => [Exhaust, Unavail, Unavail, Unavail, Unavail, Unavail];
    Error::Pool { error: PoolError::Unavailable { .. }, object: Object::Unread },
    Error::of_unread(unavailable(Unavailable::NotMounted))      => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::Unavailable { .. }), existing(unavailable(Unavailable::ReadOnly))
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::CommittedUnsynced { .. }),
    Error::of_new(PoolError::CommittedUnsynced { pool: pool(), reason: Unavailable::ReadOnly })
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::Crowded { .. }), existing(PoolError::Crowded { pool: pool(), calls: 128 })
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::FreeingSpace { .. }), Error::of_new(PoolError::FreeingSpace { pool: pool() })
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::NoSpace { .. }), Error::of_new(no_space())
                                                             => [Exhaust, Precon,  Exhaust, Range,   Exhaust, Exhaust];
    pool_error!(PoolError::NoEmptyDisk { .. }), Error::of_new(PoolError::NoEmptyDisk { pool: pool(), least: Bytes(1) })
                                                             => [Exhaust, Precon,  Exhaust, Range,   Exhaust, Exhaust];
    pool_error!(PoolError::DiskFull { .. }), Error::of_new(PoolError::DiskFull { pool: pool(), what: "write" })
                                                             => [Exhaust, Precon,  Exhaust, Range,   Exhaust, Exhaust];
    pool_error!(PoolError::NotFormatted { .. }), not_formatted()
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::Retry { .. }), Error::of_new(PoolError::Retry { pool: pool(), fault: fault() })
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    Error::Precondition(_), Error::Precondition(refusal())
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Error::Busy(_), Error::Busy(busy())                      => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    pool_error!(PoolError::Busy(_)), existing(PoolError::Busy(busy()))
                                                             => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    Error::Unpublished { .. }, Error::Unpublished { target: path() }
                                                             => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    pool_error!(PoolError::Quarantined { .. }), existing(PoolError::Quarantined { path: path(), reason: text() })
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Error::BadToken { .. }, Error::BadToken { token: text() }              => [Abort,   Abort,   Abort,   Abort,   Abort,   Abort];
    Error::Loading, Error::Loading                           => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    Error::Lists(_), Error::Lists(32)                        => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::Refused { .. }), existing(PoolError::Refused { path: path(), reason: Unavailable::Locked })
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    pool_error!(PoolError::NotAdopted { .. }), existing(PoolError::NotAdopted { path: path(), reason: Unavailable::Locked })
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    pool_error!(PoolError::NotGone { .. }), existing(PoolError::NotGone { pool: id(), path: path() })
                                                             => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Error::Io(_), Error::Io(path_fault())
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    pool_error!(PoolError::Io(_)), existing(PoolError::Io(path_fault()))
                                                             => [Unavail, Unavail, Unavail, Unavail, Unavail, Unavail];
    Error::AllLocked, Error::AllLocked                       => [Precon,  Precon,  Precon,  Precon,  Precon,  Precon];
    Error::Internal(_), Error::Internal(text())              => [Intern,  Intern,  Intern,  Intern,  Intern,  Intern];
}

fn existing(error: PoolError) -> Error {
    Error::Pool {
        error,
        object: Object::Existing,
    }
}

fn unavailable(reason: Unavailable) -> PoolError {
    let pool = pool();
    PoolError::Unavailable { pool, reason }
}

fn fault() -> Fault {
    Fault::new("chown", rustix::io::Errno::INVAL)
}

fn path_fault() -> PathFault {
    PathFault {
        what: "unmount",
        path: path(),
        source: eio(),
    }
}

fn busy() -> Busy {
    Busy::Locked(text())
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

fn not_formatted() -> Error {
    let (pool, fault) = (pool(), format_fault());
    existing(PoolError::NotFormatted { pool, fault })
}

fn format_fault() -> FormatFault {
    FormatFault::Failed {
        program: "mke2fs",
        message: text(),
    }
}

fn pool() -> PoolName {
    "fast".parse().unwrap()
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn incompatible() -> Error {
    Error::Incompatible {
        what: Existing::Target(path()),
        difference: Difference::NoCopy,
    }
}

fn ended_early() -> Error {
    Error::EndedEarly {
        what: "volume",
        id: text(),
        ago: std::time::Duration::from_mins(5),
        cause: pool::EndCause::Demand,
    }
}

fn not_published() -> Error {
    Error::NotPublishedThere {
        id: text(),
        path: path(),
    }
}

fn volume() -> VolumeId {
    VolumeId::new(id(), &"pvc-1".parse().unwrap())
}

fn refusal() -> Refusal {
    Refusal::Enforcing { id: volume() }
}

fn unsuitable() -> Unsuitable {
    Unsuitable::Cordoned { pool: pool() }
}

fn out_of_range() -> OutOfRange {
    OutOfRange::WholeDisk {
        id: volume(),
        size: Bytes(1),
    }
}

fn lost() -> Unfinished {
    Unfinished::Lost { why: text() }
}

fn pool_refusal() -> pool::Refusal {
    pool::Refusal::NoSize { id: volume() }
}

fn too_small() -> pool::OutOfRange {
    pool::OutOfRange::Limit {
        of: Source::Volume(volume()),
        limit: Bytes(1),
        unshared: false,
    }
}

fn no_space() -> PoolError {
    PoolError::NoSpace {
        pool: pool(),
        size: Bytes(2),
        available: Bytes(1),
    }
}

/// Proves: E1.
#[test]
fn every_error_has_the_code_of_the_table_for_every_operation() {
    for (line, error) in samples() {
        let (variant, codes) = row(&error);
        assert_eq!(
            variant, line,
            "the sample of the line is of another variant"
        );
        for (operation, code) in OPERATIONS.into_iter().zip(codes) {
            let got =
                status(&error, operation, &node()).map_or_else(|s| s.code(), |()| tonic::Code::Ok);
            assert_eq!(error.code(operation), code, "{variant} in {operation:?}");
            assert_eq!(got, grpc(code).0, "{variant} in {operation:?}");
        }
    }
}

/// Proves: E1.
#[test]
fn a_status_has_a_message_and_no_details() {
    for (variant, error) in samples() {
        let Err(status) = status(&error, Operation::Volume, &node()) else {
            panic!("{variant} is no failure of a call about a volume")
        };
        assert_eq!(status.message(), error.to_string(), "{variant}");
        assert!(!status.message().is_empty(), "{variant}");
        assert!(status.details().is_empty(), "{variant}");
    }
}

/// Proves: E2.
#[test]
fn a_message_about_an_object_without_a_node_names_the_node() {
    for (variant, error) in samples() {
        for operation in OPERATIONS {
            let Err(status) = status(&error, operation, &node()) else {
                continue;
            };
            let names = !matches!(
                operation,
                Operation::Expand | Operation::Volume | Operation::Query
            );
            let message = if names {
                format!("node n1: {error}")
            } else {
                error.to_string()
            };
            assert_eq!(status.message(), message, "{variant} in {operation:?}");
        }
    }
}

/// Proves: E1.
#[test]
fn a_message_holds_its_source() {
    let error = Error::from(MountError::Io(path_fault()));
    let message = status(&error, Operation::Volume, &node())
        .unwrap_err()
        .message()
        .to_owned();
    assert_eq!(
        message,
        "cannot unmount \"/some/where\": Input/output error (os error 5)"
    );
}

#[test]
fn a_message_has_names_and_modes_as_people_write_them() {
    let (has, asked) = (
        AccessMode::SingleNodeWriter,
        AccessMode::MultiNodeReaderOnly,
    );
    let name: VolumeName = "pvc".parse().unwrap();
    let awaited = Refusal::NoImport { pool: pool(), name };
    let cases = [
        (
            Error::from(awaited).to_string(),
            "to become volume \"pvc\";",
        ),
        (
            Difference::Mode { has, asked }.to_string(),
            "it is used as SINGLE_NODE_WRITER, not as MULTI_NODE_READER_ONLY; delete the pod that has it first",
        ),
    ];
    for (message, part) in cases {
        assert!(message.contains(part), "{message}");
    }
}

/// Proves: E1.
#[test]
fn a_message_of_any_length_fits_into_a_header() {
    for id in [
        "x".repeat(1 << 20),
        "🗄".repeat(1 << 20),
        "\0".repeat(1 << 20),
    ] {
        let error = Error::NotFound { what: "volume", id };
        let status = status(&error, Operation::Volume, &node()).unwrap_err();
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
        let (code, name) = grpc(code);
        assert_eq!(squashed(name), squashed(&format!("{code:?}")));
    }
}
