//! The error of the domain, and the gRPC code of each variant for each operation.
//!
//! A code follows from the reaction of the stock sidecars and the kubelet, which differs from call
//! to call. `docs/semantics.md` has the table, and [`Error::code`] is its only implementation.
//! The match is exhaustive, so a new variant does not compile without a code.

mod host;
mod refusal;

use std::path::PathBuf;
use std::time::Duration;

use linux::fault::PathFault;
use linux::mount;
use objects::{Invalid, PoolId, PoolName};

use pool::{Busy, Unavailable};

pub use host::HostRefusal;
pub use refusal::{Difference, Existing, OutOfRange, Refusal, Unfinished, Unsuitable};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The call that failed: the columns of the code table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    CreateVolume,
    CreateSnapshot,
    /// `DeleteVolume` and `DeleteSnapshot`.
    Delete,
    /// `NodeExpandVolume`.
    Expand,
    /// Other calls with one volume: node calls, validation, get.
    Volume,
    /// Calls without a volume: lists, capacity.
    Query,
}

/// The gRPC status codes that the driver uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Not an error for this operation.
    Ok,
    /// The request can never succeed as it is.
    InvalidArgument,
    /// No volume can have the size.
    OutOfRange,
    /// Another object has the name or the target.
    AlreadyExists,
    /// The object does not exist.
    NotFound,
    /// This node cannot do it, and the scheduler should choose another.
    ResourceExhausted,
    /// Somebody else must change the state first.
    FailedPrecondition,
    /// Try again on this node, later.
    Unavailable,
    /// Try again on this node, soon: another call works on the same object.
    Aborted,
    /// A defect of the driver.
    Internal,
}

/// A failure. The message names the object, the numbers and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request or setting that is malformed, unknown or unsupported.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A pool failed, in a call about this object.
    #[error("{}", in_context(.error, *.object))]
    Pool { error: pool::Error, object: Object },
    /// A capacity range that no volume can satisfy, or one below the source's size.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// An object that does not match the request has the name or target.
    #[error("{what} exists already and differs: {difference}")]
    Incompatible {
        what: Existing,
        difference: Difference,
    },
    /// No object has the id, or it is not an id of this driver.
    #[error(
        "{what} {id:?} does not exist; see `rootcellar volume list` and `rootcellar snapshot list`"
    )]
    NotFound { what: &'static str, id: String },
    /// Its pool kept the deleted object, and deleted it for good before its time was over.
    #[error(
        "{what} {id} was deleted for good {} ago, {}; restore it from a backup",
        objects::rounded(*.ago), .cause
    )]
    EndedEarly {
        what: &'static str,
        id: String,
        ago: Duration,
        cause: pool::EndCause,
    },
    #[error("volume {id} is not published at {path:?}")]
    NotPublishedThere { id: String, path: PathBuf },
    #[error(
        "pool {pool} is not on this node now; mount it, add it to the pools of this node, or, if it is lost for \
         good, run `rootcellar pool retire {pool}`"
    )]
    PoolNotHere { pool: PoolId },
    #[error(
        "{id} is in pool {pool}, which is not on this node; a copy is made on the node of its \
         source, so the pod must be steered there"
    )]
    SourceElsewhere { id: String, pool: PoolId },
    /// A move of the volume is not finished, and the copy that is here may be older than the other one.
    #[error(
        "volume {id} was being moved between pool {pool} and pool {other}, and the copy in {pool} may be \
         out of date; mount the disk of {other}, or, if it is lost for good, run `rootcellar pool retire \
         {other}`; then `rootcellar volume move {id} --to {pool}` uses the copy"
    )]
    MoveUnfinished {
        id: String,
        pool: PoolName,
        other: PoolId,
    },
    /// Another node may serve the request: the topology excludes this one, or no pool here fits the class.
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
    /// Somebody must act first: the volume is published, or its enforcement is unfinished.
    #[error(transparent)]
    Precondition(#[from] Refusal),
    #[error("{target:?} was unpublished before the volume was mounted there; publish it again")]
    Unpublished { target: PathBuf },
    /// Another call works on the same object, or just did.
    #[error(transparent)]
    Busy(Busy),
    #[error(
        "starting_token {token:?} is not one that this driver gave; list again from the beginning"
    )]
    BadToken { token: String },
    #[error("the driver is loading its records; try again")]
    Loading,
    /// The lists at work, unread ones included, are as many as this limit.
    #[error("the driver answers {0} lists already; try again")]
    Lists(usize),
    /// Nobody knows whether the server has done, or is doing, its part.
    #[error("run the command again to finish it: {0}")]
    Unfinished(#[from] Unfinished),
    #[error("another server holds the lock of every pool; stop it first")]
    AllLocked,
    /// A step on a mount, or on a file of the driver outside every pool, failed.
    #[error(transparent)]
    Io(#[from] PathFault),
    /// A defect of the driver.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The object of the call in which a pool failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// An object that does not exist yet. Another node could create it as well.
    New,
    /// An object that may exist in the pool, whose records were not read yet.
    Unread,
    /// An object that exists, or a copy of one. Only this node has it.
    Existing,
}

/// The message of a pool's failure for an object.
fn in_context(error: &pool::Error, object: Object) -> String {
    match (error, object) {
        (pool::Error::Unavailable { pool, reason }, object)
            if object == Object::Unread || object == Object::New && is_unread(reason) =>
        {
            format!(
                "pool {pool} may hold the volume, and its records cannot be read yet: {reason}; try \
                 again"
            )
        }
        (pool::Error::Unavailable { pool, reason }, Object::Existing)
        | (pool::Error::CommittedUnsynced { pool, reason }, _) => {
            format!("pool {pool}, which holds the volume, is unavailable: {reason}")
        }
        _ => error.to_string(),
    }
}

/// Whether the records of an unavailable pool exist but were not read. A volume whose creation was
/// not answered may be among them, and then no other node may create it.
fn is_unread(reason: &Unavailable) -> bool {
    matches!(reason, Unavailable::Opening | Unavailable::Locked)
}

/// For calls with an existing object, which most are.
impl From<pool::Error> for Error {
    fn from(error: pool::Error) -> Self {
        Self::of(error, Object::Existing)
    }
}

impl From<mount::Error> for Error {
    fn from(error: mount::Error) -> Self {
        match error {
            mount::Error::Invalid(invalid) => Self::Invalid(invalid),
            mount::Error::Io(fault) => Self::Io(fault),
            error @ (mount::Error::InUse { .. } | mount::Error::Unsafe { .. }) => {
                Refusal::Mount(error).into()
            }
            mount::Error::Internal(problem) => Self::Internal(problem),
        }
    }
}

impl From<HostRefusal> for Error {
    fn from(refusal: HostRefusal) -> Self {
        Self::Precondition(refusal.into())
    }
}

impl Error {
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid(Invalid::new(field, problem))
    }

    /// The failure of a pool for an object that does not exist yet.
    pub(crate) fn of_new(error: pool::Error) -> Self {
        Self::of(error, Object::New)
    }

    /// The error of a command that may have done its work, or a part of it.
    pub(crate) fn unfinished(self) -> Self {
        match self {
            Self::Unfinished(_) => self,
            error => Unfinished::Failed(error.into()).into(),
        }
    }

    /// The failure of a pool that was not read yet and may have the object.
    pub(crate) fn of_unread(error: pool::Error) -> Self {
        Self::of(error, Object::Unread)
    }

    fn of(error: pool::Error, object: Object) -> Self {
        match error {
            pool::Error::Invalid(invalid) => Self::Invalid(invalid),
            error => Self::Pool { error, object },
        }
    }

    pub fn code(&self, operation: Operation) -> Code {
        use Operation::{CreateSnapshot, CreateVolume, Delete};
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::Pool { error, object } => pool_code(error, *object, operation),
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::Incompatible { .. } => Code::AlreadyExists,
            // A deletion has then nothing left to do.
            Self::NotFound { .. } if operation == Delete => Code::Ok,
            // OK would drop the object and leak the data.
            Self::PoolNotHere { .. } if operation == Delete => Code::FailedPrecondition,
            Self::NotFound { .. }
            | Self::EndedEarly { .. }
            | Self::NotPublishedThere { .. }
            | Self::PoolNotHere { .. } => Code::NotFound,
            Self::SourceElsewhere { .. } => match operation {
                CreateVolume => Code::ResourceExhausted,
                CreateSnapshot | Delete => Code::FailedPrecondition,
                _ => Code::NotFound,
            },
            Self::Unsuitable(_) => match operation {
                // The one code that gives the pod back to the scheduler.
                CreateVolume => Code::ResourceExhausted,
                CreateSnapshot => Code::FailedPrecondition,
                _ => Code::Unavailable,
            },
            // Not final to the kubelet, which keeps calling and cleans up.
            Self::Loading
            | Self::Lists(_)
            | Self::Io(_)
            | Self::MoveUnfinished { .. }
            | Self::Unfinished(_) => Code::Unavailable,
            Self::Precondition(_) | Self::AllLocked => Code::FailedPrecondition,
            Self::Busy(_) | Self::Unpublished { .. } | Self::BadToken { .. } => Code::Aborted,
            Self::Internal(_) => Code::Internal,
        }
    }
}

