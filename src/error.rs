//! The one error of the domain, and the gRPC code each variant has for each operation.
//!
//! A code is chosen by what the stock sidecars and the kubelet do with it, which differs from
//! call to call: `docs/semantics.md` holds the table, [`Error::code`] is the only place it is
//! written in code. The match is exhaustive, so a new variant does not compile without a choice.

use std::error::Error as _;
use std::path::PathBuf;

use crate::filesystem::Filesystem;
use crate::mount;
use crate::pool::{self, Unavailable};
use crate::types::{Invalid, PoolId, PoolName};

/// The result of a domain function.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was being done when an error occurred; the columns of the code table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `CreateVolume`.
    CreateVolume,
    /// `CreateSnapshot`.
    CreateSnapshot,
    /// `DeleteVolume` and `DeleteSnapshot`.
    Delete,
    /// `NodeExpandVolume`.
    Expand,
    /// The other calls about one volume: node calls, validation, get.
    Volume,
    /// Calls about no volume in particular: lists, capacity.
    Query,
}

/// The gRPC status codes the driver uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Not an error for this operation: what was asked for is already so.
    Ok,
    /// The request can never succeed as it is.
    InvalidArgument,
    /// The size cannot be had.
    OutOfRange,
    /// Something else has the name or the place.
    AlreadyExists,
    /// There is no such thing.
    NotFound,
    /// This node cannot: the scheduler is to choose again.
    ResourceExhausted,
    /// The state must change first, by somebody else's hand.
    FailedPrecondition,
    /// Try again here, later.
    Unavailable,
    /// Try again here, soon: the same thing is being worked on.
    Aborted,
    /// A defect of the driver.
    Internal,
}

/// Everything that can go wrong, each message naming the thing, the number and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request or setting that is malformed, unknown or unsupported.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A pool could not do its part.
    #[error("{}", in_context(.error, *.object))]
    Pool {
        /// The failure.
        error: pool::Error,
        /// The object of the call.
        object: Object,
    },
    /// A mount could not be made, removed or examined.
    #[error(transparent)]
    Mount(mount::Error),
    /// A capacity range no volume can satisfy, or one below the source's size.
    #[error("{0}")]
    OutOfRange(String),
    /// The name or target is taken by something that does not match the request.
    #[error("{what} exists already and differs: {difference}")]
    Incompatible {
        /// The volume or target.
        what: String,
        /// The first difference found.
        difference: String,
    },
    /// The id exists nowhere, or is not an id of this driver.
    #[error("{what} {id:?} does not exist")]
    NotFound {
        /// What it would be the id of.
        what: &'static str,
        /// The id as it was received.
        id: String,
    },
    /// The volume is not published at the path asked about.
    #[error("volume {id} is not published at {path:?}")]
    NotPublishedThere {
        /// The volume.
        id: String,
        /// The path.
        path: PathBuf,
    },
    /// The id names a pool that is not configured on this node.
    #[error("pool {pool} is not on this node now; mount it, or `rootcellar pool retire {pool}`")]
    PoolNotHere {
        /// The pool named by the id.
        pool: PoolId,
    },
    /// What is to be copied is in a pool that is not configured on this node.
    #[error(
        "{id} is in pool {pool}, which is not on this node; a copy is made on the node of its \
         source, so the pod must be steered there"
    )]
    SourceElsewhere {
        /// The id of what is to be copied.
        id: String,
        /// The pool named by its id.
        pool: PoolId,
    },
    /// The size of a volume is being enforced, or was when the driver ended.
    #[error(
        "the size of volume {id} is not enforced throughout yet, and renames in it would fail; run \
         `rootcellar volume enforce {id}` to its end"
    )]
    HalfEnforced {
        /// The volume.
        id: String,
    },
    /// The topology asked for does not include this node.
    #[error("this node is {here}, which the requested topology excludes")]
    TopologyExcludesNode {
        /// This node's segment, `key=value`.
        here: String,
    },
    /// The class asks for a pool this node does not have.
    #[error("{0}")]
    PoolAbsent(String),
    /// The pool cannot hold sizes by force, and the class requires it.
    #[error("pool {pool} cannot enforce sizes, and the class has enforcement=required")]
    CannotEnforce {
        /// The pool.
        pool: PoolName,
    },
    /// The class asks for another filesystem than the pool has.
    #[error("pool {pool} is on {has}, and the class asks for fs_type {wants:?}")]
    OtherFilesystem {
        /// The pool.
        pool: PoolName,
        /// The pool's filesystem.
        has: Filesystem,
        /// What was asked for.
        wants: String,
    },
    /// The volume is published.
    #[error("volume {id} is published at {target:?}; unpublish it first")]
    Published {
        /// The volume.
        id: String,
        /// Where.
        target: PathBuf,
    },
    /// The target was unpublished while the volume was being published there.
    #[error("{target:?} was unpublished before the volume was mounted there; publish it again")]
    Unpublished {
        /// The target.
        target: PathBuf,
    },
    /// The same name or id is being worked on.
    #[error("{0} is being worked on; try again")]
    Busy(String),
    /// A page token that this driver did not give.
    #[error("starting_token {0:?} is not one of ours; list again from the beginning")]
    BadToken(String),
    /// The driver is starting.
    #[error("the driver is loading its records; try again")]
    Loading,
    /// Another server serves every pool.
    #[error("another server holds the lock of every pool; stop it first")]
    AllLocked,
    /// A file or directory of the driver itself, outside every pool, could not be worked on.
    #[error("cannot {what} {path:?}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A defect of the driver.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The object of a call that a pool failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// One that does not exist yet, which another node could make as well.
    New,
    /// One that exists, or a copy of one: only this node has it.
    Existing,
}

/// The message of a pool's failure for an object.
fn in_context(error: &pool::Error, object: Object) -> String {
    match (error, object) {
        (pool::Error::Unavailable { pool, reason }, Object::New) if may_hold(reason) => format!(
            "pool {pool} may hold the volume, and its records cannot be read yet: {reason}; try again"
        ),
        (pool::Error::Unavailable { pool, reason }, Object::Existing)
        | (pool::Error::CommittedUnsynced { pool, reason }, _) => {
            format!("pool {pool}, which holds the volume, is unavailable: {reason}")
        }
        _ => error.to_string(),
    }
}

/// Whether a volume whose creation was not answered may be in a pool that is unavailable for this
/// reason: then no other node may make it.
fn may_hold(reason: &Unavailable) -> bool {
    matches!(reason, Unavailable::Opening | Unavailable::Locked)
}

/// Most calls are about an object that exists.
impl From<pool::Error> for Error {
    fn from(error: pool::Error) -> Self {
        Self::of(error, Object::Existing)
    }
}

impl From<mount::Error> for Error {
    fn from(error: mount::Error) -> Self {
        match error {
            mount::Error::Invalid(invalid) => Self::Invalid(invalid),
            error => Self::Mount(error),
        }
    }
}

impl Error {
    /// An [`Error::Invalid`] for the field.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid(Invalid::new(field, problem))
    }

    /// The failure of a pool for an object that does not exist yet.
    pub(crate) fn of_new(error: pool::Error) -> Self {
        Self::of(error, Object::New)
    }

    fn of(error: pool::Error, object: Object) -> Self {
        match error {
            pool::Error::Invalid(invalid) => Self::Invalid(invalid),
            error => Self::Pool { error, object },
        }
    }

    /// The gRPC code of the error in an operation.
    pub fn code(&self, operation: Operation) -> Code {
        use Operation::{CreateSnapshot, CreateVolume, Delete, Expand, Query, Volume};
        match self {
            Self::Invalid(_) | Self::Mount(mount::Error::Invalid(_)) => Code::InvalidArgument,
            Self::Pool { error, object } => pool_code(error, *object, operation),
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::Incompatible { .. } => Code::AlreadyExists,
            Self::NotFound { .. } => match operation {
                // Absent is what a delete is for.
                Delete => Code::Ok,
                CreateVolume | CreateSnapshot | Expand | Volume | Query => Code::NotFound,
            },
            Self::NotPublishedThere { .. } => Code::NotFound,
            Self::PoolNotHere { .. } => match operation {
                // OK would drop the object and leak the data.
                Delete => Code::FailedPrecondition,
                CreateVolume | CreateSnapshot | Expand | Volume | Query => Code::NotFound,
            },
            Self::SourceElsewhere { .. } => match operation {
                // Another node holds it.
                CreateVolume => Code::ResourceExhausted,
                CreateSnapshot | Delete => Code::FailedPrecondition,
                Expand | Volume | Query => Code::NotFound,
            },
            Self::TopologyExcludesNode { .. } => match operation {
                CreateVolume => Code::ResourceExhausted,
                CreateSnapshot => Code::FailedPrecondition,
                Delete | Expand | Volume | Query => Code::Unavailable,
            },
            Self::PoolAbsent(_) | Self::CannotEnforce { .. } | Self::OtherFilesystem { .. } => {
                match operation {
                    // The one code that gives the pod back to the scheduler.
                    CreateVolume => Code::ResourceExhausted,
                    CreateSnapshot | Delete | Expand | Volume | Query => Code::Unavailable,
                }
            }
            // Not final to the kubelet, which keeps calling and cleans up.
            Self::Loading | Self::Mount(mount::Error::Target { .. }) | Self::Io { .. } => {
                Code::Unavailable
            }
            Self::Published { .. } | Self::HalfEnforced { .. } | Self::AllLocked => {
                Code::FailedPrecondition
            }
            Self::Busy(_) | Self::Unpublished { .. } | Self::BadToken(_) => Code::Aborted,
            Self::Internal(_) | Self::Mount(mount::Error::Internal(_)) => Code::Internal,
        }
    }

    /// The message with every source behind it.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        text
    }
}