/// The gRPC code of a pool's failure.
fn pool_code(error: &pool::Error, object: Object, operation: Operation) -> Code {
    match error {
        pool::Error::Invalid(_) => Code::InvalidArgument,
        pool::Error::OutOfRange(_) => Code::OutOfRange,
        // The one code that gives the pod back to the scheduler. While the records are unread,
        // another node could create a second volume.
        pool::Error::Unavailable { reason, .. }
            if object == Object::New
                && operation == Operation::CreateVolume
                && !is_unread(reason) =>
        {
            Code::ResourceExhausted
        }
        pool::Error::NoSpace { .. }
        | pool::Error::NoEmptyDisk { .. }
        | pool::Error::DiskFull { .. } => match operation {
            // "Infeasible" to the kubelet: the user may shrink the claim.
            Operation::Expand => Code::OutOfRange,
            // RESOURCE_EXHAUSTED is not final to the snapshotter: the object could not be deleted.
            Operation::CreateSnapshot => Code::FailedPrecondition,
            _ => Code::ResourceExhausted,
        },
        pool::Error::Unavailable { .. }
        | pool::Error::CommittedUnsynced { .. }
        | pool::Error::Crowded { .. }
        | pool::Error::FreeingSpace { .. }
        | pool::Error::Retry { .. }
        | pool::Error::NotFormatted { .. }
        | pool::Error::Stopped(_)
        | pool::Error::Io(_) => Code::Unavailable,
        pool::Error::Precondition(_)
        | pool::Error::Quarantined { .. }
        | pool::Error::NotGone { .. }
        | pool::Error::Refused { .. }
        | pool::Error::NotAdopted { .. } => Code::FailedPrecondition,
        pool::Error::Busy(_) => Code::Aborted,
    }
}