/// The gRPC code of a pool's failure.
fn pool_code(error: &pool::Error, object: Object, operation: Operation) -> Code {
    use Operation::{CreateSnapshot, CreateVolume, Delete, Expand, Query, Volume};
    match error {
        pool::Error::Invalid(_) => Code::InvalidArgument,
        pool::Error::OutOfRange(_) => Code::OutOfRange,
        // The one code that gives the pod back to the scheduler. Another node would create a second
        // volume while the first is in an unavailable pool.
        pool::Error::Unavailable { reason, .. }
            if object == Object::New && operation == CreateVolume && !may_hold(reason) =>
        {
            Code::ResourceExhausted
        }
        pool::Error::NoSpace { .. } | pool::Error::DiskFull { .. } => match operation {
            // "Infeasible" to the kubelet: the user may shrink the claim.
            Expand => Code::OutOfRange,
            // RESOURCE_EXHAUSTED is not final to the snapshotter: the object could not be deleted.
            CreateSnapshot => Code::FailedPrecondition,
            CreateVolume | Delete | Volume | Query => Code::ResourceExhausted,
        },
        pool::Error::Unavailable { .. }
        | pool::Error::CommittedUnsynced { .. }
        | pool::Error::Crowded { .. }
        | pool::Error::Retry { .. }
        | pool::Error::Stopped(_)
        | pool::Error::Io { .. } => Code::Unavailable,
        pool::Error::CannotCopy(_)
        | pool::Error::NotEnforceable(_)
        | pool::Error::Quarantined { .. }
        | pool::Error::NotGone { .. }
        | pool::Error::Refused { .. }
        | pool::Error::NotAdopted { .. } => Code::FailedPrecondition,
        pool::Error::Busy(_) => Code::Aborted,
    }
}
